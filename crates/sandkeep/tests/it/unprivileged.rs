//! Without root: `run` and `serve` of an ordinary user, and the consequences of one id and no cgroups.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use sandkeep_bench::announced;
use serde_json::Value;

use crate::support::{Patience, Ran, binary, obstacle, run_with_stdin, until, wait_gone};
use crate::templates::images::{self, Image};

/// A uid that nobody on this machine has.
const UID: u32 = 23_456;

/// An ordinary user with a home and a copy of the program, which may else be out of sight.
struct Somebody {
    home: tempfile::TempDir,
    program: PathBuf,
}

impl Somebody {
    fn new() -> Self {
        let home = tempfile::Builder::new().prefix("sandkeep-it-user-").tempdir().expect("a home");
        let program = home.path().join("sandkeep");
        fs::copy(binary().get_program(), &program).expect("a copy");
        fs::create_dir(home.path().join("tmp")).expect("a place for runs");
        for dir in [home.path(), &home.path().join("tmp")] {
            fs::set_permissions(dir, fs::Permissions::from_mode(0o700)).expect("it is ours");
            chown(dir, Some(UID), Some(UID)).expect("root may");
        }
        Self { home, program }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(arguments)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", self.home.path())
            .env("TMPDIR", self.home.path().join("tmp"))
            .uid(UID)
            .gid(UID);
        command
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        let ran: Ran = self.command(arguments).output().expect("the program runs").into();
        ran.assert_no_panic();
        ran
    }

    fn data(&self) -> PathBuf {
        self.home.path().join(".local/share/sandkeep")
    }

    /// The guests that run for this user's daemon, by what the host says.
    fn guests(&self) -> usize {
        let instance = fs::read_to_string(self.data().join("instance")).expect("an instance");
        let badge = format!("{}/", instance.trim());
        let read = |path: &Path, file: &str| {
            String::from_utf8_lossy(&fs::read(path.join(file)).unwrap_or_default()).into_owned()
        };
        // Its children may have the same name, but are not the first of their namespace.
        let is_guest = |path: &Path| {
            let status = read(path, "status");
            let mut numbers = status.lines().filter(|line| line.starts_with("NSpid:"));
            numbers.any(|line| line.ends_with("\t1"))
                && read(path, "cmdline").split('\0').any(|word| word.starts_with(&badge))
        };
        let processes = fs::read_dir("/proc").expect("/proc is there").flatten();
        processes.filter(|process| is_guest(&process.path())).count()
    }

    fn assert_clean(&self) {
        let ran = self.run(&["doctor", "--leaks", "--json"]);
        let said: Value = serde_json::from_str(&ran.stdout).expect("JSON");
        assert_eq!((ran.code, &said["clean"]), (0, &Value::Bool(true)), "{said:#}");
    }
}

/// A daemon of somebody's.
struct Serving<'a> {
    whose: &'a Somebody,
    child: Child,
    url: String,
}

impl Drop for Serving<'_> {
    /// A failed test leaves no sandbox and no daemon.
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            let _ = self.ask(&["rm", "--all"]);
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

impl<'a> Serving<'a> {
    fn start(whose: &'a Somebody) -> Self {
        let mut serve = whose.command(&["serve", "--listen", "127.0.0.1:0"]);
        let mut child = serve.stdout(Stdio::piped()).spawn().expect("the daemon starts");
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let address = stdout.lines().map_while(Result::ok).find_map(|line| announced(&line));
        let url = format!("http://{}", address.expect("an address is announced"));
        Self { whose, child, url }
    }

    /// A command of its owner: nobody else, not even root, is let in.
    fn ask(&self, arguments: &[&str]) -> Ran {
        self.whose.run(&[&["--url", self.url.as_str()], arguments].concat())
    }

    fn fine(&self, arguments: &[&str]) -> String {
        let ran = self.ask(arguments);
        assert_eq!(ran.code, 0, "{arguments:?}: {ran:?}");
        ran.stdout.trim_end().to_owned()
    }

    fn end(mut self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
        self.child.wait().expect("it is our child");
    }
}

#[test]
fn a_run_without_root_passes_everything_through_and_leaves_nothing() {
    crate::skip_if!(obstacle());
    let somebody = Somebody::new();
    let ran = somebody.run(&["run", "--", "sh", "-c", "id -u; echo err >&2; exit 5"]);
    assert_eq!((ran.code, &*ran.stdout, &*ran.stderr), (5, "1000\n", "err\n"));
    assert_eq!(somebody.run(&["run", "--timeout", "300ms", "--", "sleep", "1000"]).code, 124);
    let mut endless = somebody.command(&["run", "--", "sh", "-c", "echo up; sleep 1000"]);
    let mut killed = endless.stdout(Stdio::piped()).spawn().expect("it runs");
    let mut up = String::new();
    let stdout = killed.stdout.take().expect("it is piped");
    BufReader::new(stdout).read_line(&mut up).expect("it says something");
    assert_eq!(up, "up\n");
    let places = || fs::read_dir(somebody.home.path().join("tmp")).expect("it is there").count();
    assert_eq!(places(), 1);
    killed.kill().expect("it is ours");
    killed.wait().expect("it is ours");
    // Its launcher clears up after it, without root as well.
    until("nothing of the run is left", Patience::Long, || places() == 0);
}

