//! The table of settings. The file's keys, the variables, the flags, `sandkeep config` and
//! `docs/reference/configuration.md` are all generated from it, so that they cannot disagree.
//!
//! Names follow one rule: `[quotas.user] memory_mb` in the file is `SANDKEEP_QUOTAS_USER_MEMORY_MB` in
//! the environment and `--quotas-user-memory-mb` on the command line.

use serde_json::{Value, json};

use super::settings::Settings;
use super::value::{self, Invalid};
use sandkeep_broker::Profile;
use sandkeep_core::{OnTimeout, Privilege, limits};

/// One setting of a `T`.
pub struct Row<T> {
    /// Its key in the file, including tables.
    pub key: &'static str,
    pub shape: Shape,
    /// The placeholder in a usage line.
    pub value_name: &'static str,
    pub help: &'static str,
    /// The default, if it is not a single displayable value.
    pub default: Option<&'static str>,
    /// Names used by other programs, with lower priority than our own.
    pub aliases: &'static [Alias],
    pub set: fn(&mut T, &str) -> Result<(), Invalid>,
    /// The displayed value, without secrets.
    pub show: fn(&T) -> Value,
}

pub type Setting = Row<Settings>;
pub type ProfileRow = Row<Profile>;

/// The type of a value in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Text,
    Integer,
    Decimal,
    Switch,
    /// Separated by commas outside of the file.
    List,
}

impl Shape {
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Text => "a string",
            Self::Integer => "a whole number",
            Self::Decimal => "a number",
            Self::Switch => "true or false",
            Self::List => "a list of strings",
        }
    }
}

/// A variable that other programs use for the same purpose.
#[derive(Clone, Copy, Debug)]
pub struct Alias {
    pub variable: &'static str,
    pub meaning: AliasMeaning,
}

#[derive(Clone, Copy, Debug)]
pub enum AliasMeaning {
    Value,
    /// The same, but a value that cannot be used is a warning and counts as unset.
    Advice,
    /// Replaces the port of the default address.
    Port,
}

impl<T> Row<T> {
    const fn new(
        key: &'static str,
        shape: Shape,
        value_name: &'static str,
        help: &'static str,
        set: fn(&mut T, &str) -> Result<(), Invalid>,
        show: fn(&T) -> Value,
    ) -> Self {
        Self { key, shape, value_name, help, default: None, aliases: &[], set, show }
    }

    const fn default(mut self, text: &'static str) -> Self {
        self.default = Some(text);
        self
    }

    const fn aliases(mut self, aliases: &'static [Alias]) -> Self {
        self.aliases = aliases;
        self
    }

    pub fn variable(&self) -> String {
        format!("SANDKEEP_{}", self.key.replace('.', "_").to_ascii_uppercase())
    }

    /// Without the leading dashes.
    pub fn flag(&self) -> String {
        self.key.replace(['.', '_'], "-")
    }
}

const fn alias(variable: &'static str, meaning: AliasMeaning) -> Alias {
    Alias { variable, meaning }
}

/// Stores the value parsed from a text.
macro_rules! set {
    ($($field:ident).+, $read:expr) => {
        |to, text| {
            to.$($field).+ = $read(text)?;
            Ok(())
        }
    };
}

macro_rules! show {
    ($($field:ident).+) => {
        |of| json!(of.$($field).+)
    };
}

mod audit;
mod journal;

use journal::JOURNAL;

