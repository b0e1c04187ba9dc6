//! Admission: whether a sandbox may be created at all. Decided before anything is recorded or done.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::Error;
use crate::images::{self, Chosen, workspace};
use crate::lifecycle::volume::require_snapshots;
use crate::policy::Policy;
use crate::records::registry;
use crate::shared::Shared;
use sandkeep_core::{
    FileLocation, HostLimits, OnTimeout, Owner, Principal, Privilege, Resources, ResourcesDraft,
    Spec, SpecDraft, Terms, limits,
};
use sandkeep_home::Meta;
use sandkeep_runtime::{Capabilities, Files, Runtime};
use sandkeep_storage::{Quota, Storage};

/// The owner of a sandbox created from this draft.
pub(crate) fn owner(who: &Principal, draft: &SpecDraft) -> Result<Owner, Error> {
    let wrong = |problem| Error::InvalidField { field: "project", problem };
    let max = limits::OWNER_MAX_BYTES;
    match &draft.project {
        Some(project) if project.is_empty() || project.len() > max => {
            Err(wrong(format!("a project's name has 1 to {max} bytes")))
        }
        project => who.owner(project.as_deref()).map_err(|other| wrong(other.to_string())),
    }
}

/// A sandbox that may be created. Its template does not change until this is dropped.
pub(crate) struct AdmittedSandbox<'a> {
    pub spec: Spec,
    pub terms: Terms,
    pub runtime: &'a Arc<dyn Runtime>,
    pub template: Chosen<'a>,
}

/// Checks a draft against this machine, its policy and the parts of this broker.
pub(crate) async fn admit<'a>(
    shared: &'a Shared,
    owner: &Owner,
    draft: SpecDraft,
) -> Result<AdmittedSandbox<'a>, Error> {
    let mut draft = shared.policy.with_profile(draft)?;
    let name = draft.runtime.as_deref().unwrap_or_else(|| usual_runtime(shared));
    // A runtime that was unusable before may work now.
    shared.runtime(name)?.look_again().await;
    let runtime = shared.usable_runtime(name)?;
    let chosen = shared.choose_template(owner, draft.template.as_deref()).await?;
    let can = runtime.capabilities();
    let files = runtime.files();
    if files == Files::Remote {
        refuse_what_needs_a_volume(&draft, runtime.name())?;
    }
    draft.runtime = Some(runtime.name().to_owned());
    draft.template = Some(chosen.template.name().to_owned());
    draft.privilege = draft.privilege.or(match chosen.template.default_privilege() {
        // If the runtime has no root inside, an image is run as well as possible.
        Privilege::Root if !can.any_user => None,
        usual => Some(usual),
    });
    draft.network = draft.network.or_else(|| chosen.network().cloned());
    draft.snapshot_tool_calls =
        Some(snapshots_tool_calls(shared, files, draft.snapshot_tool_calls)?);
    if let Some(resources) = &draft.resources {
        refuse_what_cannot_be_kept(resources, runtime.name(), &can)?;
    }
    if draft.privilege == Some(Privilege::Root) && !can.any_user {
        let runtime = runtime.name();
        let problem = format!("{runtime} has no root inside here{}", without_root());
        return Err(Error::InvalidField { field: "privilege", problem });
    }
    let host = match files {
        Files::OnStorage(_) => shared.host,
        Files::Remote => HostLimits { disk_default_mb: None, ..shared.host },
    };
    let spec = chosen.pin(draft.check(&host)?, &can);
    let spec = with_files(shared, runtime.as_ref(), spec)?;
    refuse_what_is_not_limited(shared, spec.resources())?;
    if let Some(source) = spec.source() {
        workspace::check(source, chosen.template.as_ref())?;
    }
    let terms = draft.terms(&shared.policy.timeouts)?;
    shared.network.check(&terms.network, runtime.as_ref())?;
    check_terms(&terms, runtime.as_ref(), &shared.policy)?;
    Ok(AdmittedSandbox { spec, terms, runtime, template: chosen })
}

