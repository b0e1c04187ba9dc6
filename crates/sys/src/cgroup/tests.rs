//! One suite for both kinds of hierarchy, on the real thing.

#[path = "../../../../tests/vm/machine.rs"]
mod machine;

use std::process::{Child, Command};
use std::time::Duration;

use super::{Controllers, GroupPlacement, Hierarchy, LeafLimits, Limits, Unusable, V1, V2, files};

const LIMITS: Limits = Limits { memory_bytes: 64 << 20, cpus: 0.5, pids: 32 };

fn instance(test: &str) -> String {
    format!("test{}{test}", std::process::id())
}

/// A process that never rests, put into the sandbox's leaf from outside, which is slow and therefore only for tests.
struct Busy(Child);

impl Busy {
    fn in_leaf(hierarchy: &dyn Hierarchy, leaf: &str) -> Self {
        Self::doing("while :; do :; done", hierarchy, leaf)
    }

    fn doing(script: &str, hierarchy: &dyn Hierarchy, leaf: &str) -> Self {
        let child = Command::new("sh").args(["-c", script]).spawn();
        let child = child.expect("sh starts");
        for root in hierarchy.roots() {
            let procs = root.join("sandbox/work").join(leaf).join("cgroup.procs");
            if procs.exists() {
                files::write(&procs, &child.id().to_string()).expect("it enters the leaf");
            }
        }
        Self(child)
    }

    fn cpu_ticks(&self) -> u64 {
        let path = format!("/proc/{}/stat", self.0.id());
        let stat = std::fs::read_to_string(path).expect("it runs");
        let after_name = stat.rsplit(") ").next().expect("stat has a name");
        after_name.split(' ').nth(11).and_then(|ticks| ticks.parse().ok()).expect("utime")
    }

