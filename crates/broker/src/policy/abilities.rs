//! What sandboxes of a runtime can do here. A runtime knows only its own part: whether files can be taken
//! back is the storage's, which programs there are the template's, how many and how long the operator's.

use crate::shared::Shared;
use sandkeep_image::Found;
use sandkeep_runtime::{Capabilities, Files, Runtime, Usable};

/// Programs that are a browser, as distributions call them.
const BROWSERS: [&str; 5] =
    ["chromium", "chromium-browser", "google-chrome", "firefox", "firefox-esr"];

/// Figures for choosing a runtime; `0` is no limit.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
pub struct Abilities {
    #[serde(flatten)]
    pub runtime: Capabilities,
    /// A sandbox sees a graphics processor.
    pub has_gpu: bool,
    /// The usual template has a browser.
    pub has_browser: bool,
    /// A sandbox can have a network other than its own loopback.
    pub has_network: bool,
    /// Maximum number of concurrent execs in one sandbox.
    pub max_concurrent_tasks: usize,
    pub snapshots: bool,
    pub rollback: bool,
    /// Processes that outlive the request that began them.
    pub launch_process: bool,
    /// A sandbox can be put away into cold storage.
    pub deep_pause: bool,
    /// Maximum number of sandboxes.
    pub concurrent_sandboxes: usize,
    /// The longest time that a sandbox may live, in seconds.
    pub max_sandbox_duration: u64,
    pub id_range: IdRangeKind,
    /// Which of `resources` hold.
    pub limits: Vec<&'static str>,
    pub disk_quota: bool,
}

/// Whose ids the users inside have on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum IdRangeKind {
    /// Each sandbox has ids that nobody else has.
    Own,
    /// Sandboxes have ids in common with each other, or with the host.
    Shared,
}

pub(crate) fn of(shared: &Shared, runtime: &dyn Runtime) -> Abilities {
    let can = runtime.capabilities();
    // Nothing can be done in a sandbox that cannot be made.
    let usable = shared.offers(runtime) == Usable::Yes;
    let storage = match runtime.files() {
        Files::OnStorage(_) => Some(shared.storage.capabilities()),
        Files::Remote => None,
    };
    let snapshots = usable && storage.is_some_and(|storage| storage.snapshots);
    let disk_quota = usable && storage.is_some_and(|storage| storage.disk_quota);
    let template = shared.templates.first().filter(|_| usable && can.isolation);
    let has = |program: &&str| {
        template.is_some_and(|template| template.has_program(program) == Found::Yes)
    };
    let policy = &shared.policy;
    Abilities {
        // No runtime passes devices or a network into a sandbox, and nothing keeps paused ones elsewhere.
        has_gpu: false,
        has_network: false,
        deep_pause: false,
        has_browser: BROWSERS.iter().any(has),
        max_concurrent_tasks: policy.max_concurrent_tasks,
        snapshots,
        rollback: snapshots,
        launch_process: usable,
        concurrent_sandboxes: policy.max_sandboxes,
        max_sandbox_duration: policy.timeouts.max_timeout.map_or(0, |longest| longest.as_secs()),
        id_range: match can.own_id_range && storage.is_none_or(|storage| storage.id_mapped) {
            true => IdRangeKind::Own,
            false => IdRangeKind::Shared,
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