#[test]
fn sandboxes_of_an_ordinary_user_outlive_kill_9_of_the_daemon() {
    crate::skip_if!(obstacle());
    let somebody = Somebody::new();
    let daemon = Serving::start(&somebody);
    let id = daemon.fine(&["create"]);
    daemon.fine(&["exec", &id, "--", "sh", "-c", "echo kept > file; setsid sleep 100007 & exit 0"]);
    let pid = daemon.child.id();
    daemon.end(Signal::KILL);
    wait_gone(pid);
    assert_eq!(somebody.guests(), 1);
    let daemon = Serving::start(&somebody);
    let look = "cat file; pgrep -fc '^sleep 100007'";
    assert_eq!(daemon.fine(&["exec", &id, "--", "sh", "-c", look]), "kept\n1");
    somebody.assert_clean();
    daemon.fine(&["stop", &id]);
    assert_eq!(somebody.guests(), 0);
    daemon.fine(&["start", &id]);
    assert_eq!(daemon.fine(&["exec", &id, "cat", "file"]), "kept");
    daemon.fine(&["rm", &id]);
    daemon.end(Signal::TERM);
    somebody.assert_clean();
    assert_eq!(somebody.guests(), 0);
    let left = fs::read_dir(somebody.data().join("made")).expect("it is there").count();
    assert_eq!(left, 0);
}

#[test]
fn what_needs_root_is_refused_to_an_ordinary_user_with_the_reason() {
    crate::skip_if!(obstacle());
    let somebody = Somebody::new();
    let daemon = Serving::start(&somebody);
    for (option, value) in [("--memory-mb", "128"), ("--cpus", "1"), ("--pids", "64")] {
        let ran = daemon.ask(&["create", option, value]);
        assert_ne!(ran.code, 0);
        assert!(ran.stderr.contains("have the daemon run as root"), "{}", ran.stderr);
    }
    let ran = daemon.ask(&["create", "--privilege", "root"]);
    assert!(ran.code != 0 && ran.stderr.contains("no root inside"), "{}", ran.stderr);
    let listing: Value = serde_json::from_str(&daemon.fine(&["ls", "--json"])).expect("JSON");
    assert!(!listing.to_string().contains("\"running\""), "a refusal made something: {listing}");

    let id = daemon.fine(&["create"]);
    let as_root = daemon.ask(&["exec", "-u", "root", &id, "--", "true"]);
    assert!(as_root.code == 126 && as_root.stderr.contains("not made by root"), "{as_root:?}");
    let stats: Value = serde_json::from_str(&daemon.fine(&["stats", "--json", &id])).expect("JSON");
    assert_eq!(stats["memory"]["limit_bytes"], Value::Null, "{stats}");
    assert!(stats["pids"]["current"].as_u64() >= Some(1), "{stats}");
    let runtimes: Value =
        serde_json::from_str(&daemon.fine(&["runtimes", "--json"])).expect("JSON");
    let native =
        runtimes["runtimes"].as_array().into_iter().flatten().find(|r| r["name"] == "native");
    let can = &native.expect("native is listed")["capabilities"];
    for capability in ["memory_limit", "cpu_limit", "pids_limit", "pause", "any_user"] {
        assert_eq!(can[capability], Value::Bool(false), "{capability}: {can}");
    }
    daemon.fine(&["rm", &id]);
    daemon.end(Signal::TERM);
}

#[test]
fn an_ordinary_user_runs_images_as_the_one_user_there_is() {
    crate::skip_if!(images::obstacle());
    let somebody = Somebody::new();
    let daemon = Serving::start(&somebody);
    let image = Image::busybox();
    let archive = fs::read(image.docker_archive()).expect("an archive");
    let import = ["--url", daemon.url.as_str(), "template", "import", "-", "--name", "image"];
    let ran = run_with_stdin(&mut somebody.command(&import), &archive);
    assert_eq!((ran.code, ran.stdout.trim_end()), (0, "image"), "{ran:?}");
    let id = daemon.fine(&["create", "--template", "image"]);
    assert_eq!(daemon.fine(&["exec", &id]), "hello from the image", "the image's own command");
    let said = daemon.fine(&["exec", &id, "--", "sh", "-c", "id -u; pwd; stat -c %u /etc/passwd"]);
    assert_eq!(said, "1000\n/srv/data\n1000");
    let as_app = daemon.ask(&["exec", "-u", "app", &id, "--", "true"]);
    assert!(as_app.code == 126 && as_app.stderr.contains("not made by root"), "{as_app:?}");
    daemon.fine(&["stop", &id]);
    daemon.fine(&["template", "from", &id, "--name", "copy"]);
    daemon.fine(&["rm", &id]);
    let copy = daemon.fine(&["create", "--template", "copy"]);
    assert_eq!(daemon.fine(&["exec", &copy]), "hello from the image");
    daemon.fine(&["rm", &copy]);
    daemon.fine(&["template", "rm", "image", "copy"]);
    daemon.end(Signal::TERM);
    somebody.assert_clean();
}
