//! Changes from outside: new rules, and files that somebody else has changed.

use std::collections::HashMap;
use std::sync::Arc;

use sandkeep_core::rules::{Permission, Rules, State};

use super::{Filesystem, Locked, key};
use crate::control::{Effect, Mode, Replaced};
use crate::notices::Notice;
use crate::table::Kind;
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
        locked.rules = rules;
        let judged = locked.judge_all();
        let effect = match self.mode {
            Mode::ZeroMessage => Effect::AtOnce,
            Mode::Passthrough => Effect::NextOpen,
        };
        let mut replaced = Replaced { effect, lowered: 0, raised: 0 };
        let mut notices = vec![Notice::AllNames];
        for (id, permission, state) in judged {
            let Ok(node) = locked.table.get(id) else { continue };
            let before = node.key.permission;
            let kind = state.map_or_else(|| node.kind.clone(), Kind::Directory);
            let is_directory = matches!(kind, Kind::Directory(_));
            match permission.cmp(&before) {
                std::cmp::Ordering::Less => replaced.lowered += 1,
                std::cmp::Ordering::Greater => replaced.raised += 1,
                // What it lists may be different.
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

type Judged = (u64, Permission, Option<Arc<State>>);

impl Locked {
    /// The permission of every known node under the current rules, and the state of directories.
    fn judge_all(&self) -> Vec<Judged> {
        let mut states = HashMap::from([(ROOT, Arc::new(self.rules.root()))]);
        let mut permissions = HashMap::from([(ROOT, self.rules.of_root())]);
        let ids: Vec<u64> = self.table.ids().map(|(id, _)| id).collect();
        for id in &ids {
            self.judge_directory(*id, &mut states, &mut permissions);
        }
        let mut judged = Vec::with_capacity(ids.len());
        for (id, node) in self.table.ids() {
            if let Some(permission) = permissions.get(&id) {
                judged.push((id, *permission, states.get(&id).cloned()));
                continue;
            }
            // The lowest of its names: one that allows more gets a node of its own with the next lookup.
            let of_name = |name: &crate::table::Name| {
                Some(self.rules.permission(states.get(&name.dir)?, &name.name))
            };
            let names = node.names.as_slice();
            let lowest = names.iter().map(|name| of_name(name).unwrap_or(Permission::None)).min();
            // Without a name no rule matches it. It was a file that its user had made or removed.
            judged.push((id, lowest.unwrap_or(node.key.permission), None));
        }
        judged
    }

    /// Fills in the states of a directory and of those above it that are not known yet.
    fn judge_directory(
        &self,
        id: u64,
        states: &mut HashMap<u64, Arc<State>>,
        permissions: &mut HashMap<u64, Permission>,
    ) {
        let mut chain = Vec::new();
        let mut at = id;
        while !states.contains_key(&at) {
            let Ok(node) = self.table.get(at) else { break };
            let (Kind::Directory(_), Some(name)) = (&node.kind, node.names.as_slice().first())
            else {
                break;
            };
            chain.push((at, name));
            at = name.dir;
        }
        while let Some((id, name)) = chain.pop() {
            // A directory that was removed leads nowhere.
            let Some(above) = states.get(&name.dir) else { continue };
            let (permission, state) = self.rules.step(above, &name.name);
            permissions.insert(id, permission);
            states.insert(id, Arc::new(state));
        }
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
