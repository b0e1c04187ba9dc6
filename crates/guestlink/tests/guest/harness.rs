//! The real guest as PID 1 of a pid namespace of its own, with the host's file system.

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sandkeep_core::{ExecId, Privilege};
pub use sandkeep_guestlink::leaf::*;
use sandkeep_guestlink::*;
use sandkeep_home::GUEST_SOCKET;
use sandkeep_sys::pidfd;

/// Nothing in these tests takes longer unless it hangs.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub struct TestGuest {
    pub client: Arc<GuestClient>,
    pub home: tempfile::TempDir,
    process: Child,
}

impl TestGuest {
    pub fn start() -> Self {
        Self::start_with(Arc::new(NoLeaves))
    }

    pub fn start_with(pool: Arc<dyn LeafPool>) -> Self {
        let (read, write) = rustix::pipe::pipe().unwrap();
        let guest = Self::start_on(pool, read);
        // The test's own end of the lifeline stays open until the process ends.
        std::mem::forget(write);
        guest
    }

    pub fn start_on(pool: Arc<dyn LeafPool>, lifeline: OwnedFd) -> Self {
        let home = tempfile::tempdir().unwrap();
        let program = install(home.path());
        let listen = UnixListener::bind(home.path().join(GUEST_SOCKET)).unwrap();
        // The shell moves the descriptors where the guest looks for them.
        let script = r#"exec 3<&0 4<&1 0</dev/null 1>/dev/null
            exec unshare --pid --fork --kill-child --mount-proc "$1" --listen-fd 3 --lifeline-fd 4"#;
        let process = Command::new("sh")
            .args(["-c", script, "sh"])
            .arg(&program)
            .stdin(Stdio::from(OwnedFd::from(listen)))
            .stdout(Stdio::from(lifeline))
            .spawn()
            .unwrap();
        let client = Arc::new(GuestClient::new(open_directory(home.path()), pool).unwrap());
        Self { client, home, process }
    }

    /// Like a restarted daemon: a client that knows nothing yet.
    pub fn another_client(&self, pool: Arc<dyn LeafPool>) -> GuestClient {
        GuestClient::new(open_directory(self.home.path()), pool).unwrap()
    }

    pub fn socket(&self) -> PathBuf {
        self.home.path().join(GUEST_SOCKET)
    }

    pub async fn run(&self, request: ExecRequest) -> Collected {
        collect(&mut self.client.exec(request).await.unwrap()).await
    }

    pub async fn sh(&self, script: &str) -> Collected {
        self.run(sh(script)).await
    }

    /// The guest's own directory in /proc.
    fn proc(&self) -> PathBuf {
        let unshare = self.process.id();
        let children = format!("/proc/{unshare}/task/{unshare}/children");
        let pid = std::fs::read_to_string(children).unwrap();
        Path::new("/proc").join(pid.trim())
    }

    /// The first word of the line that begins so.
    fn proc_word(&self, file: &str, line: &str) -> String {
        let text = std::fs::read_to_string(self.proc().join(file)).unwrap();
        let line = text.lines().find(|found| found.starts_with(line)).unwrap();
        line.split_whitespace().nth(1).unwrap().to_owned()
    }

    /// The memory that is this guest's own; its program is shared by all.
    pub fn anonymous_kib(&self) -> u64 {
        self.proc_word("smaps_rollup", "Anonymous:").parse().unwrap()
    }

    /// How often the guest has gone to sleep, which is how often it was woken.
    pub fn wake_ups(&self) -> u64 {
        self.proc_word("status", "voluntary_ctxt_switches:").parse().unwrap()
    }

    /// Whether it waits for something to happen.
    pub fn is_asleep(&self) -> bool {
        self.proc_word("status", "State:") == "S"
    }

    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(self.proc().join("fd")).unwrap().count()
    }

    /// Waits until the guest and all below it are gone.
    pub fn wait(&mut self) -> std::process::ExitStatus {
        self.process.wait().unwrap()
    }
}

impl Drop for TestGuest {
    fn drop(&mut self) {
        end(&mut self.process);
    }
}

/// Ends a guest below its `unshare`. It outlives its parent, as it has to, and takes all of its namespace along.
pub fn end(unshare: &mut Child) {
    let children = format!("/proc/{0}/task/{0}/children", unshare.id());
    let children = std::fs::read_to_string(children).unwrap_or_default();
    for pid in children.split_whitespace().filter_map(|pid| pid.parse().ok()) {
        if let Ok(guest) = pidfd::open(pid) {
            let _ = pidfd::kill(guest);
        }
    }
    let _ = unshare.kill();
    let _ = unshare.wait();
}

/// Puts the guest's program into a directory.
pub fn install(home: &Path) -> PathBuf {
    let program = home.join("sandkeep-guest");
    let mut file = std::fs::File::create(&program).unwrap();
    file.write_all(sandkeep_embedded::GUEST).unwrap();
    drop(file);
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    program
}