/// The rows of one quota.
macro_rules! quota {
    ($who:ident, $each:literal) => {
        [
            Setting::new(
                concat!("quotas.", stringify!($who), ".sandboxes"),
                Shape::Integer,
                "N",
                concat!("Maximum number of sandboxes of ", $each, "; 0 is no quota"),
                set!(quotas.$who.sandboxes, value::quota),
                show!(quotas.$who.sandboxes),
            ),
            Setting::new(
                concat!("quotas.", stringify!($who), ".cpus"),
                Shape::Decimal,
                "N",
                concat!("Maximum CPUs of all sandboxes of ", $each, "; 0 is no quota"),
                set!(quotas.$who.cpus, value::decimal_quota),
                show!(quotas.$who.cpus),
            ),
            Setting::new(
                concat!("quotas.", stringify!($who), ".memory_mb"),
                Shape::Integer,
                "MIB",
                concat!("Maximum memory of all sandboxes of ", $each, ", in MiB; 0 is no quota"),
                set!(quotas.$who.memory_mb, value::quota),
                show!(quotas.$who.memory_mb),
            ),
            Setting::new(
                concat!("quotas.", stringify!($who), ".disk_mb"),
                Shape::Integer,
                "MIB",
                concat!("Maximum disk of all sandboxes of ", $each, ", in MiB; 0 is no quota"),
                set!(quotas.$who.disk_mb, value::quota),
                show!(quotas.$who.disk_mb),
            ),
            Setting::new(
                concat!("quotas.", stringify!($who), ".host_mb"),
                Shape::Integer,
                "MIB",
                concat!(
                    "Maximum output, uploads and temporary files that the daemon keeps for ",
                    $each,
                    " outside of sandboxes, in MiB; 0 is disk_mb and template_mb together"
                ),
                set!(quotas.$who.host_mb, value::quota),
                show!(quotas.$who.host_mb),
            ),
            Setting::new(
                concat!("quotas.", stringify!($who), ".templates"),
                Shape::Integer,
                "N",
                concat!("Maximum number of templates of ", $each, "; 0 is no quota"),
                set!(quotas.$who.templates, value::quota),
                show!(quotas.$who.templates),
            ),
            Setting::new(
                concat!("quotas.", stringify!($who), ".template_mb"),
                Shape::Integer,
                "MIB",
                concat!(
                    "Maximum size of the layers of all templates of ",
                    $each,
                    ", each layer counted once, in MiB; 0 is no quota"
                ),
                set!(quotas.$who.template_mb, value::quota),
                show!(quotas.$who.template_mb),
            ),
            Setting::new(
                concat!("quotas.", stringify!($who), ".requests_per_second"),
                Shape::Decimal,
                "N",
                concat!("Maximum requests per second of ", $each, "; 0 is no quota"),
                set!(quotas.$who.requests_per_second, value::decimal_quota),
                show!(quotas.$who.requests_per_second),
            ),
        ]
    };
}

mod commands;
mod doors;
mod egress;
mod events;
mod identity;
mod nats;
mod otel;
mod outgoing;
mod timeouts;

/// All settings, in display order.
pub fn rows() -> impl Iterator<Item = &'static Setting> {
    [
        GENERAL,
        outgoing::OUTGOING,
        egress::EGRESS,
        identity::TLS,
        identity::OIDC,
        nats::NATS,
        commands::COMMANDS,
        commands::PURISTA,
        nats::URULE,
        doors::FLEX,
        doors::AGENTFENSE,
        otel::OTEL,
        LIMITS,
        &ORGANIZATION,
        &USER,
        timeouts::TIMEOUTS,
        JOURNAL,
        events::EVENTS,
        audit::AUDIT,
    ]
    .into_iter()
    .flatten()
}

