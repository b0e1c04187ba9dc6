//! The settings as the rest of the program uses them: typed and validated.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use super::Surroundings;
use super::audit::AuditSettings;
use super::commands::{self, CommandSettings, PuristaSettings};
use super::doors::{AgentFenseSettings, FlexSettings};
use super::egress::EgressSettings;
use super::identity::{OidcSettings, TlsSettings};
use super::nats::{NatsSettings, UruleSettings};
use super::otel::OtelSettings;
use sandkeep_broker::{PoolMarks, Profile, Quotas};
use sandkeep_core::{CodebaseServing, DEFAULT_RUNTIME, SnapshotName, Timeouts, limits};
use sandkeep_guestlink::journal::JournalLimits;
use sandkeep_outgoing::Allowed;
use sandkeep_storage::{Dataset, StorageChoice};

pub const PORT_DEFAULT: u16 = 4500;

/// All settings of a daemon.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub data_dir: PathBuf,
    pub listen: SocketAddr,
    /// A log filter in the syntax of `tracing`.
    pub log: String,
    pub storage: StorageChoice,
    pub storage_size_mb: Option<u64>,
    pub storage_max_mb: Option<u64>,
    pub enable_mock: bool,
    /// The sockets of the container engines; the default ones if unset.
    pub docker_host: Option<String>,
    pub podman_host: Option<String>,
    /// The runtime of a sandbox that sets none, neither itself nor through its profile.
    pub default_runtime: String,
    /// The profile of a sandbox that sets none; one of `profiles`.
    pub default_profile: Option<String>,
    /// Prefix of the names of turns.
    pub turn_prefix: SnapshotName,
    /// Whether a snapshot is taken after each tool call that may have changed files.
    pub snapshot_tool_calls: bool,
    pub codebase_serving: CodebaseServing,
    /// Whether events contain command lines.
    pub event_commands: bool,
    /// The ports of sandboxes are below this name: `<port>-<id>.<domain>`.
    pub domain: String,
    /// Web pages of these origins may call the API.
    pub cors_origins: Vec<String>,
    /// Directories of the host that every caller may use as sources.
    pub source_roots: Vec<PathBuf>,
    /// Datasets in the pool of the storage whose snapshots every caller may use as sources.
    pub source_datasets: Vec<Dataset>,
    pub nats: NatsSettings,
    pub commands: CommandSettings,
    pub purista: PuristaSettings,
    pub urule: UruleSettings,
    pub flex: FlexSettings,
    pub agentfense: AgentFenseSettings,
    pub otel: OtelSettings,
    /// Places that may be called though they are not public.
    pub outgoing_allow: Vec<Allowed>,
    /// Additional CA certificates for registries.
    pub registry_ca: Option<PathBuf>,
    /// The credentials file of `docker login`.
    pub registry_auth: Option<PathBuf>,
    /// The networks of sandboxes.
    pub egress: EgressSettings,
    pub tls: TlsSettings,
    pub oidc: OidcSettings,
    pub limits: Limits,
    pub quotas: Quotas,
    pub timeouts: Timeouts,
    /// How much command output is kept on disk.
    pub journal: JournalLimits,
    /// What is recorded of requests, and for how long.
    pub audit: AuditSettings,
    pub profiles: BTreeMap<String, Profile>,
}

/// Limits of one daemon.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    pub max_sandboxes: usize,
    /// Maximum number of concurrent execs in one sandbox.
    pub max_concurrent_tasks: usize,
    /// Maximum number of snapshots of one sandbox.
    pub max_snapshots: usize,
    /// Maximum size of an archive uploaded as a template.
    pub max_upload_mb: u64,
    /// The reserved disk space: with less than this, nothing more is written for tenants outside of the pool.
    pub host_reserve_mb: u64,
    pub pool: PoolMarks,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_sandboxes: limits::SANDBOXES_MAX,
            max_concurrent_tasks: limits::EXECS_PER_SANDBOX_MAX,
            max_snapshots: limits::SNAPSHOTS_DEFAULT,
            max_upload_mb: limits::UPLOAD_DEFAULT_BYTES / limits::MIB,
            host_reserve_mb: limits::HOST_RESERVE_DEFAULT_MB,
            pool: PoolMarks::default(),
        }
    }
}

