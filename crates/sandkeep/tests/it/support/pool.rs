//! A pool of one's own, on the real thing: Debian's zfs-fuse, whose daemon there is one of on a machine. It is started
//! if none runs, and then ended; a pool that the test did not make is never touched.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;

const LOCK: &str = "/run/sandkeep-test-zfs.lock";
const POOL_BYTES: u64 = 2 << 30;
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Pool {
    pub name: String,
    dir: TempDir,
    daemon: Option<Child>,
    /// One test at a time has a pool, whichever process it is in.
    _lock: File,
}

/// Why there is none.
#[derive(Debug)]
pub struct NoPool(pub String);

impl std::fmt::Display for NoPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl Pool {
    /// A new one, on a file.
    pub fn make() -> Result<Self, NoPool> {
        if !rustix::process::geteuid().is_root() {
            return Err(NoPool("needs root".to_owned()));
        }
        for program in ["zfs-fuse", "zpool", "zfs"] {
            if !Path::new("/usr/sbin").join(program).exists() {
                return Err(NoPool(format!("{program} is not installed: apt install zfs-fuse")));
            }
        }
        let lock = File::create(LOCK).expect("a lock");
        flock(&lock, FlockOperation::LockExclusive).expect("locked");
        let daemon = (!answers()).then(start);
        let dir = tempfile::tempdir().expect("a temporary directory");
        let image = dir.path().join("pool.img");
        File::create(&image).and_then(|file| file.set_len(POOL_BYTES)).expect("a file");
        let unique = dir.path().file_name().expect("a name").to_string_lossy();
        let unique: String = unique.chars().filter(char::is_ascii_alphanumeric).collect();
        let name = format!("sandkeeptest{unique}");
        let image = image.to_str().expect("a path that is text");
        // No cache: the next daemon of zfs-fuse must not find it.
        zpool(&["create", "-o", "cachefile=none", "-m", "none", &name, image]);
        Ok(Self { name, dir, daemon, _lock: lock })
    }

    /// All datasets and snapshots of the pool but itself.
    pub fn contents(&self) -> Vec<String> {
        let told = zfs(&["list", "-H", "-t", "all", "-o", "name", "-r", &self.name]);
        told.lines().filter(|name| *name != self.name).map(str::to_owned).collect()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // What a failed test left mounted would keep it.
        let destroyed =
            Command::new("/usr/sbin/zpool").args(["destroy", "-f", &self.name]).output();
        if let Some(mut daemon) = self.daemon.take() {
            let _ = rustix::process::kill_process(
                rustix::process::Pid::from_child(&daemon),
                rustix::process::Signal::TERM,
            );
            let _ = daemon.wait();
        }
        if !std::thread::panicking() {
            let destroyed = destroyed.expect("zpool runs");
            let said = String::from_utf8_lossy(&destroyed.stderr).into_owned();
            assert!(destroyed.status.success(), "the pool in {:?} stays: {said}", self.dir.path());
        }
    }
}

fn answers() -> bool {
    let asked = Command::new("/usr/sbin/zpool").args(["list", "-H", "-o", "name"]).output();
    asked.is_ok_and(|answer| answer.status.success())
}

/// It ends with this process even if that is killed.
fn start() -> Child {
    let arguments = ["--pdeathsig", "TERM", "/usr/sbin/zfs-fuse"];
    let daemon = Command::new("setpriv")
        .args(arguments)
        .args(["--no-daemon", "--no-kstat-mount", "--enable-xattr"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("setpriv runs");
    let begun = Instant::now();
    while !answers() {
        assert!(begun.elapsed() < PATIENCE, "zfs-fuse does not answer");
    }
    daemon
}

/// Runs `zfs`, which has to succeed.
pub fn zfs(arguments: &[&str]) -> String {
    run("/usr/sbin/zfs", arguments)
}

fn zpool(arguments: &[&str]) -> String {
    run("/usr/sbin/zpool", arguments)
}

fn run(program: &str, arguments: &[&str]) -> String {
    let begun = Instant::now();
    loop {
        let ran = Command::new(program).args(arguments).output().expect("it runs");
        let complained = String::from_utf8_lossy(&ran.stderr).into_owned();
        // A dataset is busy for a moment after it was unmounted.
        if complained.contains("dataset is busy") && begun.elapsed() < PATIENCE {
            continue;
        }
        assert!(ran.status.success(), "{program} {arguments:?}: {complained}");
        return String::from_utf8(ran.stdout).expect("text");
    }
}
