//! The only writing thread. Everything in the queue becomes one transaction, so a single write costs one fsync and a
//! hundred at once cost one fsync too.

use std::error::Error as StdError;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension as _, Transaction, TransactionBehavior, params};
use tokio::sync::{mpsc, oneshot, watch};

use super::schema;
use crate::{Key, Revision, StoreError};
use sandkeep_core::limits;

/// A pending write.
pub(super) struct Request {
    pub key: Key,
    pub op: Op,
    pub reply: oneshot::Sender<Answer>,
}

pub(super) enum Op {
    Create { value: Vec<u8> },
    Update { value: Vec<u8>, expected: Revision },
    Delete { expected: Revision },
}

impl Op {
    pub fn value(&self) -> Option<&[u8]> {
        match self {
            Op::Create { value } | Op::Update { value, .. } => Some(value),
            Op::Delete { .. } => None,
        }
    }

    /// Whether the write may happen to a key with the revision `current`.
    fn check(&self, current: Option<Revision>) -> Result<(), StoreError> {
        match (self, current) {
            (Op::Create { .. }, None) => Ok(()),
            (Op::Create { .. }, Some(current)) => Err(StoreError::Exists { current }),
            (Op::Update { expected, .. } | Op::Delete { expected }, current) => {
                if current == Some(*expected) {
                    Ok(())
                } else {
                    Err(StoreError::Conflict { current })
                }
            }
        }
    }
}

type Answer = Result<Revision, StoreError>;

pub(super) struct Writer {
    connection: Connection,
    changes_max: u64,
    /// Approximate size of the write-ahead log since the last checkpoint.
    ahead_bytes: usize,
}

/// The result of one transaction.
struct Outcome {
    answers: Vec<Answer>,
    newest: Revision,
    forgotten: Revision,
    written_bytes: usize,
}

impl Writer {
    pub fn open(path: &Path, changes_max: usize) -> Result<Self, StoreError> {
        let connection = schema::open_writer(path)?;
        Ok(Self { connection, changes_max: changes_max as u64, ahead_bytes: 0 })
    }

    /// A second writer, for a few writes. It never trims changes: two trimming writers could undo each other's
    /// bookkeeping.
    pub fn beside(path: &Path) -> Result<Self, StoreError> {
        let connection = schema::open_second_writer(path)?;
        Ok(Self { connection, changes_max: u64::MAX, ahead_bytes: 0 })
    }

    pub fn newest(&self) -> Result<Revision, StoreError> {
        Ok(newest(&self.connection)?)
    }

    /// Serves the queue until its last sender is gone.
    pub fn run(mut self, mut queue: mpsc::Receiver<Request>, latest: &watch::Sender<Revision>) {
        let mut batch = Vec::new();
        while let Some(first) = queue.blocking_recv() {
            batch.push(first);
            while batch.len() < limits::STORE_QUEUE_MAX
                && let Ok(next) = queue.try_recv()
            {
                batch.push(next);
            }
            self.serve(&mut batch, latest);
        }
    }

    fn serve(&mut self, batch: &mut Vec<Request>, latest: &watch::Sender<Revision>) {
        match self.commit(batch) {
            Ok(outcome) => {
                latest.send_replace(outcome.newest);
                for (request, answer) in batch.drain(..).zip(outcome.answers) {
                    // The caller may have dropped its future.
                    let _ = request.reply.send(answer);
                }
                self.ahead_bytes += outcome.written_bytes;
                self.tidy(outcome.newest, outcome.forgotten);
            }
            Err(error) => {
                tracing::error!(%error, writes = batch.len(), "the store could not commit");
                let error = CommitFailed(Arc::new(error));
                for request in batch.drain(..) {
                    let failure = StoreError::Unavailable(Box::new(error.clone()));
                    let _ = request.reply.send(Err(failure));
                }
            }
        }
    }

    /// One transaction for the whole batch. On an error nothing happens: dropping the transaction rolls it back.
    fn commit(&mut self, batch: &[Request]) -> rusqlite::Result<Outcome> {
        let transaction =
            self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let forgotten = forgotten(&transaction)?;
        let mut newest = newest(&transaction)?;
        let mut answers = Vec::with_capacity(batch.len());
        let mut written_bytes = 0;
        for request in batch {
            let current = current(&transaction, &request.key)?;
            let answer = request.op.check(current).map(|()| Revision(newest.0 + 1));
            if let Ok(revision) = answer {
                apply(&transaction, request, revision)?;
                if let Some(old) = current.filter(|old| *old <= forgotten) {
                    forget(&transaction, old)?;
                }
                newest = revision;
                written_bytes += written_about(request);
            }
            answers.push(answer);
        }
        transaction.commit()?;
        Ok(Outcome { answers, newest, forgotten, written_bytes })
    }

