//! Isolation technologies behind one contract: [`Runtime`]. A runtime declares its features ([`Capabilities`]) and how
//! its sandboxes store their files ([`Files`]), and refuses everything else before any side effect. The suite
//! `conformance` (a cargo feature) checks that. `crates/sandkeep/examples/own_runtime.rs` is a complete example.
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
//!           create            start              freeze
//! (nothing) ──────▶ created ────────▶ running ⇄ frozen
//!     ▲                ▲    ◀────────    │  thaw
//!     │                │      stop       │ dies (wait resolves)
//!     │                └─────────────────┘
//!     └── destroy, from every state, including half-created
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
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use sandkeep_core::{Labels, Privilege, Resources, SandboxId};
use sandkeep_guestlink::Guest;
use sandkeep_sys::egress::Sockets;
use sandkeep_tree::{Bind, Ids, Root, RootKind};

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
pub use sandkeep_sys::launcher::MountAccess;
pub use staged::{Staged, Technique};

/// Capabilities of this runtime on this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
pub struct Capabilities {
    /// Commands are real processes behind real isolation.
    pub isolation: bool,
    /// Every sandbox has its own range of user ids.
    pub own_id_range: bool,
    /// Commands can run as any user inside, including root; otherwise only as `user`.
    pub any_user: bool,
    pub memory_limit: bool,
    /// An exec that runs out of memory ends alone, and is reported so. Otherwise the whole sandbox ends.
    pub oom_per_exec: bool,
    pub cpu_limit: bool,
    pub pids_limit: bool,
    /// A command can have limits of its own, of the kinds that are enforced for a sandbox.
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
    /// A sandbox can have a way out: its connections and DNS queries are caught for the daemon.
    pub network: bool,
    /// Trees of the host can be mounted in a sandbox: codebases.
    pub mounts: bool,
}

/// Whether a runtime is usable here, and if not, why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Usable {
    Yes,
    No { reason: String },
}

/// How the sandboxes of a runtime store their files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Files {
    /// On volumes of our storage, with a root of one of these kinds.
    OnStorage(&'static [RootKind]),
    /// The runtime stores them itself, like a provider on its own machines. There is no volume: a plan contains no path
    /// of the host, and snapshots, rollbacks, forks and diffs are not available.
    Remote,
}

/// The files of a planned sandbox.
#[derive(Clone, Debug)]
pub enum PlannedFiles {
    Stored(StoredFiles),
    /// Only for a runtime with [`Files::Remote`].
    Remote,
}

#[derive(Clone, Debug)]
pub struct StoredFiles {
    /// Of a kind that the runtime accepts.
    pub root: Root,
    /// The template's directories of the host, read-only, on top of the root.
    pub binds: Arc<[Bind]>,
}

/// Everything that a runtime needs to create a sandbox.
#[derive(Clone, Debug)]
pub struct Plan {
    pub id: SandboxId,
    pub labels: Labels,
    pub files: PlannedFiles,
    pub resources: Resources,
    pub privilege: Privilege,
    /// A directory of the host for this sandbox alone, invisible inside. Before the start, the caller has written
    /// `meta.json` there.
    pub home: PathBuf,
    pub lifetime: Lifetime,
    /// Its outgoing connections are caught for [`Runtime::network`]; otherwise there is nothing but its own loopback.
    pub network: bool,
    /// Trees besides its own and its template's, in this order. Only with [`Capabilities::mounts`].
    pub mounts: Vec<PlannedMount>,
}

/// A tree or a file of the host that a sandbox sees in its root. No set-user-ID program in it works, and no device.
#[derive(Clone, Debug)]
pub struct PlannedMount {
    pub source: MountSource,
    /// Relative to the root, where a directory or a file exists, as the source is one. No link on the way there is followed: with one the
    /// sandbox does not start.
    pub target: String,
    pub access: MountAccess,
}

#[derive(Clone, Debug)]
pub enum MountSource {
    /// A directory or file of the host, and how the ids of its files are stored. Mounts below it are not visible.
    Dir(PathBuf, Ids),
    /// The same, already opened, so that it is this one whatever has its name later. Not without root.
    Opened(Arc<OwnedFd>, Ids),
    /// A detached mount of a server that shows ids as they are on the disk.
    Served(Arc<OwnedFd>, Ids),
}

impl Plan {
    /// Refuses a plan whose files or network do not suit the runtime: the first step of every `create`.
    pub fn check(&self, runtime: &dyn Runtime) -> Result<(), RuntimeError> {
        self.check_files(runtime)?;
        if self.network { runtime.check_network() } else { Ok(()) }
    }

