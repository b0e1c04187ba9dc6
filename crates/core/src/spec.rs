//! The specification of a sandbox: valid by construction. A `SpecDraft` is the caller's input; only `SpecDraft::check`
//! produces a `Spec`, and it names the field that is wrong.
//!
//! Environment values are secrets: they are stored with the sandbox (0600) and passed to its commands, and shown
//! nowhere else, not even by `Debug`.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::codebase::{self, CodebaseMode, CodebaseMount, CodebaseRef, DEFAULT_MOUNT};
use super::host_mount::HostMount;
use super::image::{ImageDefaults, PinnedImage};
use super::network::{Network, SecretDraft};
use super::rules::RulesDraft;
use super::sandbox_name::SandboxName;
use super::slot::SlotName;
use super::source::{HOME, Source, SourceDraft};
use super::terms::OnTimeout;
use crate::limits;

/// The default template.
pub const DEFAULT_TEMPLATE: &str = "host";
/// The default runtime.
pub const DEFAULT_RUNTIME: &str = "native";

/// Privileges of commands inside their own sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Privilege {
    /// No capabilities and no_new_privs: the default on the `host` template.
    #[default]
    None,
    /// The capabilities that package managers and `sudo` need, inside the user namespace only.
    Root,
}

/// Limits of one sandbox.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Resources {
    pub memory_mb: u64,
    pub cpus: f64,
    pub pids: u64,
    /// Needs a storage with the capability `disk_quota`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_mb: Option<u64>,
    /// The same for its files with all its snapshots; shared data counts once. Without it only the size of the pool is
    /// a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_total_mb: Option<u64>,
}

/// The purpose of a sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    #[default]
    Use,
    /// One step of a build. It is invisible, and removed with the build, also if an earlier daemon left it.
    Build,
}

impl Purpose {
    fn is_use(&self) -> bool {
        *self == Self::Use
    }
}

/// Where the files of a sandbox are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileLocation {
    /// In the storage, on a volume.
    #[default]
    Storage,
    /// In the runtime, wherever it runs the sandbox.
    Runtime,
}

impl FileLocation {
    fn is_storage(&self) -> bool {
        *self == Self::Storage
    }
}

/// A validated spec. It never changes.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    template: String,
    runtime: String,
    /// The profile that supplied its defaults.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    profile: Option<String>,
    env: BTreeMap<String, String>,
    resources: Resources,
    privilege: Privilege,
    /// Only for a sandbox whose template is an image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    image: Option<PinnedImage>,
    /// The workspace that it was created with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    source: Option<Source>,
    #[serde(default, skip_serializing_if = "Purpose::is_use")]
    purpose: Purpose,
    /// Whether a snapshot is taken after each tool call that may have changed files.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    snapshot_tool_calls: bool,
    #[serde(default, skip_serializing_if = "FileLocation::is_storage")]
    keeper: FileLocation,
    /// What is mounted in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    codebase: Option<CodebaseMount>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    host_mounts: Vec<HostMount>,
}

impl Spec {
    pub fn template(&self) -> &str {
        &self.template
    }

    pub fn runtime(&self) -> &str {
        &self.runtime
    }

    pub fn profile(&self) -> Option<&str> {
        self.profile.as_deref()
    }

    pub fn env(&self) -> &BTreeMap<String, String> {
        &self.env
    }

    pub fn resources(&self) -> &Resources {
        &self.resources
    }

    pub fn privilege(&self) -> Privilege {
        self.privilege
    }

    pub fn image(&self) -> Option<&PinnedImage> {
        self.image.as_ref()
    }

    pub fn source(&self) -> Option<&Source> {
        self.source.as_ref()
    }

    /// The image's defaults for commands, if any.
    pub fn image_defaults(&self) -> Option<&ImageDefaults> {
        self.image.as_ref()?.defaults.as_ref()
    }

    pub fn codebase(&self) -> Option<&CodebaseMount> {
        self.codebase.as_ref()
    }

    pub fn host_mounts(&self) -> &[HostMount] {
        &self.host_mounts
    }

    /// Where commands run that name no directory: in the codebase, else in the workspace, else where the image says.
    /// Without any it is the home of whoever runs them.
    pub fn workdir(&self) -> Option<&str> {
        let codebase = self.codebase.as_ref().map(|codebase| codebase.path.as_str());
        let workspace = self.source.as_ref().map(|source| source.path.as_str());
        codebase.or(workspace).or_else(|| Some(self.image_defaults()?.workdir.as_str()))
    }

