//! gVisor: a kernel in user space (the sentry) between the sandbox and the host's kernel.
//!
//! runsc starts two processes and exits: the sentry, which runs the sandbox, and the gofer, which opens files for it.
//! Both live in the sandbox's cgroups, within its limits, so everything that the sandbox does is accounted and limited
//! there. Nothing of runsc's own state is needed, and it disappears with their mount namespace. The sandbox's root is
//! our volume, accessed through the gofer without a cache (`--file-access=shared`), so that its content is always
//! current.
//!
//! The sentry has a network of its own. A sandbox with a way out uses the one of the host's kernel that runsc was
//! executed in instead: a namespace like every sandbox's. Then runsc is executed as the sandbox's root, in the
//! sandbox's user namespace, and the sentry stays there: it has no rights over the network either.
//!
//! No descriptor can be passed into that kernel. So the guest is a file, read-only inside, and it dials: it reads its
//! token from stdin, and the token is stored in the sandbox's home for later daemons. Commands have no leaf on the
//! host; instead the guest creates cgroups in the sentry's kernel. Out of memory affects the sentry, and the whole
//! sandbox with it, so no single exec is ever reported as out of memory.

mod files;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use super::grouped::{
    self, GroupedRuntime, Host, HostResources, Networks, Parts, Started, Starter, privilege,
    shm_bytes,
};
use super::oci::{Bundle, CgroupNamespace, Kernel, Mount};
use super::staged::{Act, Direction, Program, ToolMissing, tool_failed};
use super::{Capabilities, Lifetime, Plan, RuntimeError};
use files::{DIAL, Files, GUEST, SOCKET};
use sandkeep_core::{SandboxId, limits};
use sandkeep_guestlink::{
    DialBack, DialToken, GuestClient, Proof,
    leaf::{LeafPool, NoLeaves},
};
use sandkeep_sys::{
    cgroup::{Controllers, GroupPlacement},
    launcher::{LauncherRights, Lifeline},
    pidfd,
    stage::{BUNDLE, Dev, Identity, Meeting, ROOT, STATE, Stage},
};

/// Path inside of the directory with the guest and the socket that it dials.
const INSIDE: &str = "/run/sandkeep";
/// The sentry's process name.
const SENTRY: &[u8] = b"runsc-sandbox\0";

pub struct Gvisor {
    program: Program,
    stage: Stage,
    platform: Platform,
    networks: Networks,
    /// Bound sockets of sandboxes that are being started.
    bound: Mutex<HashMap<SandboxId, DialBack>>,
    /// The writing ends of the pipes for the guests' tokens, which also serve as lifelines.
    lifelines: Mutex<HashMap<SandboxId, OwnedFd>>,
}

/// How the sentry intercepts system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Platform {
    Systrap,
    /// For versions of runsc before systrap.
    Ptrace,
}

impl Gvisor {
    pub const NAME: &str = "gvisor";
    const TOOL: &str = "runsc";

    /// Detects runsc and its features.
    pub async fn runtime(
        host_resources: Arc<HostResources>,
        stage: Stage,
    ) -> Result<Arc<GroupedRuntime<Self>>, ToolMissing> {
        // It gives files to the sandbox's own ids, and enters control groups.
        if LauncherRights::own() == LauncherRights::User {
            return Err(ToolMissing::NotRoot);
        }
        let program = Program::find(Self::TOOL, Self::TOOL, (0, 0)).await?;
        let platform = if program.ask("flags").await?.contains("systrap") {
            Platform::Systrap
        } else {
            Platform::Ptrace
        };
        let (bound, lifelines) = (Mutex::default(), Mutex::default());
        let networks = Networks::of_root();
        let starter = Self { program, stage, platform, networks, bound, lifelines };
        Ok(Arc::new(GroupedRuntime::new(host_resources, starter)))
    }

    fn failed(what: &'static str) -> impl FnOnce(io::Error) -> RuntimeError {
        move |source| RuntimeError::Io { runtime: Self::NAME, what: what.to_owned(), source }
    }