static GENERAL: &[Setting] = &[
    Setting::new(
        "data_dir",
        Shape::Text,
        "DIR",
        "Data directory",
        set!(data_dir, value::path),
        show!(data_dir),
    )
    .default("/var/lib/sandkeep as root, else ~/.local/share/sandkeep"),
    Setting::new(
        "listen",
        Shape::Text,
        "ADDR:PORT",
        "Address and port of the API",
        set!(listen, |text| value::parsed(text, "ADDRESS:PORT such as 127.0.0.1:4500")),
        show!(listen),
    )
    .aliases(&[alias("PORT", AliasMeaning::Port)]),
    Setting::new(
        "log",
        Shape::Text,
        "LEVEL",
        "Log level on stderr: off, error, warn, info, debug, trace, or a filter like sandkeep_broker=debug",
        set!(log, value::log),
        show!(log),
    )
    .aliases(&[alias("LOG_LEVEL", AliasMeaning::Value)]),
    Setting::new(
        "storage",
        Shape::Text,
        "STORAGE",
        "Storage for volumes: btrfs on a loop image (disk quotas; needs root), zfs:POOL or zfs:POOL/DATASET in an existing pool (disk quotas; needs root), local for plain directories, or auto for btrfs if it works and local otherwise",
        set!(storage, value::storage),
        |of| json!(of.storage.to_string()),
    ),
    Setting::new(
        "storage_size_mb",
        Shape::Integer,
        "MIB",
        "Initial size of the btrfs image, in MiB",
        set!(storage_size_mb, |text| value::within(text, 0..=u64::MAX).map(Some)),
        show!(storage_size_mb),
    )
    .default("at most 1024, less on a small disk"),
    Setting::new(
        "storage_max_mb",
        Shape::Integer,
        "MIB",
        "Maximum size of the btrfs image, in MiB; it grows as needed while the disk has more than 1 GiB free",
        set!(storage_max_mb, |text| value::within(text, 0..=u64::MAX).map(Some)),
        show!(storage_max_mb),
    )
    .default("storage_size_mb, if that is set, else 262144"),
    Setting::new(
        "enable_mock",
        Shape::Switch,
        "BOOL",
        "Also offer the runtime `mock`, which runs nothing; for client tests",
        set!(enable_mock, value::switch),
        show!(enable_mock),
    ),
    Setting::new(
        "docker_host",
        Shape::Text,
        "URL",
        "Socket of Docker, for the runtime `docker`: unix:///path/to/docker.sock",
        set!(docker_host, |text| value::name(text).map(Some)),
        show!(docker_host),
    )
    .default("/var/run/docker.sock, if it exists")
    .aliases(&[alias("DOCKER_HOST", AliasMeaning::Value)]),
    Setting::new(
        "podman_host",
        Shape::Text,
        "URL",
        "Socket of Podman, for the runtime `podman`: unix:///path/to/podman.sock",
        set!(podman_host, |text| value::name(text).map(Some)),
        show!(podman_host),
    )
    .default("/run/podman/podman.sock, or in $XDG_RUNTIME_DIR, if it exists"),
    Setting::new(
        "default_runtime",
        Shape::Text,
        "NAME",
        "Runtime of a sandbox that does not name one",
        set!(default_runtime, value::name),
        show!(default_runtime),
    ),
    Setting::new(
        "default_profile",
        Shape::Text,
        "NAME",
        "Profile of a sandbox that does not name one",
        set!(default_profile, |text| value::name(text).map(Some)),
        show!(default_profile),
    ),
    Setting::new(
        "domain",
        Shape::Text,
        "NAME",
        "Domain for the host names of sandbox ports: PORT-ID.DOMAIN",
        set!(domain, value::domain),
        show!(domain),
    ),
    Setting::new(
        "cors_origins",
        Shape::List,
        "ORIGINS",
        "Origins whose web pages may call the API, such as https://app.example.com",
        set!(cors_origins, value::origins),
        show!(cors_origins),
    )
    .aliases(&[alias("CORS_ORIGINS", AliasMeaning::Value)]),
    Setting::new(
        "turn_prefix",
        Shape::Text,
        "NAME",
        "Prefix of turn names: turn-0001",
        set!(turn_prefix, value::turn_prefix),
        show!(turn_prefix),
    ),
    Setting::new(
        "snapshot_tool_calls",
        Shape::Switch,
        "BOOL",
        "Take a snapshot after each tool call that may have changed files, unless the sandbox overrides it",
        set!(snapshot_tool_calls, value::switch),
        show!(snapshot_tool_calls),
    ),
    Setting::new(
        "codebase_serving",
        Shape::Text,
        "MODE",
        "How codebases are served whose rules mounts cannot keep: auto (fuse for the first sandbox on a codebase, passthrough for those that come to it), fuse, or passthrough",
        set!(codebase_serving, value::codebase_serving),
        show!(codebase_serving),
    ),
    Setting::new(
        "source_roots",
        Shape::List,
        "DIRS",
        "Host directories that API callers may use as sources of templates and workspaces; without keys, the local user may use any path",
        set!(source_roots, value::paths),
        show!(source_roots),
    ),
    Setting::new(
        "source_datasets",
        Shape::List,
        "DATASETS",
        "ZFS datasets in the pool of the storage whose snapshots, and those of datasets below them, API callers may use as root file systems: tank/golden",
        set!(source_datasets, value::datasets),
        |of| json!(of.source_datasets.iter().map(ToString::to_string).collect::<Vec<_>>()),
    ),
];

static LIMITS: &[Setting] = &[
    Setting::new(
        "limits.max_sandboxes",
        Shape::Integer,
        "N",
        "Maximum number of sandboxes of this daemon; 0 is the built-in maximum",
        set!(limits.max_sandboxes, |text| value::bound(text, limits::SANDBOXES_MAX)),
        show!(limits.max_sandboxes),
    ),
    Setting::new(
        "limits.max_concurrent_tasks",
        Shape::Integer,
        "N",
        "Maximum number of concurrent execs in one sandbox; 0 is the built-in maximum",
        set!(limits.max_concurrent_tasks, |text| value::bound(text, limits::EXECS_PER_SANDBOX_MAX)),
        show!(limits.max_concurrent_tasks),
    ),
    Setting::new(
        "limits.max_snapshots",
        Shape::Integer,
        "N",
        "Maximum number of snapshots of one sandbox; the oldest turns are pruned first. 0 is the built-in maximum",
        set!(limits.max_snapshots, |text| value::bound(text, limits::SNAPSHOTS_MAX)),
        show!(limits.max_snapshots),
    ),
    Setting::new(
        "limits.max_upload_mb",
        Shape::Integer,
        "MB",
        "Maximum size of an uploaded archive, in MiB",
        set!(limits.max_upload_mb, |text| value::within(text, 1..=limits::DISK_MAX_MB)),
        show!(limits.max_upload_mb),
    ),
    Setting::new(
        "limits.host_reserve_mb",
        Shape::Integer,
        "MB",
        "Free space of the data directory's disk, in MiB, below which nothing is written for tenants outside of the pool; 0 reserves nothing",
        set!(limits.host_reserve_mb, |text| value::within(text, 0..=limits::DISK_MAX_MB)),
        show!(limits.host_reserve_mb),
    ),
    Setting::new(
        "limits.pool_warning",
        Shape::Decimal,
        "PART",
        "The health check warns when more than this fraction of the storage is used and less than 16 GiB is free",
        set!(limits.pool.warning, value::part),
        show!(limits.pool.warning),
    ),
    Setting::new(
        "limits.pool_critical",
        Shape::Decimal,
        "PART",
        "The daemon is not ready and creates no sandboxes or snapshots when more than this fraction of the storage is used and less than 1 GiB is free",
        set!(limits.pool.critical, value::part),
        show!(limits.pool.critical),
    ),
];