    /// A path as its caller means it: a relative one begins in the working directory.
    pub fn absolute(&self, path: &str) -> String {
        if path.starts_with('/') {
            path.to_owned()
        } else {
            format!("{}/{path}", self.workdir().unwrap_or(HOME).trim_end_matches('/'))
        }
    }

    pub fn snapshots_tool_calls(&self) -> bool {
        self.snapshot_tool_calls
    }

    pub fn purpose(&self) -> Purpose {
        self.purpose
    }

    pub fn keeper(&self) -> FileLocation {
        self.keeper
    }

    /// The same, with another keeper of its files.
    pub fn kept_by(self, keeper: FileLocation) -> Self {
        Self { keeper, ..self }
    }

    /// The same with a codebase.
    pub fn with_codebase(self, codebase: CodebaseMount) -> Self {
        Self { codebase: Some(codebase), ..self }
    }

    /// The same, for a step of a build.
    pub fn of_build(self) -> Self {
        Self { purpose: Purpose::Build, ..self }
    }

    /// The same on top of an image, whatever its template's name refers to later.
    pub fn of_image(self, image: PinnedImage) -> Self {
        Self { image: Some(image), ..self }
    }
}

impl fmt::Debug for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spec")
            .field("template", &self.template)
            .field("runtime", &self.runtime)
            .field("profile", &self.profile)
            .field("env", &NamesOnly(&self.env))
            .field("resources", &self.resources)
            .field("privilege", &self.privilege)
            .field("source", &self.source)
            .finish()
    }
}

/// The request; every field is optional.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CreateSandbox)]
pub struct SpecDraft {
    pub template: Option<String>,
    pub runtime: Option<String>,
    /// Supplies the values that are left out here.
    pub profile: Option<String>,
    /// The project it belongs to; default: the key's own project, or `default`.
    pub project: Option<String>,
    /// A name by which it can be called in place of its id. Only one sandbox of its owner has it; it can be changed.
    /// One that is given none has a name that is derived from its id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<SandboxName>,
    /// A name that only one sandbox of its owner has at a time.
    pub slot: Option<SlotName>,
    pub labels: Option<BTreeMap<String, String>>,
    /// Environment of all commands. Values are never shown again.
    pub env: Option<BTreeMap<String, String>>,
    pub resources: Option<ResourcesDraft>,
    pub privilege: Option<Privilege>,
    /// Seconds until `on_timeout`, counted from the creation, the last start or the last keepalive.
    #[schema(minimum = 1)]
    pub timeout_secs: Option<u64>,
    /// Seconds without activity until `on_timeout`, while it runs. A running command counts as activity.
    #[schema(minimum = 1)]
    pub idle_timeout_secs: Option<u64>,
    pub on_timeout: Option<OnTimeout>,
    /// Maximum number of its snapshots; default: the daemon's maximum.
    #[schema(minimum = 1)]
    pub max_snapshots: Option<usize>,
    /// Take a snapshot after each tool call that may have changed files; the answer has its `snapshot_id`. Such
    /// snapshots are pruned like turns. Default: the daemon's setting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_tool_calls: Option<bool>,
    /// A workspace, present before the first command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<SourceDraft>,
    /// What it may reach: `none`, the default, `open`, or a policy. It can be changed later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// Secrets, by the environment variable in which its commands find a placeholder. The value is put in place of that
    /// in the headers of requests to these hosts, outside of the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secrets: Option<BTreeMap<String, SecretDraft>>,
    /// Id or name of a codebase to mount. Commands run there unless they name another directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub codebase: Option<CodebaseRef>,
    /// Where the codebase is mounted; `/workspace` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 1024)]
    pub mount: Option<String>,
    /// Whether the sandbox works on the codebase itself, the default, or on a copy of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub codebase_mode: Option<CodebaseMode>,
    /// What the sandbox may do with the codebase: a preset, a list of rules, or both. Default: everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<RulesDraft>)]
    pub rules: Option<RulesDraft>,
    /// Directories of the host. No request can name one: only a program with a broker of its own.
    #[serde(skip)]
    #[schema(ignore)]
    pub host_mounts: Vec<HostMount>,
}

