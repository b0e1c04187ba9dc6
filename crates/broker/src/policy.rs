//! The limits and permissions that the operator has configured. The defaults allow everything that the machine can do.

pub(crate) mod abilities;
pub(crate) mod admission;
pub(crate) mod batteries;
pub(crate) mod host_disk;
pub(crate) mod quota;
pub(crate) mod rate;
pub(crate) mod refusals;
pub(crate) mod slots;
pub(crate) mod turns;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::error::Error;
use sandkeep_core::network::Network;
use sandkeep_core::{
    CodebaseServing, NamesOnly, OnTimeout, Privilege, ResourcesDraft, SnapshotName, SpecDraft,
    Timeouts, limits,
};
use sandkeep_storage::Dataset;

#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    pub max_sandboxes: usize,
    /// Maximum number of concurrent execs in one sandbox.
    pub max_concurrent_tasks: usize,
    /// Maximum number of snapshots of one sandbox; a sandbox may ask for fewer.
    pub max_snapshots: usize,
    /// Prefix of the names of turns.
    pub turn_prefix: SnapshotName,
    /// Default for sandboxes that do not set it: whether each tool call that may have changed files is followed by a
    /// snapshot.
    pub snapshot_tool_calls: bool,
    /// How servers serve codebases with rules.
    pub codebase_serving: CodebaseServing,
    pub quotas: Quotas,
    pub timeouts: Timeouts,
    /// The runtime of a sandbox that sets none, neither itself nor through its profile; the first one if not
    /// configured.
    pub default_runtime: Option<String>,
    /// The profile of a sandbox that sets none.
    pub default_profile: Option<String>,
    pub profiles: BTreeMap<String, Profile>,
    /// Directories of the host that every caller may use as sources.
    pub source_roots: Vec<PathBuf>,
    /// Datasets in the pool of the storage whose snapshots every caller may use as sources.
    pub source_datasets: Vec<Dataset>,
    /// Maximum size of an uploaded archive.
    pub max_upload_bytes: u64,
    /// The host's disk space that is reserved: with less than this, nothing more is written for tenants outside of the
    /// pool.
    pub host_reserve_bytes: u64,
    pub pool: PoolMarks,
    /// Whether events contain command lines.
    pub event_commands: bool,
    /// Labels of sandboxes that the events of their creation, failure and end contain.
    pub event_labels: Vec<String>,
}

/// Fill levels of the pool, as fractions of 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PoolMarks {
    /// From here on a warning is reported.
    pub warning: f64,
    /// From here on the broker is not ready, and creates nothing that needs space.
    pub critical: f64,
}

impl Default for PoolMarks {
    fn default() -> Self {
        Self { warning: limits::POOL_WARNING, critical: limits::POOL_CRITICAL }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            max_sandboxes: limits::SANDBOXES_MAX,
            max_concurrent_tasks: limits::EXECS_PER_SANDBOX_MAX,
            max_snapshots: limits::SNAPSHOTS_DEFAULT,
            turn_prefix: SnapshotName::turns(),
            snapshot_tool_calls: false,
            codebase_serving: CodebaseServing::Auto,
            quotas: Quotas::default(),
            timeouts: Timeouts::default(),
            default_runtime: None,
            default_profile: None,
            profiles: BTreeMap::new(),
            source_roots: Vec::new(),
            source_datasets: Vec::new(),
            max_upload_bytes: limits::UPLOAD_DEFAULT_BYTES,
            host_reserve_bytes: limits::HOST_RESERVE_DEFAULT_MB * limits::MIB,
            pool: PoolMarks::default(),
            event_commands: false,
            event_labels: Vec::new(),
        }
    }
}

/// Quotas of each organization and of each user.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Quotas {
    pub organization: Quota,
    pub user: Quota,
}

/// `None` means no quota.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Quota {
    pub sandboxes: Option<u64>,
    pub cpus: Option<f64>,
    pub memory_mb: Option<u64>,
    pub disk_mb: Option<u64>,
    /// Data that the daemon stores outside of sandboxes: command output, uploads, temporary files of imports. Default:
    /// `disk_mb` and `template_mb` together.
    pub host_mb: Option<u64>,
    /// Templates that are not shared, and the size of their layers, each layer counted once.
    pub templates: Option<u64>,
    pub template_mb: Option<u64>,
    pub requests_per_second: Option<f64>,
}

/// A named set of defaults for sandboxes. Values of the request take precedence over those of its profile; its labels
/// and variables are added to the profile's.
#[derive(Clone, Default, PartialEq)]
pub struct Profile {
    pub template: Option<String>,
    pub runtime: Option<String>,
    pub resources: ResourcesDraft,
    pub env: BTreeMap<String, String>,
    pub labels: BTreeMap<String, String>,
    pub privilege: Option<Privilege>,
    pub timeout: Option<Duration>,
    pub idle_timeout: Option<Duration>,
    pub on_timeout: Option<OnTimeout>,
    pub network: Option<Network>,
}

