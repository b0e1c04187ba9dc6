//! A runtime of your own: `unshare`, a chroot, and our guest inside. A broker in this process offers it by its name; then it
//! keeps every promise of the conformance suite.
//!
//! It needs root, and isolates nobody who is root inside: its capabilities say so.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::sync::watch;

use sandkeep::embed::{self, Embedded};
use sandkeep_broker::ExecDraft;
use sandkeep_core::{Labels, Owner, Principal, Resources, SandboxId, SpecDraft};
use sandkeep_guestlink::{ExecEvent, Guest, GuestClient, leaf::NoLeaves};
use sandkeep_home::GUEST_SOCKET;
use sandkeep_image::{HostTemplate, Template as _};
use sandkeep_runtime::conformance::{self, Bench};
use sandkeep_runtime::{
    Capabilities, Death, Files, FoundSandbox, Lifetime, Plan, PlannedFiles, Runtime, RuntimeError,
    Stats, StoredFiles,
};
use sandkeep_sys::sealed;
use sandkeep_tree::{Root, RootKind};

const NAME: &str = "unshare";

/// Arguments: the host name, the root, the guest's program, then source and target of each bind.
const LAUNCH: &str = r#"exec 3<&0 4<&1 0</dev/null 1>/dev/null
exec unshare --pid --mount --uts --ipc --net --fork --kill-child sh -ec '
    hostname "$1"
    ip link set lo up
    root=$2 guest=$3
    shift 3
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
    while [ $# -gt 0 ]; do
        mount -o bind,ro "$1" "$root/$2"
        shift 2
    done
    exec "$guest" --listen-fd 3 --lifeline-fd 4 --chroot "$root"
' sh "$@""#;

/// Its sandboxes end with this process, so it keeps them in memory.
struct Unshare {
    guest: OwnedFd,
    /// A guest ends when the writing end is closed.
    lifeline: (OwnedFd, OwnedFd),
    sandboxes: Mutex<HashMap<SandboxId, Sandbox>>,
}

struct Sandbox {
    labels: Labels,
    running: Option<Running>,
}

#[derive(Clone)]
struct Running {
    client: Arc<GuestClient>,
    /// Of `unshare`, whose only child is the guest.
    pid: u32,
    death: watch::Receiver<Option<Death>>,
}

impl Running {
    /// Kills the guest, and with it everything in its pid namespace.
    fn kill(&self) {
        let children = format!("/proc/{0}/task/{0}/children", self.pid);
        let children = std::fs::read_to_string(children).unwrap_or_default();
        for pid in children.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }

    async fn end(mut self, grace: Duration) {
        // One that does not answer is killed all the same.
        let _ = self.client.terminate(grace).await;
        self.kill();
        let _ = self.death.wait_for(Option::is_some).await;
    }
}

fn failed(what: &str) -> impl FnOnce(io::Error) -> RuntimeError {
    move |source| RuntimeError::Io { runtime: NAME, what: what.to_owned(), source }
}

impl Unshare {
    fn new() -> io::Result<Arc<Self>> {
        let guest = sealed::program("sandkeep-guest", sandkeep_embedded::GUEST)?;
        let lifeline = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        Ok(Arc::new(Self { guest, lifeline, sandboxes: Mutex::default() }))
    }

    fn sandboxes(&self) -> MutexGuard<'_, HashMap<SandboxId, Sandbox>> {
        self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn running(&self, id: &SandboxId) -> Result<Running, RuntimeError> {
        let running = self.sandboxes().get(id).and_then(|sandbox| sandbox.running.clone());
        let running = running.filter(|running| running.death.borrow().is_none());
        running.ok_or_else(|| RuntimeError::NotRunning { id: id.clone() })
    }

    fn spawn(&self, plan: &Plan) -> io::Result<Child> {
        let StoredFiles { root, binds } = plan.stored()?;
        let socket = plan.home.join(GUEST_SOCKET);
        // A guest that ended leaves its socket.
        let _ = std::fs::remove_file(&socket);
        let guest = format!("/proc/{}/fd/{}", std::process::id(), self.guest.as_raw_fd());
        Command::new("sh")
            .args(["-c", LAUNCH, "sh", plan.id.as_str()])
            .args([root.own_dir(), guest.as_ref()])
            .args(binds.iter().flat_map(|bind| [&bind.source, &bind.target]))
            .stdin(Stdio::from(OwnedFd::from(UnixListener::bind(socket)?)))
            .stdout(Stdio::from(self.lifeline.0.try_clone()?))
            .spawn()
    }
}

#[async_trait]
impl Runtime for Unshare {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        let can = Capabilities::default();
        Capabilities { any_user: true, terminals: true, shells: true, ports: true, ..can }
    }

    fn files(&self) -> Files {
        Files::OnStorage(&[RootKind::Dir])
    }

    async fn create(&self, plan: &Plan) -> Result<(), RuntimeError> {
        plan.check(self)?;
        let made = || Sandbox { labels: plan.labels.clone(), running: None };
        self.sandboxes().entry(plan.id.clone()).or_insert_with(made);
        Ok(())
    }

    async fn start(&self, plan: &Plan) -> Result<(), RuntimeError> {
        if self.running(&plan.id).is_ok() {
            return Ok(());
        }
        let mut unshare = self.spawn(plan).map_err(failed("start unshare"))?;
        let home = std::fs::File::open(&plan.home).map_err(failed("open its home"))?;
        let client = GuestClient::new(home.into(), Arc::new(NoLeaves));
        let client = Arc::new(client.map_err(failed("reach its guest"))?);
        let pid = unshare.id().unwrap_or_default();
        let (died, death) = watch::channel(None);
        tokio::spawn(async move {
            let reason = match unshare.wait().await {
                Ok(status) if status.success() => "its guest ended".to_owned(),
                Ok(status) => format!("its guest failed or was killed: {status}"),
                Err(error) => error.to_string(),
            };
            died.send_replace(Some(Death { reason }));
        });
        let running = Running { client, pid, death };
        if let Err(error) = running.client.ping().await {
            running.end(Duration::ZERO).await;
            return Err(failed("start its guest")(io::Error::other(error)));
        }
        if let Some(sandbox) = self.sandboxes().get_mut(&plan.id) {
            sandbox.running = Some(running);
        }
        Ok(())
    }

    async fn stop(&self, id: &SandboxId, grace: Duration) -> Result<(), RuntimeError> {
        if let Ok(running) = self.running(id) {
            running.end(grace).await;
        }
        Ok(())
    }

    async fn destroy(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        if let Ok(running) = self.running(id) {
            running.end(Duration::ZERO).await;
        }
        self.sandboxes().remove(id);
        Ok(())
    }

    async fn wait(&self, id: &SandboxId) -> Death {
        let not_running = || Death { reason: "it does not run".to_owned() };
        let Ok(mut running) = self.running(id) else { return not_running() };
        let death = running.death.wait_for(Option::is_some).await;
        death.ok().and_then(|death| death.clone()).unwrap_or_else(not_running)
    }

    async fn list(&self) -> Result<Vec<FoundSandbox>, RuntimeError> {
        let known = self.sandboxes();
        let is_alive = |running: &Running| running.death.borrow().is_none();
        let found = known.iter().map(|(id, sandbox)| FoundSandbox {
            id: id.clone(),
            labels: sandbox.labels.clone(),
            running: sandbox.running.as_ref().is_some_and(is_alive),
        });
        Ok(found.collect())
    }

    async fn stats(&self, id: &SandboxId) -> Result<Stats, RuntimeError> {
        // Without cgroups nothing is counted.
        self.running(id).map(|_| Stats::default())
    }

    async fn connect(&self, id: &SandboxId) -> Result<Arc<dyn Guest>, RuntimeError> {
        Ok(self.running(id)?.client)
    }
}

