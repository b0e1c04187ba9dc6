//! Stores that inject events between two steps of a caller: [`Weather`] stalls, loses answers and kills its callers,
//! controlled by a seed; [`Meanwhile`] lets one thing happen at one moment.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use futures_util::future::BoxFuture;

use sandkeep_core::SandboxId;
use sandkeep_store::{
    Entry, Key, Listing, MemoryStore, Prefix, Revision, StateStore, StoreError, Watch,
};

/// Deterministic pseudo-random numbers.
#[derive(Clone)]
pub struct Dice(Arc<Mutex<u64>>);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(seed)))
    }

    /// A number below `sides`.
    pub fn roll(&self, sides: u64) -> u64 {
        let mut state = self.0.lock().expect("nobody panics with it");
        *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = *state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % sides
    }
}

impl Dice {
    pub fn id(&self) -> SandboxId {
        let random = (0..26).map(|_| char::from(b'a' + self.roll(26) as u8));
        let id: String = SandboxId::PREFIX.chars().chain(random).collect();
        id.parse().expect("letters are an id")
    }
}

/// One process's view of a shared store.
pub struct Weather {
    pub entries: Arc<MemoryStore>,
    pub dice: Dice,
    /// After this many steps the process is dead: none of its requests has an effect.
    pub steps: AtomicUsize,
}

fn lost() -> StoreError {
    StoreError::Unavailable("no answer came".into())
}

impl Weather {
    async fn stall(&self) {
        for _ in 0..self.dice.roll(4) {
            tokio::task::yield_now().await;
        }
    }

    async fn step<T>(
        &self,
        work: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        let live = |left: usize| left.checked_sub(1);
        self.stall().await;
        self.steps.fetch_update(Ordering::SeqCst, Ordering::SeqCst, live).map_err(|_| lost())?;
        let answer = work.await;
        self.stall().await;
        if self.dice.roll(12) == 0 { Err(lost()) } else { answer }
    }
}

#[async_trait]
impl StateStore for Weather {
    async fn get(&self, key: &Key) -> Result<Option<Entry>, StoreError> {
        self.step(self.entries.get(key)).await
    }

    async fn create(&self, key: &Key, value: Vec<u8>) -> Result<Revision, StoreError> {
        self.step(self.entries.create(key, value)).await
    }

    async fn update(
        &self,
        key: &Key,
        value: Vec<u8>,
        expected: Revision,
    ) -> Result<Revision, StoreError> {
        self.step(self.entries.update(key, value, expected)).await
    }

    async fn delete(&self, key: &Key, expected: Revision) -> Result<Revision, StoreError> {
        self.step(self.entries.delete(key, expected)).await
    }

    async fn list(&self, prefix: &Prefix) -> Result<Listing, StoreError> {
        self.step(self.entries.list(prefix)).await
    }

    async fn watch(&self, prefix: &Prefix, after: Revision) -> Result<Watch, StoreError> {
        self.step(self.entries.watch(prefix, after)).await
    }
}

/// A store in which something happens right after a caller has found that a sandbox has no row.
#[derive(Default)]
pub struct Meanwhile {
    pub entries: Arc<MemoryStore>,
    next: Mutex<Option<BoxFuture<'static, ()>>>,
}

impl Meanwhile {
    pub fn after_missing_row(&self, happens: BoxFuture<'static, ()>) {
        *self.next.lock().expect("nobody panics with it") = Some(happens);
    }
}

#[async_trait]
impl StateStore for Meanwhile {
    async fn get(&self, key: &Key) -> Result<Option<Entry>, StoreError> {
        let found = self.entries.get(key).await?;
        if found.is_none() && key.segments()[0] == "sandboxes" {
            let happens = self.next.lock().expect("nobody panics with it").take();
            if let Some(happens) = happens {
                happens.await;
            }
        }
        Ok(found)
    }

    async fn create(&self, key: &Key, value: Vec<u8>) -> Result<Revision, StoreError> {
        self.entries.create(key, value).await
    }

    async fn update(
        &self,
        key: &Key,
        value: Vec<u8>,
        expected: Revision,
    ) -> Result<Revision, StoreError> {
        self.entries.update(key, value, expected).await
    }

    async fn delete(&self, key: &Key, expected: Revision) -> Result<Revision, StoreError> {
        self.entries.delete(key, expected).await
    }

    async fn list(&self, prefix: &Prefix) -> Result<Listing, StoreError> {
        self.entries.list(prefix).await
    }

    async fn watch(&self, prefix: &Prefix, after: Revision) -> Result<Watch, StoreError> {
        self.entries.watch(prefix, after).await
    }
}