/// An explicit request for snapshots is kept or refused; a default is no promise.
fn snapshots_tool_calls(shared: &Shared, files: Files, asked: Option<bool>) -> Result<bool, Error> {
    match asked {
        Some(true) => require_snapshots(&*shared.storage, "a snapshot").map(|()| true),
        Some(false) => Ok(false),
        None if files == Files::Remote => Ok(false),
        None => Ok(shared.policy.snapshot_tool_calls && shared.storage.capabilities().snapshots),
    }
}

/// Refuses features that need a volume if the runtime keeps the files itself.
fn refuse_what_needs_a_volume(draft: &SpecDraft, runtime: &str) -> Result<(), Error> {
    let resources = draft.resources.as_ref();
    let needs = [
        ("template", draft.template.is_some()),
        ("source", draft.source.is_some()),
        ("snapshot_tool_calls", draft.snapshot_tool_calls == Some(true)),
        ("resources.disk_mb", resources.is_some_and(|asked| asked.disk_mb.is_some())),
        ("resources.disk_total_mb", resources.is_some_and(|asked| asked.disk_total_mb.is_some())),
    ];
    match needs.into_iter().find(|(_, asked)| *asked) {
        None => Ok(()),
        Some((field, _)) => {
            let problem =
                format!("runtime {runtime} keeps the files of its sandboxes itself; leave it out");
            Err(Error::InvalidField { field, problem })
        }
    }
}

/// The spec with the keeper of its files. A volume that the runtime could not use is not created.
pub(crate) fn with_files(
    shared: &Shared,
    runtime: &dyn Runtime,
    spec: Spec,
) -> Result<Spec, Error> {
    let kinds = match runtime.files() {
        Files::OnStorage(kinds) => kinds,
        Files::Remote => return Ok(spec.kept_by(FileLocation::Runtime)),
    };
    let kind = shared.storage.root_kind(&images::base(&spec)?);
    if kinds.contains(&kind) {
        Ok(spec)
    } else {
        let (runtime, storage) = (runtime.name(), shared.storage.name());
        Err(Error::UnfitVolume { runtime, storage, kind })
    }
}

/// The size limits of a sandbox's volume.
pub(crate) fn volume_quota(resources: &Resources) -> Quota {
    let bytes = |mb: Option<u64>| mb.map(|mb| mb.saturating_mul(limits::MIB));
    Quota { tree_bytes: bytes(resources.disk_mb), total_bytes: bytes(resources.disk_total_mb) }
}

fn refuse_what_is_not_limited(shared: &Shared, resources: &Resources) -> Result<(), Error> {
    let what = match resources {
        _ if shared.storage.capabilities().disk_quota => return Ok(()),
        Resources { disk_mb: Some(_), .. } => "resources.disk_mb",
        Resources { disk_total_mb: Some(_), .. } => "resources.disk_total_mb",
        _ => return Ok(()),
    };
    Err(Error::StorageLacks { what, needs: "disk_quota", storage: shared.storage.name() })
}

/// Refuses expiry actions that the runtime cannot do, and durations beyond the daemon's maximum.
pub(crate) fn check_terms(
    terms: &Terms,
    runtime: &dyn Runtime,
    policy: &Policy,
) -> Result<(), Error> {
    if let Some(count) = terms.max_snapshots.filter(|count| *count > policy.max_snapshots) {
        let max = policy.max_snapshots;
        let problem = format!("{count} is more than the {max} that this daemon allows");
        return Err(Error::InvalidField { field: "max_snapshots", problem });
    }
    if terms.on_timeout != OnTimeout::Pause || runtime.capabilities().pause {
        return Ok(());
    }
    let problem = format!("runtime {} cannot pause here; use stop or destroy", runtime.name());
    Err(Error::InvalidField { field: "on_timeout", problem })
}

