//! What a daemon can be told: defaults, then `SANDKEEP_*` from the environment, then flags. Clap does
//! the merge; this file says what there is.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::builder::PossibleValue;

use crate::storage::StorageChoice;

pub const PORT_DEFAULT: u16 = 4500;

#[derive(Clone, Debug, clap::Args)]
pub struct Config {
    /// Where everything is kept [default: /var/lib/sandkeep as root, else ~/.local/share/sandkeep]
    #[arg(long, env = "SANDKEEP_DATA_DIR", hide_env_values = true, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,

    /// Address and port of the API; only loopback addresses for now
    #[arg(long, env = "SANDKEEP_LISTEN", hide_env_values = true, value_name = "ADDR:PORT", default_value_t = listen_default())]
    pub listen: SocketAddr,

    /// Where volumes live: btrfs on a loop image (disk quotas; needs root), plain directories, or
    /// the best of those that works here
    #[arg(
        long,
        env = "SANDKEEP_STORAGE",
        hide_env_values = true,
        value_name = "STORAGE",
        default_value = "auto"
    )]
    pub storage: StorageChoice,

    /// The size of the btrfs image, in MiB, when it is first made [default: a part of the free disk]
    #[arg(long, env = "SANDKEEP_STORAGE_SIZE_MB", hide_env_values = true, value_name = "MIB")]
    pub storage_size_mb: Option<u64>,

    /// Also offer the runtime `mock`, which isolates nothing; for tests of clients
    #[arg(long, env = "SANDKEEP_ENABLE_MOCK", hide_env_values = true, value_parser = clap::builder::FalseyValueParser::new())]
    pub enable_mock: bool,
}

impl clap::ValueEnum for StorageChoice {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Auto, Self::Btrfs, Self::Local]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(match self {
            Self::Auto => "auto",
            Self::Btrfs => "btrfs",
            Self::Local => "local",
        }))
    }
}

fn listen_default() -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), PORT_DEFAULT)
}

impl Config {
    /// The data directory that was chosen, or the usual one.
    pub fn data_dir(&self) -> PathBuf {
        self.data_dir.clone().unwrap_or_else(data_dir_default)
    }
}

/// The usual data directory of this user.
pub fn data_dir_default() -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return PathBuf::from("/var/lib/sandkeep");
    }
    // The XDG rules: a relative path there is to be ignored.
    let absolute =
        |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("XDG_DATA_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/share")))
        .unwrap_or_else(|| PathBuf::from("/var/tmp"))
        .join("sandkeep")
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn every_choice_is_read_back_from_its_name() {
        for choice in [StorageChoice::Auto, StorageChoice::Btrfs, StorageChoice::Local] {
            let value = choice.to_possible_value().expect("it has a name");
            assert_eq!(StorageChoice::from_str(value.get_name(), false), Ok(choice));
        }
        assert!(StorageChoice::from_str("zfs", false).is_err());
    }
}