impl fmt::Debug for SpecDraft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpecDraft")
            .field("template", &self.template)
            .field("runtime", &self.runtime)
            .field("profile", &self.profile)
            .field("project", &self.project)
            .field("name", &self.name)
            .field("slot", &self.slot)
            .field("labels", &self.labels)
            .field("env", &self.env.as_ref().map(NamesOnly))
            .field("resources", &self.resources)
            .field("privilege", &self.privilege)
            .field("timeout_secs", &self.timeout_secs)
            .field("idle_timeout_secs", &self.idle_timeout_secs)
            .field("on_timeout", &self.on_timeout)
            .field("max_snapshots", &self.max_snapshots)
            .field("snapshot_tool_calls", &self.snapshot_tool_calls)
            .field("source", &self.source)
            .field("network", &self.network)
            .field("secrets", &self.secrets)
            .field("codebase", &self.codebase)
            .field("mount", &self.mount)
            .field("codebase_mode", &self.codebase_mode)
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}

/// The requested resources; missing ones get defaults.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CreateResources)]
pub struct ResourcesDraft {
    pub memory_mb: Option<u64>,
    pub cpus: Option<f64>,
    pub pids: Option<u64>,
    /// Size of the sandbox's files, without those of its template.
    pub disk_mb: Option<u64>,
    /// Size of the sandbox's files with all its snapshots; at least `disk_mb`.
    pub disk_total_mb: Option<u64>,
}

/// The resources of this machine: a sandbox cannot be promised more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostLimits {
    pub memory_mb: u64,
    pub cpus: f64,
    /// The default disk size; `None` if the storage has no quotas.
    pub disk_default_mb: Option<u64>,
}

/// A draft with an invalid field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct InvalidSpec {
    /// As the caller writes it: `resources.memory_mb`.
    pub field: &'static str,
    pub problem: String,
}

impl SpecDraft {
    /// Fills in the defaults and checks every limit. The broker checks whether the template, the runtime and the
    /// profile exist.
    pub fn check(&self, host: &HostLimits) -> Result<Spec, InvalidSpec> {
        let env = self.env.clone().unwrap_or_default();
        check_env(&env)?;
        let resources = self.resources.clone().unwrap_or_default().check(host)?;
        let or = |name: &Option<String>, default: &str| {
            name.clone().unwrap_or_else(|| default.to_owned())
        };
        Ok(Spec {
            template: or(&self.template, DEFAULT_TEMPLATE),
            runtime: or(&self.runtime, DEFAULT_RUNTIME),
            profile: self.profile.clone(),
            env,
            resources,
            privilege: self.privilege.unwrap_or_default(),
            image: None,
            source: self.source.as_ref().map(SourceDraft::check).transpose()?,
            purpose: Purpose::Use,
            snapshot_tool_calls: self.snapshot_tool_calls.unwrap_or_default(),
            keeper: FileLocation::default(),
            codebase: None,
            host_mounts: self.host_mounts.clone(),
        })
    }

    /// Where the codebase of this request is to be mounted, if it names one.
    pub fn codebase_path(&self) -> Result<Option<String>, InvalidSpec> {
        if self.codebase.is_some() {
            return codebase::mount_path(self.mount.as_deref().unwrap_or(DEFAULT_MOUNT)).map(Some);
        }
        let alone = [
            ("mount", self.mount.is_some()),
            ("codebase_mode", self.codebase_mode.is_some()),
            ("rules", self.rules.is_some()),
        ];
        match alone.into_iter().find(|(_, given)| *given) {
            None => Ok(None),
            Some((field, _)) => {
                let problem = "it says how a codebase is mounted, and no codebase is named";
                Err(InvalidSpec { field, problem: problem.to_owned() })
            }
        }
    }
}

