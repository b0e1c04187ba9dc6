//! Which storage a daemon uses.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use super::{
    BtrfsOptions, BtrfsStorage, Dataset, InvalidDataset, LocalStorage, Storage, StorageError,
    ZfsStorage,
};

/// The operator's choice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StorageChoice {
    /// `zfs` if the data directory has a pool, `btrfs` if it is possible, otherwise `local`, with a warning.
    #[default]
    Auto,
    Btrfs,
    /// On this pool, or in this dataset.
    Zfs(Dataset),
    Local,
}

impl fmt::Display for StorageChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Btrfs => f.write_str("btrfs"),
            Self::Zfs(dataset) => write!(f, "zfs:{dataset}"),
            Self::Local => f.write_str("local"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoStorage {
    #[error("expected one of auto, btrfs, local, zfs:POOL or zfs:POOL/DATASET, not {0:?}")]
    Unknown(String),
    #[error(transparent)]
    Dataset(#[from] InvalidDataset),
}

impl FromStr for StorageChoice {
    type Err = NoStorage;

    fn from_str(text: &str) -> Result<Self, NoStorage> {
        match (text, text.strip_prefix("zfs:")) {
            ("auto", _) => Ok(Self::Auto),
            ("btrfs", _) => Ok(Self::Btrfs),
            ("local", _) => Ok(Self::Local),
            (_, Some(dataset)) => Ok(Self::Zfs(dataset.parse()?)),
            (_, None) => Err(NoStorage::Unknown(text.to_owned())),
        }
    }
}

/// A storage, and a message for the operator.
pub struct Opened {
    pub storage: Arc<dyn Storage>,
    /// One line: why `auto` did not choose the better storage, and what is missing now.
    pub warning: Option<String>,
}

/// Opens the storage of a data directory. Blocks; call it before serving.
pub fn open(
    choice: &StorageChoice,
    data_dir: &Path,
    options: &BtrfsOptions,
) -> Result<Opened, StorageError> {
    let (storage, warning): (Arc<dyn Storage>, _) = match choice {
        StorageChoice::Btrfs => (Arc::new(BtrfsStorage::open(data_dir, options)?), None),
        StorageChoice::Zfs(given) => (Arc::new(ZfsStorage::open(data_dir, given)?), None),
        StorageChoice::Local => (Arc::new(LocalStorage::open(data_dir)?), None),
        StorageChoice::Auto => return open_auto(data_dir, options),
    };
    Ok(Opened { storage, warning })
}

/// The storage that a data directory already uses; a new one gets the one that needs no set-up.
pub fn begun(data_dir: &Path) -> StorageChoice {
    match (ZfsStorage::given(data_dir), BtrfsStorage::has_image(data_dir)) {
        (Some(given), _) => StorageChoice::Zfs(given),
        (None, true) => StorageChoice::Btrfs,
        (None, false) => StorageChoice::Local,
    }
}

/// A data directory keeps its storage, because volumes in the other one would appear to be lost.
fn open_auto(data_dir: &Path, options: &BtrfsOptions) -> Result<Opened, StorageError> {
    if let Some(given) = ZfsStorage::given(data_dir) {
        return open(&StorageChoice::Zfs(given), data_dir, options);
    }
    if LocalStorage::is_begun(data_dir) {
        return local(data_dir, "volumes or layers are there already".to_owned());
    }
    match BtrfsStorage::open(data_dir, options) {
        Ok(storage) => Ok(Opened { storage: Arc::new(storage), warning: None }),
        Err(StorageError::Unusable { reason, .. }) if !BtrfsStorage::has_image(data_dir) => {
            // An invalid size is not a property of the machine, and the choice would be permanent.
            BtrfsStorage::check_size(data_dir, options)?;
            local(data_dir, format!("btrfs storage is not usable here: {reason}"))
        }
        Err(error) => Err(error),
    }
}

fn local(data_dir: &Path, why: String) -> Result<Opened, StorageError> {
    let storage = Arc::new(LocalStorage::open(data_dir)?);
    let warning = format!("using local storage, so disk_mb is not available: {why}");
    Ok(Opened { storage, warning: Some(warning) })
}
