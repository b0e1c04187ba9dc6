//! Names of datasets. A name is never changed: properties say what a dataset is to its volume, and whether it is dead.

use std::fmt;
use std::str::FromStr;

use crate::{LayerId, LayerKey};
use sandkeep_core::{SandboxId, SnapshotId, limits};

/// Prefix of the dataset of a data directory.
pub const OWN: &str = "sandkeep-";
/// The snapshot that a layer is cloned from. Without it, the dataset is a draft.
pub const LAYER: &str = "layer";
/// Prefix of a dataset that is, was, or will be the tree of its volume.
const TREE: &str = "tree.";
/// Prefix of a clone for reading a snapshot.
const VIEW: &str = "view-";
/// Prefix of a snapshot that a layer is made from, and that is not a snapshot of the volume.
const CAPTURE: &str = "capture-";
/// Length of a random name, enough to be unique among the datasets of one volume or layer.
const UNIQUE: usize = 12;

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

/// A pool or dataset that an operator gave us. Nothing outside of it is ever touched.
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
        if begins && fits && text.split('/').all(is_part) {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidDataset { text: text.to_owned() })
        }
    }
}

impl Dataset {
    /// Whether the other one is this one or below it.
    pub fn contains(&self, other: &Self) -> bool {
        is_within(&other.0, &self.0)
    }

    /// Whether it is one that a daemon made for its data directory, or below such a one.
    pub(super) fn is_of_a_data_directory(&self) -> bool {
        self.0.split('/').any(|part| part.starts_with(OWN))
    }
}

impl fmt::Display for Dataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A text that does not name a snapshot of a dataset.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} names no snapshot: expected DATASET@SNAPSHOT")]
pub struct InvalidDatasetSnapshot {
    text: String,
}

/// A snapshot of any dataset, `dataset@snapshot`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatasetSnapshot {
    pub dataset: Dataset,
    name: String,
}

impl FromStr for DatasetSnapshot {
    type Err = InvalidDatasetSnapshot;

    fn from_str(text: &str) -> Result<Self, InvalidDatasetSnapshot> {
        let invalid = || InvalidDatasetSnapshot { text: text.to_owned() };
        let (dataset, name) = text.split_once('@').ok_or_else(invalid)?;
        let fits = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
        let is_name = !name.is_empty()
            && name.chars().all(fits)
            && text.len() <= limits::ZFS_POOL_NAME_MAX_BYTES;
        match dataset.parse() {
            Ok(dataset) if is_name => Ok(Self { dataset, name: name.to_owned() }),
            Ok(_) | Err(_) => Err(invalid()),
        }
    }
}

impl fmt::Display for DatasetSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.dataset, self.name)
    }
}

/// Everything of one data directory, below the given dataset.
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

    /// The dataset that the operator gave, which contains ours.
    pub fn given(&self) -> &str {
        self.own.rsplit_once('/').map_or(&self.own, |(given, _)| given)
    }

    pub fn volumes(&self) -> String {
        format!("{}/volumes", self.own)
    }

    pub fn layers(&self) -> String {
        format!("{}/layers", self.own)
    }

    /// The datasets that exist as long as the data directory uses the pool, innermost first.
    pub fn rooms(&self) -> [String; 3] {
        [self.volumes(), self.layers(), self.own.clone()]
    }

    /// The dataset of a volume: its tree, and those with its snapshots. The name is never reused, because sandbox ids
    /// are not.
    pub fn volume(&self, id: &SandboxId) -> String {
        format!("{}/{id}", self.volumes())
    }

    /// A name for a draft, which it keeps as a layer.
    pub fn new_layer(&self, key: &LayerKey, random: &str) -> String {
        format!("{}/{}.{}", self.layers(), key.0.hex(), unique(random))
    }

    /// A name for a draft that never becomes a layer.
    pub fn new_trial(&self, random: &str) -> String {
        format!("{}/trial.{}", self.layers(), unique(random))
    }

    /// The layer that a dataset, or a snapshot of it, contains or will contain.
    pub fn layer(&self, name: &str) -> Option<LayerKey> {
        let (dataset, _) = split(name);
        let (hex, _) = self.beneath(&self.layers(), dataset)?.split_once('.')?;
        LayerId::from_hex(hex).map(LayerKey)
    }

    /// The sandbox that a dataset or snapshot belongs to.
    pub fn sandbox(&self, name: &str) -> Option<SandboxId> {
        let beneath = self.beneath(&self.volumes(), split(name).0)?;
        beneath.split('/').next()?.parse().ok()
    }

    /// Whether it is the dataset of a volume.
    pub fn is_volume(&self, name: &str) -> bool {
        self.sandbox(name).is_some_and(|id| self.volume(&id) == name)
    }

    /// The snapshot of a sandbox that has this name.
    pub fn snapshot(&self, name: &str) -> Option<(SandboxId, SnapshotId)> {
        let (dataset, snapshot) = split(name);
        let (id, part) = self.beneath(&self.volumes(), dataset)?.split_once('/')?;
        match Part::of(part)? {
            Part::Tree => Some((id.parse().ok()?, snapshot?.parse().ok()?)),
            Part::View(_) => None,
        }
    }

    fn beneath<'a>(&self, room: &str, name: &'a str) -> Option<&'a str> {
        name.strip_prefix(room)?.strip_prefix('/')
    }
}