impl ResourcesDraft {
    fn check(&self, host: &HostLimits) -> Result<Resources, InvalidSpec> {
        let memory_mb = self.memory_mb.unwrap_or(limits::MEMORY_DEFAULT_MB.min(host.memory_mb));
        within(
            "resources.memory_mb",
            memory_mb,
            limits::MEMORY_MIN_MB..=host.memory_mb,
            "this machine has",
        )?;
        let cpus = self.cpus.unwrap_or(limits::CPUS_DEFAULT.min(host.cpus));
        within("resources.cpus", cpus, limits::CPUS_MIN..=host.cpus, "this machine has")?;
        let pids = self.pids.unwrap_or(limits::PIDS_DEFAULT);
        within("resources.pids", pids, limits::PIDS_MIN..=limits::PIDS_MAX, "allowed at most")?;
        let (disk_mb, disk_total_mb) = self.check_disk(host)?;
        Ok(Resources { memory_mb, cpus, pids, disk_mb, disk_total_mb })
    }

    fn check_disk(&self, host: &HostLimits) -> Result<(Option<u64>, Option<u64>), InvalidSpec> {
        let total_mb = self.disk_total_mb;
        // The default must not exceed a smaller limit for both.
        let usual_mb = host.disk_default_mb.map(|usual| usual.min(total_mb.unwrap_or(usual)));
        let disk_mb = self.disk_mb.or(usual_mb);
        let range = limits::DISK_MIN_MB..=limits::DISK_MAX_MB;
        if let Some(disk_mb) = disk_mb {
            within("resources.disk_mb", disk_mb, range.clone(), "allowed at most")?;
        }
        if let Some(total_mb) = total_mb {
            within("resources.disk_total_mb", total_mb, range, "allowed at most")?;
            if let Some(disk_mb) = disk_mb.filter(|disk_mb| *disk_mb > total_mb) {
                let problem = format!(
                    "{total_mb} is less than the {disk_mb} that the files alone may take (disk_mb)"
                );
                return Err(InvalidSpec { field: "resources.disk_total_mb", problem });
            }
        }
        Ok((disk_mb, total_mb))
    }
}

/// NaN is in no range, because it compares with nothing.
pub fn within<T: PartialOrd + fmt::Display>(
    field: &'static str,
    value: T,
    range: std::ops::RangeInclusive<T>,
    whose: &str,
) -> Result<(), InvalidSpec> {
    if range.contains(&value) {
        return Ok(());
    }
    let problem =
        format!("{value} is not between {} and the {} {whose}", range.start(), range.end());
    Err(InvalidSpec { field, problem })
}

pub(super) fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), InvalidSpec> {
    let wrong = |problem| Err(InvalidSpec { field: "labels", problem });
    if labels.len() > limits::LABELS_MAX {
        return wrong(format!("{} are more than {}", labels.len(), limits::LABELS_MAX));
    }
    for (name, value) in labels {
        if name.is_empty() {
            return wrong("a name is empty".to_owned());
        }
        if name.len() + value.len() > limits::LABEL_MAX_BYTES {
            let max = limits::LABEL_MAX_BYTES;
            return wrong(format!("a name and its value together are over {max} bytes"));
        }
    }
    Ok(())
}

/// Checks the names and the sizes of environment entries. Errors never contain a value.
pub fn check_env(env: &BTreeMap<String, String>) -> Result<(), InvalidSpec> {
    let wrong = |problem| Err(InvalidSpec { field: "env", problem });
    if env.len() > limits::ENV_MAX {
        return wrong(format!("{} are more than {}", env.len(), limits::ENV_MAX));
    }
    for (name, value) in env {
        if name.is_empty() {
            return wrong("a name is empty".to_owned());
        }
        if name.contains(['=', '\0']) {
            return wrong(format!("the name {name:?} holds '=' or NUL"));
        }
        if value.contains('\0') {
            return wrong(format!("the value of {name:?} holds NUL"));
        }
        if name.len() + value.len() > limits::ENV_ENTRY_MAX_BYTES {
            let max = limits::ENV_ENTRY_MAX_BYTES;
            return wrong(format!("{:?} is over {max} bytes", brief(name)));
        }
    }
    let total: usize = env.iter().map(|(name, value)| name.len() + value.len() + 2).sum();
    if total > limits::ENV_TOTAL_MAX_BYTES {
        return wrong(format!("{total} bytes are over {}", limits::ENV_TOTAL_MAX_BYTES));
    }
    Ok(())
}

/// The start of a name, enough to recognize it: an error must not be as long as the input.
fn brief(name: &str) -> String {
    name.chars().take(64).collect()
}

/// Shows the names of an environment and hides its values.
pub struct NamesOnly<'a>(pub &'a BTreeMap<String, String>);

