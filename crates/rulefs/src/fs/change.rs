//! Changes from outside: new rules, and files that somebody else has changed.

use sandkeep_core::rules::{Permission, Rules};

use super::{Filesystem, Locked, key};
use crate::control::{Effect, Mode, Replaced, WireRules};
use crate::journal::Record;
use crate::notices::Notice;
use crate::peers::Told;
use crate::table::{FileId, Judged, Kind};
use crate::wire::ROOT;

/// What the kernel must be told, by the caller and without the lock.
pub struct Changed {
    pub notices: Vec<Notice>,
    pub replaced: Replaced,
}

impl Filesystem {
    /// Replaces the rules. Requests that come from now on are judged by them.
    pub fn replace_rules(&self, rules: Rules) -> Changed {
        let mut locked = self.lock();
        locked.table.record(|| Record::Rules(WireRules::from(&rules)));
        let judged = locked.table.judge(&rules);
        locked.rules = rules;
        let effect = match self.mode {
            Mode::ZeroMessage => Effect::AtOnce,
            Mode::Passthrough => Effect::NextOpen,
        };
        let mut replaced = Replaced { effect, lowered: 0, raised: 0 };
        let mut notices = vec![Notice::AllNames];
        for Judged { id, permission, state } in judged {
            let Ok(node) = locked.table.get(id) else { continue };
            let before = node.key.permission;
            let kind = state.map_or_else(|| node.kind.clone(), Kind::Directory);
            let is_directory = matches!(kind, Kind::Directory(_));
            match permission.cmp(&before) {
                std::cmp::Ordering::Less => replaced.lowered += 1,
                std::cmp::Ordering::Greater => replaced.raised += 1,
                // The directory's listing may be different.
                std::cmp::Ordering::Equal if is_directory => {}
                std::cmp::Ordering::Equal => continue,
            }
            for name in node.names.as_slice() {
                notices.push(Notice::Name { dir: name.dir, name: name.name.to_vec() });
            }
            notices.push(Notice::Contents(id));
            locked.table.change(id, permission, kind);
            // Its descriptors may do more than the new permission allows.
            locked.opened.close(id);
        }
        Changed { notices, replaced }
    }

    /// What another server of this tree tells. The caller tells the kernel.
    pub fn hear(&self, from: u32, told: Told) -> Vec<Notice> {
        let mut locked = self.lock();
        match told {
            Told::Name { dir, name } => {
                let dirs = locked.table.nodes_of(dir).iter();
                let of_dir = |dir: &u64| {
                    [Notice::Name { dir: *dir, name: name.clone() }, Notice::Contents(*dir)]
                };
                dirs.flat_map(of_dir).collect()
            }
            Told::Found { file, dir, name } => {
                locked.found(file, dir, &name);
                Vec::new()
            }
            Told::File(file) => locked.contents_of(file),
            Told::Part(file) => {
                let notices = locked.contents_of(file);
                locked.table.part(file);
                notices
            }
            Told::Writing(file) => {
                locked.written.add(file, from);
                locked.contents_of(file)
            }
            Told::Written(file) => {
                locked.written.remove(file, from);
                locked.contents_of(file)
            }
            Told::Joined => {
                self.tell_what_is_written(&locked);
                Vec::new()
            }
            Told::Again => {
                locked.written.forget(from);
                drop(locked);
                self.tell_everything();
                Vec::new()
            }
            Told::Left(member) => {
                let files = locked.written.forget(member);
                files.into_iter().flat_map(|file| locked.contents_of(file)).collect()
            }
        }
    }

    /// The files that programs have open for writing, which the kernel does without a message.
    pub fn tell_what_is_written(&self, locked: &Locked) {
        let written = locked.backings.iter().filter(|(_, backed)| backed.writers > 0);
        let nodes = written.filter_map(|(id, _)| locked.table.get(*id).ok());
        nodes.for_each(|node| self.peers.tell(&Told::Writing(node.key.file())));
    }

    /// Messages of others are lost: the caller has them tell again what they are writing.
    pub fn has_missed_something(&self) {
        self.lock().written.clear();
        self.tell_everything();
    }

    /// Has the kernel look at everything again.
    pub fn tell_everything(&self) {
        let ids: Vec<u64> = self.lock().table.ids().map(|(id, _)| id).collect();
        // It fails only with the connection.
        let _ = self.notices.tell(&Notice::AllNames);
        ids.into_iter().for_each(|id| self.notices.add(id));
    }

    /// Somebody else has changed a name in a directory, or the file that has it.
    pub fn invalidate(&self, dir: &[u8], name: &[u8]) -> Vec<Notice> {
        let mut locked = self.lock();
        let mut at = ROOT;
        let segments = dir.split(|byte| *byte == b'/').filter(|segment| !segment.is_empty());
        let mut notices = Vec::new();
        for segment in segments {
            let below = locked.known(at, segment);
            match below {
                Some(below) => at = below,
                // The kernel does not know this directory: at most that there is nothing.
                None => {
                    notices.push(Notice::Name { dir: at, name: segment.to_vec() });
                    notices.push(Notice::Contents(at));
                    return notices;
                }
            }
        }
        if let Some(file) = locked.known(at, name) {
            notices.push(Notice::Contents(file));
        }
        notices.push(Notice::Name { dir: at, name: name.to_vec() });
        notices.push(Notice::Contents(at));
        notices
    }
}

impl Locked {
    /// Adds a name to the nodes that the rules treat there as they do where they were. Other nodes have lost theirs.
    fn found(&mut self, file: FileId, dir: FileId, name: &[u8]) {
        for dir in self.table.nodes_of(dir).to_vec() {
            let Ok(place) = self.place(dir, name) else { continue };
            for id in self.table.nodes_of(file).to_vec() {
                let Ok(node) = self.table.get(id) else { continue };
                let is_alike = match &node.kind {
                    Kind::Directory(state) => **state == place.state,
                    Kind::File | Kind::Symlink | Kind::Special => true,
                };
                if is_alike && node.key.permission == place.permission {
                    self.table.add_name(id, dir, name);
                }
            }
        }
    }

    /// What each file allows under the name that allows most. One that is not known is allowed nothing, and a
    /// directory is judged with every request.
    pub fn permissions(&self, inodes: &[u64]) -> Vec<Permission> {
        let device = self.table.get(ROOT).map(|root| root.key.device).unwrap_or_default();
        let allowed = |id: &u64| match self.table.get(*id) {
            Ok(node) if matches!(node.kind, Kind::Directory(_)) => Permission::Write,
            Ok(node) => node.key.permission,
            Err(_) => Permission::None,
        };
        let of_inode = |inode: &u64| {
            let nodes = self.table.nodes_of((device, *inode)).iter();
            nodes.map(allowed).max().unwrap_or(Permission::None)
        };
        inodes.iter().map(of_inode).collect()
    }

    fn contents_of(&self, file: FileId) -> Vec<Notice> {
        self.table.nodes_of(file).iter().map(|id| Notice::Contents(*id)).collect()
    }

    /// The node that the kernel has for a name: the one of what is there now, or was there until now.
    fn known(&mut self, dir: u64, name: &[u8]) -> Option<u64> {
        if let Ok(stat) = self.stat_name(dir, name) {
            let place = self.place(dir, name).ok()?;
            if let Some(id) = self.table.find(key(&stat, place.permission)) {
                return Some(id);
            }
        }
        let has_name = |id: u64| {
            let names = self.table.get(id).ok()?.names.as_slice();
            names.iter().any(|known| known.dir == dir && *known.name == *name).then_some(id)
        };
        self.table.ids().map(|(id, _)| id).find_map(has_name)
    }
}
