//! The files and directories that the kernel knows.
//!
//! A node is a file at one permission: (device, inode, permission). So two names of one file share a node if the rules
//! treat them alike, and otherwise a name never gives more than its own rule allows. A node knows its names, by which
//! it is found again; a file that has lost its last name is kept open instead, as long as the kernel knows it.

mod files;
mod judge;
mod restore;

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use sandkeep_core::rules::{Permission, State};

use crate::journal::{Journal, Record};
use crate::wire::ROOT;
use files::Files;

pub use files::FileId;
pub use judge::Judged;
pub use restore::Restored;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub device: u64,
    pub inode: u64,
    pub permission: Permission,
}

impl Key {
    pub fn file(self) -> FileId {
        (self.device, self.inode)
    }
}

#[derive(Debug)]
pub struct Node {
    pub key: Key,
    pub kind: Kind,
    pub names: Names,
    /// How often the kernel was given it.
    pub lookups: u64,
    /// Names of other nodes that are in this directory.
    pub children: u32,
    /// A file without a name.
    pub kept: Option<Arc<OwnedFd>>,
}

#[derive(Clone, Debug)]
pub enum Kind {
    Directory(Arc<State>),
    File,
    Symlink,
    /// Fifos, sockets and devices, which are never opened here.
    Special,
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    pub dir: u64,
    pub name: Box<[u8]>,
}

/// Mostly one.
#[derive(Debug, Default)]
pub enum Names {
    #[default]
    None,
    One(Name),
    Several(Vec<Name>),
}

impl Names {
    pub fn as_slice(&self) -> &[Name] {
        match self {
            Self::None => &[],
            Self::One(name) => std::slice::from_ref(name),
            Self::Several(names) => names,
        }
    }

    fn add(&mut self, name: Name) {
        *self = match std::mem::take(self) {
            Self::None => Self::One(name),
            Self::One(first) => Self::Several(vec![first, name]),
            Self::Several(mut names) => {
                names.push(name);
                Self::Several(names)
            }
        };
    }

    /// Whether it was there.
    fn remove(&mut self, dir: u64, name: &[u8]) -> bool {
        let is_it = |known: &Name| known.dir == dir && *known.name == *name;
        match std::mem::take(self) {
            Self::One(known) if is_it(&known) => true,
            Self::Several(mut names) => {
                let before = names.len();
                names.retain(|known| !is_it(known));
                let removed = names.len() < before;
                *self = match names.len() {
                    0 => Self::None,
                    _ => Self::Several(names),
                };
                removed
            }
            other => {
                *self = other;
                false
            }
        }
    }
}

pub struct Table {
    nodes: HashMap<u64, Box<Node>>,
    files: Files,
    next: u64,
    /// Where every change is recorded.
    journal: Option<Journal>,
}

impl Table {
    pub fn new(root: Key, state: Arc<State>) -> Self {
        let node = Node {
            key: root,
            kind: Kind::Directory(state),
            names: Names::None,
            lookups: 1,
            children: 0,
            kept: None,
        };
        let mut files = Files::default();
        files.add(root.file(), ROOT);
        let nodes = HashMap::from([(ROOT, Box::new(node))]);
        Self { nodes, files, next: ROOT + 1, journal: None }
    }

    pub fn record_in(&mut self, journal: Journal) {
        self.journal = Some(journal);
    }

    /// Records a change. If that fails, nobody can take the mount over; it goes on.
    pub fn record(&mut self, record: impl FnOnce() -> Record) {
        if let Some(journal) = &mut self.journal
            && journal.append(&record()).is_err()
        {
            self.journal = None;
        }
    }

    pub fn has_long_journal(&self) -> bool {
        self.journal.as_ref().is_some_and(Journal::is_long)
    }

    /// Replaces the journal by one of the table as it is.
    pub fn rewrite_journal(&mut self, image: &Record) {
        if let Some(journal) = &mut self.journal {
            // The old one is complete, too: it stays, and this is tried again later.
            let _ = journal.rewrite(image);
        }
    }

    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// One that the kernel names; ESTALE if it is one of an earlier life.
    pub fn get(&self, id: u64) -> Result<&Node, Errno> {
        self.nodes.get(&id).map(Box::as_ref).ok_or(Errno::STALE)
    }

    pub fn directory(&self, id: u64) -> Result<&Arc<State>, Errno> {
        match &self.get(id)?.kind {
            Kind::Directory(state) => Ok(state),
            Kind::File | Kind::Symlink | Kind::Special => Err(Errno::NOTDIR),
        }
    }

    pub fn find(&self, key: Key) -> Option<u64> {
        let has_key = |id: &&u64| self.nodes.get(id).is_some_and(|node| node.key == key);
        self.files.of(key.file()).iter().find(has_key).copied()
    }

    /// The nodes of a file, whatever their permissions.
    pub fn nodes_of(&self, file: FileId) -> &[u64] {
        self.files.of(file)
    }

