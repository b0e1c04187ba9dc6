//! The terminals of running execs, for resizing them.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sandkeep_core::ExecId;
use sandkeep_guestlink::ExecutionInput;

/// Separate from the stdins: a client that types into a command that does not read must not block a resize.
#[derive(Default)]
pub(super) struct Terminals(Mutex<HashMap<ExecId, ExecutionInput>>);

impl Terminals {
    fn inputs(&self) -> MutexGuard<'_, HashMap<ExecId, ExecutionInput>> {
        // No code panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn open(&self, id: ExecId, input: ExecutionInput) {
        self.inputs().insert(id, input);
    }

    pub fn remove(&self, id: &ExecId) {
        self.inputs().remove(id);
    }

    /// `None` if the exec has ended, or has no terminal.
    pub fn find(&self, id: &ExecId) -> Option<ExecutionInput> {
        self.inputs().get(id).cloned()
    }
}
