//! Reading: a few connections beside the writer. In WAL mode they neither wait for it nor block it, and each read sees
//! everything that was acknowledged before it started.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension as _, Row, params};
use tokio::sync::Semaphore;

use super::schema::{self, SqliteError};
use super::writer::{forgotten, from_sql, newest, to_sql};
use crate::watch::{Batch, ChangeLog};
use crate::{Change, Entry, Key, Listing, Prefix, Revision, StoreError};
use sandkeep_core::limits;

/// The read connections. At most [`limits::STORE_READERS_MAX`] are in use, so no more are kept.
pub(super) struct Readers {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
    permits: Arc<Semaphore>,
}

impl Readers {
    pub fn new(path: &Path) -> Self {
        let permits = Arc::new(Semaphore::new(limits::STORE_READERS_MAX));
        Self { path: path.to_owned(), idle: Mutex::default(), permits }
    }

    /// Runs a query on a thread that may block.
    pub async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        query: impl FnOnce(&mut Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(|_| closed())?;
        let readers = Arc::clone(self);
        let work = move || {
            let idle = readers.idle().pop();
            let mut connection = match idle {
                Some(connection) => connection,
                None => schema::open_reader(&readers.path)?,
            };
            let answer = query(&mut connection);
            readers.idle().push(connection);
            drop(permit);
            answer
        };
        tokio::task::spawn_blocking(work).await.map_err(|_| closed())?
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The async runtime is being shut down.
fn closed() -> StoreError {
    SqliteError::Closed.into()
}

pub(super) fn get(connection: &mut Connection, key: Key) -> Result<Option<Entry>, StoreError> {
    let found = connection
        .prepare_cached(
            "SELECT log.value, log.revision FROM entries JOIN log USING (revision)
             WHERE entries.key = ?1",
        )?
        .query_row([key.encoded()], |row| Ok((row.get(0)?, from_sql(row.get(1)?))))
        .optional()?;
    Ok(found.map(|(value, revision)| Entry { key, value, revision }))
}

pub(super) fn list(connection: &mut Connection, prefix: &Prefix) -> Result<Listing, StoreError> {
    // One transaction, so that the entries and the revision are from the same instant.
    let transaction = connection.transaction()?;
    let revision = newest(&transaction)?;
    let mut statement = transaction.prepare_cached(
        "SELECT entries.key, log.value, log.revision FROM entries JOIN log USING (revision)
         WHERE entries.key >= ?1 AND entries.key < ?2 ORDER BY entries.key",
    )?;
    let mut rows = statement.query(params![prefix.start(), prefix.end()])?;
    let mut entries = Vec::new();
    while let Some(row) = rows.next()? {
        let (key, value, revision) = (key(row)?, row.get(1)?, from_sql(row.get(2)?));
        entries.push(Entry { key, value, revision });
    }
    Ok(Listing { entries, revision })
}

/// What watchers read.
pub(super) struct SqliteLog(pub Arc<Readers>);

#[async_trait]
impl ChangeLog for SqliteLog {
    async fn read(&self, prefix: &Prefix, after: Revision) -> Result<Batch, StoreError> {
        let prefix = prefix.clone();
        self.0.read(move |connection| changes(connection, &prefix, after)).await
    }
}

fn changes(
    connection: &mut Connection,
    prefix: &Prefix,
    after: Revision,
) -> Result<Batch, StoreError> {
    let transaction = connection.transaction()?;
    let forgotten = forgotten(&transaction)?;
    if after < forgotten {
        return Err(StoreError::Compacted { oldest: Revision(forgotten.0 + 1) });
    }
    let newest = newest(&transaction)?;
    let mut statement = transaction.prepare_cached(
        "SELECT key, value, revision FROM log
         WHERE revision > ?1 AND key >= ?2 AND key < ?3 ORDER BY revision LIMIT ?4",
    )?;
    let limit = limits::STORE_WATCH_BATCH_MAX;
    let mut rows =
        statement.query(params![to_sql(after), prefix.start(), prefix.end(), limit as i64])?;
    let mut changes = Vec::new();
    while let Some(row) = rows.next()? {
        let (key, value, revision) = (key(row)?, row.get(1)?, from_sql(row.get(2)?));
        changes.push(Change { key, value, revision });
    }
    let seen = match changes.last() {
        Some(last) if changes.len() == limit => last.revision,
        Some(_) | None => newest.max(after),
    };
    Ok(Batch { changes, seen })
}

fn key(row: &Row<'_>) -> Result<Key, StoreError> {
    let bytes = row.get_ref(0)?.as_blob().map_err(rusqlite::Error::from)?;
    Key::from_encoded(bytes).ok_or_else(|| SqliteError::MalformedKey.into())
}
