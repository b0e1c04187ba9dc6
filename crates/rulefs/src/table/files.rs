//! The nodes of every file: mostly one, several where names of it have, or had, different permissions.

use std::collections::HashMap;

/// Device and inode.
pub type FileId = (u64, u64);

enum Nodes {
    One(u64),
    Several(Vec<u64>),
}

#[derive(Default)]
pub(super) struct Files(HashMap<FileId, Nodes>);

impl Files {
    pub fn of(&self, file: FileId) -> &[u64] {
        match self.0.get(&file) {
            None => &[],
            Some(Nodes::One(id)) => std::slice::from_ref(id),
            Some(Nodes::Several(ids)) => ids,
        }
    }

    pub fn add(&mut self, file: FileId, id: u64) {
        let nodes = self.0.entry(file).or_insert(Nodes::One(id));
        match nodes {
            Nodes::One(known) if *known == id => {}
            Nodes::One(known) => *nodes = Nodes::Several(vec![*known, id]),
            Nodes::Several(ids) => ids.push(id),
        }
    }

    pub fn remove(&mut self, file: FileId, id: u64) {
        let Some(nodes) = self.0.get_mut(&file) else { return };
        let is_empty = match nodes {
            Nodes::One(known) => *known == id,
            Nodes::Several(ids) => {
                ids.retain(|known| *known != id);
                ids.is_empty()
            }
        };
        if is_empty {
            self.0.remove(&file);
        }
    }

    /// The number means another file from now on. Nodes that the kernel still has stay, and are not found by it.
    pub fn part(&mut self, file: FileId) {
        self.0.remove(&file);
    }
}
