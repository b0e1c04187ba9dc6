//! What one command may use by itself, within what its sandbox may.

use std::fmt::Display;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::invalid;
use crate::error::Error;
use crate::shared::Shared;
use sandkeep_core::{InvalidSpec, Spec, limits, within};
use sandkeep_guestlink::LeafLimits;
use sandkeep_runtime::RuntimeError;
use sandkeep_sys::cgroup::cpu_quota_micros;

/// The limits of one command, for it and all that it starts. None is above the sandbox's own, which hold as well;
/// what is left out is limited by those alone. Needs a runtime with `exec_limits`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecLimits {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 8)]
    pub memory_mb: Option<u64>,
    /// CPU limit, in processors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0.01)]
    pub cpus: Option<f64>,
    /// Processes and threads at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 4)]
    pub pids: Option<u64>,
}

impl ExecLimits {
    /// As the runtime is asked for them: such as can be held, and within the sandbox's.
    pub(crate) fn check(&self, shared: &Shared, spec: &Spec) -> Result<LeafLimits, Error> {
        if *self == Self::default() {
            return Ok(LeafLimits::NONE);
        }
        let runtime = shared.runtime(spec.runtime())?;
        let can = runtime.capabilities();
        let asked = [
            (
                self.memory_mb.is_some(),
                can.memory_limit,
                "hold memory_mb for a single command here",
            ),
            (self.cpus.is_some(), can.cpu_limit, "hold cpus for a single command here"),
            (self.pids.is_some(), can.pids_limit, "hold pids for a single command here"),
        ];
        let lacking =
            asked.into_iter().find(|(asked, held, _)| *asked && !(can.exec_limits && *held));
        if let Some((.., what)) = lacking {
            return Err(RuntimeError::Unsupported { runtime: runtime.name(), what }.into());
        }
        self.within(spec)
    }

    fn within(&self, spec: &Spec) -> Result<LeafLimits, Error> {
        let of = spec.resources();
        if let Some(mb) = self.memory_mb {
            bound("resources.memory_mb", mb, limits::MEMORY_MIN_MB..=of.memory_mb)?;
        }
        if let Some(pids) = self.pids {
            bound("resources.pids", pids, limits::PIDS_MIN..=of.pids)?;
        }
        if let Some(cpus) = self.cpus {
            bound("resources.cpus", cpus, limits::CPUS_MIN..=of.cpus)?;
        }
        Ok(LeafLimits {
            memory_bytes: self.memory_mb.map(|mb| mb.saturating_mul(limits::MIB)),
            cpu_micros: self.cpus.map(cpu_quota_micros),
            pids: self.pids,
        })
    }
}

fn bound<T: PartialOrd + Display>(
    field: &'static str,
    asked: T,
    range: RangeInclusive<T>,
) -> Result<(), Error> {
    within(field, asked, range, "that the sandbox has")
        .map_err(|InvalidSpec { field, problem }| invalid(field, problem))
}