/// What the suite needs around the runtime.
struct Workshop {
    dir: TempDir,
    template: HostTemplate,
    ours: Arc<Unshare>,
    theirs: Arc<Unshare>,
}

impl Workshop {
    fn new() -> io::Result<Self> {
        let dir = tempfile::tempdir()?;
        let template = HostTemplate::prepare(dir.path())?;
        Ok(Self { template, dir, ours: Unshare::new()?, theirs: Unshare::new()? })
    }

    fn place(&self, plan: &SandboxId) -> PathBuf {
        self.dir.path().join(plan.as_str())
    }

    async fn plan_of(&self, instance: &str, resources: Resources) -> Plan {
        let id = SandboxId::random();
        let [root, home] = ["root", "home"].map(|name| self.place(&id).join(name));
        for dir in [&root, &home] {
            std::fs::create_dir_all(dir).expect("a directory");
        }
        let root = Root::Dir(root);
        self.template.lay_out(&root, &id).await.expect("the template's files");
        Plan {
            id,
            labels: Labels { instance: instance.to_owned(), owner: Owner::local() },
            files: PlannedFiles::Stored(StoredFiles { root, binds: self.template.binds() }),
            resources,
            privilege: self.template.default_privilege(),
            home,
            lifetime: Lifetime::WithDaemon,
            network: false,
            mounts: Vec::new(),
        }
    }
}

#[async_trait]
impl Bench for Workshop {
    fn runtime(&self) -> Arc<dyn Runtime> {
        self.ours.clone()
    }

    fn neighbour(&self) -> Arc<dyn Runtime> {
        self.theirs.clone()
    }

    async fn plan(&self, resources: Resources) -> Plan {
        self.plan_of("ours", resources).await
    }

    async fn neighbour_plan(&self, resources: Resources) -> Plan {
        self.plan_of("theirs", resources).await
    }

    async fn kill_from_outside(&self, id: &SandboxId) {
        self.ours.running(id).expect("it runs").kill();
    }

    async fn discard(&self, plan: &Plan) {
        std::fs::remove_dir_all(self.place(&plan.id)).expect("nothing uses it");
    }
}

async fn run() -> Result<(), Box<dyn std::error::Error>> {
    let embedded = Embedded::open(vec![Unshare::new()?]).await?;
    let (broker, who) = (embedded.broker(), Principal::local());
    let draft = SpecDraft { runtime: Some(NAME.to_owned()), ..SpecDraft::default() };
    let sandbox = broker.create(&who, draft).await?;
    let argv = ["sh", "-c", "echo hello from process $$"].map(str::to_owned).to_vec();
    let draft = ExecDraft { argv, ..ExecDraft::default() };
    let mut exec = broker.exec(&who, &sandbox.id, draft).await?;
    while let Some(event) = exec.next().await {
        if let ExecEvent::Output { data, .. } = event {
            print!("{}", String::from_utf8_lossy(&data));
        }
    }
    broker.destroy(&who, &sandbox.id).await?;
    embedded.close().await?;
    let broken = conformance::run_at_once(&Workshop::new()?, 4).await;
    match broken.first() {
        None => println!("{} promises kept", conformance::PROMISES.len()),
        Some(violation) => return Err(violation.to_string().into()),
    }
    Ok(())
}

fn main() -> ExitCode {
    if let Some(exit) = embed::helper() {
        return exit;
    }
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    match runtime.block_on(run()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
