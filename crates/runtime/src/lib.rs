//! Isolation technologies, behind one contract: [`Runtime`]. A runtime says what it can do ([`Capabilities`]) and how its
//! sandboxes keep their files ([`Files`]); whatever it cannot do it refuses before any side effect. The suite
//! `conformance` (a feature) tells whether it keeps its word. `crates/sandkeep/examples/own_runtime.rs` is a whole one.
//!
//! ```
//! use sandkeep_runtime::{Files, Runtime, Usable};
//!
//! fn about(runtime: &dyn Runtime) -> String {
//!     match (runtime.usable(), runtime.files()) {
//!         (Usable::No { reason }, _) => format!("{}: {reason}", runtime.name()),
//!         (Usable::Yes, Files::OnStorage(_)) => format!("{}: on our volumes", runtime.name()),
//!         (Usable::Yes, Files::Remote) => format!("{}: files elsewhere", runtime.name()),
//!     }
//! }
//! ```
//!
//! ```text
//!            create            start              freeze
//!  (nothing) ──────▶ created ────────▶ running ⇄ frozen
//!      ▲                ▲    ◀────────    │  thaw
//!      │                │      stop       │ dies (wait resolves)
//!      │                └─────────────────┘
//!      └── destroy, from anywhere, half-made included
//! ```

mod bwrap;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod docker;
mod engine;
mod grouped;
mod gvisor;
mod late;
mod missing;
mod mock;
mod native;
mod oci;
mod podman;
mod staged;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use sandkeep_core::{Labels, Privilege, Resources, SandboxId};
use sandkeep_guestlink::Guest;
use sandkeep_tree::{Bind, Root, RootKind};

pub use bwrap::Bwrap;
pub use docker::Docker;
pub use engine::NoEngine;
pub use grouped::{HostResources, NoHostResources};
pub use gvisor::Gvisor;
pub use late::LateRuntime;
pub use missing::MissingRuntime;
pub use mock::MockRuntime;
pub use native::{Native, NoLauncher};
pub use oci::{Crun, Runc};
pub use podman::Podman;
pub use staged::{Staged, Technique};

/// What is true of this runtime on this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
pub struct Capabilities {
    /// Commands are real processes behind real isolation.
    pub isolation: bool,
    /// Every sandbox has its own range of user ids.
    pub own_id_range: bool,
    /// Commands can run as any user inside, root included; else only as `user`.
    pub any_user: bool,
    pub memory_limit: bool,
    /// An exec that runs out of memory ends alone, and is told so. Else the whole sandbox ends.
    pub oom_per_exec: bool,
    pub cpu_limit: bool,
    pub pids_limit: bool,
    /// A command can have limits of its own, of those kinds that hold for a sandbox.
    pub exec_limits: bool,
    /// `freeze` and `thaw`.
    pub pause: bool,
    /// Commands can have a terminal.
    pub terminals: bool,
    /// Shells can keep their state from command to command.
    pub shells: bool,
    /// Ports inside can be connected to.
    pub ports: bool,
    /// Sandboxes outlive the daemon.
    pub survives_daemon: bool,
}

/// Whether a runtime can be used here, and if not, why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Usable {
    Yes,
    No { reason: String },
}

/// How the sandboxes of a runtime keep their files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Files {
    /// On volumes of our storage, whose roots are of one of these kinds.
    OnStorage(&'static [RootKind]),
    /// The runtime keeps them itself, as a provider does on its own machines. There is no volume: no path of the host is in
    /// a plan, and snapshots, rollbacks, forks and diffs are not offered.
    Remote,
}

/// The files of a sandbox that is to be made.
#[derive(Clone, Debug)]
pub enum PlannedFiles {
    Stored(StoredFiles),
    /// Only for a runtime that says [`Files::Remote`].
    Remote,
}

#[derive(Clone, Debug)]
pub struct StoredFiles {
    /// Of a kind that the runtime takes.
    pub root: Root,
    /// What the template shows of the host, read-only, on top of the root.
    pub binds: Arc<[Bind]>,
}

/// All that a runtime needs to make a sandbox.
#[derive(Clone, Debug)]
pub struct Plan {
    pub id: SandboxId,
    pub labels: Labels,
    pub files: PlannedFiles,
    pub resources: Resources,
    pub privilege: Privilege,
    /// A directory of the host for this sandbox alone, which the sandbox cannot see. When it is
    /// started, the caller has put its `meta.json` there.
    pub home: PathBuf,
    pub lifetime: Lifetime,
}