    /// Work for idle times. If it fails, the next round tries again.
    fn tidy(&mut self, newest: Revision, forgotten: Revision) {
        if let Err(error) = self.trim(newest, forgotten) {
            tracing::warn!(%error, "the store could not forget old changes");
        }
        if self.ahead_bytes >= limits::STORE_WRITE_AHEAD_MAX_BYTES {
            match self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())) {
                Ok(()) => self.ahead_bytes = 0,
                Err(error) => tracing::warn!(%error, "the store could not write its file"),
            }
        }
    }

    /// Trims the oldest changes beyond the maximum, a sixteenth at once: trimming one row with every write would touch
    /// one more page each time.
    fn trim(&mut self, newest: Revision, forgotten: Revision) -> rusqlite::Result<()> {
        if newest.0 - forgotten.0 <= self.changes_max {
            return Ok(());
        }
        let upto = Revision(newest.0 - (self.changes_max - self.changes_max / 16));
        let transaction =
            self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        transaction
            .prepare_cached(
                "DELETE FROM log WHERE revision > ?1 AND revision <= ?2 AND NOT EXISTS (
                     SELECT 1 FROM entries
                     WHERE entries.key = log.key AND entries.revision = log.revision)",
            )?
            .execute(params![to_sql(forgotten), to_sql(upto)])?;
        transaction.prepare_cached("UPDATE horizon SET forgotten = ?1")?.execute([to_sql(upto)])?;
        transaction.commit()
    }
}

/// The revision of the last write. Its row is always in the log, because `trim` keeps the newest.
pub(super) fn newest(connection: &Connection) -> rusqlite::Result<Revision> {
    connection
        .prepare_cached("SELECT coalesce(max(revision), 0) FROM log")?
        .query_row([], |row| row.get(0).map(from_sql))
}

/// Changes up to this revision are no longer available.
pub(super) fn forgotten(connection: &Connection) -> rusqlite::Result<Revision> {
    connection
        .prepare_cached("SELECT forgotten FROM horizon")?
        .query_row([], |row| row.get(0).map(from_sql))
}

fn current(transaction: &Transaction<'_>, key: &Key) -> rusqlite::Result<Option<Revision>> {
    transaction
        .prepare_cached("SELECT revision FROM entries WHERE key = ?1")?
        .query_row([key.encoded()], |row| row.get(0).map(from_sql))
        .optional()
}

fn apply(
    transaction: &Transaction<'_>,
    request: &Request,
    revision: Revision,
) -> rusqlite::Result<()> {
    let key = request.key.encoded();
    transaction
        .prepare_cached("INSERT INTO log (revision, key, value) VALUES (?1, ?2, ?3)")?
        .execute(params![to_sql(revision), key, request.op.value()])?;
    match request.op {
        Op::Create { .. } => transaction
            .prepare_cached("INSERT INTO entries (key, revision) VALUES (?1, ?2)")?
            .execute(params![key, to_sql(revision)])?,
        Op::Update { .. } => transaction
            .prepare_cached("UPDATE entries SET revision = ?2 WHERE key = ?1")?
            .execute(params![key, to_sql(revision)])?,
        Op::Delete { .. } => {
            transaction.prepare_cached("DELETE FROM entries WHERE key = ?1")?.execute([key])?
        }
    };
    Ok(())
}

/// Removes a row of the log that existed only because it was current.
fn forget(transaction: &Transaction<'_>, revision: Revision) -> rusqlite::Result<()> {
    transaction
        .prepare_cached("DELETE FROM log WHERE revision = ?1")?
        .execute([to_sql(revision)])?;
    Ok(())
}

/// A write touches a page of the log, one of the entries, and those of its value.
fn written_about(request: &Request) -> usize {
    const PAGE_BYTES: usize = 4096;
    2 * PAGE_BYTES + request.key.encoded().len() + request.op.value().map_or(0, <[u8]>::len)
}

/// SQLite's integers are signed; no store reaches 2^63 writes.
pub(super) fn to_sql(revision: Revision) -> i64 {
    i64::try_from(revision.0).unwrap_or(i64::MAX)
}

pub(super) fn from_sql(number: i64) -> Revision {
    Revision(u64::try_from(number).unwrap_or(0))
}

/// One failure, reported to every write of the batch.
#[derive(Clone, Debug)]
struct CommitFailed(Arc<rusqlite::Error>);

impl fmt::Display for CommitFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot commit: {}", self.0)
    }
}

impl StdError for CommitFailed {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.0)
    }
}
