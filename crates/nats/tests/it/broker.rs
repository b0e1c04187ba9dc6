//! A broker whose events are published.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;

use sandkeep_broker::telemetry::Telemetry;
use sandkeep_broker::{Broker, KeyChange, Parts, Policy, SystemClock, recorded_events};
use sandkeep_core::api::KeyInfo;
use sandkeep_core::event::Event;
use sandkeep_core::{KeyId, Privilege, SandboxId, Scope};
use sandkeep_guestlink::journal::JournalLimits;
use sandkeep_home::DataDir;
use sandkeep_image::source::registry::{Registries, Spool};
use sandkeep_image::{Contains, Template};
use sandkeep_nats::{
    Assurance, CloudEvents, Link, Options, Publisher, Stream, WhenMissing, subject,
};
use sandkeep_outgoing::Outgoing;
use sandkeep_runtime::{Lifetime, MockRuntime};
use sandkeep_storage::{BtrfsOptions, StorageChoice, StorageError};
use sandkeep_store::MemoryStore;
use sandkeep_tree::{Bind, Root};

pub const PREFIX: &str = "sandkeep";
pub const STREAM: &str = "EVENTS";

/// A data directory with a broker on the mock runtime.
pub struct World {
    dir: tempfile::TempDir,
    pub broker: Broker,
}

struct NoTemplate;

#[async_trait]
impl Template for NoTemplate {
    fn name(&self) -> &str {
        "none"
    }

    fn binds(&self) -> Arc<[Bind]> {
        Arc::from([])
    }

    fn has_program(&self, _: &str) -> Contains {
        Contains::No
    }

    fn default_privilege(&self) -> Privilege {
        Privilege::Root
    }

    async fn lay_out(&self, _: &Root, _: &SandboxId) -> Result<(), StorageError> {
        Ok(())
    }
}

impl World {
    pub async fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let data = DataDir::open(&dir.path().join("data")).expect("a data directory");
        let local: StorageChoice = "local".parse().expect("a storage");
        let options = BtrfsOptions { image_bytes: None, image_max_bytes: None };
        let storage = sandkeep_storage::open(&local, data.path(), &options).expect("a storage");
        let spool = Spool::open(&dir.path().join("spool")).expect("a spool");
        let parts = Parts {
            store: Arc::new(MemoryStore::new()),
            storage: storage.storage,
            runtimes: vec![Arc::new(MockRuntime::new(data.instance().as_str()))],
            templates: vec![Arc::new(NoTemplate)],
            registries: Registries::new(Outgoing::default(), Arc::new(spool), None),
            lifetime: Lifetime::Detached,
            journal: JournalLimits::default(),
            telemetry: Arc::new(Telemetry::default()),
            policy: Policy::default(),
            egress: sandkeep_broker::Egress::built_in(),
            clock: Arc::new(SystemClock),
            data,
        };
        let broker = Broker::open(parts).await.expect("a broker");
        Self { dir, broker }
    }

    pub fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// All events that there are.
    pub fn events(&self) -> Vec<Event> {
        recorded_events(&self.data()).expect("a readable log")
    }

    /// Records an event of this user.
    pub fn emit(&self, organization: &str, user: &str) {
        let info = KeyInfo {
            id: KeyId::of_bytes([7; KeyId::BYTES]),
            name: None,
            organization: organization.to_owned(),
            user: user.to_owned(),
            project: None,
            scopes: vec![Scope::Read],
            created_at: jiff::Timestamp::UNIX_EPOCH,
            expires_at: None,
        };
        self.broker.note_key(&info, KeyChange::Made);
    }

    /// Records so many events of so many users in turn.
    pub fn emit_many(&self, count: usize, users: usize) {
        (0..count).for_each(|number| self.emit("acme", &format!("user{}", number % users)));
    }

    pub fn publish(&self, options: Options, assurance: Assurance) -> Publishing {
        let link = Link::open(options, "test");
        let feed =
            CloudEvents { prefix: PREFIX.to_owned(), instance: self.broker.instance().to_owned() };
        let publisher = Publisher::start(&self.broker, &link, feed, assurance).expect("it starts");
        Publishing { link, publisher }
    }

    /// The value of a metric of the feed.
    pub async fn metric(&self, name: &str) -> u64 {
        let page = self.broker.metrics().await;
        let start = format!("sandkeep_feed_{name}{{feed=\"nats\"}} ");
        let line = page.lines().find_map(|line| line.strip_prefix(&start));
        line.unwrap_or_else(|| panic!("no {start} in {page}")).parse().expect("a number")
    }
}

pub struct Publishing {
    pub link: Link,
    pub publisher: Publisher,
}

impl Publishing {
    pub async fn stop(self) {
        self.publisher.stop().await;
        self.link.close().await;
    }
}

/// Acknowledged by a stream that is created.
pub fn stored() -> Assurance {
    Assurance::Acknowledged(Stream {
        name: STREAM.to_owned(),
        subjects: vec![subject::of_all(PREFIX)],
        max_bytes: 256 * 1024 * 1024,
        missing: WhenMissing::Create,
    })
}
