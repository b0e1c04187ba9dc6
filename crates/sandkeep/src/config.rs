//! The configuration of a daemon, and where each value came from.
//!
//! ```text
//! defaults → sandkeep.toml → SANDKEEP_* → flags          each layer overrides those before it
//!                   │
//!                   └─ table   one row per setting: its name, its meaning, its parser
//!                         │
//!             layers::load ──▶ Loaded { settings, entries }   typed values, and the origin of each
//! ```
//!
//! Invariant: a [`Settings`] value is valid. All invalid settings, in any layer, are reported at once with their
//! locations, and the daemon exits. There is no global state: settings are passed to the code that needs them.

mod audit;
mod commands;
mod doors;
mod egress;
mod file;
mod flags;
mod identity;
mod layers;
mod nats;
mod otel;
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
pub use doors::{AgentFenseSettings, FlexSettings};
pub use egress::EgressSettings;
pub use flags::{ConfigFile, Flags};
pub use identity::{OidcSettings, TlsSettings, TlsSource};
pub use layers::{Entry, Loaded, Source, client_log, load};
pub use nats::{NatsSettings, Secret, UruleEvents, UruleSettings};
pub use otel::OtelSettings;
#[cfg(feature = "otlp")]
pub use otel::{SamplerName, pairs};
pub use problem::{ConfigError, Problem};
pub use settings::{Limits, PORT_DEFAULT, Settings};
pub use value::{log as read_log, network as read_network};

/// The process's environment. It is read once, so that a test can supply it.
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

    /// A non-empty variable; an empty one counts as unset.
    pub fn var(&self, name: &str) -> Option<&OsString> {
        self.env.get(&OsString::from(name)).filter(|value| !value.is_empty())
    }

    /// An XDG base directory; a relative path is ignored, as the specification requires.
    fn directory(&self, variable: &str, below_home: &str) -> Option<PathBuf> {
        let absolute = |name| self.var(name).map(PathBuf::from).filter(|path| path.is_absolute());
        absolute(variable).or_else(|| absolute("HOME").map(|home| home.join(below_home)))
    }

    /// The default data directory of this user.
    fn data_dir(&self) -> PathBuf {
        match self.user {
            User::Root => PathBuf::from("/var/lib/sandkeep"),
            User::Other => self
                .directory("XDG_DATA_HOME", ".local/share")
                .unwrap_or_else(|| PathBuf::from("/var/tmp"))
                .join("sandkeep"),
        }
    }

    /// The default configuration file of this user.
    fn config_file(&self) -> Option<PathBuf> {
        match self.user {
            User::Root => Some(PathBuf::from("/etc/sandkeep/sandkeep.toml")),
            User::Other => self
                .directory("XDG_CONFIG_HOME", ".config")
                .map(|directory| directory.join("sandkeep/sandkeep.toml")),
        }
    }
}
