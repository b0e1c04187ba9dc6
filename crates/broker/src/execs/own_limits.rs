//! Limits of one command, within those of its sandbox.

use std::fmt::Display;
use std::ops::RangeInclusive;

use super::invalid;
use crate::error::Error;
use crate::shared::Shared;
use sandkeep_core::{InvalidSpec, Spec, api::ExecLimits, limits, within};
use sandkeep_runtime::RuntimeError;

/// Refuses limits that the runtime cannot enforce, or that exceed the sandbox's.
pub(crate) fn check(limits: &ExecLimits, shared: &Shared, spec: &Spec) -> Result<(), Error> {
    if *limits == ExecLimits::default() {
        return Ok(());
    }
    let runtime = shared.runtime(spec.runtime())?;
    let can = runtime.capabilities();
    let asked = [
        (limits.memory_mb.is_some(), can.memory_limit, "hold memory_mb for a single command here"),
        (limits.cpus.is_some(), can.cpu_limit, "hold cpus for a single command here"),
        (limits.pids.is_some(), can.pids_limit, "hold pids for a single command here"),
    ];
    let lacking = asked.into_iter().find(|(asked, held, _)| *asked && !(can.exec_limits && *held));
    if let Some((.., what)) = lacking {
        return Err(RuntimeError::Unsupported { runtime: runtime.name(), what }.into());
    }
    within_sandbox(limits, spec)
}

fn within_sandbox(own: &ExecLimits, spec: &Spec) -> Result<(), Error> {
    let of = spec.resources();
    if let Some(mb) = own.memory_mb {
        bound("resources.memory_mb", mb, limits::MEMORY_MIN_MB..=of.memory_mb)?;
    }
    if let Some(pids) = own.pids {
        bound("resources.pids", pids, limits::PIDS_MIN..=of.pids)?;
    }
    if let Some(cpus) = own.cpus {
        bound("resources.cpus", cpus, limits::CPUS_MIN..=of.cpus)?;
    }
    Ok(())
}

fn bound<T: PartialOrd + Display>(
    field: &'static str,
    asked: T,
    range: RangeInclusive<T>,
) -> Result<(), Error> {
    within(field, asked, range, "that the sandbox has")
        .map_err(|InvalidSpec { field, problem }| invalid(field, problem))
}
