//! Settings of the networks of sandboxes.

use std::path::PathBuf;

use sandkeep_core::network::{IpRange, Network};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct EgressSettings {
    /// The widest policy that a sandbox may have.
    pub ceiling: Option<Network>,
    /// Ranges that policies may allow although they are not public.
    pub allow_ranges: Vec<IpRange>,
    /// A JSON file with presets: names and their entries.
    pub presets: Option<PathBuf>,
    /// Additional CA certificates of servers whose requests the daemon reads.
    pub ca: Option<PathBuf>,
    /// Addresses of hosts, as in /etc/hosts.
    pub hosts: Option<PathBuf>,
    /// The program that keeps the key of secrets.
    pub kms_command: Option<PathBuf>,
}
