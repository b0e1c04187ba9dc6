//! `sandkeep run`: no daemon, a temporary sandbox, nothing left behind.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sandkeep_core::{SandboxId, limits};
use sandkeep_storage::{self, Base, BtrfsOptions, Quota, StorageChoice};

use crate::support::{
    Patience, Ran, binary, cgroups_of, obstacle, processes_in_cgroup, run_with_stdin, until,
    until_some,
};

/// A place for temporary data directories that only this test uses.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self {
            dir: tempfile::Builder::new().prefix("sandkeep-it-run-").tempdir().expect("a temp dir"),
        }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = binary();
        command.env("TMPDIR", self.dir.path()).arg("run").args(arguments);
        command
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        let ran: Ran = self.command(arguments).output().expect("the binary runs").into();
        ran.assert_no_panic();
        ran
    }

    fn leftovers(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.dir.path()).expect("it is there");
        entries.map(|entry| entry.expect("readable").path()).collect()
    }

    fn assert_empty(&self) {
        let leftovers = self.leftovers();
        assert!(leftovers.is_empty(), "{leftovers:?}");
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("a mount table");
        assert!(!mounts.contains(&*self.dir.path().to_string_lossy()), "{mounts}");
    }
}

#[test]
fn everything_passes_through_and_nothing_stays() {
    crate::skip_if!(obstacle());
    let place = Place::new();
    let ran = place.run(&["--", "sh", "-c", "echo out; echo err >&2; exit 5"]);
    assert_eq!((ran.code, &*ran.stdout, &*ran.stderr), (5, "out\n", "err\n"));
    let shouted = run_with_stdin(&mut place.command(&["--", "tr", "a-z", "A-Z"]), b"shout");
    assert_eq!((shouted.code, &*shouted.stdout), (0, "SHOUT"));
    assert_eq!(place.run(&["--", "no-such-command"]).code, 127);
    assert_eq!(place.run(&["--", "sh", "-c", "kill -9 $$"]).code, 137);
    assert_eq!(place.run(&["--timeout", "300ms", "--", "sleep", "1000"]).code, 124);
    place.assert_empty();
}

#[test]
fn a_local_directory_is_mounted_live_and_read_only_if_asked() {
    crate::skip_if!(obstacle());
    let place = Place::new();
    let dir = tempfile::Builder::new().prefix("sk-live-").tempdir().expect("a directory");
    let named = dir.path().to_str().expect("text");
    fs::write(dir.path().join("in"), "before").expect("a file");
    let (inner, shown) = (format!("{named}:/work/src"), format!("{named}:/work/src:ro"));
    let script =
        "cat /work/src/in; echo live > /work/src/out; cat /proc/self/mounts | grep /work/src";
    let mode =
        |mode| fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).expect("a mode");
    mode(0o755);
    let ran = place.run(&["-v", &inner, "--", "sh", "-c", script]);
    assert!(ran.stdout.starts_with("before"), "{ran:?}");
    if rustix::process::geteuid().is_root() {
        // Files have the same owners inside: the directory is root's, and the command is not.
        assert!(!dir.path().join("out").exists(), "{ran:?}");
    }
    mode(0o777);
    let ran = place.run(&["-v", &inner, "--", "sh", "-c", script]);
    assert!(ran.stdout.contains("nosuid") && ran.stdout.contains("nodev"), "{ran:?}");
    assert_eq!(fs::read_to_string(dir.path().join("out")).expect("a file"), "live\n", "{ran:?}");
    let ran = place.run(&["-v", &shown, "--", "sh", "-c", "cat /work/src/out; rm /work/src/out"]);
    assert!(ran.code != 0 && ran.stderr.contains("Read-only"), "{ran:?}");
    assert!(dir.path().join("out").exists(), "{ran:?}");
    for (wrong, why) in [
        ("/nowhere:/work", "No such file"),
        ("/tmp", "expected DIR:PATH"),
        ("/tmp:work", "absolute"),
        ("/tmp:/etc/x", "needs that directory"),
    ] {
        let ran = place.run(&["-v", wrong, "--", "true"]);
        assert!(ran.code == 125 && ran.stderr.contains(why), "{wrong}: {ran:?}");
    }
    let ran = place.run(&["--runtime", "gvisor", "-v", &inner, "--", "true"]);
    assert!(ran.code == 125 && ran.stderr.contains("gvisor"), "it cannot mount: {ran:?}");
    let ran = place.run(&["--url", "http://127.0.0.1:9", "-v", &inner, "--", "true"]);
    assert!(ran.code == 125 && ran.stderr.contains("without a daemon"), "{ran:?}");
    place.assert_empty();
}

