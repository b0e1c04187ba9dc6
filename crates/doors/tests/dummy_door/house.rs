//! A broker with a mock runtime, the door in front of it, and a client at the other end of a Unix socket.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use sandkeep_broker::{
    Broker, Egress, LocalDirectory, Parts, Policy, SystemClock, telemetry::Telemetry,
};
use sandkeep_core::{Privilege, SandboxId};
use sandkeep_doors::auth::{Auth, KeyDraft, NewKey};
use sandkeep_doors::kit::{Entrance, Kit, Listener, Origins, serve};
use sandkeep_guestlink::journal::JournalLimits;
use sandkeep_home::DataDir;
use sandkeep_image::source::registry::{Registries, Spool};
use sandkeep_image::{Contains, Template};
use sandkeep_outgoing::Outgoing;
use sandkeep_runtime::{Lifetime, MockRuntime};
use sandkeep_storage::{LocalStorage, StorageError};
use sandkeep_store::MemoryStore;
use sandkeep_tree::{Bind, Root};
use tokio::net::{UnixListener, UnixStream};

use crate::door::door;

pub struct House {
    pub auth: Arc<Auth>,
    pub client: SendRequest<Full<Bytes>>,
    _dir: tempfile::TempDir,
}

impl House {
    pub async fn open() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let directory = LocalDirectory::new(Arc::new(MemoryStore::new()), "node");
        let auth = Auth::open(dir.path(), Arc::new(directory), None).await;
        let auth = Arc::new(auth.expect("an empty store"));
        let kit = Kit::new(broker(&dir).await, Arc::clone(&auth), Origins::default());
        let doors = kit.around(door(&kit), ["/dummy/sandboxes", "/dummy/sandboxes/{id}/run"]);
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).expect("a free path");
        let listener = Listener::Unix(listener, None);
        let entrances = vec![Entrance { listener, doors }];
        tokio::spawn(serve(entrances, kit, std::future::pending()));
        let stream = TokioIo::new(UnixStream::connect(&path).await.expect("it listens"));
        let connected = http2::handshake(TokioExecutor::new(), stream).await;
        let (client, connection) = connected.expect("HTTP/2");
        tokio::spawn(connection);
        Self { auth, client, _dir: dir }
    }

    pub async fn key(&self, user: &str) -> NewKey {
        let (organization, user) = ("acme".to_owned(), user.to_owned());
        let draft = KeyDraft { organization, user, ..KeyDraft::default() };
        self.auth.keys().create(draft).await.expect("a good draft")
    }
}

async fn broker(dir: &tempfile::TempDir) -> Broker {
    let data = DataDir::open(&dir.path().join("data")).expect("a data directory");
    let spool = Spool::open(&dir.path().join("spool")).expect("a spool");
    Broker::open(Parts {
        store: Arc::new(MemoryStore::new()),
        storage: Arc::new(LocalStorage::open(data.path()).expect("a storage")),
        runtimes: vec![Arc::new(MockRuntime::new(data.instance().as_str()))],
        templates: vec![Arc::new(Empty)],
        registries: Registries::new(Outgoing::default(), Arc::new(spool), None),
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