/// The runtime of a sandbox that names none.
pub(crate) fn usual_runtime(shared: &Shared) -> &str {
    let first = shared.runtimes.first().map(|runtime| runtime.name());
    shared.policy.default_runtime.as_deref().unwrap_or(default_name(first))
}

/// Checks that every later version of the row fits as well; otherwise the sandbox could be created but never destroyed.
pub(crate) fn check_row(meta: &Meta) -> Result<(), Error> {
    let size = registry::row_len(meta);
    let max = limits::STORE_VALUE_MAX_BYTES - limits::ROW_RESERVE_BYTES;
    if size <= max {
        return Ok(());
    }
    let bytes = |map: &BTreeMap<String, String>| -> usize {
        map.iter().map(|(name, value)| name.len() + value.len()).sum()
    };
    let network = serde_json::to_vec(&meta.terms.network).map_or(0, |text| text.len());
    let (env, labels) = (bytes(meta.spec.env()), bytes(&meta.terms.labels));
    let field = match () {
        () if network > env.max(labels) => "network",
        () if env >= labels => "env",
        () => "labels",
    };
    let problem = format!("with it the sandbox takes {size} bytes of JSON, more than {max}");
    Err(Error::InvalidField { field, problem })
}

/// A broker without any part of a kind does not know the empty name either, and the error says so.
fn default_name(first: Option<&str>) -> &str {
    first.unwrap_or_default()
}

/// A requested limit is enforced, or the sandbox is not created. Defaults are no promise.
fn refuse_what_cannot_be_kept(
    asked: &ResourcesDraft,
    runtime: &str,
    can: &Capabilities,
) -> Result<(), Error> {
    let limits = [
        ("resources.memory_mb", asked.memory_mb.is_some(), can.memory_limit),
        ("resources.cpus", asked.cpus.is_some(), can.cpu_limit),
        ("resources.pids", asked.pids.is_some(), can.pids_limit),
    ];
    match limits.into_iter().find(|(_, asked, can)| *asked && !can) {
        None => Ok(()),
        Some((field, ..)) => {
            let root = without_root();
            let problem =
                format!("runtime {runtime} cannot hold this limit here; leave it out{root}");
            Err(Error::InvalidField { field, problem })
        }
    }
}

/// An additional hint, if one helps.
fn without_root() -> &'static str {
    if rustix::process::geteuid().is_root() { "" } else { ", or have the daemon run as root" }
}

/// The resources of this machine.
pub(crate) async fn host_limits(storage: &dyn Storage) -> Result<HostLimits, Error> {
    let unreadable = |source| Error::HostUnreadable { source };
    let (memory_mb, cpus) = memory_and_cpus().map_err(unreadable)?;
    Ok(HostLimits { memory_mb, cpus, disk_default_mb: disk_default_mb(storage).await? })
}

/// Without a quota one sandbox could fill the disk for all.
async fn disk_default_mb(storage: &dyn Storage) -> Result<Option<u64>, Error> {
    if !storage.capabilities().disk_quota {
        return Ok(None);
    }
    let pool_mb = storage.pool_health().await?.total_bytes / limits::MIB;
    let share_mb = pool_mb / limits::DISK_DEFAULT_POOL_SHARE;
    Ok(Some(share_mb.clamp(limits::DISK_MIN_MB, limits::DISK_DEFAULT_MB)))
}

fn memory_and_cpus() -> std::io::Result<(u64, f64)> {
    let cpus = std::thread::available_parallelism()?.get();
    let meminfo = std::fs::read_to_string("/proc/meminfo")?;
    let memory_kb: Option<u64> = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse().ok());
    let unreadable = || std::io::Error::other("/proc/meminfo does not say MemTotal");
    let memory_mb = memory_kb.ok_or_else(unreadable)? / 1024;
    // No machine has more processors than a float can represent exactly.
    Ok((memory_mb, cpus as f64))
}
