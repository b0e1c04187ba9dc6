//! A daemon in this process, and a client for it.

use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use reqwest::{Method, RequestBuilder, Response};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::Front;
use crate::auth::Auth;
use crate::kit::Origins;
use sandkeep_broker::{
    Broker, Egress, LocalDirectory, Parts, Policy, SystemClock, telemetry::Telemetry,
};
use sandkeep_core::{Privilege, SandboxId};
use sandkeep_guestlink::journal::JournalLimits;
use sandkeep_home::DataDir;
use sandkeep_image::{
    Contains, Template,
    source::registry::{Registries, Spool},
};
use sandkeep_outgoing::{Outgoing, Roots};
use sandkeep_runtime::{Lifetime, MockRuntime};
use sandkeep_storage::{LocalStorage, StorageError};
use sandkeep_store::MemoryStore;
use sandkeep_tree::{Bind, Root};

pub struct Daemon {
    pub address: SocketAddr,
    http: reqwest::Client,
    stop: DropGuard,
    served: tokio::task::JoinHandle<()>,
    _dir: tempfile::TempDir,
}

/// A template without content: mock sandboxes never read it.
struct Empty;

#[async_trait]
impl Template for Empty {
    fn name(&self) -> &str {
        "host"
    }

    fn binds(&self) -> Arc<[Bind]> {
        Arc::new([])
    }

    fn has_program(&self, _: &str) -> Contains {
        Contains::No
    }

    fn default_privilege(&self) -> Privilege {
        Privilege::None
    }

    async fn lay_out(&self, _root: &Root, _id: &SandboxId) -> Result<(), StorageError> {
        Ok(())
    }
}

pub async fn broker(dir: &tempfile::TempDir) -> Broker {
    let data = DataDir::open(&dir.path().join("data")).expect("a data directory");
    let runtime = Arc::new(MockRuntime::new(data.instance().as_str()));
    let storage = Arc::new(LocalStorage::open(data.path()).expect("a storage"));
    Broker::open(Parts {
        store: Arc::new(MemoryStore::new()),
        storage,
        runtimes: vec![runtime],
        templates: vec![Arc::new(Empty)],
        registries: Registries::new(
            Outgoing::new(vec!["127.0.0.1".parse().expect("a place")], Roots::default()),
            Arc::new(Spool::open(&dir.path().join("spool")).expect("a spool")),
            None,
        ),
        lifetime: Lifetime::Detached,
        journal: JournalLimits::default(),
        telemetry: Arc::new(Telemetry::default()),
        policy: Policy::default(),
        egress: Egress::built_in(),
        clock: Arc::new(SystemClock),
        data,
    })
    .await
    .expect("a broker on an empty data directory")
}

impl Daemon {
    pub async fn start() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let broker = broker(&dir).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let stop = CancellationToken::new();
        let stopped = stop.clone().cancelled_owned();
        let directory = LocalDirectory::new(Arc::new(MemoryStore::new()), "node");
        let auth = Auth::open(dir.path(), Arc::new(directory), None).await.expect("an empty store");
        let domain = "localhost".to_owned();
        let origins = Origins::default();
        let front = Front { origins, domain, ..Front::new(Arc::new(auth)) };
        let served = tokio::spawn(front.serve(listener, broker, stopped));
        sandkeep_outgoing::crypto::provide();
        let http = reqwest::Client::builder().no_proxy().build().expect("a client");
        Self { address, http, stop: stop.drop_guard(), served, _dir: dir }
    }

    /// Asks it to end and waits until it did.
    pub async fn stop(self) {
        drop(self.stop);
        self.served.await.expect("serving never panics");
    }

    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("http://{}{path}", self.address))
    }

    pub async fn get(&self, path: &str) -> Answer {
        Answer::of(self.request(Method::GET, path)).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        Answer::of(self.request(Method::POST, path).json(&body)).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        Answer::of(self.request(Method::DELETE, path)).await
    }

    /// The path of a new sandbox.
    pub async fn sandbox(&self) -> String {
        let created = self.post("/api/v1/sandboxes", json!({ "runtime": "mock" })).await;
        assert_eq!(created.status, 201, "{}", created.body);
        format!("/api/v1/sandboxes/{}", created.body["id"].as_str().expect("an id"))
    }

    /// A blocking exec that the daemon accepts.
    pub async fn exec(&self, sandbox: &str, body: Value) -> Value {
        let answer = self.post(&format!("{sandbox}/execs"), body).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.body
    }
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub media_type: String,
    pub allow: Option<String>,
    pub body: Value,
}

impl Answer {
    pub async fn of(request: RequestBuilder) -> Self {
        Self::read(request.send().await.expect("the daemon answers")).await
    }

    async fn read(response: Response) -> Self {
        let header = |name: &str| {
            response.headers().get(name).map(|v| v.to_str().expect("ASCII").to_owned())
        };
        let (status, allow) = (response.status().as_u16(), header("allow"));
        let media_type = header("content-type").unwrap_or_default();
        let bytes = response.bytes().await.expect("the whole answer");
        let body = if bytes.is_empty() {
            Value::Null
        } else {
            serde_json::from_slice(&bytes).expect("JSON")
        };
        Self { status, media_type, allow, body }
    }
}
