//! Runtimes that leave the creation of namespaces to an external tool, executed through a stage.
//!
//! They are grouped runtimes like the native one, and differ only in who creates the namespaces: ids, cgroups, mounts,
//! the seccomp filter and the guest are the same.

mod as_user;
mod tool;

#[cfg(test)]
pub(crate) mod tests;

use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;

use super::grouped::{
    self, GroupedRuntime, Host, HostResources, Networks, Parts, Started, Starter,
};
use super::{Capabilities, Plan, RuntimeError};
use sandkeep_sys::{
    cgroup::{Controllers, GroupPlacement},
    launcher::{EntryKind, LauncherRights, Lifeline},
    mount, namespace, pidfd,
    stage::{
        self, Bundle, Dev, GUEST_FDS, GUEST_FDS_WITH_LIFELINE, Identity, Meeting, Stage,
        StageError, Staging,
    },
};

pub use as_user::{UserScene, argument};
pub use tool::{Program, ToolMissing};

/// A grouped runtime whose guests a tool starts.
pub type StagedRuntime<T> = GroupedRuntime<Staged<T>>;

/// One external tool.
pub trait Technique: Send + Sync {
    const NAME: &str;
    /// The Debian package that contains it, for messages.
    const PACKAGE: &str;
    /// The oldest usable version.
    const OLDEST: (u32, u32);

    /// What happens to the tool once the guest runs.
    const AFTERWARDS: Afterwards;

    /// Whether it works without root, given user namespaces.
    const WITHOUT_ROOT: WithoutRoot = WithoutRoot::Refused;

    /// The command that the stage executes. Files that the tool reads are written here, to the sandbox's home.
    fn direct(&self, scene: &Scene<'_>) -> io::Result<Direction>;

    /// The tool's arguments for a non-root daemon.
    fn direct_as_user(&self, _: &UserScene<'_>) -> io::Result<Vec<String>> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Whether a non-root daemon can use the tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WithoutRoot {
    Refused,
    Possible,
}

/// What happens to a tool once the guest runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Afterwards {
    Ends,
    /// It has to be killed; the guest continues.
    Stays,
}

/// What a tool needs to know of a sandbox.
pub struct Scene<'a> {
    pub plan: &'a Plan,
    pub parts: &'a Parts,
    pub id_base: u32,
    pub entry: EntryKind,
}

impl Scene<'_> {
    /// The guest's command line, as the tool has to execute it.
    pub fn guest(&self) -> Vec<String> {
        guest(self.parts.lifeline)
    }

    /// How many descriptors the tool passes on.
    pub fn guest_fds(&self) -> u32 {
        match self.parts.lifeline {
            Lifeline::None => GUEST_FDS,
            Lifeline::Passed => GUEST_FDS_WITH_LIFELINE,
        }
    }
}

fn guest(lifeline: Lifeline) -> Vec<String> {
    let mut words = vec![stage::GUEST, "--listen-fd", "3"];
    match lifeline {
        Lifeline::None => {}
        Lifeline::Passed => words.extend(["--lifeline-fd", "5"]),
    }
    words.into_iter().map(str::to_owned).collect()
}

/// How a tool is executed.
pub struct Direction {
    pub arguments: Vec<String>,
    /// A directory that is visible to the tool as [`stage::BUNDLE`].
    pub bundle: Option<PathBuf>,
    pub dev: Dev,
    pub identity: Identity,
}

pub struct Staged<T> {
    technique: T,
    program: Program,
    stage: Stage,
    standing: LauncherRights,
    networks: Networks,
}

impl<T: Technique + 'static> Staged<T> {
    /// Detects the tool and checks its version.
    pub async fn runtime(
        technique: T,
        host_resources: Arc<HostResources>,
        stage: Stage,
    ) -> Result<Arc<StagedRuntime<T>>, ToolMissing> {
        let standing = LauncherRights::own();
        if standing == LauncherRights::User && T::WITHOUT_ROOT == WithoutRoot::Refused {
            return Err(ToolMissing::NotRoot);
        }
        let program = Program::find(T::NAME, T::PACKAGE, T::OLDEST).await?;
        let networks = Networks::of(standing, &stage).await;
        Ok(Arc::new(GroupedRuntime::new(
            host_resources,
            Self { technique, program, stage, standing, networks },
        )))
    }

    fn failed(what: &'static str) -> impl FnOnce(io::Error) -> RuntimeError {
        move |source| RuntimeError::Io { runtime: T::NAME, what: what.to_owned(), source }
    }

    async fn perform(
        &self,
        host_resources: &Arc<HostResources>,
        plan: &Plan,
        id_base: u32,
    ) -> Result<stage::Tool, RuntimeError> {
        let parts = Parts::open(T::NAME, host_resources, plan, self.place(), Host::Connects)?;
        let entry = parts.entry_needed(T::NAME)?;
        let scene = Scene { plan, parts: &parts, id_base, entry };
        let direction = self.technique.direct(&scene).map_err(Self::failed("write its bundle"))?;
        let act = Act {
            runtime: T::NAME,
            tool: T::NAME,
            program: &self.program,
            stage: &self.stage,
            meeting: Meeting::Listen,
        };
        act.perform(host_resources, &parts, id_base, direction).await
    }
}