    fn arguments(&self, plan: &Plan) -> Vec<String> {
        let network = match kernel(plan) {
            // Its sockets are those of the network that runsc is executed in, which is the sandbox's.
            Kernel::GvisorOnNetwork => "--network=host",
            Kernel::Host | Kernel::Gvisor => "--network=none",
        };
        let platform = match self.platform {
            Platform::Systrap => "--platform=systrap",
            Platform::Ptrace => "--platform=ptrace",
        };
        let words = [
            "--root",
            STATE,
            platform,
            network,
            "--ignore-cgroups",
            "--host-uds=open",
            "--file-access=shared",
            "--overlay2=none",
            "run",
            "--detach",
            "--bundle",
            BUNDLE,
            plan.id.as_str(),
        ];
        words.map(str::to_owned).to_vec()
    }

    /// Has runsc start the guest; returns when the guest runs.
    async fn perform(
        &self,
        host_resources: &Arc<HostResources>,
        plan: &Plan,
        id_base: u32,
    ) -> Result<(), RuntimeError> {
        // runsc resolves the path on the host: it must not be a link that leads elsewhere.
        let tmp = plan.stored().and_then(|files| files.root.make_directory("tmp", 0o1777));
        tmp.map_err(Self::failed("find its /tmp"))?;
        let token = self.prepare(plan, id_base).map_err(Self::failed("prepare its guest"))?;
        let host = Host::IsDialed(token);
        let mut parts = Parts::open(Self::NAME, host_resources, plan, self.place(), host)?;
        parts.entry_needed(Self::NAME)?;
        // A sentry that cannot create a thread exits, and the sandbox with it.
        let unbound = host_resources.make_groups_for(plan, limits::PIDS_MAX);
        unbound.map_err(Self::failed("make its control groups"))?;
        // The pipe with its token is the guest's lifeline.
        parts.lifeline = Lifeline::None;
        let files = Files::of(&plan.home);
        let identity = if plan.network { Identity::Sandbox } else { Identity::Host };
        let written = bundle(plan, id_base).write_into(files.bundle());
        written
            .and_then(|()| files.show_bundle(identity))
            .map_err(Self::failed("write its bundle"))?;
        let direction = Direction {
            arguments: self.arguments(plan),
            bundle: Some(files.bundle().to_owned()),
            dev: Dev::Tool,
            identity,
        };
        let act = Act {
            runtime: Self::NAME,
            tool: Self::TOOL,
            program: &self.program,
            stage: &self.stage,
            meeting: Meeting::Dial,
        };
        let tool = act.perform(host_resources, &parts, id_base, direction).await?;
        let failed = |error| tool_failed(Self::NAME, Self::TOOL, error);
        tool.ended_well().await.map_err(failed)
    }

    /// Writes the guest's files and binds the socket that it will dial; returns the descriptor with its token.
    fn prepare(&self, plan: &Plan, id_base: u32) -> io::Result<OwnedFd> {
        let token = DialToken::random();
        let files = Files::of(&plan.home);
        files.write(&token)?;
        let dial_back = DialBack::bind(files.open_dial()?, SOCKET, id_base)?;
        lock(&self.bound).insert(plan.id.clone(), dial_back);
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        rustix::io::write(&write, token.as_bytes())?;
        match plan.lifetime {
            Lifetime::Detached => {}
            Lifetime::WithDaemon => drop(lock(&self.lifelines).insert(plan.id.clone(), write)),
        }
        Ok(read)
    }

    fn sentry(&self, host_resources: &HostResources, id: &SandboxId) -> io::Result<OwnedFd> {
        let pids = host_resources.cgroups().pids(id.as_str(), self.place())?;
        let sentry = self.guest_among(&pids).ok_or(io::ErrorKind::NotFound)?;
        pidfd::open(sentry)
    }
}

fn lock<T>(map: &Mutex<HashMap<SandboxId, T>>) -> MutexGuard<'_, HashMap<SandboxId, T>> {
    // No code panics while it holds the lock.
    map.lock().unwrap_or_else(PoisonError::into_inner)
}