#[test]
fn large_input_and_output_arrive_whole() {
    crate::skip_if!(obstacle());
    let place = Place::new();
    let bytes: Vec<u8> = (0..20_000_000u32).map(|n| b'a' + (n % 26) as u8).collect();
    let ran = run_with_stdin(&mut place.command(&["--", "cat"]), &bytes);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stdout.as_bytes() == bytes, "{} of {} bytes", ran.stdout.len(), bytes.len());
}

#[test]
fn runs_side_by_side_do_not_meet() {
    crate::skip_if!(obstacle());
    let place = Place::new();
    let outputs: BTreeSet<String> = std::thread::scope(|scope| {
        let one = |n: usize| {
            let place = &place;
            scope.spawn(move || {
                let ran = place.run(&["--", "sh", "-c", &format!("echo {n} > /tmp/n; cat /tmp/*")]);
                assert_eq!(ran.code, 0, "{ran:?}");
                ran.stdout
            })
        };
        let threads: Vec<_> = (0..6).map(one).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    assert_eq!(outputs, (0..6).map(|n| format!("{n}\n")).collect());
    place.assert_empty();
}

#[test]
fn a_killed_run_leaves_nothing_behind() {
    crate::skip_if!(obstacle());
    let place = Place::new();
    let (mut victim, instance) = running_victim(&place);
    victim.kill().expect("it is our child");
    victim.wait().expect("it is our child");
    // The lifeline ends the processes, the launcher clears up the rest.
    until("it is cleared up", Patience::Short, || place.leftovers().is_empty());
    assert!(processes_in_cgroup(&instance).is_empty());
    until("its cgroups are gone", Patience::Short, || cgroups_of(&instance).is_empty());
    place.assert_empty();
}

#[test]
fn a_run_killed_together_with_its_launcher_leaves_nothing_after_the_next_one() {
    crate::skip_if!(obstacle());
    let place = Place::new();
    let (mut victim, instance) = running_victim(&place);
    // The launcher first, so that nobody is there to clear up; it must not be replaced in between.
    kill("-STOP", victim.id());
    for launcher in launchers_of(&instance) {
        kill("-9", launcher);
    }
    victim.kill().expect("it is our child");
    victim.wait().expect("it is our child");
    until("the sandbox has died with it", Patience::Short, || {
        processes_in_cgroup(&instance).is_empty()
    });
    assert_eq!(place.run(&["--", "echo", "next"]).stdout, "next\n");
    until("the next run has swept up", Patience::Short, || place.leftovers().is_empty());
    let cgroups = cgroups_of(&instance);
    assert!(cgroups.is_empty(), "{cgroups:?}");
    place.assert_empty();
}

#[test]
fn groups_that_only_a_killed_run_knew_of_go_when_they_are_empty() {
    crate::skip_if!(obstacle());
    let place = Place::new();
    let data = place.dir.path().join("sandkeep-run.killed");
    fs::create_dir(&data).expect("it is ours");
    // A process that is killed between making groups and recording its sandbox leaves just this.
    let instance = "killedrun".to_owned() + &SandboxId::random().as_str()[2..9];
    fs::write(data.join("instance"), &instance).expect("it is ours");
    let hierarchy = sandkeep_sys::cgroup::open(&instance).expect("control groups");
    let group = hierarchy.roots().pop().expect("a root").join("sbkilled/work/l0");
    fs::create_dir_all(&group).expect("root makes groups");
    let mut straggler = Command::new("sleep").arg("100000").spawn().expect("sleep runs");
    fs::write(group.join("cgroup.procs"), straggler.id().to_string()).expect("it enters");
    drop(hierarchy);

    assert_eq!(place.run(&["--", "echo", "next"]).stdout, "next\n");
    assert_eq!(place.leftovers(), [data.as_path()], "what still runs keeps its record");
    assert!(group.is_dir());

    straggler.kill().expect("it is our child");
    straggler.wait().expect("it is our child");
    assert_eq!(place.run(&["--", "echo", "next"]).stdout, "next\n");
    let cgroups = cgroups_of(&instance);
    assert!(cgroups.is_empty(), "{cgroups:?}");
    place.assert_empty();
}

#[test]
fn a_volume_that_only_a_killed_run_knew_of_goes() {
    crate::skip_if!(obstacle());
    let place = Place::new();
    let data = place.dir.path().join("sandkeep-run.killed");
    fs::create_dir(&data).expect("it is ours");
    // Volume and metadata are made side by side, so whoever is killed in between leaves just this.
    let options =
        BtrfsOptions { image_bytes: Some(limits::BATTERY_POOL_BYTES), image_max_bytes: None };
    let opened = sandkeep_storage::open(&StorageChoice::Btrfs, &data, &options).expect("a pool");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let id = SandboxId::random();
    let made = opened.storage.create(&id, &Base::Empty, &Quota::NONE);
    runtime.block_on(made).expect("a volume");
    drop((opened, runtime));

    assert_eq!(place.run(&["--", "echo", "next"]).stdout, "next\n");
    place.assert_empty();
}

/// A `run` in the middle of a command that has left something in the background, and its instance.
fn running_victim(place: &Place) -> (std::process::Child, String) {
    let mut victim = place
        .command(&["--", "sh", "-c", "setsid sleep 100000 & echo up; sleep 100000"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut stdout = std::io::BufReader::new(victim.stdout.take().expect("it is piped"));
    let mut line = String::new();
    std::io::BufRead::read_line(&mut stdout, &mut line).expect("it prints");
    assert_eq!(line, "up\n");
    let data = place.leftovers().pop().expect("its data directory");
    let instance = instance_of(&data);
    assert!(processes_in_cgroup(&instance).len() >= 3);
    (victim, instance)
}

/// One that is gone already is fine: a launcher has children of its own name for a moment.
fn kill(signal: &str, pid: u32) {
    let killed = std::process::Command::new("kill").args([signal, &pid.to_string()]).output();
    killed.expect("kill runs");
}

fn launchers_of(instance: &str) -> Vec<u32> {
    let entries = fs::read_dir("/proc").expect("proc is there");
    let pids = entries.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(|pid: &u32| {
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut words = command.split(|byte| *byte == 0);
        words.next() == Some(b"sandkeep-launcher") && words.any(|w| w == instance.as_bytes())
    })
    .collect()
}

fn instance_of(data: &Path) -> String {
    until_some("the instance has a name", Patience::Short, || {
        let text = fs::read_to_string(data.join("instance")).ok()?;
        Some(text.trim().to_owned()).filter(|name| !name.is_empty())
    })
}

#[test]
fn a_signal_reaches_the_command() {
    crate::skip_if!(obstacle());
    let place = Place::new();
    let mut child = place
        .command(&[
            "--",
            "sh",
            "-c",
            "trap 'echo caught; exit 6' TERM; echo up; while :; do sleep 0.1; done",
        ])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut stdout = std::io::BufReader::new(child.stdout.take().expect("it is piped"));
    let mut said = String::new();
    std::io::BufRead::read_line(&mut stdout, &mut said).expect("it prints");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it lives");
    std::io::Read::read_to_string(&mut stdout, &mut said).expect("it ends");
    assert_eq!(child.wait().expect("it is our child").code(), Some(6));
    assert_eq!(said, "up\ncaught\n");
    place.assert_empty();
}