/// What is the same for every start of a tool.
pub struct Act<'a> {
    pub runtime: &'static str,
    /// The tool's name for messages.
    pub tool: &'static str,
    pub program: &'a Program,
    pub stage: &'a Stage,
    pub meeting: Meeting,
}

impl Act<'_> {
    /// Passes everything to a stage, which becomes the tool.
    pub async fn perform(
        &self,
        host_resources: &HostResources,
        parts: &Parts,
        id_base: u32,
        direction: Direction,
    ) -> Result<stage::Tool, RuntimeError> {
        let runtime = self.runtime;
        let bundle = direction.bundle.as_deref().map(mount::clone_path).transpose();
        let bundle = bundle.map_err(|source| RuntimeError::Io {
            runtime,
            what: "open its bundle".to_owned(),
            source,
        })?;
        let mut fds = parts.before_entry(host_resources);
        fds.extend(bundle.as_ref().map(AsFd::as_fd));
        fds.extend(parts.entry());
        let staging = Staging {
            id_base,
            root: parts.root_kind.clone(),
            bind_targets: parts.bind_targets.clone(),
            attachments: parts.attachments.clone(),
            lifeline: parts.lifeline,
            meeting: self.meeting,
            bundle: if bundle.is_some() { Bundle::Passed } else { Bundle::None },
            entry: parts.entry_needed(runtime)?,
            dev: direction.dev,
            identity: direction.identity,
            program: self.program.path().to_owned(),
            arguments: direction.arguments,
        };
        let failed = |error| tool_failed(runtime, self.tool, error);
        self.stage.perform(&staging, &fds).await.map_err(failed)
    }
}

fn refused<T: Technique>(error: StageError) -> RuntimeError {
    tool_failed(T::NAME, T::NAME, error)
}

/// Passes the tool's own message to the caller.
pub fn tool_failed(runtime: &'static str, tool: &str, error: StageError) -> RuntimeError {
    let (what, source) = match error {
        StageError::Failed { step, source } => (step, source),
        other => (format!("have {tool} start it"), io::Error::other(other.to_string())),
    };
    RuntimeError::Io { runtime, what, source }
}

#[async_trait]
impl<T: Technique + 'static> Starter for Staged<T> {
    fn name(&self) -> &'static str {
        T::NAME
    }

    fn capabilities(&self, limits: Controllers) -> Capabilities {
        // Without root the tool attaches trees by path, and would follow links inside.
        let mounts = self.standing == LauncherRights::Root;
        Capabilities { mounts, ..grouped::capabilities_of(self.standing, limits) }
    }

    fn networks(&self) -> &Networks {
        &self.networks
    }

    async fn start(
        &self,
        host_resources: &Arc<HostResources>,
        plan: &Plan,
    ) -> Result<Started, RuntimeError> {
        let ids = host_resources.ids_for(T::NAME, self.standing, plan)?;
        let tool = match &ids {
            Some(ids) => self.perform(host_resources, plan, ids.base()).await?,
            None => self.perform_as_user(host_resources, plan).await?,
        };
        let pids = host_resources.cgroups().pids(plan.id.as_str(), GroupPlacement::Beside);
        let pids = pids.map_err(Self::failed("find its guest"))?;
        let guest = self.guest_among(&pids).map(pidfd::open);
        let Some(Ok(pidfd)) = guest else {
            return Err(refused::<T>(tool.failure().await));
        };
        match T::AFTERWARDS {
            Afterwards::Ends => tool.ended_well().await.map_err(refused::<T>)?,
            Afterwards::Stays => tool.dismiss().await.map_err(Self::failed("end the tool"))?,
        }
        Ok(Started { pidfd, ids })
    }

    /// The tool's own processes may still be there; the guest is the first of its namespace.
    fn guest_among(&self, pids: &[u32]) -> Option<u32> {
        pids.iter().copied().find(|pid| namespace::is_first_of_its_own(*pid))
    }
}
