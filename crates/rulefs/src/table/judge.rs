//! What rules say about everything that is known.

use std::collections::HashMap;
use std::sync::Arc;

use sandkeep_core::rules::{Permission, Rules, State};

use super::{Kind, Name, Table};
use crate::wire::ROOT;

/// A node's permission, and its state if it is a directory.
pub struct Judged {
    pub id: u64,
    pub permission: Permission,
    pub state: Option<Arc<State>>,
}

#[derive(Default)]
struct Directories {
    states: HashMap<u64, Arc<State>>,
    permissions: HashMap<u64, Permission>,
}

impl Table {
    /// The permission of every known node under these rules, and the state of directories.
    pub fn judge(&self, rules: &Rules) -> Vec<Judged> {
        let mut dirs = Directories::default();
        dirs.states.insert(ROOT, Arc::new(rules.root()));
        dirs.permissions.insert(ROOT, rules.of_root());
        for id in self.nodes.keys() {
            self.judge_directory(*id, rules, &mut dirs);
        }
        let judge = |(id, node): (u64, &super::Node)| {
            if let Some(permission) = dirs.permissions.get(&id) {
                let state = dirs.states.get(&id).cloned();
                return Judged { id, permission: *permission, state };
            }
            // The lowest of its names: one that allows more gets a node of its own with the next lookup.
            let of_name =
                |name: &Name| Some(rules.permission(dirs.states.get(&name.dir)?, &name.name));
            let names = node.names.as_slice();
            let lowest = names.iter().map(|name| of_name(name).unwrap_or(Permission::None)).min();
            // Without a name no rule matches it. It is a file that its user has made or removed.
            let permission = lowest.unwrap_or(node.key.permission);
            Judged { id, permission, state: None }
        };
        self.ids().map(judge).collect()
    }

    /// Fills in the states of a directory and of those above it that are not known yet.
    fn judge_directory(&self, id: u64, rules: &Rules, dirs: &mut Directories) {
        let mut chain = Vec::new();
        let mut at = id;
        while !dirs.states.contains_key(&at) {
            let Ok(node) = self.get(at) else { break };
            let (Kind::Directory(_), Some(name)) = (&node.kind, node.names.as_slice().first())
            else {
                break;
            };
            chain.push((at, name));
            at = name.dir;
        }
        while let Some((id, name)) = chain.pop() {
            // A directory that was removed leads nowhere.
            let Some(above) = dirs.states.get(&name.dir) else { continue };
            let (permission, state) = rules.step(above, &name.name);
            dirs.permissions.insert(id, permission);
            dirs.states.insert(id, Arc::new(state));
        }
    }
}
