//! One attempt per child process: whatever happens to it, the next one starts fresh.

use std::fs::File;
use std::io::{Read, Write};
use std::time::{Duration, Instant};

use probe::{Attempt, Report};

use crate::finding::{Finding, held, leaked};
use crate::sys::{self, Ended};

/// All attempts answer at once; one that does not is stuck.
const PATIENCE: Duration = Duration::from_secs(10);

pub fn run(attempt: Attempt, make: impl FnOnce() -> Finding) -> Finding {
    let Ok((reader, writer)) = sys::pipe() else {
        return leaked("it was not made: there is no pipe");
    };
    let child = sys::fork(move || {
        let Finding { verdict, detail } = make();
        let line = Report { attempt, verdict, detail }.line();
        // Writing fails only if the parent is gone, and then it does not matter.
        let _ = File::from(writer).write_all(format!("{line}\n").as_bytes());
    });
    let child = match child {
        Ok(child) => child,
        Err(errno) => return leaked(format!("it was not made: fork: {errno}")),
    };
    let said = read_line(File::from(reader), Instant::now() + PATIENCE);
    match said {
        Said::Line(line) => {
            child.kill();
            let torn = || leaked("not judged: the attempt gave no answer");
            Report::parse(&line).map_or_else(torn, |report| Finding {
                verdict: report.verdict,
                detail: report.detail,
            })
        }
        Said::NoMore => silent(attempt, child.wait()),
        Said::NothingYet => {
            child.kill();
            leaked(format!("not judged: no answer within {} s", PATIENCE.as_secs()))
        }
    }
}

/// The child ended without a line. If the kernel killed it for the attempt, that is an answer.
fn silent(attempt: Attempt, ended: Ended) -> Finding {
    match ended {
        Ended::Killed(libc::SIGSYS) => held("killed by the filter of system calls"),
        // If the kernel has no 32-bit entry, its instruction is an ordinary fault.
        Ended::Killed(signal @ (libc::SIGSEGV | libc::SIGILL)) if attempt == Attempt::I386Call => {
            held(format!("killed by signal {signal}"))
        }
        Ended::Killed(signal) => leaked(format!("not judged: the attempt died of signal {signal}")),
        Ended::Exited => leaked("not judged: the attempt gave no answer"),
    }
}

enum Said {
    Line(String),
    /// No writer is left.
    NoMore,
    /// Not within the time limit.
    NothingYet,
}

/// The first line. The end of the pipe is not waited for, because a process started by the attempt may hold it open.
fn read_line(mut pipe: File, deadline: Instant) -> Said {
    let mut said = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        if let Some(end) = said.iter().position(|byte| *byte == b'\n') {
            return Said::Line(String::from_utf8_lossy(&said[..end]).into_owned());
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || !sys::readable_within(&pipe, left) {
            return Said::NothingYet;
        }
        match pipe.read(&mut chunk) {
            Ok(0) | Err(_) => return Said::NoMore,
            Ok(read) => said.extend_from_slice(&chunk[..read]),
        }
    }
}