static ORGANIZATION: [Setting; 8] = quota!(organization, "one organization");
static USER: [Setting; 8] = quota!(user, "one user of an organization");

/// The keys of `[profiles.NAME]`, besides the tables `env` and `labels`.
pub static PROFILE: &[ProfileRow] = &[
    ProfileRow::new(
        "template",
        Shape::Text,
        "NAME",
        "Template to start from",
        set!(template, |text| value::name(text).map(Some)),
        show!(template),
    ),
    ProfileRow::new(
        "runtime",
        Shape::Text,
        "NAME",
        "Runtime that isolates the sandbox",
        set!(runtime, |text| value::name(text).map(Some)),
        show!(runtime),
    ),
    ProfileRow::new(
        "resources.memory_mb",
        Shape::Integer,
        "MIB",
        "Memory limit, in MiB",
        set!(resources.memory_mb, |text| value::within(text, limits::MEMORY_MIN_MB..=u64::MAX)
            .map(Some)),
        show!(resources.memory_mb),
    ),
    ProfileRow::new(
        "resources.cpus",
        Shape::Decimal,
        "N",
        "CPU limit, such as 0.5",
        set!(resources.cpus, |text| value::positive_decimal(text).map(Some)),
        show!(resources.cpus),
    ),
    ProfileRow::new(
        "resources.pids",
        Shape::Integer,
        "N",
        "Limit of processes and threads",
        set!(resources.pids, |text| value::within(text, limits::PIDS_MIN..=limits::PIDS_MAX)
            .map(Some)),
        show!(resources.pids),
    ),
    ProfileRow::new(
        "resources.disk_mb",
        Shape::Integer,
        "MIB",
        "Disk limit, in MiB; needs btrfs or zfs storage",
        set!(resources.disk_mb, |text| value::within(
            text,
            limits::DISK_MIN_MB..=limits::DISK_MAX_MB
        )
        .map(Some)),
        show!(resources.disk_mb),
    ),
    ProfileRow::new(
        "resources.disk_total_mb",
        Shape::Integer,
        "MIB",
        "Disk limit including all snapshots, in MiB; needs btrfs or zfs storage",
        set!(resources.disk_total_mb, |text| value::within(
            text,
            limits::DISK_MIN_MB..=limits::DISK_MAX_MB
        )
        .map(Some)),
        show!(resources.disk_total_mb),
    ),
    ProfileRow::new(
        "privilege",
        Shape::Text,
        "PRIVILEGE",
        "none, or root, which allows package managers and sudo inside the sandbox",
        set!(privilege, |text| value::privilege(text).map(Some)),
        |of| {
            json!(of.privilege.map(|privilege| match privilege {
                Privilege::None => "none",
                Privilege::Root => "root",
            }))
        },
    ),
    ProfileRow::new(
        "timeout_secs",
        Shape::Integer,
        "SECS",
        "Lifetime of the sandbox",
        set!(timeout, value::seconds),
        |of| json!(of.timeout.map(|d| d.as_secs())),
    ),
    ProfileRow::new(
        "idle_timeout_secs",
        Shape::Integer,
        "SECS",
        "Idle timeout of the sandbox",
        set!(idle_timeout, value::seconds),
        |of| json!(of.idle_timeout.map(|d| d.as_secs())),
    ),
    ProfileRow::new(
        "on_timeout",
        Shape::Text,
        "VERB",
        "Action when a timeout expires: destroy, stop or pause",
        set!(on_timeout, |text| value::on_timeout(text).map(Some)),
        |of| {
            json!(of.on_timeout.map(|verb| match verb {
                OnTimeout::Destroy => "destroy",
                OnTimeout::Stop => "stop",
                OnTimeout::Pause => "pause",
            }))
        },
    ),
    ProfileRow::new(
        "network",
        Shape::Text,
        "NETWORK",
        "What the sandbox may reach: none (its own loopback), open (every public host), entries such as python,api.example.com, or a policy as JSON",
        set!(network, |text| value::network(text).map(Some)),
        show!(network),
    ),
];
