//! Foreign processes, and the environment of commands.

use std::fs;

use super::walk::pids;
use crate::finding::{Finding, Judge, Ways, held, leaked};
use crate::scene::Scene;
use crate::sys::{self, Arg, Errno};

pub fn seen(scene: &Scene) -> Finding {
    let words = scene.all("process-words");
    if words.is_empty() {
        return leaked("not judged: the host started no process");
    }
    let seen = pids();
    match seen.iter().find(|pid| words.iter().any(|word| is_named(**pid, word))) {
        Some(pid) => leaked(format!("a process that is not the sandbox's is seen as {pid}")),
        None => held(format!("{} processes are seen, all of this sandbox", seen.len())),
    }
}

/// By its own pid on the host. A pid of a process of this sandbox is left alone; one that does not exist here is really
/// signaled, and the host sees whether its process dies.
pub fn signaled(scene: &Scene) -> Finding {
    let words = scene.all("process-words");
    let Some(pid) = scene.get("process").and_then(|pid| pid.parse::<u32>().ok()) else {
        return leaked("not judged: the host started no process");
    };
    let is_the_hosts = words.iter().any(|word| is_named(pid, word));
    if pids().contains(&pid) && !is_the_hosts {
        return held(format!("{pid} is a process of this sandbox"));
    }
    let signal = if is_the_hosts { 0 } else { libc::SIGTERM };
    let mut ways = Ways::judged(Judge::BySuccess);
    ways.note("kill", signal_by_number(libc::SYS_kill, pid, signal));
    let pidfd = sys::call(libc::SYS_pidfd_open, [Arg::Number(pid.into()), Arg::Number(0)]);
    match pidfd {
        Ok(pidfd) => {
            let arguments =
                [Arg::Number(pidfd), Arg::Number(signal.into()), Arg::Number(0), Arg::Number(0)];
            ways.note("pidfd_send_signal", sys::call(libc::SYS_pidfd_send_signal, arguments));
        }
        Err(errno) => ways.refuse(format!("pidfd_open: {errno}")),
    }
    ways.finding()
}

fn signal_by_number(call: libc::c_long, pid: u32, signal: i32) -> Result<i64, Errno> {
    sys::call(call, [Arg::Number(pid.into()), Arg::Number(signal.into())])
}

fn is_named(pid: u32, word: &str) -> bool {
    // This process has the words among its own arguments.
    let is_ours =
        fs::read_link("/proc/self").is_ok_and(|own| own.as_os_str() == pid.to_string().as_str());
    let of = |file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let command = of("cmdline");
    let is_probe = command.split(|byte| *byte == 0).any(|argument| argument == b"try");
    !is_ours && !is_probe && String::from_utf8_lossy(&command).contains(word)
}

pub fn inherited_descriptors(scene: &Scene) -> Finding {
    match scene.inherited_descriptors() {
        [] => held("only 0, 1 and 2"),
        more => leaked(format!("also {more:?}")),
    }
}