fn kernel(plan: &Plan) -> Kernel {
    if plan.network { Kernel::GvisorOnNetwork } else { Kernel::Gvisor }
}

fn bundle(plan: &Plan, id_base: u32) -> Bundle {
    let mut args = vec![format!("{INSIDE}/{GUEST}"), "--gvisor".to_owned()];
    args.extend(["--dial".to_owned(), format!("{INSIDE}/{SOCKET}")]);
    args.extend(["--token-fd", "0"].map(str::to_owned));
    match plan.lifetime {
        Lifetime::Detached => {}
        Lifetime::WithDaemon => args.extend(["--lifeline-fd", "0"].map(str::to_owned)),
    }
    Bundle {
        root: ROOT.to_owned(),
        hostname: plan.id.to_string(),
        id_base,
        privilege: privilege(plan),
        kernel: kernel(plan),
        shm_bytes: shm_bytes(plan),
        cgroup_namespace: CgroupNamespace::Shared,
        args,
        mounts: vec![
            bind(&format!("{BUNDLE}/{DIAL}"), INSIDE, "ro"),
            // Otherwise runsc would mount a file system of its own there, in the sentry's memory.
            bind(&format!("{ROOT}/tmp"), "/tmp", "rw"),
        ],
    }
}

fn bind(source: &str, destination: &str, access: &str) -> Mount {
    Mount {
        destination: destination.to_owned(),
        kind: "bind".to_owned(),
        source: source.to_owned(),
        options: ["bind", access].map(str::to_owned).to_vec(),
    }
}

#[async_trait]
impl Starter for Gvisor {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn capabilities(&self, limits: Controllers) -> Capabilities {
        // Processes are internal to the sentry, and memory belongs to the sentry as a whole.
        Capabilities {
            pids_limit: false,
            oom_per_exec: false,
            // Its commands are processes of the sentry's kernel, which our cgroups cannot distinguish.
            exec_limits: false,
            ..grouped::capabilities(limits)
        }
    }

    fn networks(&self) -> &Networks {
        &self.networks
    }

    fn place(&self) -> GroupPlacement {
        GroupPlacement::Within
    }

    async fn start(
        &self,
        host_resources: &Arc<HostResources>,
        plan: &Plan,
    ) -> Result<Started, RuntimeError> {
        let ids =
            host_resources.take_ids(plan).map_err(Self::failed("find a free range of ids"))?;
        self.perform(host_resources, plan, ids.base()).await?;
        let pidfd =
            self.sentry(host_resources, &plan.id).map_err(Self::failed("find its sentry"))?;
        Ok(Started { pidfd, ids: Some(ids) })
    }

    /// Everything ends with the sentry; the gofer then has nothing left to serve.
    fn guest_among(&self, pids: &[u32]) -> Option<u32> {
        pids.iter().copied().find(|pid| {
            let words = std::fs::read(format!("/proc/{pid}/cmdline"));
            words.is_ok_and(|words| words.starts_with(SENTRY))
        })
    }

    fn client(
        &self,
        host_resources: &HostResources,
        id: &SandboxId,
        _leaves: Arc<dyn LeafPool>,
    ) -> io::Result<GuestClient> {
        let home = host_resources.home(id);
        let files = Files::of(home.path());
        let dial_back = match lock(&self.bound).remove(id) {
            Some(dial_back) => dial_back,
            // An earlier daemon started it; the owner of its socket tells the expected user.
            None => DialBack::bind(files.open_dial()?, SOCKET, files.owner()?)?,
        };
        let proof = Proof::Token(files.token()?);
        let sentry = self.sentry(host_resources, id)?;
        GuestClient::dialed(dial_back, sentry, proof, Arc::new(NoLeaves))
    }

    async fn clear(
        &self,
        host_resources: &HostResources,
        id: &SandboxId,
    ) -> Result<(), RuntimeError> {
        lock(&self.bound).remove(id);
        lock(&self.lifelines).remove(id);
        let home = host_resources.home(id);
        Files::of(home.path()).remove().map_err(Self::failed("remove its bundle"))
    }
}
