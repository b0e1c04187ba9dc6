//! The store of one machine, in one SQLite file.
//!
//! ```text
//!  create, update, delete ──▶ bounded queue ──▶ writer thread: everything queued = one transaction
//!                     ◀── answered after COMMIT ──┘   │ one fsync for all of them
//!  get, list          ──▶ a few read connections       │ newest revision
//!  watch              ──▶ a task that reads the log ◀──┘
//! ```
//!
//! Invariant: a write is answered `Ok` only when its transaction is on disk (WAL with `synchronous=FULL`); every
//! comparison is made inside the transaction that writes.

mod reader;
mod schema;
mod writer;

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use async_trait::async_trait;
use tokio::sync::{mpsc, oneshot, watch};

use super::watch::follow;
use super::{Entry, Key, Listing, Prefix, Revision, StateStore, StoreError, Watch, check_value};
use reader::{Readers, SqliteLog};
use sandkeep_core::limits;
use writer::{Op, Request, Writer};

pub use schema::SqliteError;

pub struct SqliteStore {
    /// `None` only during drop.
    queue: Option<mpsc::Sender<Request>>,
    writer: Option<JoinHandle<()>>,
    readers: Arc<Readers>,
    latest: watch::Receiver<Revision>,
}

impl SqliteStore {
    /// Opens or creates the file. Checks that it is intact and of a known version.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        Self::remembering(path, limits::STORE_CHANGES_MAX)
    }

    /// Opens a file that another process may be writing to. Every write compares and counts within its own transaction,
    /// so neither affects the other; trimming and checkpoints are left to the other process. Its watchers learn of our
    /// writes with its own next one.
    pub fn open_beside(path: &Path) -> Result<Self, StoreError> {
        Self::start(path, Writer::beside(path)?)
    }

    /// A store that keeps only this many changes for watchers.
    fn remembering(path: &Path, changes_max: usize) -> Result<Self, StoreError> {
        Self::start(path, Writer::open(path, changes_max)?)
    }

    fn start(path: &Path, writer: Writer) -> Result<Self, StoreError> {
        let (latest_sender, latest) = watch::channel(writer.newest()?);
        let (queue, requests) = mpsc::channel(limits::STORE_QUEUE_MAX);
        let writer = std::thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || writer.run(requests, &latest_sender))
            .map_err(|error| StoreError::Unavailable(Box::new(error)))?;
        let readers = Arc::new(Readers::new(path));
        Ok(Self { queue: Some(queue), writer: Some(writer), readers, latest })
    }

    /// Reads a store that another process may be using, without writing to it.
    pub fn read_entries(path: &Path, prefix: &Prefix) -> Result<Listing, StoreError> {
        reader::list(&mut schema::open_reader(path)?, prefix)
    }

    async fn write(&self, key: &Key, op: Op) -> Result<Revision, StoreError> {
        check_value(op.value())?;
        let queue = self.queue.as_ref().ok_or_else(closed)?;
        let (reply, answer) = oneshot::channel();
        queue.send(Request { key: key.clone(), op, reply }).await.map_err(|_| closed())?;
        answer.await.map_err(|_| closed())?
    }
}

/// Ends the writer and waits for it, so that the file is closed when the store is gone.
impl Drop for SqliteStore {
    fn drop(&mut self) {
        drop(self.queue.take());
        if let Some(writer) = self.writer.take()
            && writer.join().is_err()
        {
            tracing::error!("the store's writer panicked");
        }
    }
}

fn closed() -> StoreError {
    StoreError::Unavailable(Box::new(SqliteError::Closed))
}

#[async_trait]
impl StateStore for SqliteStore {
    async fn get(&self, key: &Key) -> Result<Option<Entry>, StoreError> {
        let key = key.clone();
        self.readers.read(move |connection| reader::get(connection, key)).await
    }

    async fn create(&self, key: &Key, value: Vec<u8>) -> Result<Revision, StoreError> {
        self.write(key, Op::Create { value }).await
    }

    async fn update(
        &self,
        key: &Key,
        value: Vec<u8>,
        expected: Revision,
    ) -> Result<Revision, StoreError> {
        self.write(key, Op::Update { value, expected }).await
    }

    async fn delete(&self, key: &Key, expected: Revision) -> Result<Revision, StoreError> {
        self.write(key, Op::Delete { expected }).await
    }

    async fn list(&self, prefix: &Prefix) -> Result<Listing, StoreError> {
        let prefix = prefix.clone();
        self.readers.read(move |connection| reader::list(connection, &prefix)).await
    }

    async fn watch(&self, prefix: &Prefix, after: Revision) -> Result<Watch, StoreError> {
        let log = SqliteLog(Arc::clone(&self.readers));
        follow(log, self.latest.clone(), prefix.clone(), after).await
    }
}

#[cfg(test)]
mod tests;
