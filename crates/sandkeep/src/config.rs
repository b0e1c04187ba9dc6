//! What a daemon can be told, and by whom.
//!
//! ```text
//! defaults → sandkeep.toml → SANDKEEP_* → flags          each layer wins over those before it
//!                    │
//!                    └─ table   one row per setting: its name, its meaning, how it is read
//!                          │
//!              layers::load ──▶ Loaded { settings, entries }   typed values, and where each came from
//! ```
//!
//! The invariant: [`Settings`] that exist are valid. Whatever is wrong, in any layer, is told with its
//! place, all of it at once, and then nothing starts. There is no global state: whoever needs a
//! setting is handed it.

mod audit;
mod commands;
mod file;
mod flags;
mod identity;
mod layers;
mod nats;
mod problem;
mod profile;
mod settings;
mod table;
mod value;
mod words;

#[cfg(test)]
mod document;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

pub use commands::{CommandSettings, NatsAccount, PuristaSettings, PuristaTrust};
pub use flags::{ConfigFile, Flags};
pub use identity::{OidcSettings, TlsSettings, TlsSource};
pub use layers::{Entry, Loaded, Source, client_log, load};
pub use nats::{NatsSettings, Secret, UruleEvents, UruleSettings};
pub use problem::{ConfigError, Problem};
pub use settings::{Limits, PORT_DEFAULT, Settings};
pub use value::log as read_log;

/// What the process finds around it. It is read once, so that a test can say it instead.
#[derive(Clone, Debug)]
pub struct Surroundings {
    pub env: BTreeMap<OsString, OsString>,
    pub user: User,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    Root,
    Other,
}

impl Surroundings {
    pub fn of_this_process() -> Self {
        let user = if rustix::process::geteuid().is_root() { User::Root } else { User::Other };
        Self { env: std::env::vars_os().collect(), user }
    }

    /// A variable that is set to something: an empty one is as good as none.
    pub fn var(&self, name: &str) -> Option<&OsString> {
        self.env.get(&OsString::from(name)).filter(|value| !value.is_empty())
    }

    /// A directory of the XDG rules, by which a relative path is to be ignored.
    fn directory(&self, variable: &str, below_home: &str) -> Option<PathBuf> {
        let absolute = |name| self.var(name).map(PathBuf::from).filter(|path| path.is_absolute());
        absolute(variable).or_else(|| absolute("HOME").map(|home| home.join(below_home)))
    }

    /// Where this user's data usually is.
    fn data_dir(&self) -> PathBuf {
        match self.user {
            User::Root => PathBuf::from("/var/lib/sandkeep"),
            User::Other => self
                .directory("XDG_DATA_HOME", ".local/share")
                .unwrap_or_else(|| PathBuf::from("/var/tmp"))
                .join("sandkeep"),
        }
    }

    /// Where this user's configuration is, if there is any.
    fn config_file(&self) -> Option<PathBuf> {
        match self.user {
            User::Root => Some(PathBuf::from("/etc/sandkeep/sandkeep.toml")),
            User::Other => self
                .directory("XDG_CONFIG_HOME", ".config")
                .map(|directory| directory.join("sandkeep/sandkeep.toml")),
        }
    }
}
