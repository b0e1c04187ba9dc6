//! Options of a new sandbox, for `create`, `ensure` and `run`. All use the JSON of the API, so that they cannot differ.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::cli::argument::{pair, seconds};
use crate::cli::codebase_args::CodebaseArgs;
use crate::cli::env_file::EnvArgs;
use crate::cli::failure::Failure;
use crate::cli::network_args::NetworkArgs;
use crate::cli::source_args::SourceArgs;

#[derive(Debug, clap::Args)]
pub struct SpecArgs {
    /// Template to start from [default: host, a read-only part of the daemon's own system]
    #[arg(long, value_name = "NAME")]
    template: Option<String>,
    /// Runtime that isolates the sandbox [default: native]
    #[arg(long, value_name = "NAME")]
    runtime: Option<String>,
    /// Named set of defaults from the configuration
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// Label; repeatable
    #[arg(long = "label", short = 'l', value_name = "NAME=VALUE", value_parser = pair)]
    labels: Vec<(String, String)>,
    #[command(flatten)]
    env: EnvArgs,
    /// Memory limit, in MiB
    #[arg(long, value_name = "MIB")]
    memory_mb: Option<u64>,
    /// CPU limit, such as 0.5
    #[arg(long, value_name = "N")]
    cpus: Option<f64>,
    /// Limit of processes and threads
    #[arg(long, value_name = "N")]
    pids: Option<u64>,
    /// Disk limit, in MiB; needs btrfs or zfs storage
    #[arg(long, value_name = "MIB")]
    disk_mb: Option<u64>,
    /// Disk limit including all snapshots, in MiB; needs btrfs or zfs storage
    #[arg(long = "disk-total", visible_alias = "disk-total-mb", value_name = "MIB")]
    disk_total_mb: Option<u64>,
    /// `root` allows package managers and sudo, inside the sandbox only
    #[arg(long, value_name = "none|root", value_parser = ["none", "root"])]
    privilege: Option<String>,
    #[command(flatten)]
    pub network: NetworkArgs,
    #[command(flatten)]
    pub source: SourceArgs,
    #[command(flatten)]
    pub codebase: CodebaseArgs,
}

/// Options of a sandbox that outlives the command: its owner and its lifetime.
#[derive(Debug, clap::Args)]
pub struct KeptArgs {
    /// Project of the sandbox [default: that of the key, or default]
    #[arg(long, value_name = "NAME")]
    project: Option<String>,
    /// Name, usable wherever the id is [default: a readable one, made from the id]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Slot: a name that only one sandbox of an owner has at a time
    #[arg(long, value_name = "NAME")]
    pub slot: Option<String>,
    /// Lifetime, such as 90 (seconds), 30m or 2h
    #[arg(long, value_name = "DURATION", value_parser = seconds)]
    timeout: Option<u64>,
    /// Idle timeout, such as 90 (seconds), 30m or 2h
    #[arg(long, value_name = "DURATION", value_parser = seconds)]
    idle_timeout: Option<u64>,
    /// Action when a timeout expires
    #[arg(long, value_name = "destroy|stop|pause", value_parser = ["destroy", "stop", "pause"])]
    on_timeout: Option<String>,
    /// Maximum number of snapshots; the oldest turns are pruned first
    #[arg(long, value_name = "N")]
    max_snapshots: Option<usize>,
    /// Take a snapshot after each tool call that may have changed files [default: the daemon's setting]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    snapshot_tool_calls: Option<bool>,
}