impl fmt::Debug for NamesOnly<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Timeouts;

    const HOST: HostLimits = HostLimits { memory_mb: 4096, cpus: 1.0, disk_default_mb: None };

    fn map(pairs: &[(&str, &str)]) -> Option<BTreeMap<String, String>> {
        Some(pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect())
    }

    fn resources(draft: ResourcesDraft) -> SpecDraft {
        SpecDraft { resources: Some(draft), ..SpecDraft::default() }
    }

    #[test]
    fn an_empty_draft_gets_the_defaults_that_fit_this_machine() {
        let spec = SpecDraft::default().check(&HOST).expect("everything is optional");
        assert_eq!((spec.template(), spec.runtime()), ("host", "native"));
        let expected =
            Resources { memory_mb: 1024, cpus: 1.0, pids: 512, disk_mb: None, disk_total_mb: None };
        assert_eq!(spec.resources(), &expected);
        assert_eq!(spec.privilege(), Privilege::None);
    }

    #[test]
    fn every_wrong_field_is_named() {
        let long = "x".repeat(limits::ENV_ENTRY_MAX_BYTES);
        let many: Vec<_> = (0..=limits::LABELS_MAX).map(|n| n.to_string()).collect();
        let many: Vec<_> = many.iter().map(|n| (n.as_str(), "")).collect();
        let cases = [
            ("resources.memory_mb", ResourcesDraft { memory_mb: Some(1), ..Default::default() }),
            ("resources.memory_mb", ResourcesDraft { memory_mb: Some(4097), ..Default::default() }),
            ("resources.cpus", ResourcesDraft { cpus: Some(0.0), ..Default::default() }),
            ("resources.cpus", ResourcesDraft { cpus: Some(f64::NAN), ..Default::default() }),
            ("resources.cpus", ResourcesDraft { cpus: Some(1.5), ..Default::default() }),
            ("resources.pids", ResourcesDraft { pids: Some(1), ..Default::default() }),
            ("resources.disk_mb", ResourcesDraft { disk_mb: Some(0), ..Default::default() }),
            ("resources.disk_mb", ResourcesDraft { disk_mb: Some(u64::MAX), ..Default::default() }),
            (
                "resources.disk_total_mb",
                ResourcesDraft { disk_total_mb: Some(0), ..Default::default() },
            ),
            (
                "resources.disk_total_mb",
                ResourcesDraft { disk_mb: Some(2), disk_total_mb: Some(1), ..Default::default() },
            ),
        ]
        .map(|(field, draft)| (field, resources(draft)));
        let env = |pairs| SpecDraft { env: map(pairs), ..SpecDraft::default() };
        let labels = |pairs| SpecDraft { labels: map(pairs), ..SpecDraft::default() };
        let more = [
            ("env", env(&[("", "x")])),
            ("env", env(&[("A=B", "x")])),
            ("env", env(&[("A\0", "x")])),
            ("env", env(&[("A", "\0")])),
            ("env", env(&[("A", &long)])),
            ("labels", labels(&[("", "x")])),
            ("labels", labels(&[("x", &long)])),
            ("labels", labels(&many)),
        ];
        for (field, draft) in cases.into_iter().chain(more) {
            let terms = draft.terms(&Timeouts::default());
            let wrong = draft.check(&HOST).err().or(terms.err()).expect(field);
            assert_eq!(wrong.field, field, "{wrong}");
        }
    }

    #[test]
    fn debug_shows_no_environment_value() {
        let draft = SpecDraft { env: map(&[("TOKEN", "hush")]), ..SpecDraft::default() };
        let spec = draft.check(&HOST).expect("valid");
        for text in [format!("{draft:?}"), format!("{spec:?}")] {
            assert!(text.contains("TOKEN") && !text.contains("hush"), "{text}");
        }
    }

    #[test]
    fn a_spec_is_stored_and_read_again_with_its_environment() {
        let draft = SpecDraft { env: map(&[("TOKEN", "hush")]), ..SpecDraft::default() };
        let spec = draft.check(&HOST).expect("valid");
        let text = serde_json::to_vec(&spec).expect("JSON");
        assert_eq!(serde_json::from_slice::<Spec>(&text).expect("reads"), spec);
    }
}
