//! A temporary pool on the real thing: Debian's zfs-fuse, which has one daemon per machine. The daemon is started if
//! none runs, and ended afterwards; pools not created by tests are never touched. Leftovers of a killed test are
//! removed before the next one starts: its pool, mounts, daemon and files, all recognized by names that only tests use.

use std::fs::{self, File};
use std::io::{Read as _, Seek as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use tempfile::TempDir;

/// The holder of the lock has the machine's one daemon; in it stands which process that is, if a test started it.
const LOCK: &str = "/run/sandkeep-test-zfs.lock";
/// What the names of all pools of tests begin with, and of the directories that their files are in.
const POOLS: &str = "sandkeeptest";
const DIRS: &str = "sandkeep-zfs-";
const ZFS_FUSE: &str = "/usr/sbin/zfs-fuse";
const POOL_BYTES: u64 = 2 << 30;
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Pool {
    pub name: String,
    dir: TempDir,
    daemon: Option<Child>,
    /// One test at a time has a pool, whichever process it is in.
    lock: File,
}

/// Why there is none, or why one stays.
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
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        let mut lock = options.open(LOCK).expect("a lock");
        flock(&lock, FlockOperation::LockExclusive).expect("locked");
        clear_leftovers(&mut lock);
        let daemon = (!answers()).then(|| start(&mut lock));
        let dir = tempfile::Builder::new().prefix(DIRS).tempdir().expect("a temporary directory");
        let image = dir.path().join("pool.img");
        File::create(&image).and_then(|file| file.set_len(POOL_BYTES)).expect("a file");
        let unique = dir.path().file_name().expect("a name").to_string_lossy();
        let unique: String = unique.chars().filter(char::is_ascii_alphanumeric).collect();
        let pool = Self { name: format!("{POOLS}{unique}"), dir, daemon, lock };
        let image = image.to_str().expect("a path that is text");
        // No cache: the next daemon of zfs-fuse must not find it.
        zpool(&["create", "-o", "cachefile=none", "-m", "none", &pool.name, image]);
        Ok(pool)
    }

    /// All datasets and snapshots of the pool but itself.
    pub fn contents(&self) -> Vec<String> {
        let told = zfs(&["list", "-H", "-t", "all", "-o", "name", "-r", &self.name]);
        told.lines().filter(|name| *name != self.name).map(str::to_owned).collect()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let destroyed = destroy(&self.name);
        if let Some(mut daemon) = self.daemon.take() {
            end(Pid::from_child(&daemon));
            let _ = daemon.try_wait();
            note(&mut self.lock, "");
        }
        unmount_pools();
        if !std::thread::panicking() {
            destroyed.unwrap_or_else(|said| panic!("the pool in {:?} stays: {said}", self.dir));
        }
    }
}

/// Forced: what a failed test left mounted would keep it. A dataset is busy for a moment after it was unmounted.
fn destroy(pool: &str) -> Result<(), NoPool> {
    let begun = Instant::now();
    loop {
        let ran = Command::new("/usr/sbin/zpool").args(["destroy", "-f", pool]).output();
        let ran = ran.map_err(|error| NoPool(error.to_string()))?;
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        match ran.status.success() {
            true => return Ok(()),
            false if said.contains("busy") && begun.elapsed() < PATIENCE / 4 => {}
            false => return Err(NoPool(said)),
        }
    }
}

