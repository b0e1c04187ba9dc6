//! The keys of a data directory, used concurrently with a daemon.

use std::io;
use std::path::Path;
use std::sync::Arc;

use sandkeep_broker::LocalDirectory;
use sandkeep_broker::error::Error;
use sandkeep_doors::auth::{KeyRing, Latch};
use sandkeep_home::{DataDir, REGISTRY};
use sandkeep_store::{SqliteError, SqliteStore, StoreError};

/// Keys belong to no node.
const NO_NODE: &str = "";

/// The keys of a directory that has a registry; `None` if it has none yet.
pub fn open(data_dir: &Path) -> Result<Option<KeyRing>, Error> {
    let path = data_dir.join(REGISTRY);
    match std::fs::metadata(&path) {
        Ok(found) if found.len() == 0 => return Ok(None),
        Ok(_) => {}
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => {
            return Err(Error::DataDir { path: data_dir.display().to_string(), source });
        }
    }
    match SqliteStore::open_beside(&path) {
        Ok(store) => Ok(Some(ring(store, data_dir))),
        // A daemon, or another process of ours, is just creating it.
        Err(StoreError::Unavailable(cause)) if is_empty(&*cause) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The keys of a directory. A new directory is prepared as a daemon would do it.
pub fn open_or_make(data_dir: &Path) -> Result<KeyRing, Error> {
    if let Some(ring) = open(data_dir)? {
        return Ok(ring);
    }
    // Held only while the registry is created: a daemon that starts meanwhile reports that the directory is in use.
    let data = DataDir::open(data_dir)?;
    drop(SqliteStore::open(&data.path().join(REGISTRY))?);
    let store = SqliteStore::open_beside(&data.path().join(REGISTRY))?;
    Ok(ring(store, data.path()))
}

fn ring(store: SqliteStore, data_dir: &Path) -> KeyRing {
    let directory = LocalDirectory::new(Arc::new(store), NO_NODE);
    KeyRing::new(Arc::new(directory), Arc::new(Latch::of(data_dir)))
}

fn is_empty(cause: &(dyn std::error::Error + Send + Sync + 'static)) -> bool {
    matches!(cause.downcast_ref::<SqliteError>(), Some(SqliteError::Empty { .. }))
}
