//! May this be made at all? Answered before anything is recorded or done.

use super::shared::Shared;
use crate::error::Error;
use crate::runtime::Capabilities;
use crate::sandbox::{HostLimits, ResourcesDraft, Spec, SpecDraft};

/// Checks a draft against this machine and the parts of this broker.
pub(super) fn admit(shared: &Shared, mut draft: SpecDraft) -> Result<Spec, Error> {
    let runtime = match &draft.runtime {
        Some(name) => shared.usable_runtime(name)?,
        None => shared.usable_runtime(default_name(shared.runtimes.first().map(|r| r.name())))?,
    };
    let template = match &draft.template {
        Some(name) => shared.template(name)?,
        None => shared.template(default_name(shared.templates.first().map(|t| t.name())))?,
    };
    draft.runtime = Some(runtime.name().to_owned());
    draft.template = Some(template.name().to_owned());
    draft.privilege = draft.privilege.or_else(|| Some(template.default_privilege()));
    if let Some(resources) = &draft.resources {
        refuse_what_cannot_be_kept(resources, runtime.name(), &runtime.capabilities())?;
    }
    let spec = draft.check(&shared.host)?;
    if spec.resources().disk_mb.is_some() && !shared.storage.capabilities().disk_quota {
        let storage = shared.storage.name();
        return Err(Error::StorageLacks {
            what: "resources.disk_mb",
            needs: "disk_quota",
            storage,
        });
    }
    Ok(spec)
}

/// A broker without any part of a kind knows none by the empty name either, and the error says so.
fn default_name(first: Option<&str>) -> &str {
    first.unwrap_or_default()
}

/// A limit that was asked for holds, or the sandbox is not made. Defaults are no promise.
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
            let problem = format!("runtime {runtime} cannot hold this limit here; leave it out");
            Err(Error::InvalidField { field, problem })
        }
    }
}

/// What this machine has.
pub(super) fn host_limits() -> std::io::Result<HostLimits> {
    let cpus = std::thread::available_parallelism()?.get();
    let meminfo = std::fs::read_to_string("/proc/meminfo")?;
    let memory_kb: Option<u64> = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse().ok());
    let unreadable = || std::io::Error::other("/proc/meminfo does not say MemTotal");
    let memory_mb = memory_kb.ok_or_else(unreadable)? / 1024;
    // No machine has so many processors that a float could not count them.
    Ok(HostLimits { memory_mb, cpus: cpus as f64 })
}
