//! The owners of everything in the pool, for a read-only caller.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use super::look::{self, Kind, Seen, Volume, has_snapshots};
use super::names::{self, Names};
use super::removal::needless;
use super::{Claim, Tool, ZfsStorage, place};
use sandkeep_core::{SandboxId, SnapshotId};

/// A dataset or a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    pub name: String,
    pub whose: Whose,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whose {
    /// Shared datasets and layers.
    Shared,
    Sandbox(SandboxId),
    Snapshot(SandboxId, SnapshotId),
    /// An unfinished layer.
    Draft,
    /// It was removed, and something depends on it.
    Needed,
    Nobody(&'static str),
}

impl ZfsStorage {
    /// Everything that a data directory has in its pool; nothing if it has none. Read-only, and takes no lock.
    pub fn census(data_dir: &Path) -> io::Result<Vec<Holding>> {
        let Some(claim) = Claim::read(&place::of(data_dir))? else { return Ok(Vec::new()) };
        let tool = Tool::find().map_err(io::Error::other)?;
        let names = Names::new(claim.own().to_owned());
        Ok(holdings(&names, &look::look(&tool, names.own())?))
    }
}

fn holdings(names: &Names, seen: &[Seen]) -> Vec<Holding> {
    let (needless, idle) = (all_needless(seen), all_idle(names, seen));
    let whose = |it: &Seen| match it {
        it if needless.contains(&it.name) => {
            Whose::Nobody("it was removed, and nothing stands on it")
        }
        it if it.dead => Whose::Needed,
        it if idle.contains(&it.name) => Whose::Nobody("it is not the tree, and has no snapshots"),
        it => whose(names, seen, it),
    };
    seen.iter().map(|it| Holding { name: it.name.clone(), whose: whose(it) }).collect()
}

/// Former trees that a rollback should have removed.
fn all_idle(names: &Names, seen: &[Seen]) -> BTreeSet<String> {
    let is_volume = |it: &&Seen| names.is_volume(&it.name);
    let volumes = seen.iter().filter(is_volume).filter_map(|it| Volume::among(seen, &it.name));
    let idle = |volume: Volume| volume.idle_trees().map(|it| it.name.clone()).collect::<Vec<_>>();
    volumes.flat_map(idle).collect()
}

/// Dead datasets that would be destroyed now.
fn all_needless(seen: &[Seen]) -> BTreeSet<String> {
    let (mut left, mut found) = (seen.to_vec(), BTreeSet::new());
    while let Some(name) = needless(&left, &BTreeSet::new()) {
        let (gone, rest) = left.into_iter().partition(|it| names::is_within(&it.name, &name));
        found.extend(Vec::into_iter(gone).map(|it| it.name));
        left = rest;
    }
    found
}

fn whose(names: &Names, seen: &[Seen], it: &Seen) -> Whose {
    if names.rooms().contains(&it.name) {
        return Whose::Shared;
    }
    if names.layer(&it.name).is_some() {
        return if has_snapshots(seen, it.dataset()) { Whose::Shared } else { Whose::Draft };
    }
    let Some(id) = names.sandbox(&it.name) else { return Whose::Nobody("nothing has such a name") };
    match (it.kind, names.snapshot(&it.name)) {
        (Kind::Snapshot, Some((id, snapshot))) => Whose::Snapshot(id, snapshot),
        (Kind::Snapshot, None) => Whose::Nobody("it is no snapshot of a sandbox"),
        (Kind::Dataset | Kind::Going, _) => Whose::Sandbox(id),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row: name, whether it is being destroyed, its origin, whether it is dead, and its tree if any.
    fn row(name: &str, going: &str, origin: &str, dead: &str, tree: &str) -> Seen {
        Seen::of([name, going, origin, "none", dead, tree].map(str::to_owned))
    }

    #[test]
    fn everything_is_somebodys_or_nobodys() {
        let [id, gone] = [(); 2].map(|()| SandboxId::random());
        let [kept, deleted] = [(); 2].map(|()| SnapshotId::random());
        let names = Names::new("p/own".to_owned());
        let (volume, dead) = (names.volume(&id), names.volume(&gone));
        let layer = format!("p/own/layers/{}.1", "a".repeat(64));
        let (sandbox, shared) = (Whose::Sandbox(id.clone()), Whose::Shared);
        let removed = Whose::Nobody("it was removed, and nothing stands on it");
        let idle = Whose::Nobody("it is not the tree, and has no snapshots");
        let needed = format!("{dead}/tree.1@{kept}");
        let all = [
            (row("p/own", "-", "-", "-", "-"), shared.clone()),
            (row("p/own/layers", "-", "-", "-", "-"), shared.clone()),
            (row(&layer, "-", "-", "-", "-"), shared.clone()),
            (row(&format!("{layer}@layer"), "off", "-", "-", "-"), shared.clone()),
            (row(&format!("{layer}2"), "-", "-", "-", "-"), Whose::Draft),
            (
                row("p/own/layers/strange", "-", "-", "-", "-"),
                Whose::Nobody("nothing has such a name"),
            ),
            (row("p/own/volumes", "-", "-", "-", "-"), shared),
            (row(&volume, "-", "-", "-", "tree.3"), sandbox.clone()),
            (row(&format!("{volume}/tree.1"), "-", &needed, "-", "tree.3"), sandbox.clone()),
            (
                row(&format!("{volume}/tree.1@{kept}"), "off", "-", "-", "tree.3"),
                Whose::Snapshot(id.clone(), kept.clone()),
            ),
            (row(&format!("{volume}/tree.1@{deleted}"), "on", "-", "-", "tree.3"), sandbox.clone()),
            (
                row(&format!("{volume}/tree.1@capture-1"), "off", "-", "-", "tree.3"),
                Whose::Nobody("it is no snapshot of a sandbox"),
            ),
            (row(&format!("{volume}/tree.2"), "-", "-", "-", "tree.3"), idle),
            (row(&format!("{volume}/tree.3"), "-", "-", "-", "tree.3"), sandbox.clone()),
            (row(&format!("{volume}/view-{kept}.1"), "-", "-", "-", "tree.3"), sandbox),
            (row(&dead, "-", "-", "on", "tree.2"), Whose::Needed),
            (row(&format!("{dead}/tree.1"), "-", "-", "on", "tree.2"), Whose::Needed),
            (row(&needed, "off", "-", "on", "tree.2"), Whose::Needed),
            (row(&format!("{dead}/tree.1@{deleted}"), "off", "-", "on", "tree.2"), removed.clone()),
            (row(&format!("{dead}/tree.2"), "-", &needed, "on", "tree.2"), removed),
        ];
        let seen: Vec<_> = all.iter().map(|(seen, _)| seen.clone()).collect();
        let told: Vec<_> =
            holdings(&names, &seen).into_iter().map(|it| (it.name, it.whose)).collect();
        let expected: Vec<_> = all.into_iter().map(|(seen, whose)| (seen.name, whose)).collect();
        assert_eq!(told, expected);
    }
}