    /// Watches for `ticks` hundredths of a second of this thread's own running.
    fn advances(&self) -> bool {
        let before = self.cpu_ticks();
        let end = std::time::Instant::now() + std::time::Duration::from_millis(300);
        while std::time::Instant::now() < end {
            if self.cpu_ticks() > before {
                return true;
            }
            std::thread::yield_now();
        }
        false
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn keeps_its_promises(hierarchy: &dyn Hierarchy) {
    hierarchy.make("sandbox", &LIMITS).expect("groups are made");
    hierarchy.make("sandbox", &LIMITS).expect("making them again is fine");
    assert_eq!(hierarchy.sandboxes().expect("listed"), ["sandbox"]);
    for place in [GroupPlacement::Beside, GroupPlacement::Within] {
        assert!(hierarchy.pids("sandbox", place).expect("read").is_empty());
        assert!(hierarchy.pids("other", place).expect("no such sandbox is fine").is_empty());
        hierarchy.entry("sandbox", place).expect("it can be entered");
    }

    let none = LeafLimits::NONE;
    hierarchy.make_leaf("sandbox", "l0", &none).expect("a leaf is made");
    let leaf = hierarchy.open_leaf("sandbox", "l0", &none).expect("a leaf is opened");
    assert_eq!(leaf.oom_kills().expect("read"), 0);
    assert_eq!(hierarchy.leaves("sandbox").expect("listed"), ["l0"]);
    assert!(hierarchy.leaf_is_empty("sandbox", "l0").expect("read"));

    let busy = Busy::in_leaf(hierarchy, "l0");
    assert!(!hierarchy.leaf_is_empty("sandbox", "l0").expect("read"));
    hierarchy.freeze("sandbox").expect("frozen");
    assert!(!busy.advances(), "a frozen process ran");
    hierarchy.thaw("sandbox").expect("thawed");
    assert!(busy.advances(), "a thawed process stood still");
    assert!(hierarchy.remove("sandbox").is_err(), "groups in use cannot be removed");
    drop(busy);
    a_leaf_has_its_own_limits(hierarchy);

    hierarchy.remove("sandbox").expect("removed");
    hierarchy.remove("sandbox").expect("removing again is fine");
    assert!(hierarchy.sandboxes().expect("listed").is_empty());
}

/// A shell that starts programs is in vfork(2) for much of its time, where a v1 process can miss the freezer.
fn freezes_what_starts_programs(hierarchy: &dyn Hierarchy) {
    hierarchy.make("sandbox", &LIMITS).expect("groups are made");
    hierarchy.make_leaf("sandbox", "l0", &LeafLimits::NONE).expect("a leaf is made");
    let busy = Busy::doing("while :; do /bin/true; done", hierarchy, "l0");
    for round in 0..500 {
        let frozen = hierarchy.freeze("sandbox");
        hierarchy.thaw("sandbox").expect("thawed");
        assert!(frozen.is_ok(), "freeze {round}: {frozen:?}");
        std::thread::yield_now();
    }
    hierarchy.freeze("sandbox").expect("frozen, so that no child of it gets away");
    let left = hierarchy.roots().into_iter().map(|root| root.join("sandbox/work/l0/cgroup.procs"));
    let left = left.filter(|file| file.exists()).flat_map(|file| files::pids(&file).expect("read"));
    for pid in left {
        let pid =
            i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw).expect("a process id");
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
    hierarchy.thaw("sandbox").expect("thawed, to die");
    drop(busy);
    let empty = || hierarchy.leaf_is_empty("sandbox", "l0").expect("read");
    while !empty() {
        std::thread::yield_now();
    }
    hierarchy.remove("sandbox").expect("removed");
}

/// All limits of the available controllers; those of others are refused.
fn a_leaf_has_its_own_limits(hierarchy: &dyn Hierarchy) {
    let Controllers { memory, cpu, pids, .. } = hierarchy.controllers();
    let all = LeafLimits { memory_bytes: Some(16 << 20), cpu_micros: Some(25_000), pids: Some(8) };
    let held = LeafLimits {
        memory_bytes: all.memory_bytes.filter(|_| memory),
        cpu_micros: all.cpu_micros.filter(|_| cpu),
        pids: all.pids.filter(|_| pids),
    };
    if held != all {
        hierarchy.make_leaf("sandbox", "m1", &all).expect_err("a limit cannot be held");
    }
    hierarchy.make_leaf("sandbox", "m1", &held).expect("a leaf is made");
    hierarchy.make_leaf("sandbox", "m1", &held).expect("making it again is fine");
    let files = hierarchy.open_leaf("sandbox", "m1", &held).expect("a leaf is opened");
    assert!(files.fds.len() <= guest_proto::LEAF_FDS_MAX);
    let expected = [
        (memory, ["memory.limit_in_bytes", "memory.max"], ["16777216", "16777216"]),
        (cpu, ["cpu.cfs_quota_us", "cpu.max"], ["25000", "25000 100000"]),
        (pids, ["pids.max", "pids.max"], ["8", "8"]),
    ];
    for (has, names, values) in expected {
        let found = names.iter().find_map(|name| read(hierarchy, &format!("work/m1/{name}")));
        assert_eq!(found.is_some_and(|value| values.contains(&&*value)), has, "{names:?}");
    }
    let busy = Busy::in_leaf(hierarchy, "m1");
    hierarchy.remove_leaf("sandbox", "m1").expect_err("a leaf in use cannot be removed");
    drop(busy);
    hierarchy.remove_leaf("sandbox", "m1").expect("removed");
    hierarchy.remove_leaf("sandbox", "m1").expect("removing it again is fine");
    assert_eq!(hierarchy.leaves("sandbox").expect("listed"), ["l0"]);
    let left = hierarchy.roots().into_iter().find(|root| root.join("sandbox/work/m1").exists());
    assert_eq!(left, None);
}

/// The suite on a hierarchy, if this machine has it, and a check for leftovers.
fn try_out<H: Hierarchy>(test: &str, opened: Result<Option<H>, Unusable>) {
    let hierarchy = match opened {
        Ok(Some(hierarchy)) => hierarchy,
        Ok(None) => return eprintln!("SKIP {test}: no such hierarchy is mounted"),
        Err(error) => return eprintln!("SKIP {test}: {error}"),
    };
    keeps_its_promises(&hierarchy);
    freezes_what_starts_programs(&hierarchy);
    let roots = hierarchy.roots();
    drop(hierarchy);
    assert!(roots.iter().all(|root| !root.exists()));
}

#[test]
fn v1_keeps_its_promises_and_leaves_nothing_behind() {
    let mounts = files::cgroup_mounts().expect("mounts are read");
    let opened = V1::open(&mounts, &instance("v1"));
    try_out("v1_keeps_its_promises_and_leaves_nothing_behind", opened);
}

#[test]
fn v2_keeps_its_promises_and_leaves_nothing_behind() {
    let mounts = files::cgroup_mounts().expect("mounts are read");
    let opened = V2::open(&mounts, &instance("v2"));
    try_out("v2_keeps_its_promises_and_leaves_nothing_behind", opened);
}

/// The content of a file of a sandbox's group, in whichever tree has it.
fn read(hierarchy: &dyn Hierarchy, file: &str) -> Option<String> {
    let mut found = hierarchy.roots().into_iter().map(|root| root.join("sandbox").join(file));
    let path = found.find(|path| path.exists())?;
    Some(std::fs::read_to_string(path).expect("it is readable").trim().to_owned())
}

/// Creates groups with [`LIMITS`] and checks the kernel's values.
fn limits_are(hierarchy: &dyn Hierarchy, expected: &[(&str, Option<&str>)]) {
    hierarchy.make("sandbox", &LIMITS).expect("groups are made");
    for (file, value) in expected {
        assert_eq!(read(hierarchy, file).as_deref(), *value, "{file}");
    }
    hierarchy.remove("sandbox").expect("removed");
}

#[test]
fn limits_of_v1_are_what_was_asked_for() {
    let mounts = files::cgroup_mounts().expect("mounts are read");
    let Ok(Some(hierarchy)) = V1::open(&mounts, &instance("limits")) else {
        return eprintln!("SKIP limits_of_v1_are_what_was_asked_for: no v1 freezer is mounted");
    };
    let expected = [
        ("work/memory.limit_in_bytes", Some("67108864")),
        ("work/pids.max", Some("32")),
        ("cpu.cfs_quota_us", Some("50000")),
    ];
    limits_are(&hierarchy, &expected);
}

/// On a machine whose controllers are in version 1, version 2 has none and says so; the virtual machine of the native
/// runtime's tests has them all.
#[test]
fn limits_of_v2_are_what_was_asked_for_or_declared_missing() {
    let mounts = files::cgroup_mounts().expect("mounts are read");
    let Ok(Some(hierarchy)) = V2::open(&mounts, &instance("limits2")) else {
        return eprintln!(
            "SKIP limits_of_v2_are_what_was_asked_for_or_declared_missing: no v2 is mounted"
        );
    };
    let has = hierarchy.controllers();
    let expected = [
        ("work/memory.max", has.memory, "67108864"),
        ("work/pids.max", has.pids, "32"),
        ("cpu.max", has.cpu, "50000 100000"),
    ];
    let expected = expected.map(|(file, has, value)| (file, has.then_some(value)));
    limits_are(&hierarchy, &expected);
}

/// The tests of version 2 again where its controllers are: in a virtual machine.
#[test]
fn where_only_version_2_is_groups_keep_their_promises() {
    let filters = ["cgroup::tests::v2_keeps", "cgroup::tests::limits_of_v2"];
    machine::keep_in_vm(&[], &filters, filters.len(), Duration::from_secs(170));
}
