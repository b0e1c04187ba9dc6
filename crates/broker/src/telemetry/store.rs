//! Commits: how long the state store takes for a write, and whether the last one succeeded.
//!
//! It wraps the store, so that its users need not know that writes are measured.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use async_trait::async_trait;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use super::{Telemetry, durations};
use sandkeep_store::{Entry, Key, Listing, Prefix, Revision, StateStore, StoreError, Watch};
use sandkeep_traces::{step, within};

/// The key that shows, after a failed write, whether writes succeed again.
const PROBE: &str = "probe";

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    operation: &'static str,
    outcome: &'static str,
}

pub(super) struct Commits {
    durations: Family<Labels, Histogram>,
}

impl Commits {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let durations = Family::new_with_constructor(durations as fn() -> Histogram);
        for operation in ["create", "update", "delete"] {
            drop(durations.get_or_create(&Labels { operation, outcome: "ok" }));
        }
        let help = "Time until a write of the state store was durable";
        registry.register_with_unit(
            "store_commit_duration",
            help,
            Unit::Seconds,
            durations.clone(),
        );
        Self { durations }
    }
}

/// A store whose writes are measured.
pub struct ObservedStore {
    inner: Arc<dyn StateStore>,
    telemetry: Arc<Telemetry>,
    /// Whether the last write failed because of the store, and not because of the data.
    failing: AtomicBool,
}

impl ObservedStore {
    pub fn new(inner: Arc<dyn StateStore>, telemetry: Arc<Telemetry>) -> Self {
        Self { inner, telemetry, failing: AtomicBool::new(false) }
    }

    /// Whether the store answers. It is written to only if the last write failed, to find out whether it has recovered;
    /// a working store is not written to.
    pub async fn probe(&self) -> Result<(), StoreError> {
        let key = Key::new([PROBE]);
        let entry = self.get(&key).await?;
        if !self.failing.load(Ordering::Relaxed) {
            return Ok(());
        }
        match entry {
            Some(entry) => self.update(&key, Vec::new(), entry.revision).await?,
            None => self.create(&key, Vec::new()).await?,
        };
        Ok(())
    }

    async fn write(
        &self,
        operation: &'static str,
        work: impl Future<Output = Result<Revision, StoreError>>,
    ) -> Result<Revision, StoreError> {
        let began = Instant::now();
        let result = within(step!("store.write", operation), work).await;
        let outcome = match &result {
            Ok(_) => "ok",
            Err(StoreError::Exists { .. } | StoreError::Conflict { .. }) => "conflict",
            Err(StoreError::TooLarge { .. }) => "refused",
            Err(StoreError::Compacted { .. } | StoreError::Unavailable(_)) => "failed",
        };
        self.failing.store(outcome == "failed", Ordering::Relaxed);
        let labels = Labels { operation, outcome };
        let durations = &self.telemetry.commits.durations;
        durations.get_or_create(&labels).observe(began.elapsed().as_secs_f64());
        result
    }
}

#[async_trait]
impl StateStore for ObservedStore {
    async fn get(&self, key: &Key) -> Result<Option<Entry>, StoreError> {
        self.inner.get(key).await
    }

    async fn create(&self, key: &Key, value: Vec<u8>) -> Result<Revision, StoreError> {
        self.write("create", self.inner.create(key, value)).await
    }

    async fn update(
        &self,
        key: &Key,
        value: Vec<u8>,
        expected: Revision,
    ) -> Result<Revision, StoreError> {
        self.write("update", self.inner.update(key, value, expected)).await
    }

    async fn delete(&self, key: &Key, expected: Revision) -> Result<Revision, StoreError> {
        self.write("delete", self.inner.delete(key, expected)).await
    }

    async fn list(&self, prefix: &Prefix) -> Result<Listing, StoreError> {
        self.inner.list(prefix).await
    }

    async fn watch(&self, prefix: &Prefix, after: Revision) -> Result<Watch, StoreError> {
        self.inner.watch(prefix, after).await
    }
}