impl Plan {
    /// Refuses a plan whose files are not as the runtime keeps them: the first thing that a `create` does.
    pub fn check_files(&self, runtime: &dyn Runtime) -> Result<(), RuntimeError> {
        let fits = match (runtime.files(), &self.files) {
            (Files::OnStorage(kinds), PlannedFiles::Stored(files)) => {
                kinds.contains(&files.root.kind())
            }
            (Files::Remote, PlannedFiles::Remote) => true,
            (Files::OnStorage(_), PlannedFiles::Remote)
            | (Files::Remote, PlannedFiles::Stored(_)) => false,
        };
        match fits {
            true => Ok(()),
            false => Err(RuntimeError::Unsupported {
                runtime: runtime.name(),
                what: "keep files on such a volume",
            }),
        }
    }

    /// The files of a sandbox on our storage. `Unsupported` if they are not there.
    pub fn stored(&self) -> io::Result<&StoredFiles> {
        match &self.files {
            PlannedFiles::Stored(files) => Ok(files),
            PlannedFiles::Remote => {
                Err(io::Error::new(io::ErrorKind::Unsupported, "the plan has no volume"))
            }
        }
    }
}

/// What ends a sandbox that nobody ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// It outlives the daemon.
    Detached,
    /// It dies with the daemon, however that dies.
    WithDaemon,
}

/// A sandbox that a runtime knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub id: SandboxId,
    pub labels: Labels,
    pub running: bool,
}

/// Why a sandbox is no longer running.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Death {
    /// For people: `guest killed by signal 9`, `out of memory`.
    pub reason: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Stats {
    pub memory_bytes: u64,
    pub cpu_micros: u64,
    pub pids: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// No side effect happened.
    #[error("runtime {runtime} cannot {what}")]
    Unsupported { runtime: &'static str, what: &'static str },
    #[error("runtime {runtime} does not know {id}")]
    NotFound { runtime: &'static str, id: SandboxId },
    #[error("{id} is not running")]
    NotRunning { id: SandboxId },
    #[error("runtime {runtime} failed to {what}: {source}")]
    Io {
        runtime: &'static str,
        what: String,
        #[source]
        source: std::io::Error,
    },
}

/// # Behavior
/// - Methods on different sandboxes run side by side; for one sandbox the caller serializes
///   everything but `wait`, `stats` and `connect`.
/// - A missing capability answers `Unsupported` with no side effect, never weaker isolation.
/// - `destroy` and `stop` are idempotent; all methods may be repeated after a crash half-way.
/// - Sandboxes of another instance are never listed or touched.
#[async_trait]
pub trait Runtime: Send + Sync {
    fn name(&self) -> &'static str;

    /// Whether it can be used now. The answer may change, see [`Self::look_again`].
    fn usable(&self) -> Usable {
        Usable::Yes
    }

    /// They may change with [`usable`](Self::usable), as [`files`](Self::files) may.
    fn capabilities(&self) -> Capabilities;

    /// How its sandboxes keep their files. A sandbox keeps them all its life as they were when it was made.
    fn files(&self) -> Files;

    /// Looks once more whether it can be used, if it could not: what it stands on may have come since. Called at intervals, and
    /// before anybody is refused. A runtime whose needs cannot come later does nothing.
    async fn look_again(&self) {}

    /// Makes what exists while the sandbox does not run. A second call with the same plan is `Ok`.
    /// A crash half-way leaves what `destroy` removes.
    async fn create(&self, plan: &Plan) -> Result<(), RuntimeError>;

    /// Starts a created sandbox. When it returns, `connect` works (a request may have to wait for
    /// the guest to come up). If it fails, nothing runs. A crash half-way leaves a running sandbox
    /// or none.
    async fn start(&self, plan: &Plan) -> Result<(), RuntimeError>;

    /// Ends all processes: SIGTERM, `grace`, SIGKILL. The sandbox can be started again.
    /// `Ok` if it does not run. It may be dropped in the middle and called again with less grace.
    async fn stop(&self, id: &SandboxId, grace: Duration) -> Result<(), RuntimeError>;

    /// Every process stands still until `thaw`; the guest itself may still answer. Only with [`Capabilities::pause`].
    async fn freeze(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        let _ = id;
        Err(RuntimeError::Unsupported { runtime: self.name(), what: "pause" })
    }

    async fn thaw(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        let _ = id;
        Err(RuntimeError::Unsupported { runtime: self.name(), what: "resume" })
    }

    /// Kills and removes everything, also of a half-made, frozen or unknown sandbox. When it
    /// returns, no process, cgroup, mount or namespace of it is left.
    async fn destroy(&self, id: &SandboxId) -> Result<(), RuntimeError>;

    /// Resolves when the sandbox is dead, however it died, and says why; at once if it does not run.
    async fn wait(&self, id: &SandboxId) -> Death;

    /// All sandboxes of this instance whose full labels can be recovered, running or not.
    async fn list(&self) -> Result<Vec<Found>, RuntimeError>;

    async fn stats(&self, id: &SandboxId) -> Result<Stats, RuntimeError>;

    /// The way inside a running sandbox.
    async fn connect(&self, id: &SandboxId) -> Result<Arc<dyn Guest>, RuntimeError>;
}
