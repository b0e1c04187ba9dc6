//! The table in the journal, and from it.

use std::collections::HashMap;
use std::sync::Arc;

use rustix::io::Errno;
use sandkeep_core::rules::Rules;

use super::files::Files;
use super::{Key, Kind, Name, Names, Node, Table};
use crate::control::WireRules;
use crate::fs::Epochs;
use crate::journal::{Backed, Backing, Files as JournalFiles, KindTag, NodeImage, Record};
use crate::wire::ROOT;

/// What a killed server knew.
pub struct Restored {
    pub table: Table,
    pub rules: Rules,
    pub epochs: Epochs,
    pub backings: HashMap<u64, Backed>,
}

impl Kind {
    pub(super) fn tag(&self) -> KindTag {
        match self {
            Self::Directory(_) => KindTag::Directory,
            Self::File => KindTag::File,
            Self::Symlink => KindTag::Symlink,
            Self::Special => KindTag::Special,
        }
    }
}

impl Key {
    pub(super) fn image(self) -> (u64, u64, sandkeep_core::rules::Permission) {
        (self.device, self.inode, self.permission)
    }

    fn of_image((device, inode, permission): (u64, u64, sandkeep_core::rules::Permission)) -> Self {
        Self { device, inode, permission }
    }
}

impl Table {
    /// Everything, for the start of a journal.
    pub fn image(&self, rules: &Rules, backings: &HashMap<u64, Backed>, epochs: Epochs) -> Record {
        let name = |name: &Name| (name.dir, name.name.to_vec());
        let node = |(id, node): (u64, &Node)| -> NodeImage {
            let names = node.names.as_slice().iter().map(name).collect();
            (id, node.key.image(), node.kind.tag(), names, node.lookups)
        };
        Record::Image {
            next: self.next,
            nodes: self.ids().map(node).collect(),
            rules: WireRules::from(rules),
            backings: backings.iter().map(|(id, backed)| (*id, *backed)).collect(),
            epochs,
        }
    }

    /// The table after these records. A file that had no name left was kept open by the server that is gone, and is
    /// lost with it.
    pub fn restore(journal: &JournalFiles) -> Result<Restored, Errno> {
        let (records, journal) = journal.read()?;
        let mut records = records.into_iter();
        let Some(Record::Image { next, nodes, rules, backings, epochs }) = records.next() else {
            return Err(Errno::PROTO);
        };
        let rules = Rules::try_from(rules).map_err(|_| Errno::PROTO)?;
        let mut restored = Restored {
            table: Self::of_image(next, nodes, &rules),
            rules,
            epochs,
            backings: backings.into_iter().collect(),
        };
        records.try_for_each(|record| restored.replay(record))?;
        restored.table.journal = Some(journal);
        Ok(restored)
    }

    fn of_image(next: u64, nodes: Vec<NodeImage>, rules: &Rules) -> Self {
        let unknown = Arc::new(rules.root());
        let (nodes_by_id, files) = (HashMap::new(), Files::default());
        let mut table = Self { nodes: nodes_by_id, files, next, journal: None };
        for (id, key, tag, names, lookups) in nodes {
            let key = Key::of_image(key);
            let kind = kind(tag, &unknown);
            let names = names.into_iter().map(|(dir, name)| Name { dir, name: name.into() });
            let names = Names::Several(names.collect());
            // One without a name is not found: its number may be that of another file by now.
            if id == ROOT || !names.as_slice().is_empty() {
                table.files.add(key.file(), id);
            }
            let (children, kept) = (0, None);
            let node = Node { key, kind, names, lookups, children, kept };
            table.nodes.insert(id, Box::new(node));
        }
        let dirs: Vec<u64> = table
            .nodes
            .values()
            .flat_map(|node| node.names.as_slice())
            .map(|name| name.dir)
            .collect();
        for dir in dirs {
            if let Some(dir) = table.nodes.get_mut(&dir) {
                dir.children += 1;
            }
        }
        table.apply_states(rules);
        table
    }

    /// Gives directories their states under the rules.
    fn apply_states(&mut self, rules: &Rules) {
        for judged in self.judge(rules) {
            if let (Some(node), Some(state)) = (self.nodes.get_mut(&judged.id), judged.state) {
                node.kind = Kind::Directory(state);
            }
        }
    }
}

impl Restored {
    fn replay(&mut self, record: Record) -> Result<(), Errno> {
        let table = &mut self.table;
        match record {
            Record::Image { .. } => return Err(Errno::PROTO),
            Record::LookUp { id, dir, name, key, kind: tag } => {
                let state = match tag {
                    KindTag::Directory => self.rules.step(table.directory(dir)?, &name).1,
                    _ => self.rules.root(),
                };
                table.give(id, (dir, &name), Key::of_image(key), &kind(tag, &Arc::new(state)));
            }
            Record::Nameless { id, key } => table.give_nameless(id, Key::of_image(key), None),
            Record::AddName { id, dir, name } => table.add_name(id, dir, &name),
            Record::RemoveName { id, dir, name } => table.remove_name(id, dir, &name),
            Record::Forget { id, count } => drop(table.forget(id, count)),
            Record::Part(file) => table.part(file),
            Record::Rules(rules) => {
                self.rules = Rules::try_from(rules).map_err(|_| Errno::PROTO)?;
                for judged in table.judge(&self.rules) {
                    let Ok(node) = table.get(judged.id) else { continue };
                    let kind = judged.state.map_or_else(|| node.kind.clone(), Kind::Directory);
                    table.change(judged.id, judged.permission, kind);
                }
            }
            Record::Backing(backing) => set(&mut self.backings, backing),
        }
        Ok(())
    }
}

fn set(backings: &mut HashMap<u64, Backed>, (id, backed): Backing) {
    match backed.opens {
        0 => drop(backings.remove(&id)),
        _ => drop(backings.insert(id, backed)),
    }
}

fn kind(tag: KindTag, state: &Arc<sandkeep_core::rules::State>) -> Kind {
    match tag {
        KindTag::Directory => Kind::Directory(Arc::clone(state)),
        KindTag::File => Kind::File,
        KindTag::Symlink => Kind::Symlink,
        KindTag::Special => Kind::Special,
    }
}
