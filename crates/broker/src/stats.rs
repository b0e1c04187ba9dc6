//! The resource usage of a sandbox: live values from its runtime, and the disk from the storage.
//!
//! The size of a volume costs next to nothing if the storage counts it (`disk_quota`), and otherwise a walk over all
//! its files. So only the former is measured without a request.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tracing::debug;
use utoipa::ToSchema;

use super::lifecycle::handle::Handle;
use super::shared::Shared;
use crate::error::Error;
use sandkeep_core::{SandboxId, State, limits};
use sandkeep_runtime::RuntimeError;
use sandkeep_storage::{Limit, Usage};

/// Resource usage of a sandbox. If it is not running, only the disk usage is present.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = SandboxStats)]
pub struct StatsView {
    pub id: SandboxId,
    pub state: State,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<PidsStats>,
    /// Absent if the runtime keeps the files itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskStats>,
}

#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct CpuStats {
    /// Processor time since the sandbox started.
    pub usage_secs: f64,
    /// CPU limit, in processors. Like the other limits, absent if the runtime cannot enforce it here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_cpus: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct MemoryStats {
    pub used_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_bytes: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct PidsStats {
    /// Number of processes and threads.
    pub current: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct DiskStats {
    /// Disk usage of the sandbox, without its template.
    pub used_bytes: u64,
    /// `resources.disk_mb`, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_bytes: Option<u64>,
    /// Disk usage including all snapshots; shared data counts once if the storage can tell.
    pub total_used_bytes: u64,
    /// `resources.disk_total_mb`, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_limit_bytes: Option<u64>,
    /// The limit that prevents writing another MiB, if any: `resources.disk_mb`, if files must be deleted, or
    /// `resources.disk_total_mb`, if deleting snapshots is enough.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_reached: Option<&'static str>,
}

/// The size of a volume when it was last measured.
#[derive(Debug, Default)]
pub(super) struct Space {
    last: Mutex<Option<Measured>>,
}

#[derive(Clone, Copy, Debug)]
struct Measured {
    bytes: u64,
    /// In time since boot.
    at: Duration,
}

impl Space {
    /// The lock is held for one read or assignment.
    fn last(&self) -> MutexGuard<'_, Option<Measured>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn bytes(&self) -> Option<u64> {
        self.last().map(|measured| measured.bytes)
    }

    fn is_fresh(&self, now: Duration) -> bool {
        self.last().is_some_and(|last| now.saturating_sub(last.at) < limits::SPACE_USED_FRESH)
    }
}

impl Shared {
    /// `None` for a sandbox without a volume.
    async fn measure(&self, handle: &Handle) -> Result<Option<Usage>, Error> {
        let Some(usage) = handle.volume.usage().await? else { return Ok(None) };
        let measured = Measured { bytes: usage.tree.used_bytes, at: self.clock.uptime() };
        *handle.space.last() = Some(measured);
        Ok(Some(usage))
    }

    /// Refreshes the displayed size of the volume, if that is free. A volume that is being created or removed has no
    /// size, and none is shown.
    pub(super) async fn refresh_space(&self, handle: &Handle) {
        let fresh = handle.space.is_fresh(self.clock.uptime());
        if fresh || !handle.volume.counts() {
            return;
        }
        if let Err(error) = self.measure(handle).await {
            debug!(id = %handle.id, %error, "cannot measure a volume");
        }
    }

    /// The same for all sandboxes whose volumes may have changed.
    pub(super) async fn measure_active(&self) {
        for handle in self.handles() {
            let runs = handle.published.borrow().status.state() == State::Running;
            if runs || handle.space.bytes().is_none() {
                self.refresh_space(&handle).await;
            }
        }
    }

    pub(super) async fn stats(&self, handle: &Arc<Handle>) -> Result<StatsView, Error> {
        let usage = self.measure(handle).await?;
        let state = handle.published.borrow().status.state();
        let live = match state {
            State::Running | State::Paused => self.live(handle).await?,
            State::Creating | State::Stopped | State::Destroying | State::Failed => None,
        };
        let (cpu, memory, pids) = match live {
            Some((cpu, memory, pids)) => (Some(cpu), Some(memory), Some(pids)),
            None => (None, None, None),
        };
        let disk = usage.map(|usage| DiskStats {
            used_bytes: usage.tree.used_bytes,
            limit_bytes: usage.tree.limit_bytes,
            total_used_bytes: usage.total.used_bytes,
            total_limit_bytes: usage.total.limit_bytes,
            limit_reached: usage.exceeded_by(limits::MIB).map(|limit| match limit {
                Limit::Tree => "resources.disk_mb",
                Limit::Total => "resources.disk_total_mb",
            }),
        });
        Ok(StatsView { id: handle.id.clone(), state, cpu, memory, pids, disk })
    }

    /// `None` if it has just ended.
    async fn live(
        &self,
        handle: &Handle,
    ) -> Result<Option<(CpuStats, MemoryStats, PidsStats)>, Error> {
        let runtime = self.runtime(handle.meta().spec.runtime())?;
        let used = match runtime.stats(&handle.id).await {
            Ok(used) => used,
            Err(RuntimeError::NotRunning { .. } | RuntimeError::NotFound { .. }) => {
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        let (meta, can) = (handle.meta(), runtime.capabilities());
        let may = meta.spec.resources();
        let usage = Duration::from_micros(used.cpu_micros);
        Ok(Some((
            CpuStats {
                usage_secs: usage.as_secs_f64(),
                limit_cpus: can.cpu_limit.then_some(may.cpus),
            },
            MemoryStats {
                used_bytes: used.memory_bytes,
                limit_bytes: can.memory_limit.then_some(may.memory_mb.saturating_mul(limits::MIB)),
            },
            PidsStats { current: used.pids, limit: can.pids_limit.then_some(may.pids) },
        )))
    }
}
