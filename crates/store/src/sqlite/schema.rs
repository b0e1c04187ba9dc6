//! The file: its tables, its version, and how to open it.
//!
//! `log` contains every recent or current write; `entries` says which write of a key is the current one. So a value is
//! written once, at the end of the log, and watchers read the same rows. Rows of the log up to `horizon.forgotten`
//! exist only because they are current.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::StoreError;
use sandkeep_core::limits;

/// The version of the tables below; a newer file is refused.
const VERSION: i64 = 1;
/// "sdkp": identifies our files among other SQLite files.
const APPLICATION_ID: i64 = 0x7364_6B70;

const TABLES: &str = "
    CREATE TABLE log (revision INTEGER PRIMARY KEY, key BLOB NOT NULL, value BLOB) STRICT;
    CREATE TABLE entries (key BLOB PRIMARY KEY, revision INTEGER NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE horizon (forgotten INTEGER NOT NULL) STRICT;
    INSERT INTO horizon VALUES (0);
";

/// Problems of a store's file.
#[derive(Debug, thiserror::Error)]
pub enum SqliteError {
    #[error(
        "{} was written by a newer sandkeep (schema {found}, this one knows {VERSION}); \
         use that version, or another data directory",
        path.display()
    )]
    NewerSchema { path: PathBuf, found: i64 },
    #[error("nothing was ever written to {}", path.display())]
    Empty { path: PathBuf },
    #[error("{} is an SQLite file of another program; move it away", path.display())]
    Foreign { path: PathBuf },
    #[error(
        "{} is damaged ({problem}); move it away: ready sandboxes are adopted from their own files",
        path.display()
    )]
    Damaged { path: PathBuf, problem: String },
    #[error("cannot open {}: {source}", path.display())]
    Open {
        path: PathBuf,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("the store holds a malformed key: its file was damaged or changed by another program")]
    MalformedKey,
    #[error("the store is closed")]
    Closed,
}

impl SqliteError {
    /// Whether the error says what to do, which is better than general advice.
    pub fn advises(&self) -> bool {
        match self {
            Self::NewerSchema { .. } | Self::Foreign { .. } | Self::Damaged { .. } => true,
            Self::Empty { .. } | Self::Open { .. } | Self::MalformedKey | Self::Closed => false,
        }
    }
}

impl From<SqliteError> for StoreError {
    fn from(error: SqliteError) -> Self {
        StoreError::Unavailable(Box::new(error))
    }
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        StoreError::Unavailable(Box::new(error))
    }
}

/// The only writing connection; creates the file and its tables if they are missing.
pub(super) fn open_writer(path: &Path) -> Result<Connection, SqliteError> {
    // SQLite would make it world-readable, and gives its side files the same mode.
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(path)
        .map_err(|source| SqliteError::Open { path: path.to_owned(), source: Box::new(source) })?;
    let named = |error| name_error(path, error);
    let mut connection =
        Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE | COMMON)
            .map_err(named)?;
    connection.busy_timeout(limits::STORE_BUSY).map_err(named)?;
    match version(&connection).map_err(named)? {
        Version::Empty => {}
        Version::Ours(VERSION) => check_whole(path, &connection)?,
        Version::Ours(found) => {
            return Err(SqliteError::NewerSchema { path: path.to_owned(), found });
        }
        Version::Foreign => return Err(SqliteError::Foreign { path: path.to_owned() }),
    }
    prepare(&mut connection).map_err(named)?;
    Ok(connection)
}

/// A read-only connection, beside the writer or another process.
pub(super) fn open_reader(path: &Path) -> Result<Connection, SqliteError> {
    open_existing(path, OpenFlags::SQLITE_OPEN_READ_ONLY)
}

/// A connection that writes beside another process's, to a file that the other has prepared.
pub(super) fn open_second_writer(path: &Path) -> Result<Connection, SqliteError> {
    let connection = open_existing(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    let set = |name, value: &dyn rusqlite::ToSql| {
        connection.pragma_update(None, name, value).map_err(|error| name_error(path, error))
    };
    set("synchronous", &"FULL")?;
    set("wal_autocheckpoint", &0)?;
    Ok(connection)
}

fn open_existing(path: &Path, flags: OpenFlags) -> Result<Connection, SqliteError> {
    let named = |error| name_error(path, error);
    let connection = Connection::open_with_flags(path, flags | COMMON).map_err(named)?;
    connection.busy_timeout(limits::STORE_BUSY).map_err(named)?;
    match version(&connection).map_err(named)? {
        Version::Ours(VERSION) => Ok(connection),
        Version::Ours(found) => Err(SqliteError::NewerSchema { path: path.to_owned(), found }),
        Version::Empty => Err(SqliteError::Empty { path: path.to_owned() }),
        Version::Foreign => Err(SqliteError::Foreign { path: path.to_owned() }),
    }
}

/// Every connection is used by one thread at a time, so SQLite needs no lock of its own.
const COMMON: OpenFlags = OpenFlags::SQLITE_OPEN_NO_MUTEX;

enum Version {
    /// It was never written to.
    Empty,
    Ours(i64),
    Foreign,
}

fn version(connection: &Connection) -> rusqlite::Result<Version> {
    let pragma = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let tables: i64 =
        connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    Ok(match (pragma("application_id")?, tables) {
        (APPLICATION_ID, _) => Version::Ours(pragma("user_version")?),
        (0, 0) => Version::Empty,
        (_, _) => Version::Foreign,
    })
}

fn check_whole(path: &Path, connection: &Connection) -> Result<(), SqliteError> {
    let answer: String = connection
        .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
        .map_err(|error| name_error(path, error))?;
    match answer.as_str() {
        "ok" => Ok(()),
        _ => Err(SqliteError::Damaged { path: path.to_owned(), problem: answer }),
    }
}

fn prepare(connection: &mut Connection) -> rusqlite::Result<()> {
    let _: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    // The writer does it itself, while it is idle.
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    if matches!(version(connection)?, Version::Empty) {
        let transaction = connection.transaction()?;
        transaction.execute_batch(TABLES)?;
        transaction.pragma_update(None, "user_version", VERSION)?;
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        transaction.commit()?;
    }
    stretch_log(connection)
}

/// Extends the write-ahead log to its maximum size. A commit then overwrites existing blocks, and syncing it needs no
/// journal commit of the file system: about half of a caller's waiting time.
fn stretch_log(connection: &Connection) -> rusqlite::Result<()> {
    connection
        .execute_batch("DROP TABLE IF EXISTS stretch; CREATE TABLE stretch (filling BLOB);")?;
    connection.execute(
        "INSERT INTO stretch VALUES (zeroblob(?1))",
        [limits::STORE_WRITE_AHEAD_MAX_BYTES as i64],
    )?;
    connection.execute_batch("DROP TABLE stretch;")?;
    // From here on the log is written from its beginning again.
    connection.query_row("PRAGMA wal_checkpoint(RESTART)", [], |_| Ok(()))
}

/// Adds the file name, and distinguishes damage from an unreadable disk.
fn name_error(path: &Path, error: rusqlite::Error) -> SqliteError {
    let path = path.to_owned();
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            SqliteError::Damaged { path, problem: error.to_string() }
        }
        Some(_) | None => SqliteError::Open { path, source: Box::new(error) },
    }
}
