//! What datasets are called.

use std::fmt;
use std::str::FromStr;

use crate::limits;
use crate::sandbox::{SandboxId, SnapshotId};
use crate::storage::LayerKey;

/// The snapshot that a layer is cloned from.
pub const LAYER: &str = "layer";
/// The dataset of a volume that its sandbox sees.
pub const TREE: &str = "tree";
/// What the name of a clone begins with that a rollback is about to put in the place of the tree.
const NEXT: &str = "next-";
/// What the name of a dataset begins with that was the tree before, and has snapshots still.
const PAST: &str = "past-";

/// What the name of a clone begins with that somebody looks at a snapshot by.
const VIEW: &str = "view-";

/// A text that does not name a pool or a dataset.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} names no pool or dataset: expected letters, digits, \"-\", \"_\", \".\" and \":\" between slashes, at most {max} \
     in all, beginning with a letter",
    max = limits::ZFS_POOL_NAME_MAX_BYTES
)]
pub struct InvalidDataset {
    text: String,
}

/// A pool, or a dataset of one, that an operator gave to us. Nothing outside it is ever looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dataset(String);

impl Dataset {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(super) fn join(&self, name: &str) -> String {
        format!("{}/{name}", self.0)
    }
}

impl FromStr for Dataset {
    type Err = InvalidDataset;

    fn from_str(text: &str) -> Result<Self, InvalidDataset> {
        let is_part = |part: &str| {
            let fits = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
            !matches!(part, "" | "." | "..") && !part.starts_with('-') && part.chars().all(fits)
        };
        let begins = text.starts_with(|c: char| c.is_ascii_alphabetic());
        let fits = text.len() <= limits::ZFS_POOL_NAME_MAX_BYTES;
        match begins && fits && text.split('/').all(is_part) {
            true => Ok(Self(text.to_owned())),
            false => Err(InvalidDataset { text: text.to_owned() }),
        }
    }
}

impl fmt::Display for Dataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// All that is one data directory's, beneath the dataset that was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    own: String,
}

impl Names {
    pub fn new(own: String) -> Self {
        Self { own }
    }

    pub fn own(&self) -> &str {
        &self.own
    }

    pub fn volumes(&self) -> String {
        format!("{}/volumes", self.own)
    }

    pub fn layers(&self) -> String {
        format!("{}/layers", self.own)
    }

    pub fn drafts(&self) -> String {
        format!("{}/drafts", self.own)
    }

    pub fn dead(&self) -> String {
        format!("{}/dead", self.own)
    }

    /// What holds everything of a volume: its tree, and what has its snapshots.
    pub fn volume(&self, id: &SandboxId) -> String {
        format!("{}/{id}", self.volumes())
    }

    pub fn tree(&self, id: &SandboxId) -> String {
        format!("{}/{TREE}", self.volume(id))
    }

    pub fn layer(&self, key: &LayerKey) -> String {
        format!("{}/{}", self.layers(), key.0.hex())
    }
}

/// What a dataset of a volume is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Tree,
    Next,
    Past,
    View,
}

impl Part {
    pub fn of(name: &str) -> Option<Self> {
        match name {
            TREE => Some(Self::Tree),
            name if name.starts_with(NEXT) => Some(Self::Next),
            name if name.starts_with(PAST) => Some(Self::Past),
            name if name.starts_with(VIEW) => Some(Self::View),
            _ => None,
        }
    }
}

pub fn next(random: &str) -> String {
    format!("{NEXT}{random}")
}

pub fn past(random: &str) -> String {
    format!("{PAST}{random}")
}

pub fn view(snapshot: &SnapshotId) -> String {
    format!("{VIEW}{snapshot}")
}

/// A dataset and the snapshot that is named after it, if one is.
pub fn split(name: &str) -> (&str, Option<&str>) {
    match name.split_once('@') {
        Some((dataset, snapshot)) => (dataset, Some(snapshot)),
        None => (name, None),
    }
}

/// The snapshot of a sandbox, by what is beneath `volumes`: `<sandbox>/<part>@<snapshot>`.
pub fn snapshot(beneath: &str) -> Option<(SandboxId, SnapshotId)> {
    let (dataset, snapshot) = split(beneath);
    let (id, part) = dataset.split_once('/')?;
    Part::of(part)?;
    Some((id.parse().ok()?, snapshot?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_zfs_could_have_are_taken() {
        for text in ["tank", "tank/a", "tank/a-b/c_d.e:f"] {
            assert_eq!(text.parse::<Dataset>().expect("a dataset").as_str(), text);
        }
        let long = "a".repeat(limits::ZFS_POOL_NAME_MAX_BYTES + 1);
        for text in ["", "/", "/tank", "tank/", "tank//a", "tank/../b", "tank/-r", "-r", "1a"] {
            text.parse::<Dataset>().expect_err(text);
        }
        for text in ["tank@s", "tank a", "tank/a\t", "tank/%x", "tänk", &long] {
            text.parse::<Dataset>().expect_err(text);
        }
    }

    #[test]
    fn only_snapshots_of_ours_are_told_as_such() {
        let (id, taken) = (SandboxId::random(), SnapshotId::random());
        for part in ["tree", "past-1", "next-1"] {
            let found = snapshot(&format!("{id}/{part}@{taken}"));
            assert_eq!(found, Some((id.clone(), taken.clone())));
        }
        let strange =
            [format!("{id}@{taken}"), format!("{id}/tree@capture-1"), format!("{id}/x@{taken}")];
        for name in strange {
            assert_eq!(snapshot(&name), None, "{name}");
        }
    }
}