    fn check_files(&self, runtime: &dyn Runtime) -> Result<(), RuntimeError> {
        let fits = match (runtime.files(), &self.files) {
            (Files::OnStorage(kinds), PlannedFiles::Stored(files)) => {
                kinds.contains(&files.root.kind())
            }
            (Files::Remote, PlannedFiles::Remote) => true,
            (Files::OnStorage(_), PlannedFiles::Remote)
            | (Files::Remote, PlannedFiles::Stored(_)) => false,
        };
        let unsupported = |what| Err(RuntimeError::Unsupported { runtime: runtime.name(), what });
        match fits {
            true if self.mounts.is_empty() || runtime.capabilities().mounts => Ok(()),
            true => unsupported("mount codebases or what a build mounts"),
            false => unsupported("keep files on such a volume"),
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

/// How long a sandbox lives without being ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// It outlives the daemon.
    Detached,
    /// It dies with the daemon, however the daemon dies.
    WithDaemon,
}

/// A sandbox that a runtime knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundSandbox {
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
    /// No side effect happened.
    #[error("runtime {runtime} cannot give a sandbox a way out here: {reason}")]
    NoNetwork { runtime: &'static str, reason: String },
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
/// - Methods on different sandboxes run concurrently; for one sandbox the caller serializes everything but `wait`,
///   `stats` and `connect`.
/// - A missing capability returns `Unsupported` with no side effect, never weaker isolation.
/// - `destroy` and `stop` are idempotent; all methods may be repeated after a crash in the middle.
/// - Sandboxes of another instance are never listed or touched.
#[async_trait]
pub trait Runtime: Send + Sync {
    fn name(&self) -> &'static str;

    /// Whether it is usable now. This can change, see [`Self::look_again`].
    fn usable(&self) -> Usable {
        Usable::Yes
    }

    /// They can change with [`usable`](Self::usable), and so can [`files`](Self::files).
    fn capabilities(&self) -> Capabilities;

    /// How its sandboxes store their files. For an existing sandbox this never changes.
    fn files(&self) -> Files;

    /// If it was unusable, checks again whether it is: its requirements may have become available. Called at intervals,
    /// and before a request is refused. A runtime whose requirements cannot change does nothing.
    async fn look_again(&self) {}

    /// Whether a sandbox can have a way out here; an error says why not. [`Capabilities::network`] says the same.
    fn check_network(&self) -> Result<(), RuntimeError> {
        Err(RuntimeError::Unsupported { runtime: self.name(), what: "give a sandbox a way out" })
    }

    /// Creates ahead of [`create`](Self::create) what needs no files and ends with the host's kernel, so that both can
    /// be created at the same time. A runtime that has nothing of that kind does nothing.
    async fn reserve(&self, id: &SandboxId, resources: &Resources) -> Result<(), RuntimeError> {
        let _ = (id, resources);
        Ok(())
    }

    /// Creates everything that exists while the sandbox does not run. A second call with the same plan is `Ok`. A crash
    /// in the middle leaves what `destroy` removes.
    async fn create(&self, plan: &Plan) -> Result<(), RuntimeError>;

    /// Starts a created sandbox. When this returns, `connect` works (a request may have to wait for the guest to come
    /// up). If it fails, nothing runs. A crash in the middle leaves a running sandbox or none.
    async fn start(&self, plan: &Plan) -> Result<(), RuntimeError>;

    /// Ends all processes: SIGTERM, `grace`, SIGKILL. The sandbox can be started again. `Ok` if it does not run. The
    /// future may be dropped and the method called again with less grace.
    async fn stop(&self, id: &SandboxId, grace: Duration) -> Result<(), RuntimeError>;

    /// Freezes every process until `thaw`; the guest itself may still answer. Only with [`Capabilities::pause`].
    async fn freeze(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        let _ = id;
        Err(RuntimeError::Unsupported { runtime: self.name(), what: "pause" })
    }

    async fn thaw(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        let _ = id;
        Err(RuntimeError::Unsupported { runtime: self.name(), what: "resume" })
    }

    /// Kills and removes everything, also of a half-created, frozen or unknown sandbox. When this returns, no process,
    /// cgroup, mount or namespace of it is left.
    async fn destroy(&self, id: &SandboxId) -> Result<(), RuntimeError>;

    /// Resolves when the sandbox is dead, however it died, with the reason; at once if it does not run.
    async fn wait(&self, id: &SandboxId) -> Death;

    /// All sandboxes of this instance whose full labels can be recovered, running or not.
    async fn list(&self) -> Result<Vec<FoundSandbox>, RuntimeError>;

    async fn stats(&self, id: &SandboxId) -> Result<Stats, RuntimeError>;

    /// Catches what a running sandbox sends out, and returns the sockets where it arrives. Called after every `start`
    /// of a plan with [`Plan::network`], before anything of the user runs, and again by a later daemon: then
    /// the new sockets replace those before. With all of them closed the sandbox is refused everything at once.
    async fn network(&self, id: &SandboxId) -> Result<Sockets, RuntimeError> {
        let _ = id;
        self.check_network()?;
        Err(RuntimeError::Unsupported { runtime: self.name(), what: "give a sandbox a way out" })
    }

    /// Connects to the guest of a running sandbox.
    async fn connect(&self, id: &SandboxId) -> Result<Arc<dyn Guest>, RuntimeError>;
}
