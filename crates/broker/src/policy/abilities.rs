//! What sandboxes of a runtime can do on this machine. A runtime knows only its own part: snapshots depend on the
//! storage, available programs on the template, counts and durations on the operator.

use crate::shared::Shared;
use sandkeep_image::Contains;
use sandkeep_runtime::{Capabilities, Files, Runtime, Usable};

/// Names of browser programs in common distributions.
const BROWSERS: [&str; 5] =
    ["chromium", "chromium-browser", "google-chrome", "firefox", "firefox-esr"];

/// Figures for choosing a runtime; `0` means no limit.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
pub struct Abilities {
    #[serde(flatten)]
    pub runtime: Capabilities,
    /// Whether a sandbox has access to a GPU.
    pub has_gpu: bool,
    /// Whether the default template has a browser.
    pub has_browser: bool,
    /// Whether a sandbox can have a network other than its own loopback.
    pub has_network: bool,
    /// Maximum number of concurrent execs in one sandbox.
    pub max_concurrent_tasks: usize,
    pub snapshots: bool,
    pub rollback: bool,
    /// Whether processes can outlive the request that started them.
    pub launch_process: bool,
    /// Whether a sandbox can be moved to cold storage.
    pub deep_pause: bool,
    /// Maximum number of sandboxes.
    pub concurrent_sandboxes: usize,
    /// Maximum lifetime of a sandbox, in seconds.
    pub max_sandbox_duration: u64,
    pub id_range: IdRangeKind,
    /// Which of `resources` are enforced.
    pub limits: Vec<&'static str>,
    pub disk_quota: bool,
}

/// The host ids of the users inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum IdRangeKind {
    /// Each sandbox has ids of its own.
    Own,
    /// Sandboxes share ids with each other, or with the host.
    Shared,
}

pub(crate) fn of(shared: &Shared, runtime: &dyn Runtime) -> Abilities {
    let can = runtime.capabilities();
    // Nothing is possible in a sandbox that cannot be created.
    let usable = shared.offers(runtime) == Usable::Yes;
    let storage = match runtime.files() {
        Files::OnStorage(_) => Some(shared.storage.capabilities()),
        Files::Remote => None,
    };
    let snapshots = usable && storage.is_some_and(|storage| storage.snapshots);
    let disk_quota = usable && storage.is_some_and(|storage| storage.disk_quota);
    let template = shared.templates.first().filter(|_| usable && can.isolation);
    let has = |program: &&str| {
        template.is_some_and(|template| template.has_program(program) == Contains::Yes)
    };
    let policy = &shared.policy;
    Abilities {
        // No runtime passes devices into a sandbox, and nothing moves paused sandboxes elsewhere.
        has_gpu: false,
        has_network: usable && can.network,
        deep_pause: false,
        has_browser: BROWSERS.iter().any(has),
        max_concurrent_tasks: policy.max_concurrent_tasks,
        snapshots,
        rollback: snapshots,
        launch_process: usable,
        concurrent_sandboxes: policy.max_sandboxes,
        max_sandbox_duration: policy.timeouts.max_timeout.map_or(0, |longest| longest.as_secs()),
        id_range: if can.own_id_range && storage.is_none_or(|storage| storage.id_mapped) {
            IdRangeKind::Own
        } else {
            IdRangeKind::Shared
        },
        limits: limits(&can, disk_quota),
        disk_quota,
        runtime: can,
    }
}

fn limits(can: &Capabilities, disk_quota: bool) -> Vec<&'static str> {
    let all = [
        ("memory_mb", can.memory_limit),
        ("cpus", can.cpu_limit),
        ("pids", can.pids_limit),
        ("disk_mb", disk_quota),
    ];
    all.into_iter().filter_map(|(name, holds)| holds.then_some(name)).collect()
}
