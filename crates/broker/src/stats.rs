//! What a sandbox uses: of the machine, live from its runtime, and of the disk, from the storage.
//!
//! How full a volume is costs next to nothing where the storage counts it (`disk_quota`), and a walk
//! over all its files where not. So only the former is measured without being asked for.

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
    /// Left out where the runtime keeps the files itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskStats>,
}

#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct CpuStats {
    /// Processor time since the sandbox started.
    pub usage_secs: f64,
    /// How many processors' worth of time it may use. Missing, like the others, where the runtime cannot
    /// hold such a limit here.
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
    /// Processes and threads.
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
    /// The same with all its snapshots; what several of them have counts once where the storage can tell.
    pub total_used_bytes: u64,
    /// `resources.disk_total_mb`, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_limit_bytes: Option<u64>,
    /// The limit that keeps the next MiB from being written, if one does: `resources.disk_mb`, where files have to
    /// go, or `resources.disk_total_mb`, where snapshots would do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_reached: Option<&'static str>,
}

/// How full a volume was when somebody last looked.
#[derive(Debug, Default)]
pub(super) struct Space {
    last: Mutex<Option<Measured>>,
}

#[derive(Clone, Copy, Debug)]
struct Measured {
    bytes: u64,
    /// Since boot.
    at: Duration,
}

impl Space {
    /// A lock is held for a look or an assignment.
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
    /// `None` of a sandbox that has no volume.
    async fn measure(&self, handle: &Handle) -> Result<Option<Usage>, Error> {
        let Some(usage) = handle.volume.usage().await? else { return Ok(None) };
        let measured = Measured { bytes: usage.tree.used_bytes, at: self.clock.uptime() };
        *handle.space.last() = Some(measured);
        Ok(Some(usage))
    }

    /// Brings what is shown of the volume up to date, if that costs nothing. A volume that is just
    /// going or coming has no size, and nobody is told a wrong one.
    pub(super) async fn refresh_space(&self, handle: &Handle) {
        let fresh = handle.space.is_fresh(self.clock.uptime());
        if fresh || !handle.volume.counts() {
            return;
        }
        if let Err(error) = self.measure(handle).await {
            debug!(id = %handle.id, %error, "cannot measure a volume");
        }
    }

    /// The same for all whose volumes may have changed.
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

    /// `None` if it ended just now.
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
