//! Separate container engines: a real Docker or Podman with a temporary directory, socket and cgroup. The unit tests of
//! the runtimes use this file as well.
//!
//! If the test is killed, the kernel ends the engine, and the engine its containers.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::{Patience, until, until_some};

/// How long it may take to say what it is.
const ANSWERS_WITHIN: Duration = Duration::from_secs(30);

/// Why there is none.
#[derive(Debug)]
pub struct NoEngine(pub String);

/// An engine that runs until this is dropped.
pub struct Engine {
    kind: Kind,
    dir: TempDir,
    daemon: Child,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Docker,
    Podman,
}

impl Kind {
    fn program(self) -> &'static str {
        match self {
            Self::Docker => "dockerd",
            Self::Podman => "podman",
        }
    }
}

impl Engine {
    /// An error says why this machine cannot have one.
    pub fn start(kind: Kind) -> Result<Self, NoEngine> {
        if !rustix::process::geteuid().is_root() {
            return Err(NoEngine("needs root".to_owned()));
        }
        // A short path: sockets of the engine's own parts are in there.
        let dir = tempfile::Builder::new().prefix("skeng-").tempdir().expect("a temp dir");
        let log = fs::File::create(dir.path().join("log")).expect("a file");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM", kind.program()]).args(arguments(kind, dir.path()));
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a file")).stderr(log);
        let missing = |error| NoEngine(format!("{} cannot be started: {error}", kind.program()));
        let daemon = command.spawn().map_err(missing)?;
        let mut engine = Self { kind, dir, daemon };
        engine.wait_until_it_answers()?;
        Ok(engine)
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("api.sock")
    }

    /// As `SANDKEEP_DOCKER_HOST` takes it.
    pub fn host(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// How many containers it knows, running or not.
    pub fn containers(&self) -> usize {
        let answer = ask(&self.socket(), "/containers/json?all=true").expect("it answers");
        let (_, body) = answer.split_once("\r\n\r\n").expect("an answer with a body");
        let listed: serde_json::Value = serde_json::from_str(body).expect("a list");
        listed.as_array().map_or(0, Vec::len)
    }

    fn wait_until_it_answers(&mut self) -> Result<(), NoEngine> {
        let (socket, log) = (self.socket(), self.dir.path().join("log"));
        until_some("the engine answers", Patience::Long, || {
            if answers(&socket) {
                return Some(Ok(()));
            }
            let ended = self.daemon.try_wait().expect("it is our child")?;
            let log = fs::read_to_string(&log).unwrap_or_default();
            let reason = format!("{} does not start ({ended}): {log}", self.kind.program());
            Some(Err(NoEngine(reason)))
        })
    }

    fn end(&mut self) {
        let pid = Pid::from_raw(self.daemon.id().cast_signed()).expect("not zero");
        let _ = kill_process(pid, Signal::TERM);
        until("the engine has ended", Patience::Short, || {
            self.daemon.try_wait().expect("it is our child").is_some()
        });
    }

    /// Podman's containers are nobody's children.
    fn remove_containers(&self) {
        if self.kind == Kind::Podman {
            let mut podman = Command::new("podman");
            podman.args(place(self.dir.path())).args(["rm", "--all", "--force", "--time", "0"]);
            let _ = podman.stdout(Stdio::null()).stderr(Stdio::null()).status();
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.remove_containers();
        self.end();
        unmount_beneath(self.dir.path());
        remove_groups(&group(self.dir.path()));
    }
}

fn arguments(kind: Kind, dir: &Path) -> Vec<String> {
    let at = |name: &str| dir.join(name).display().to_string();
    let host = format!("unix://{}", at("api.sock"));
    match kind {
        Kind::Docker => {
            let own = [
                "--data-root",
                &at("data"),
                "--exec-root",
                &at("exec"),
                "--pidfile",
                &at("pid"),
                "--host",
                &host,
                "--cgroup-parent",
                &format!("/{}", group(dir)),
            ];
            let quiet = [
                "--iptables=false",
                "--ip6tables=false",
                "--ip-forward=false",
                "--bridge=none",
                "--storage-driver=vfs",
                "--shutdown-timeout=1",
            ];
            own.into_iter().chain(quiet).map(str::to_owned).collect()
        }
        Kind::Podman => {
            let mut arguments = place(dir);
            arguments.extend(["system", "service", "--time", "0", &host].map(str::to_owned));
            arguments
        }
    }
}

/// Where a Podman of one's own has everything. crun does not take a machine with both versions of control
/// groups.
fn place(dir: &Path) -> Vec<String> {
    let mut arguments = Vec::new();
    for (option, name) in [("--root", "data"), ("--runroot", "run"), ("--tmpdir", "tmp")] {
        arguments.extend([option.to_owned(), dir.join(name).display().to_string()]);
    }
    let fixed = ["--cgroup-manager=cgroupfs", "--runtime=runc", "--storage-driver=vfs"];
    arguments.extend(fixed.map(str::to_owned));
    arguments.push("--events-backend=none".to_owned());
    arguments
}

/// The control group of all containers of an engine.
fn group(dir: &Path) -> String {
    dir.file_name().expect("a temp dir has a name").to_string_lossy().into_owned()
}

/// Whether it answers, which takes its time at first.
fn answers(socket: &Path) -> bool {
    ask(socket, "/info").is_ok_and(|answer| answer.starts_with("HTTP/1.0 200 "))
}

/// A question in Docker's words, which both understand, and the whole answer. It names no version of them: every engine
/// has the two questions of this file, but not every version.
fn ask(socket: &Path, target: &str) -> std::io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(ANSWERS_WITHIN))?;
    stream.write_all(format!("GET {target} HTTP/1.0\r\nHost: engine\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn unmount_beneath(dir: &Path) {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("/proc is there");
    let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
    let mut beneath: Vec<PathBuf> = points.filter(|point| point.starts_with(dir)).collect();
    // The last mount goes first.
    beneath.reverse();
    for point in beneath {
        let _ = rustix::mount::unmount(&point, rustix::mount::UnmountFlags::DETACH);
    }
}

fn remove_groups(name: &str) {
    let Ok(trees) = fs::read_dir("/sys/fs/cgroup") else { return };
    let trees = trees.filter_map(Result::ok).map(|tree| tree.path());
    for tree in trees.chain([PathBuf::from("/sys/fs/cgroup")]) {
        // Those of Podman are removed by it, but for the ones above them.
        for group in [name, "libpod_parent/conmon", "libpod_parent"] {
            let _ = fs::remove_dir(tree.join(group));
        }
    }
}
