//! The child's code between clone and exec. It shares the guest's memory: system calls only. Ids are changed by raw
//! calls, because the C library's functions would notify other threads.

use std::ffi::{c_int, c_long, c_void};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering;

use guest_proto::Privilege;

use super::{FailurePipe, Step};
use crate::plan::{CwdChosen, Identity, Plan, StdioKind};
use crate::sys;

pub struct Job {
    pub plan: Plan,
    pub report: NonNull<FailurePipe>,
}

/// The entry of the child; returns only by failing, as the exit code.
pub extern "C" fn run(job: *mut c_void) -> c_int {
    // SAFETY: the parent passes a job that lives until we have executed or exited.
    let job = unsafe { &*job.cast_const().cast::<Job>() };
    // SAFETY: as the job.
    let report = unsafe { job.report.as_ref() };
    // SAFETY: the word stays mapped. By this call and not by CLONE_CHILD_CLEARTID, which musl's clone
    // refuses; it cannot fail.
    unsafe { libc::syscall(libc::SYS_set_tid_address, report.working.as_ptr()) };
    let (step, errno) = become_command(&job.plan);
    report.errno.store(errno, Ordering::Relaxed);
    report.step.store(step as u32, Ordering::Release);
    // SAFETY: ends this process without running anything of the parent's.
    unsafe { libc::_exit(126) }
}

/// The result of a raw system call, marked with the step it belongs to.
fn at(step: Step, result: c_long) -> Result<(), (Step, c_int)> {
    if result == -1 { Err((step, errno())) } else { Ok(()) }
}

fn errno() -> c_int {
    // SAFETY: the address is always valid.
    unsafe { *libc::__errno_location() }
}

fn become_command(plan: &Plan) -> (Step, c_int) {
    match prepare(plan) {
        Ok(()) => (Step::Exec, execute(plan)),
        Err(failure) => failure,
    }
}

fn prepare(plan: &Plan) -> Result<(), (Step, c_int)> {
    // SAFETY: all pointers are to parts of the plan, which outlives the child's use of it.
    unsafe {
        for fd in &plan.enter {
            at(Step::Cgroup, libc::write(*fd, c"0".as_ptr().cast(), 1) as c_long)?;
        }
        libc::setsid();
        set_stdio(plan)?;
        libc::setrlimit(libc::RLIMIT_NOFILE, &plan.descriptor_limit);
        if plan.privilege == Privilege::None {
            // Best effort: without CAP_SETPCAP there is nothing to protect, and no_new_privs below
            // keeps root's files from giving capabilities back.
            libc::prctl(libc::PR_SET_SECUREBITS, NO_ROOT | NO_ROOT_LOCKED, 0, 0, 0);
            drop_bounding_set();
        }
        if let Identity::Become { uid, gid, groups } = &plan.identity {
            become_user(*uid, *gid, groups)?;
            // The change has made the shared memory as accessible as the host's `fs.suid_dumpable` says, and we belong
            // to the user now.
            libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
        }
        change_directory(plan)?;
        if plan.privilege == Privilege::None {
            give_up_privileges()?;
        }
        let mask: u64 = 0;
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const mask,
            ptr::null_mut::<u64>(),
            size_of_val(&mask),
        );
    }
    Ok(())
}

/// Only what is left to drop: every call copies the credentials.
unsafe fn drop_bounding_set() {
    let mut left = sys::bounding_set();
    while left != 0 {
        let capability = left.trailing_zeros();
        // SAFETY: takes integers only.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
        left &= left - 1;
    }
}

const NO_ROOT: c_int = 1;
const NO_ROOT_LOCKED: c_int = 2;

unsafe fn set_stdio(plan: &Plan) -> Result<(), (Step, c_int)> {
    let stdio = &plan.stdio;
    // SAFETY: the guest's own descriptors are all above 2, so none is overwritten before its turn.
    unsafe {
        if stdio.kind == StdioKind::Terminal {
            // As the leader of a new session, which has none yet.
            let set = libc::ioctl(stdio.stdin.as_raw_fd(), libc::TIOCSCTTY as _, 0);
            at(Step::Stdio, set.into())?;
        }
        at(Step::Stdio, libc::dup2(stdio.stdin.as_raw_fd(), 0).into())?;
        at(Step::Stdio, libc::dup2(stdio.stdout.as_raw_fd(), 1).into())?;
        at(Step::Stdio, libc::dup2(stdio.stderr.as_raw_fd(), 2).into())?;
        // Everything is close-on-exec already; this is a safety net.
        libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
        for (fd, number) in &plan.given {
            at(Step::Stdio, libc::dup2(fd.as_raw_fd(), *number).into())?;
        }
    }
    Ok(())
}

unsafe fn become_user(uid: u32, gid: u32, groups: &[u32]) -> Result<(), (Step, c_int)> {
    // SAFETY: `groups` is valid for its length; the rest are integers.
    unsafe {
        let set = at(Step::User, libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()));
        // A sandbox of a single id may not set groups at all; it has none that matter.
        if let Err((step, errno)) = set
            && !(errno == libc::EPERM && uid == 0)
        {
            return Err((step, errno));
        }
        at(Step::User, libc::syscall(libc::SYS_setresgid, gid, gid, gid))?;
        at(Step::User, libc::syscall(libc::SYS_setresuid, uid, uid, uid))
    }
}

/// As the user, so that a directory that the user must not enter is not entered.
unsafe fn change_directory(plan: &Plan) -> Result<(), (Step, c_int)> {
    // SAFETY: both paths are NUL-terminated.
    unsafe {
        match (at(Step::Cwd, libc::chdir(plan.cwd.as_ptr()).into()), plan.cwd_chosen) {
            (Err(_), CwdChosen::ByHome) => at(Step::Cwd, libc::chdir(c"/".as_ptr()).into()),
            (result, CwdChosen::ByHome | CwdChosen::ByRequest) => result,
        }
    }
}

#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: c_int,
}

const CAPABILITY_VERSION_3: u32 = 0x2008_0522;

unsafe fn give_up_privileges() -> Result<(), (Step, c_int)> {
    let header = CapabilityHeader { version: CAPABILITY_VERSION_3, pid: 0 };
    // Effective, permitted and inheritable, in two halves: all empty, and ambient goes with them.
    let none = [[0u32; 3]; 2];
    // SAFETY: header and data have the layout of version 3.
    unsafe {
        at(Step::Privilege, libc::syscall(libc::SYS_capset, &raw const header, &raw const none))?;
        at(Step::Privilege, libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0).into())
    }
}

/// An unnamed file, by descriptor.
fn execute_kept(program: &OwnedFd, plan: &Plan) -> c_int {
    // SAFETY: the name is empty and NUL-terminated; arguments and environment outlive the call.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            program.as_raw_fd(),
            c"".as_ptr(),
            plan.argv.as_ptr(),
            plan.env.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    errno()
}

/// Tries the candidates like a shell; returns the most informative error.
fn execute(plan: &Plan) -> c_int {
    if let Some(program) = &plan.program {
        return execute_kept(program, plan);
    }
    let mut verdict = libc::ENOENT;
    for path in &plan.candidates {
        // SAFETY: path, arguments and environment are NUL-terminated and outlive the call.
        unsafe { libc::execve(path.as_ptr(), plan.argv.as_ptr(), plan.env.as_ptr()) };
        match errno() {
            libc::ENOENT | libc::ENOTDIR => {}
            // A file with that name exists; a later one may be executable.
            libc::EACCES => verdict = libc::EACCES,
            other => return other,
        }
    }
    verdict
}
