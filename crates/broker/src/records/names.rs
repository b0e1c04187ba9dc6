//! Which sandboxes of this node have a name, chosen or derived, so that a look-up asks neither the store nor every
//! sandbox. An entry is only a hint: whoever follows it compares what the sandbox says of itself.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use sandkeep_core::{SandboxId, SandboxName};

#[derive(Default)]
struct NameEntry {
    by_name: HashMap<SandboxName, Vec<SandboxId>>,
    by_id: HashMap<SandboxId, Vec<SandboxName>>,
}

#[derive(Default)]
pub(crate) struct NameIndex(RwLock<NameEntry>);

impl NameIndex {
    /// A lock is held for one look or change, and nothing panics meanwhile; so a poisoned one is whole.
    fn known(&self) -> RwLockReadGuard<'_, NameEntry> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn known_mut(&self) -> RwLockWriteGuard<'_, NameEntry> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn add(&self, id: &SandboxId, name: &SandboxName) {
        let mut known = self.known_mut();
        let names = known.by_id.entry(id.clone()).or_default();
        if names.contains(name) {
            return;
        }
        names.push(name.clone());
        known.by_name.entry(name.clone()).or_default().push(id.clone());
    }

    /// Forgets one name of a sandbox.
    pub fn remove(&self, id: &SandboxId, name: &SandboxName) {
        let mut known = self.known_mut();
        if let Some(names) = known.by_id.get_mut(id) {
            names.retain(|other| other != name);
        }
        known.forget(id, name);
    }

    /// Forgets a sandbox.
    pub fn remove_all(&self, id: &SandboxId) {
        let mut known = self.known_mut();
        for name in known.by_id.remove(id).unwrap_or_default() {
            known.forget(id, &name);
        }
    }

    pub fn candidates(&self, name: &SandboxName) -> Vec<SandboxId> {
        self.known().by_name.get(name).cloned().unwrap_or_default()
    }
}

impl NameEntry {
    fn forget(&mut self, id: &SandboxId, name: &SandboxName) {
        let Some(ids) = self.by_name.get_mut(name) else { return };
        ids.retain(|other| other != id);
        if ids.is_empty() {
            self.by_name.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_is_found_by_each_of_its_names_until_it_is_forgotten() {
        let index = NameIndex::default();
        let [one, two] = [SandboxId::random(), SandboxId::random()];
        let [web, db]: [SandboxName; 2] = ["web", "db"].map(|name| name.parse().expect("a name"));
        for (id, name) in [(&one, &web), (&one, &web), (&two, &web), (&one, &db)] {
            index.add(id, name);
        }
        assert_eq!(index.candidates(&web), [one.clone(), two.clone()]);
        index.remove(&one, &web);
        assert_eq!(index.candidates(&web), std::slice::from_ref(&two));
        index.remove_all(&one);
        index.remove_all(&two);
        assert_eq!(index.candidates(&db), []);
        let known = index.known();
        assert!(known.by_name.is_empty() && known.by_id.is_empty(), "nothing is left behind");
    }
}