pub fn open_directory(path: &Path) -> OwnedFd {
    use rustix::fs::{Mode, OFlags};
    rustix::fs::open(path, OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .unwrap()
}

pub fn command(argv: &[&str]) -> ExecRequest {
    ExecRequest {
        id: ExecId::random(),
        argv: argv.iter().map(|word| (*word).to_owned()).collect(),
        env: vec![("PATH".to_owned(), "/usr/bin:/bin".to_owned())],
        cwd: Some("/".to_owned()),
        user: "0".to_owned(),
        stdin: Stdin::Null,
        terminal: None,
        timeout: None,
        privilege: Privilege::None,
        limits: ExecLimits::default(),
    }
}

pub fn sh(script: &str) -> ExecRequest {
    command(&["/bin/sh", "-c", script])
}

#[derive(Debug)]
pub struct Collected {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub end: ExecEnd,
}

impl Collected {
    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

/// Takes an execution to its end, and checks the order and the offsets on the way.
pub async fn collect(execution: &mut Execution) -> Collected {
    collect_from(execution, Offsets::default()).await
}

pub async fn collect_from(execution: &mut Execution, from: Offsets) -> Collected {
    let collecting = async {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let mut first = true;
        loop {
            match execution.next().await.expect("an exec ends before its events do") {
                ExecEvent::Started => assert!(first, "it starts once"),
                gap @ ExecEvent::Gap { .. } => panic!("{gap:?} from a guest"),
                ExecEvent::Output { stream, offset, data } => {
                    let (kept, start) = match stream {
                        OutputStream::Stdout => (&mut stdout, from.stdout),
                        OutputStream::Stderr => (&mut stderr, from.stderr),
                    };
                    assert_eq!(offset, start + kept.len() as u64, "offsets have no gap");
                    kept.extend_from_slice(&data);
                }
                ExecEvent::Ended(end) => {
                    assert_eq!(execution.next().await, None, "nothing follows the end");
                    return Collected { stdout, stderr, end };
                }
            }
            first = false;
        }
    };
    tokio::time::timeout(PATIENCE, collecting).await.expect("the exec ends")
}

/// Leaves of the v1 freezer, made for this test.
pub struct FreezerPool {
    directory: PathBuf,
    last: AtomicU64,
    pub oom_kills: AtomicU64,
}

impl FreezerPool {
    /// `None`, with the reason printed, where there is no v1 freezer or we may not use it.
    pub fn new() -> Option<Arc<Self>> {
        let directory =
            PathBuf::from(format!("/sys/fs/cgroup/freezer/sandkeep-test-{}", std::process::id()));
        if let Err(error) = std::fs::create_dir(&directory) {
            eprintln!("SKIP: no v1 freezer: {}: {error}", directory.display());
            return None;
        }
        Some(Arc::new(Self { directory, last: AtomicU64::new(0), oom_kills: AtomicU64::new(0) }))
    }

    fn leaf(self: Arc<Self>, name: String) -> std::io::Result<Box<dyn Leaf>> {
        let open = |file: &str| {
            let path = self.directory.join(&name).join(file);
            std::fs::File::options().read(true).write(true).open(path).map(OwnedFd::from)
        };
        let fds = [open("tasks")?, open("freezer.state")?];
        Ok(Box::new(FreezerLeaf { pool: self, name, fds }))
    }

    /// All processes in any leaf.
    pub fn tasks(&self) -> Vec<String> {
        let leaves = std::fs::read_dir(&self.directory).unwrap().flatten();
        leaves
            .filter_map(|leaf| std::fs::read_to_string(leaf.path().join("tasks")).ok())
            .flat_map(|tasks| tasks.lines().map(str::to_owned).collect::<Vec<_>>())
            .collect()
    }
}

impl Drop for FreezerPool {
    fn drop(&mut self) {
        for leaf in std::fs::read_dir(&self.directory).unwrap().flatten() {
            if leaf.file_type().unwrap().is_dir() {
                std::fs::remove_dir(leaf.path()).expect("a leaf is empty when its test is over");
            }
        }
        std::fs::remove_dir(&self.directory).unwrap();
    }
}

impl LeafPool for FreezerPool {
    fn acquire(self: Arc<Self>, _: &ExecLimits) -> std::io::Result<Box<dyn Leaf>> {
        let name = format!("leaf-{}", self.last.fetch_add(1, Ordering::Relaxed));
        std::fs::create_dir(self.directory.join(&name))?;
        self.leaf(name)
    }

    fn adopt(self: Arc<Self>, name: &str) -> std::io::Result<Box<dyn Leaf>> {
        self.leaf(name.to_owned())
    }
}

struct FreezerLeaf {
    pool: Arc<FreezerPool>,
    name: String,
    fds: [OwnedFd; 2],
}

impl Leaf for FreezerLeaf {
    fn kind(&self) -> LeafKind {
        LeafKind::V1
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.fds.iter().map(AsFd::as_fd).collect()
    }

    fn oom_kills(&self) -> u64 {
        self.pool.oom_kills.load(Ordering::Relaxed)
    }
}

/// Takes events until stdout has said exactly this.
pub async fn wait_for_output(execution: &mut Execution, expected: &[u8]) {
    let waiting = async {
        let mut said = Vec::new();
        while said.len() < expected.len() {
            match execution.next().await.expect("it has not ended") {
                ExecEvent::Output { stream: OutputStream::Stdout, data, .. } => said.extend(data),
                ExecEvent::Started | ExecEvent::Gap { .. } => {}
                other => panic!("{other:?} instead of output"),
            }
        }
        assert_eq!(said, expected);
    };
    tokio::time::timeout(PATIENCE, waiting).await.expect("the output comes");
}
