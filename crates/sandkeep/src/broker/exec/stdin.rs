//! Stdin that stays open: whoever sends some has it for themselves until they are done, so that two
//! requests are never mixed.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::OwnedMutexGuard;

use crate::error::Error;
use crate::guest::ExecutionInput;
use crate::sandbox::ExecId;

/// The open stdins of a sandbox's execs.
#[derive(Default)]
pub(super) struct Stdins(Mutex<HashMap<ExecId, Gate>>);

type Gate = Arc<tokio::sync::Mutex<ExecutionInput>>;

impl Stdins {
    fn gates(&self) -> MutexGuard<'_, HashMap<ExecId, Gate>> {
        // Nothing panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn open(&self, id: ExecId, input: ExecutionInput) {
        self.gates().insert(id, Arc::new(tokio::sync::Mutex::new(input)));
    }

    /// It was closed, or the exec has ended.
    pub fn remove(&self, id: &ExecId) {
        self.gates().remove(id);
    }

    pub fn is_open(&self, id: &ExecId) -> bool {
        self.gates().contains_key(id)
    }

    fn find(&self, id: &ExecId) -> Result<Gate, Error> {
        self.gates().get(id).cloned().ok_or_else(|| Error::StdinClosed { id: id.clone() })
    }
}

/// The sole right to write to an exec's stdin.
pub struct StdinTurn {
    id: ExecId,
    execs: Arc<super::Execs>,
    input: OwnedMutexGuard<ExecutionInput>,
}

impl StdinTurn {
    /// Waits until nobody else is writing.
    pub(super) async fn take(execs: &Arc<super::Execs>, id: &ExecId) -> Result<Self, Error> {
        let input = execs.stdins.find(id)?.lock_owned().await;
        // Whoever had it before may have closed it.
        execs.stdins.find(id)?;
        Ok(Self { id: id.clone(), execs: Arc::clone(execs), input })
    }

    /// Passes bytes on as fast as the command reads them.
    pub async fn write(&self, bytes: &[u8]) -> Result<(), Error> {
        self.input.write(bytes).await.map_err(|_| Error::StdinClosed { id: self.id.clone() })
    }

    /// The command sees the end of its stdin.
    pub async fn close(self) -> Result<(), Error> {
        self.execs.stdins.remove(&self.id);
        match self.input.close().await {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(Error::StdinClosed { id: self.id })
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }
}