    /// Somebody else has removed the last name of a file. Its number may soon be that of another one.
    pub fn part(&mut self, file: FileId) {
        for id in self.files.of(file).to_vec() {
            let names = self.nodes.get(&id).map(|node| node.names.as_slice().to_vec());
            for name in names.into_iter().flatten() {
                self.remove_name(id, name.dir, &name.name);
            }
        }
        self.record(|| Record::Part(file));
        self.files.part(file);
    }

    pub fn ids(&self) -> impl Iterator<Item = (u64, &Node)> {
        self.nodes.iter().map(|(id, node)| (*id, &**node))
    }

    /// The node of a name that was found, known or new. The kernel is given it once more.
    pub fn look_up(&mut self, dir: u64, name: &[u8], key: Key, kind: &Kind) -> u64 {
        // Another kind of file with this number: the one that had it was removed by somebody else.
        let is_same =
            |id: &u64| self.nodes.get(id).is_some_and(|node| node.kind.tag() == kind.tag());
        let id = self.find(key).filter(is_same).unwrap_or(self.next);
        self.record(|| {
            let (name, kind) = (name.to_vec(), kind.tag());
            Record::LookUp { id, dir, name, key: key.image(), kind }
        });
        self.give(id, (dir, name), key, kind);
        id
    }

    fn give(&mut self, id: u64, (dir, name): (u64, &[u8]), key: Key, kind: &Kind) {
        self.next = self.next.max(id + 1);
        self.nodes.entry(id).or_insert_with(|| {
            self.files.add(key.file(), id);
            let (kind, names) = (kind.clone(), Names::None);
            Box::new(Node { key, kind, names, lookups: 0, children: 0, kept: None })
        });
        self.insert_name(id, dir, name);
        if let Some(node) = self.nodes.get_mut(&id) {
            node.lookups += 1;
            if let Kind::Directory(_) = kind {
                node.kind = kind.clone();
            }
        }
    }

    /// A file that has no name yet.
    pub fn add_nameless(&mut self, key: Key, file: Arc<OwnedFd>) -> u64 {
        let id = self.next;
        self.record(|| Record::Nameless { id, key: key.image() });
        self.give_nameless(id, key, Some(file));
        id
    }

    fn give_nameless(&mut self, id: u64, key: Key, kept: Option<Arc<OwnedFd>>) {
        self.next = self.next.max(id + 1);
        let (kind, names) = (Kind::File, Names::None);
        let node = Node { key, kind, names, lookups: 1, children: 0, kept };
        self.nodes.insert(id, Box::new(node));
        self.files.add(key.file(), id);
    }

    pub fn add_name(&mut self, id: u64, dir: u64, name: &[u8]) {
        self.record(|| Record::AddName { id, dir, name: name.to_vec() });
        self.insert_name(id, dir, name);
    }

    fn insert_name(&mut self, id: u64, dir: u64, name: &[u8]) {
        // Somebody else has moved directories into each other, and the kernel has not noticed yet.
        if self.is_within(dir, id) {
            return;
        }
        let Some(node) = self.nodes.get_mut(&id) else { return };
        if let Kind::Directory(_) = node.kind {
            // It has exactly one name; an old one is of the time before somebody else moved it.
            let old = std::mem::take(&mut node.names);
            node.names = Names::One(Name { dir, name: name.into() });
            old.as_slice().iter().for_each(|old| self.lose_child(old.dir));
        } else {
            if node.names.as_slice().iter().any(|known| known.dir == dir && *known.name == *name) {
                return;
            }
            node.names.add(Name { dir, name: name.into() });
        }
        if let Some(dir) = self.nodes.get_mut(&dir) {
            dir.children += 1;
        }
    }

    /// Whether a directory is another one, or below it.
    fn is_within(&self, mut dir: u64, above: u64) -> bool {
        while dir != above {
            let node = self.nodes.get(&dir);
            match node.and_then(|node| node.names.as_slice().first()) {
                Some(name) => dir = name.dir,
                None => return false,
            }
        }
        true
    }

    pub fn remove_name(&mut self, id: u64, dir: u64, name: &[u8]) {
        self.record(|| Record::RemoveName { id, dir, name: name.to_vec() });
        let removed = self.nodes.get_mut(&id).is_some_and(|node| node.names.remove(dir, name));
        if removed {
            self.lose_child(dir);
        }
    }

