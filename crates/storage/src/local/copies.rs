//! The copies under way, by the volume that they are for, so that they can be broken off when it is to be destroyed.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sandkeep_core::{SandboxId, limits};
use sandkeep_tree::Effort;

#[derive(Default)]
pub(super) struct Copies(Mutex<HashMap<SandboxId, Vec<Effort>>>);

impl Copies {
    /// A lock is held for one look-up, and nothing panics meanwhile.
    fn under_way(&self) -> MutexGuard<'_, HashMap<SandboxId, Vec<Effort>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a copy for this volume with a budget that [`Self::break_off`] cancels.
    pub fn run<T>(&self, id: &SandboxId, copy: impl FnOnce(Effort) -> T) -> T {
        let effort = Effort::new(u64::MAX, limits::COPY_MAX);
        self.under_way().entry(id.clone()).or_default().push(effort.clone());
        let _registered = Registered { copies: self, id, effort: &effort };
        copy(effort.clone())
    }

    pub fn break_off(&self, id: &SandboxId) {
        self.under_way().get(id).into_iter().flatten().for_each(Effort::cancel);
    }
}

struct Registered<'a> {
    copies: &'a Copies,
    id: &'a SandboxId,
    effort: &'a Effort,
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        let mut under_way = self.copies.under_way();
        if let Some(efforts) = under_way.get_mut(self.id) {
            efforts.retain(|effort| !effort.is(self.effort));
            if efforts.is_empty() {
                under_way.remove(self.id);
            }
        }
    }
}
