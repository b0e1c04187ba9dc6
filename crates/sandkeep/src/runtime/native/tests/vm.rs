//! The suite where control groups of version 2 are the only ones: in a virtual machine, which this
//! same test binary is put into. See `tests/vm/boot`.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use crate::runtime::conformance::PROMISES;

/// What depends on the kind of control groups and waits for nothing but what it asks for; the rest of
/// the promises take minutes in a machine that is emulated.
const OF_GROUPS: [&str; 6] = [
    "a_memory_bomb_is_killed_and_named",
    "a_fork_bomb_stays_inside",
    "cancel_kills_the_whole_tree",
    "pause_freezes_or_is_refused",
    "stats_are_those_of_a_known_sandbox",
    "destroy_leaves_nothing_and_may_be_repeated",
];

/// Tests of the groups themselves.
const GROUPS: [&str; 2] = ["sys::cgroup::tests::v2_keeps", "sys::cgroup::tests::limits_of_v2"];

/// What the machine's init tries once more, with itself in a control group as in a container.
const CONTAINED: usize = 2;

const PATIENCE_FOR_SOME: Duration = Duration::from_secs(170);
const PATIENCE_FOR_ALL: Duration = Duration::from_secs(470);

#[test]
fn where_only_version_2_is_limits_hold_and_trees_end() {
    let promises = OF_GROUPS.map(|promise| format!("tests::v2::{promise}"));
    let filters: Vec<&str> =
        GROUPS.into_iter().chain(promises.iter().map(String::as_str)).collect();
    keep_in_vm(&filters, filters.len(), PATIENCE_FOR_SOME);
}

#[test]
#[ignore = "minutes in an emulated machine"]
fn where_only_version_2_is_every_promise_is_kept() {
    let mut filters = vec!["runtime::native::tests::v2::"];
    filters.extend(GROUPS);
    keep_in_vm(&filters, GROUPS.len() + PROMISES.len(), PATIENCE_FOR_ALL);
}

fn keep_in_vm(filters: &[&str], expected: usize, patience: Duration) {
    if let Some(missing) = missing() {
        let thread = std::thread::current();
        return eprintln!("SKIP {}: there is no {missing}", thread.name().unwrap_or("vm"));
    }
    let console = console(filters, patience);
    let count = |start: &str| console.lines().filter(|line| line.trim().starts_with(start)).count();
    let verdict = (count("exit code 0"), count("ok "), count("failed "), count("SKIP "));
    // A skip in there would be a promise that nobody has tried.
    assert_eq!(verdict, (2, expected + CONTAINED, 0, 0), "the machine said:\n{console}");
}

/// What of the machine's parts this host lacks.
fn missing() -> Option<&'static str> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let installed = |tool: &str| std::env::split_paths(&path).any(|dir| dir.join(tool).is_file());
    let tools = [
        "qemu-system-x86_64",
        "busybox",
        "cpio",
        "modprobe",
        "mke2fs",
        "objcopy",
        "dpkg",
        "python3",
    ];
    let kernel = std::fs::read_dir("/boot").is_ok_and(|mut files| {
        files.any(|file| {
            let name = file.map(|file| file.file_name().to_string_lossy().into_owned());
            name.is_ok_and(|name| name.starts_with("vmlinuz-") && name.ends_with("-cloud-amd64"))
        })
    });
    let kernel = (!kernel).then_some("kernel of linux-image-cloud-amd64");
    tools.into_iter().find(|tool| !installed(tool)).or(kernel)
}

/// All that the machine wrote to its console. It is switched off when its time is up.
fn console(filters: &[&str], patience: Duration) -> String {
    let scratch = tempfile::tempdir().expect("a directory for its disk");
    let mut boot = Command::new(repository().join("tests/vm/boot"));
    boot.arg(std::env::current_exe().expect("this binary")).arg(scratch.path()).args(filters);
    let boot = boot.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut machine = boot.expect("it can be booted");
    let mut stdout = machine.stdout.take().expect("it is piped");
    let (said, hear) = mpsc::sync_channel(1);
    std::thread::spawn(move || {
        let mut console = Vec::new();
        let read = stdout.read_to_end(&mut console);
        said.send(read.map(|_| String::from_utf8_lossy(&console).into_owned()))
    });
    let late = hear.recv_timeout(patience).map_err(|_| {
        // Its console ends with it.
        machine.kill().expect("it is ours to kill");
        hear.recv().expect("the reader does not end before the console")
    });
    machine.wait().expect("it has ended");
    let console = late.unwrap_or_else(|console| console).expect("the console is readable");
    format!("{console}\n(it had {} s)", patience.as_secs())
}

fn repository() -> PathBuf {
    let this_crate = Path::new(env!("CARGO_MANIFEST_DIR"));
    this_crate.ancestors().nth(2).expect("crates/sandkeep is two levels deep").to_owned()
}