    /// Keeps a file open that is about to lose its last name.
    pub fn keep(&mut self, id: u64, file: Arc<OwnedFd>) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.kept = Some(file);
        }
    }

    /// The kernel gives a node back. Returns those that are gone.
    pub fn forget(&mut self, id: u64, count: u64) -> Vec<u64> {
        self.record(|| Record::Forget { id, count });
        if let Some(node) = self.nodes.get_mut(&id) {
            node.lookups = node.lookups.saturating_sub(count);
        }
        self.remove_unused(id)
    }

    /// Replaces the permissions and states of nodes.
    pub fn change(&mut self, id: u64, permission: Permission, kind: Kind) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        node.key.permission = permission;
        node.kind = kind;
    }

    fn lose_child(&mut self, dir: u64) {
        if let Some(dir) = self.nodes.get_mut(&dir) {
            dir.children = dir.children.saturating_sub(1);
        }
        self.remove_unused(dir);
    }

    /// Removes a node that neither the kernel nor a name below it needs, and then those above it.
    fn remove_unused(&mut self, id: u64) -> Vec<u64> {
        let mut gone = Vec::new();
        let mut candidates = vec![id];
        while let Some(id) = candidates.pop() {
            let is_unused = |node: &Node| node.lookups == 0 && node.children == 0;
            if id == ROOT || !self.get(id).is_ok_and(is_unused) {
                continue;
            }
            let Some(node) = self.nodes.remove(&id) else { continue };
            self.files.remove(node.key.file(), id);
            for name in node.names.as_slice() {
                if let Some(dir) = self.nodes.get_mut(&name.dir) {
                    dir.children = dir.children.saturating_sub(1);
                }
                candidates.push(name.dir);
            }
            gone.push(id);
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandkeep_core::rules::Rules;

    fn key(inode: u64) -> Key {
        Key { device: 1, inode, permission: Permission::Write }
    }

    fn table() -> (Table, Kind) {
        let state = Arc::new(Rules::new(Vec::new()).unwrap().root());
        (Table::new(key(1), Arc::clone(&state)), Kind::Directory(state))
    }

    #[test]
    fn names_of_one_file_share_a_node_unless_their_permissions_differ() {
        let (mut table, _) = table();
        let first = table.look_up(ROOT, b"a", key(5), &Kind::File);
        assert_eq!(table.look_up(ROOT, b"b", key(5), &Kind::File), first);
        let read = Key { permission: Permission::Read, ..key(5) };
        assert_ne!(table.look_up(ROOT, b"c", read, &Kind::File), first);
        assert_eq!(table.get(first).unwrap().names.as_slice().len(), 2);
    }

    #[test]
    fn a_directory_stays_while_a_name_below_it_is_known() {
        let (mut table, dir) = table();
        let parent = table.look_up(ROOT, b"d", key(2), &dir);
        let file = table.look_up(parent, b"f", key(3), &Kind::File);
        assert!(table.forget(parent, 1).is_empty());
        assert!(table.get(parent).is_ok());
        assert_eq!(table.forget(file, 1), [file, parent]);
        assert_eq!(table.len(), 1);
        assert_eq!(table.get(ROOT).unwrap().children, 0);
    }

    #[test]
    fn a_moved_directory_has_only_its_new_name() {
        let (mut table, dir) = table();
        let id = table.look_up(ROOT, b"d", key(2), &dir);
        table.look_up(ROOT, b"e", key(2), &dir);
        let names = table.get(id).unwrap().names.as_slice().to_vec();
        assert_eq!(names, [Name { dir: ROOT, name: (*b"e").into() }]);
        assert_eq!(table.get(ROOT).unwrap().children, 1);
        table.forget(id, 2);
        assert_eq!(table.get(ROOT).unwrap().children, 0);
    }

    #[test]
    fn directories_that_were_moved_into_each_other_make_no_circle() {
        let (mut table, dir) = table();
        let outer = table.look_up(ROOT, b"a", key(2), &dir);
        let inner = table.look_up(outer, b"b", key(3), &dir);
        table.look_up(inner, b"a", key(2), &dir);
        assert_eq!(table.get(outer).unwrap().names.as_slice()[0].dir, ROOT);
        table.look_up(inner, b"itself", key(3), &dir);
        assert_eq!(table.get(inner).unwrap().names.as_slice()[0].dir, outer);
    }

    #[test]
    fn a_number_that_was_used_before_is_another_file() {
        let (mut table, dir) = table();
        let first = table.look_up(ROOT, b"a", key(5), &Kind::File);
        let other = table.look_up(ROOT, b"b", key(5), &dir);
        assert_ne!(other, first);
        table.part(key(5).file());
        let last = table.look_up(ROOT, b"c", key(5), &Kind::File);
        assert!(![first, other].contains(&last));
        assert_eq!(table.nodes_of(key(5).file()), [last]);
        assert_eq!(table.forget(first, 1), [first]);
        assert_eq!(table.nodes_of(key(5).file()), [last]);
    }

    #[test]
    fn all_nodes_of_a_file_are_found_also_once_rules_treat_them_alike() {
        let (mut table, _) = table();
        let read = Key { permission: Permission::Read, ..key(5) };
        let ids = [
            table.look_up(ROOT, b"a", key(5), &Kind::File),
            table.look_up(ROOT, b"b", read, &Kind::File),
        ];
        table.change(ids[1], Permission::Write, Kind::File);
        assert_eq!(table.nodes_of(key(5).file()), ids);
        table.forget(ids[0], 1);
        assert_eq!(table.find(key(5)), Some(ids[1]));
    }

    #[test]
    fn ids_are_never_used_twice() {
        let (mut table, _) = table();
        let first = table.look_up(ROOT, b"a", key(5), &Kind::File);
        table.forget(first, 1);
        assert_ne!(table.look_up(ROOT, b"a", key(5), &Kind::File), first);
    }
}
