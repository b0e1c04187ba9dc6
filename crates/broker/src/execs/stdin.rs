//! Open stdins. A writer has exclusive access until it is done, so that two requests are never mixed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::OwnedMutexGuard;

use super::Execs;
use crate::error::Error;
use sandkeep_core::ExecId;
use sandkeep_guestlink::ExecutionInput;

/// The open stdins of a sandbox's execs.
#[derive(Default)]
pub(super) struct Stdins(Mutex<HashMap<ExecId, Gate>>);

#[derive(Clone)]
struct Gate {
    input: ExecutionInput,
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Stdins {
    fn gates(&self) -> MutexGuard<'_, HashMap<ExecId, Gate>> {
        // No code panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn open(&self, id: ExecId, input: ExecutionInput) {
        self.gates().insert(id, Gate { input, turn: Arc::default() });
    }

    /// Called when stdin was closed or the exec has ended.
    pub fn remove(&self, id: &ExecId) {
        self.gates().remove(id);
    }

    pub fn is_open(&self, id: &ExecId) -> bool {
        self.gates().contains_key(id)
    }

    /// How many bytes were written to an open stdin.
    pub fn position(&self, id: &ExecId) -> Option<u64> {
        self.gates().get(id)?.input.position()
    }

    fn find(&self, id: &ExecId) -> Result<Gate, Error> {
        self.gates().get(id).cloned().ok_or_else(|| Error::StdinClosed { id: id.clone() })
    }
}

/// Exclusive access to an exec's stdin.
pub struct StdinTurn {
    id: ExecId,
    execs: Arc<Execs>,
    input: ExecutionInput,
    _turn: OwnedMutexGuard<()>,
}

impl StdinTurn {
    /// Waits until nobody else is writing, and until an exec of an earlier daemon is joined.
    pub(super) async fn take(execs: &Arc<Execs>, id: &ExecId) -> Result<Self, Error> {
        execs.awaited.joined(id).await;
        let Gate { input, turn } = execs.stdins.find(id)?;
        let turn = turn.lock_owned().await;
        // The previous writer may have closed it.
        execs.stdins.find(id)?;
        Ok(Self { id: id.clone(), execs: Arc::clone(execs), input, _turn: turn })
    }

    /// Passes bytes on as fast as the command reads them.
    pub async fn write(&self, bytes: &[u8]) -> Result<(), Error> {
        self.input.write(bytes).await.map_err(|_| Error::StdinClosed { id: self.id.clone() })
    }

    /// Closes the command's stdin.
    pub async fn close(self) -> Result<(), Error> {
        self.execs.stdins.remove(&self.id);
        self.input.close().await.map_err(|_| Error::StdinClosed { id: self.id })
    }
}