/// Their maker had the lock, and no longer has it.
fn clear_leftovers(lock: &mut File) {
    let mut noted = String::new();
    lock.rewind().and_then(|()| lock.read_to_string(&mut noted)).expect("readable");
    if let Some((pid, began)) = noted.trim().split_once(' ')
        && started_at(pid).as_deref() == Some(began)
        && let Some(daemon) = pid.parse().ok().and_then(Pid::from_raw)
    {
        eprintln!("ending the zfs-fuse that a test left, process {pid}");
        end(daemon);
    }
    note(lock, "");
    for pool in pools().unwrap_or_default().lines().filter(|name| name.starts_with(POOLS)) {
        eprintln!("removing the pool {pool} that a test left");
        destroy(pool)
            .unwrap_or_else(|said| panic!("the pool {pool} of a former test stays: {said}"));
    }
    unmount_pools();
    for entry in fs::read_dir(std::env::temp_dir()).expect("a directory").flatten() {
        if entry.file_name().to_string_lossy().starts_with(DIRS) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Takes away what datasets of tests are mounted on, for instance by a daemon that is gone.
fn unmount_pools() {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    for line in table.lines().rev() {
        let Some((mount, source)) = line.split_once(" - ") else { continue };
        let of_test = source.split(' ').nth(1).is_some_and(|source| source.starts_with(POOLS));
        if of_test && let Some(point) = mount.split(' ').nth(4) {
            let _ = unmount(point, UnmountFlags::DETACH);
        }
    }
}

/// When a process began, by which it is told from a later one of the same number. `None` for one that is no zfs-fuse, and
/// is not about to become it.
fn started_at(pid: &str) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (head, fields) = stat.rsplit_once(") ")?;
    let is_alive = !fields.starts_with(['Z', 'X']);
    let is_it = ["(zfs-fuse", "(setpriv"].iter().any(|name| head.ends_with(name));
    fields.split(' ').nth(19).filter(|_| is_alive && is_it).map(str::to_owned)
}

/// SIGTERM, and SIGKILL if that does not help.
fn end(daemon: Pid) {
    let Ok(process) = pidfd_open(daemon, PidfdFlags::empty()) else { return };
    for (signal, patience) in [(Signal::TERM, PATIENCE / 4), (Signal::KILL, PATIENCE)] {
        let _ = kill_process(daemon, signal);
        let patience = Timespec::try_from(patience).expect("seconds");
        if poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&patience)) == Ok(1) {
            return;
        }
    }
    eprintln!("zfs-fuse, process {}, does not end", daemon.as_raw_nonzero());
}

fn note(lock: &mut File, text: &str) {
    let noted = lock.set_len(0).and_then(|()| lock.rewind());
    noted.and_then(|()| lock.write_all(text.as_bytes())).expect("a lock that can be written to");
}

fn pools() -> Option<String> {
    let asked = Command::new("/usr/sbin/zpool").args(["list", "-H", "-o", "name"]).output();
    let answer = asked.ok().filter(|answer| answer.status.success())?;
    String::from_utf8(answer.stdout).ok()
}

fn answers() -> bool {
    pools().is_some()
}

/// It ends with this process even if that is killed.
fn start(lock: &mut File) -> Child {
    assert!(Path::new("/dev/fuse").exists(), "zfs-fuse needs /dev/fuse, which is not here");
    // It keeps its own lock and socket there, and makes no directory above them.
    for dir in ["/run/lock", "/var/lib"] {
        fs::create_dir_all(dir).expect("a directory");
    }
    let said = tempfile::tempfile().expect("a temporary file");
    let mut daemon = Command::new("setpriv")
        .args(["--pdeathsig", "TERM", ZFS_FUSE])
        .args(["--no-daemon", "--no-kstat-mount", "--enable-xattr"])
        .stdin(Stdio::null())
        .stdout(Stdio::from(said.try_clone().expect("a descriptor")))
        .stderr(Stdio::from(said.try_clone().expect("a descriptor")))
        .spawn()
        .expect("setpriv runs");
    let pid = daemon.id().to_string();
    // It is setpriv by now, and began when zfs-fuse will have begun.
    if let Some(began) = started_at(&pid) {
        note(lock, &format!("{pid} {began}"));
    }
    let begun = Instant::now();
    loop {
        if answers() {
            return daemon;
        }
        let ended = daemon.try_wait().expect("it is our child");
        if ended.is_some() || begun.elapsed() > PATIENCE {
            let _ = daemon.kill();
            let mut text = String::new();
            let mut said = said;
            let _ = said.rewind().and_then(|()| said.read_to_string(&mut text));
            panic!("zfs-fuse cannot be started ({ended:?}): {}", text.trim());
        }
    }
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
