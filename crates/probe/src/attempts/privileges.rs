//! Changing the user.

use std::fs;
use std::process::Command;

use crate::finding::{Finding, Judge, Ways, held, leaked, not_applicable};
use crate::scene::Scene;
use crate::sys::{self, Arg};

/// The capabilities that a sandbox may have, by number: chown, dac_override, fowner, fsetid, kill, setgid, setuid,
/// setpcap, net_bind_service, sys_chroot.
const GRANTED: [u32; 10] = [0, 1, 3, 4, 5, 6, 7, 8, 10, 18];

pub fn setuid_call() -> Finding {
    if sys::effective_uid() == 0 {
        return not_applicable("this is the sandbox's root");
    }
    let mut ways = Ways::judged(Judge::BySuccess);
    let calls = [("setresuid", libc::SYS_setresuid), ("setresgid", libc::SYS_setresgid)];
    for (name, call) in calls {
        ways.note(name, sys::call(call, [0, 0, 0].map(Arg::Number)));
    }
    ways.note("setgroups", sys::call(libc::SYS_setgroups, [Arg::Number(0), Arg::Number(0)]));
    ways.finding()
}

/// Runs a set-user-ID copy of this program owned by root.
pub fn setuid_file(scene: &Scene) -> Finding {
    let Some(path) = scene.get("setuid") else {
        return not_applicable("no root of this sandbox could make such a file, or it may raise");
    };
    match Command::new(path).arg("whoami").output() {
        Ok(output) if output.stdout.trim_ascii() == b"0" => leaked("it ran as root"),
        Ok(output) => {
            let uid = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            if uid == sys::effective_uid().to_string() {
                held(format!("it ran as uid {uid}, as it was started"))
            } else {
                leaked(format!("not judged: it ran as {uid:?}"))
            }
        }
        Err(error) => leaked(format!("not judged: it did not run: {error}")),
    }
}

pub fn capabilities() -> Finding {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let sets = status.lines().filter_map(|line| {
        let (name, value) = line.strip_prefix("Cap")?.split_once(':')?;
        Some((name, u64::from_str_radix(value.trim(), 16).ok()?))
    });
    let all = sets.fold(0, |all, (_, set)| all | set);
    if !status.contains("CapBnd") {
        return leaked("not judged: /proc/self/status does not tell");
    }
    let granted = GRANTED.iter().fold(0, |set, bit| set | 1u64 << bit);
    match all & !granted {
        0 => held(format!("{all:#x}")),
        more => leaked(format!("beyond what is granted: {more:#x}")),
    }
}