impl Settings {
    /// The defaults.
    pub fn defaults(around: &Surroundings) -> Self {
        Self {
            data_dir: around.data_dir(),
            listen: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), PORT_DEFAULT),
            log: "info".to_owned(),
            storage: StorageChoice::default(),
            storage_size_mb: None,
            storage_max_mb: None,
            enable_mock: false,
            docker_host: None,
            podman_host: None,
            default_runtime: DEFAULT_RUNTIME.to_owned(),
            default_profile: None,
            turn_prefix: SnapshotName::turns(),
            snapshot_tool_calls: false,
            codebase_serving: CodebaseServing::Auto,
            event_commands: false,
            domain: "localhost".to_owned(),
            cors_origins: Vec::new(),
            source_roots: Vec::new(),
            source_datasets: Vec::new(),
            nats: NatsSettings::default(),
            commands: CommandSettings::default(),
            purista: PuristaSettings::default(),
            urule: UruleSettings::default(),
            flex: FlexSettings::default(),
            agentfense: AgentFenseSettings::default(),
            otel: OtelSettings::default(),
            outgoing_allow: Vec::new(),
            registry_ca: None,
            registry_auth: None,
            egress: EgressSettings::default(),
            tls: TlsSettings::default(),
            oidc: OidcSettings::default(),
            limits: Limits::default(),
            quotas: Quotas::default(),
            timeouts: Timeouts::default(),
            journal: JournalLimits::default(),
            audit: AuditSettings::default(),
            profiles: BTreeMap::new(),
        }
    }

    /// Problems that involve several values: the key, and the problem.
    pub(super) fn contradictions(&self) -> Vec<(String, String)> {
        let mut found: Vec<_> =
            self.tls.contradiction().into_iter().chain(self.oidc.contradiction()).collect();
        found.extend(self.nats.contradictions());
        found.extend(self.flex.contradiction());
        let has_server = self.nats.url.is_some();
        found.extend(commands::contradictions(has_server, &self.commands, &self.purista));
        let profile = self.default_profile.as_ref();
        if let Some(name) = profile.filter(|name| !self.profiles.contains_key(*name)) {
            found.push(("default_profile".to_owned(), self.no_profile(name)));
        }
        let Timeouts { default_timeout, default_idle_timeout, max_timeout } = self.timeouts;
        let mut bounded = |key: String, timeout: Option<Duration>| {
            if let (Some(timeout), Some(max)) = (timeout, max_timeout)
                && timeout > max
            {
                let (given, max) = (timeout.as_secs(), max.as_secs());
                found.push((key, format!("{given} is over timeouts.max_timeout_secs, {max}")));
            }
        };
        bounded("timeouts.default_timeout_secs".to_owned(), default_timeout);
        bounded("timeouts.default_idle_timeout_secs".to_owned(), default_idle_timeout);
        for (name, profile) in &self.profiles {
            bounded(format!("profiles.{name}.timeout_secs"), profile.timeout);
            bounded(format!("profiles.{name}.idle_timeout_secs"), profile.idle_timeout);
        }
        let JournalLimits { max_bytes_per_exec, max_bytes, .. } = self.journal;
        if max_bytes_per_exec > max_bytes {
            let problem = format!(
                "{max_bytes_per_exec} is over journal.max_bytes, {max_bytes}: one exec would not fit"
            );
            found.push(("journal.max_bytes_per_exec".to_owned(), problem));
        }
        found
    }

    fn no_profile(&self, name: &str) -> String {
        let known: Vec<&str> = self.profiles.keys().map(String::as_str).collect();
        if known.is_empty() {
            format!("there is no profile {name:?}: add [profiles.{name}]")
        } else {
            format!("there is no profile {name:?}; there are: {}", known.join(", "))
        }
    }
}