/// The API's field names, and the corresponding options.
pub const OPTIONS: &[(&str, &str)] = &[
    ("template", "--template"),
    ("runtime", "--runtime"),
    ("profile", "--profile"),
    ("labels", "--label"),
    ("label", "--label"),
    ("env", "--env"),
    ("resources.memory_mb", "--memory-mb"),
    ("resources.cpus", "--cpus"),
    ("resources.pids", "--pids"),
    ("resources.disk_mb", "--disk-mb"),
    ("resources.disk_total_mb", "--disk-total"),
    ("privilege", "--privilege"),
    ("network.allow", "--allow"),
    ("network.deny", "--deny"),
    ("network", "--network"),
    ("secrets", "--secret"),
    ("source.path", "--source-path"),
    ("source.git", "--source-git"),
    ("codebase", "--codebase"),
    ("mount", "--mount"),
    ("rules", "--rules"),
    ("project", "--project"),
    ("name", "--name"),
    ("slot", "--slot"),
    ("timeout_secs", "--timeout"),
    ("idle_timeout_secs", "--idle-timeout"),
    ("on_timeout", "--on-timeout"),
    ("max_snapshots", "--max-snapshots"),
    ("snapshot_tool_calls", "--snapshot-tool-calls"),
    ("snapshot", "--snapshot"),
    ("count", "--count"),
    ("note", "--note"),
    ("state", "--state"),
    ("limit", "--limit"),
    ("argv", "CMD"),
    ("cwd", "--cwd"),
    ("user", "--user"),
    ("timeout_ms", "--timeout"),
    ("stdin_b64", "--stdin"),
];

/// Translates a refusal that starts with a field name into the option.
pub fn in_options(detail: &str) -> String {
    let said = detail.split_once(": ").and_then(|(field, rest)| {
        let (_, option) = OPTIONS.iter().find(|(name, _)| *name == field)?;
        Some(format!("{option}: {rest}"))
    });
    said.unwrap_or_else(|| detail.to_owned())
}

impl SpecArgs {
    /// The body of `POST /api/v1/sandboxes` without its `source`; omitted values are left to the daemon.
    pub fn into_json(self) -> Result<Value, Failure> {
        let mut spec = Map::new();
        let limits = [
            ("memory_mb", self.memory_mb.map(Value::from)),
            ("cpus", self.cpus.map(Value::from)),
            ("pids", self.pids.map(Value::from)),
            ("disk_mb", self.disk_mb.map(Value::from)),
            ("disk_total_mb", self.disk_total_mb.map(Value::from)),
        ];
        let limits = given(limits);
        let env = self.env.read()?;
        let (network, secrets) = self.network.read()?;
        spec.extend(given([
            ("template", self.template.map(Value::from)),
            ("runtime", self.runtime.map(Value::from)),
            ("profile", self.profile.map(Value::from)),
            ("labels", object(self.labels)),
            ("env", (!env.is_empty()).then(|| json!(env))),
            ("privilege", self.privilege.map(Value::from)),
            ("network", network),
            ("secrets", secrets),
            ("resources", (!limits.is_empty()).then_some(Value::Object(limits))),
        ]));
        spec.extend(self.codebase.into_fields());
        Ok(Value::Object(spec))
    }

    /// The same, with the options of a kept sandbox.
    pub fn into_json_with(self, kept: KeptArgs) -> Result<Value, Failure> {
        let mut spec = self.into_json()?;
        let more = given([
            ("project", kept.project.map(Value::from)),
            ("name", kept.name.map(Value::from)),
            ("slot", kept.slot.map(Value::from)),
            ("timeout_secs", kept.timeout.map(Value::from)),
            ("idle_timeout_secs", kept.idle_timeout.map(Value::from)),
            ("on_timeout", kept.on_timeout.map(Value::from)),
            ("max_snapshots", kept.max_snapshots.map(Value::from)),
            ("snapshot_tool_calls", kept.snapshot_tool_calls.map(Value::from)),
        ]);
        spec.as_object_mut().expect("it was made as an object").extend(more);
        Ok(spec)
    }
}

fn given<const N: usize>(fields: [(&str, Option<Value>); N]) -> Map<String, Value> {
    fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

fn object(pairs: Vec<(String, String)>) -> Option<Value> {
    let map: BTreeMap<String, String> = pairs.into_iter().collect();
    (!map.is_empty()).then(|| json!(map))
}
