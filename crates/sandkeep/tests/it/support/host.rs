//! Processes as the host sees them: `/proc`, read directly.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};

use super::{Daemon, Patience, until};

/// All process ids of the host.
fn all() -> Vec<u32> {
    let entries = fs::read_dir("/proc").expect("/proc is there");
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

fn field(pid: u32, name: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim().to_owned())
}

fn is_alive(pid: u32) -> bool {
    field(pid, "State").is_some_and(|state| !state.starts_with(['Z', 'X']))
}

/// The live children of a process that go by a name, read from their command line or `comm`.
pub fn children_named(parent: u32, name: &str) -> Vec<u32> {
    let matches = |pid: &u32| {
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let first = command.split(|byte| *byte == 0).next().unwrap_or_default();
        let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        // The kernel keeps 15 bytes of a name.
        String::from_utf8_lossy(first).ends_with(name) || comm.trim() == &name[..name.len().min(15)]
    };
    let is_child = |pid: &u32| field(*pid, "PPid") == Some(parent.to_string());
    all().into_iter().filter(is_child).filter(|pid| is_alive(*pid)).filter(matches).collect()
}

/// The live processes with `part` in the path of a cgroup they are in.
pub fn processes_in_cgroup(part: &str) -> Vec<u32> {
    let inside = |pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|text| text.contains(part))
    };
    all().into_iter().filter(inside).filter(|pid| is_alive(*pid)).collect()
}

/// How much processor time a process has used, children not counted.
pub fn cpu_seconds(pid: u32) -> f64 {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return 0.0 };
    // The name, in brackets, may hold anything; user and system time are 12th and 13th after it.
    let fields: Vec<&str> =
        stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / rustix::param::clock_ticks_per_second() as f64
}

pub fn wait_gone(pid: u32) {
    until(&format!("process {pid} is gone"), Patience::Short, || !is_alive(pid));
}

/// Kills the daemon and then all processes of a sandbox, which nobody sees.
pub fn kill_sandbox(daemon: &mut Daemon, id: &str) {
    let inside = processes_in_cgroup(&format!("{}/{id}", daemon.instance()));
    daemon.kill_9();
    for pid in &inside {
        let pid = Pid::from_raw(pid.cast_signed()).expect("not zero");
        // When PID 1 dies, the kernel takes the rest with it: there may be nobody left to kill.
        let _ = kill_process(pid, Signal::KILL);
    }
    inside.iter().copied().for_each(wait_gone);
}