/// The role of a volume's dataset, from the last part of its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    Tree,
    View(SnapshotId),
}

impl Part {
    pub fn of(name: &str) -> Option<Self> {
        if name.starts_with(TREE) {
            return Some(Self::Tree);
        }
        let (snapshot, _) = name.strip_prefix(VIEW)?.split_once('.')?;
        snapshot.parse().ok().map(Self::View)
    }
}

fn unique(random: &str) -> &str {
    &random[..UNIQUE.min(random.len())]
}

pub fn new_tree(random: &str) -> String {
    format!("{TREE}{}", unique(random))
}

pub fn new_view(snapshot: &SnapshotId, random: &str) -> String {
    format!("{VIEW}{snapshot}.{}", unique(random))
}

pub fn new_capture(random: &str) -> String {
    format!("{CAPTURE}{random}")
}

pub fn is_capture(name: &str) -> bool {
    split(name).1.is_some_and(|snapshot| snapshot.starts_with(CAPTURE))
}

/// A dataset, and the snapshot in the name, if any.
pub fn split(name: &str) -> (&str, Option<&str>) {
    match name.split_once('@') {
        Some((dataset, snapshot)) => (dataset, Some(snapshot)),
        None => (name, None),
    }
}

/// Whether it is that dataset or snapshot, or below it.
pub fn is_within(name: &str, outer: &str) -> bool {
    let rest = name.strip_prefix(outer);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '@']))
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
        let names = Names::new("p/own".to_owned());
        let tree = format!("{}/{}", names.volume(&id), new_tree("0123456789abcdef"));
        let found = names.snapshot(&format!("{tree}@{taken}"));
        assert_eq!(found, Some((id.clone(), taken.clone())));
        let view = format!("{}/{}", names.volume(&id), new_view(&taken, "0123456789abcdef"));
        let strange = [
            format!("{}@{taken}", names.volume(&id)),
            format!("{tree}@{}", new_capture("1")),
            format!("{view}@{taken}"),
            format!("p/other/volumes/{id}/tree.1@{taken}"),
            tree.clone(),
        ];
        for name in strange {
            assert_eq!(names.snapshot(&name), None, "{name}");
        }
        assert_eq!(names.sandbox(&view), Some(id));
    }

    #[test]
    fn the_longest_names_fit() {
        let own =
            format!("{}/sandkeep-{}", "a".repeat(limits::ZFS_POOL_NAME_MAX_BYTES), "0".repeat(16));
        let (names, random) = (Names::new(own), "0".repeat(32));
        let layer = LayerKey(LayerId::from_hex(&"0".repeat(64)).expect("64 digits"));
        let volume = names.volume(&SandboxId::random());
        for name in [
            format!("{volume}/{}@{}", new_tree(&random), SnapshotId::random()),
            format!("{volume}/{}@{}", new_tree(&random), new_capture(&random)),
            format!("{volume}/{}", new_view(&SnapshotId::random(), &random)),
            format!("{}@{LAYER}", names.new_layer(&layer, &random)),
        ] {
            assert!(name.len() < 256, "{name} has {} bytes", name.len());
        }
        assert_eq!(names.layer(&names.new_layer(&layer, &random)), Some(layer));
    }

    #[test]
    fn a_name_that_begins_alike_is_not_beneath() {
        assert!(
            is_within("p/a/b@s", "p/a") && is_within("p/a", "p/a") && is_within("p/a@s", "p/a")
        );
        assert!(!is_within("p/ab", "p/a") && !is_within("p", "p/a"));
    }
}