/// The values of `env` are secrets.
impl fmt::Debug for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Profile")
            .field("template", &self.template)
            .field("runtime", &self.runtime)
            .field("resources", &self.resources)
            .field("env", &NamesOnly(&self.env))
            .field("labels", &self.labels)
            .field("privilege", &self.privilege)
            .field("timeout", &self.timeout)
            .field("idle_timeout", &self.idle_timeout)
            .field("on_timeout", &self.on_timeout)
            .field("network", &self.network)
            .finish()
    }
}

impl Policy {
    /// What events say of a command line.
    pub(super) fn told_command(&self, argv: &[String]) -> Option<Vec<String>> {
        self.event_commands.then(|| argv.to_vec())
    }

    /// The draft with everything filled in that it leaves to its profile: what it says itself wins,
    /// and its labels and variables are added to the profile's.
    pub(super) fn with_profile(&self, mut draft: SpecDraft) -> Result<SpecDraft, Error> {
        draft.profile = draft.profile.or_else(|| self.default_profile.clone());
        let Some(name) = &draft.profile else { return Ok(draft) };
        let Some(profile) = self.profiles.get(name) else {
            let known = self.profiles.keys().cloned().collect();
            return Err(Error::UnknownProfile { name: name.clone(), known });
        };
        Ok(profile.fill(draft))
    }
}

impl Profile {
    fn fill(&self, draft: SpecDraft) -> SpecDraft {
        let secs = |limit: Option<Duration>| limit.map(|limit| limit.as_secs());
        SpecDraft {
            template: draft.template.or_else(|| self.template.clone()),
            runtime: draft.runtime.or_else(|| self.runtime.clone()),
            labels: added(&self.labels, draft.labels),
            env: added(&self.env, draft.env),
            resources: self.fill_resources(draft.resources),
            privilege: draft.privilege.or(self.privilege),
            timeout_secs: draft.timeout_secs.or(secs(self.timeout)),
            idle_timeout_secs: draft.idle_timeout_secs.or(secs(self.idle_timeout)),
            on_timeout: draft.on_timeout.or(self.on_timeout),
            profile: draft.profile,
            project: draft.project,
            name: draft.name,
            slot: draft.slot,
            max_snapshots: draft.max_snapshots,
            snapshot_tool_calls: draft.snapshot_tool_calls,
            source: draft.source,
            network: draft.network.or_else(|| self.network.clone()),
            secrets: draft.secrets,
            codebase: draft.codebase,
            mount: draft.mount,
            codebase_mode: draft.codebase_mode,
            rules: draft.rules,
            host_mounts: draft.host_mounts,
        }
    }

    fn fill_resources(&self, asked: Option<ResourcesDraft>) -> Option<ResourcesDraft> {
        let asked = asked.unwrap_or_default();
        Some(ResourcesDraft {
            memory_mb: asked.memory_mb.or(self.resources.memory_mb),
            cpus: asked.cpus.or(self.resources.cpus),
            pids: asked.pids.or(self.resources.pids),
            disk_mb: asked.disk_mb.or(self.resources.disk_mb),
            disk_total_mb: asked.disk_total_mb.or(self.resources.disk_total_mb),
        })
    }
}

fn added(
    common: &BTreeMap<String, String>,
    own: Option<BTreeMap<String, String>>,
) -> Option<BTreeMap<String, String>> {
    let mut all = common.clone();
    all.extend(own.unwrap_or_default());
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn what_a_draft_says_wins_over_its_profile() {
        let profile = Profile {
            runtime: Some("native".to_owned()),
            resources: ResourcesDraft { memory_mb: Some(64), pids: Some(9), ..Default::default() },
            env: map(&[("A", "profile"), ("B", "profile")]),
            labels: map(&[("team", "blue")]),
            timeout: Some(Duration::from_secs(60)),
            on_timeout: Some(OnTimeout::Stop),
            ..Profile::default()
        };
        let policy = Policy {
            default_profile: Some("small".to_owned()),
            profiles: [("small".to_owned(), profile)].into(),
            ..Policy::default()
        };
        let draft = SpecDraft {
            runtime: Some("mock".to_owned()),
            resources: Some(ResourcesDraft { pids: Some(20), ..Default::default() }),
            env: Some(map(&[("B", "own")])),
            timeout_secs: Some(5),
            ..SpecDraft::default()
        };
        let filled = policy.with_profile(draft).expect("it exists");
        let resources = filled.resources.expect("given");
        assert_eq!(filled.profile.as_deref(), Some("small"));
        assert_eq!(filled.runtime.as_deref(), Some("mock"));
        assert_eq!((resources.memory_mb, resources.pids), (Some(64), Some(20)));
        assert_eq!(filled.env, Some(map(&[("A", "profile"), ("B", "own")])));
        assert_eq!(filled.labels, Some(map(&[("team", "blue")])));
        assert_eq!((filled.timeout_secs, filled.on_timeout), (Some(5), Some(OnTimeout::Stop)));
    }

    #[test]
    fn an_unknown_profile_is_answered_with_those_there_are() {
        let policy =
            Policy { profiles: [("a".to_owned(), Profile::default())].into(), ..Policy::default() };
        let draft = SpecDraft { profile: Some("b".to_owned()), ..SpecDraft::default() };
        let error = policy.with_profile(draft).expect_err("there is none");
        assert!(
            matches!(&error, Error::UnknownProfile { known, .. } if known == &["a"]),
            "{error}"
        );
    }
}
