//! From a plan to a running process.
//!
//! The child is made by clone with CLONE_VM and CLONE_VFORK: it borrows the guest's memory, on a
//! stack of its own, until it has executed the command, while the guest stands still. Nothing is
//! copied, so it costs the same however large the guest is. In between, the child makes system
//! calls only: no allocation, no lock, no panic. What fails there it writes to a page both share.
//!
//! A child for a v2 leaf is placed by clone3 with CLONE_INTO_CGROUP, with memory of its own (clone3
//! cannot be called with a second stack without assembly). Where that is filtered or denied the
//! child writes itself into `cgroup.procs` instead, through the host's descriptor.

#![expect(unsafe_code, reason = "clone, and what a child does before exec")]

mod child;

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use libc::pid_t;

use crate::plan::{NotStarted, Plan};
use crate::sys;
use crate::tree::Leaf;

/// Far more than the child's few frames need; only touched pages cost memory.
const STACK_LEN: usize = 64 * 1024;
const PAGE: usize = 4096;

/// What the child was doing when it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum Step {
    /// It has not failed: it became the command, or was killed on the way.
    None,
    Cgroup,
    Stdio,
    User,
    Cwd,
    Privilege,
    Exec,
}

const STEPS: [Step; 7] =
    [Step::None, Step::Cgroup, Step::Stdio, Step::User, Step::Cwd, Step::Privilege, Step::Exec];

/// Where a child leaves word of its failure.
struct Report {
    step: AtomicU32,
    errno: AtomicI32,
}

/// Whether this kernel and filter let us place a child by clone3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IntoCgroup {
    NotTriedOrWorks,
    Denied,
}

pub struct Spawner {
    stack: NonNull<c_void>,
    report: NonNull<Report>,
    into_cgroup: IntoCgroup,
    null: Option<OwnedFd>,
    /// What commands see as their limit of descriptors; the guest has raised its own.
    pub descriptor_limit: libc::rlimit,
}

impl Spawner {
    pub fn new() -> io::Result<Self> {
        let stack = map(STACK_LEN, libc::MAP_PRIVATE | libc::MAP_STACK)?;
        // SAFETY: the first page of our own mapping; a stack that overflows faults there.
        if unsafe { libc::mprotect(stack.as_ptr(), PAGE, libc::PROT_NONE) } == -1 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            stack,
            // All-zero is a valid report, and a page is large enough and aligned for one.
            report: map(PAGE, libc::MAP_SHARED)?.cast(),
            into_cgroup: IntoCgroup::NotTriedOrWorks,
            null: None,
            descriptor_limit: sys::raise_descriptor_limit(),
        })
    }

    /// A descriptor of /dev/null; opened once, when a command first needs it.
    pub fn null(&mut self) -> io::Result<OwnedFd> {
        match &self.null {
            Some(null) => null.try_clone(),
            None => {
                let null = sys::open_null()?;
                self.null.insert(null).try_clone()
            }
        }
    }

    /// Starts the command in its leaf. When this returns, it runs or is known not to.
    pub fn spawn(&mut self, mut plan: Plan, leaf: &Leaf) -> Result<pid_t, NotStarted> {
        self.report().step.store(Step::None as u32, Ordering::Relaxed);
        let pid = match leaf {
            Leaf::V2 { directory, procs, .. } => self.clone_into(directory, procs, &mut plan),
            Leaf::None | Leaf::V1 { .. } => self.clone_vfork(&plan),
        };
        // The child may have made us visible again when it changed its user.
        let _ = sys::hide_from_ptrace();
        let pid = pid.map_err(|error| {
            NotStarted::cannot(format!("the sandbox cannot start another process: {error}"))
        })?;
        match self.failure() {
            None => Ok(pid),
            Some((step, errno)) => {
                sys::reap_this(pid);
                Err(explain(step, errno, &plan))
            }
        }
    }

    fn report(&self) -> &Report {
        // SAFETY: the page is mapped for as long as the guest runs, and its fields are atomic.
        unsafe { self.report.as_ref() }
    }

    fn failure(&self) -> Option<(Step, c_int)> {
        let step = self.report().step.load(Ordering::Acquire) as usize;
        match STEPS.get(step).copied() {
            Some(Step::None) | None => None,
            Some(step) => Some((step, self.report().errno.load(Ordering::Relaxed))),
        }
    }

    fn clone_vfork(&self, plan: &Plan) -> io::Result<pid_t> {
        let job = child::Job { plan, report: self.report() };
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        // SAFETY: the stack is ours and unused, for the guest stands still until the child has
        // executed or exited; until then `job` and all it refers to stay alive.
        let pid = unsafe {
            let top = self.stack.as_ptr().byte_add(STACK_LEN);
            libc::clone(child::run, top, flags, (&raw const job).cast_mut().cast())
        };
        if pid == -1 { Err(io::Error::last_os_error()) } else { Ok(pid) }
    }

    fn clone_into(
        &mut self,
        directory: &OwnedFd,
        procs: &OwnedFd,
        plan: &mut Plan,
    ) -> io::Result<pid_t> {
        if self.into_cgroup == IntoCgroup::NotTriedOrWorks {
            let job = child::Job { plan, report: self.report() };
            match clone_into_cgroup(directory, &job) {
                Err(error) if is_denied(&error) => self.into_cgroup = IntoCgroup::Denied,
                result => return result,
            }
        }
        plan.enter.push(procs.as_raw_fd());
        self.clone_vfork(plan)
    }
}

/// Whether clone3 is filtered away, too old, or not allowed to our user.
fn is_denied(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOSYS | libc::EPERM | libc::EACCES | libc::EINVAL | libc::E2BIG)
    )
}

/// The kernel's `struct clone_args` up to `cgroup`.
#[repr(C)]
#[derive(Default)]
struct CloneArguments {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

fn clone_into_cgroup(directory: &OwnedFd, job: &child::Job<'_>) -> io::Result<pid_t> {
    let arguments = CloneArguments {
        flags: CLONE_INTO_CGROUP | libc::CLONE_VFORK.cast_unsigned() as u64,
        exit_signal: libc::SIGCHLD.cast_unsigned() as u64,
        cgroup: directory.as_raw_fd().cast_unsigned() as u64,
        ..CloneArguments::default()
    };
    // SAFETY: without CLONE_VM this is a fork: the child goes on here with its own copy of memory,
    // and only runs the job, which never returns.
    unsafe {
        match libc::syscall(libc::SYS_clone3, &raw const arguments, size_of_val(&arguments)) {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                child::run((&raw const *job).cast_mut().cast());
                sys::exit(126)
            }
            pid => Ok(pid as pid_t),
        }
    }
}

fn map(len: usize, flags: c_int) -> io::Result<NonNull<c_void>> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = flags | libc::MAP_ANONYMOUS;
    // SAFETY: a new anonymous mapping touches nothing that exists.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
    match NonNull::new(address) {
        Some(address) if address.as_ptr() != libc::MAP_FAILED => Ok(address),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A child's failure in words, with the exit code a shell would give.
fn explain(step: Step, errno: c_int, plan: &Plan) -> NotStarted {
    let why = io::Error::from_raw_os_error(errno);
    match step {
        Step::None => NotStarted::cannot(why.to_string()),
        Step::Cgroup => NotStarted::cannot(format!("cannot enter the exec's cgroup: {why}")),
        Step::Stdio => NotStarted::cannot(format!("cannot set up its standard streams: {why}")),
        Step::User => NotStarted::cannot(format!("cannot become the user: {why}")),
        Step::Cwd => {
            let cwd = plan.cwd.to_string_lossy();
            NotStarted::cannot(format!("cannot change to the directory {cwd:?}: {why}"))
        }
        Step::Privilege => NotStarted::cannot(format!("cannot give up privileges: {why}")),
        Step::Exec => explain_exec(errno, &why, plan),
    }
}

fn explain_exec(errno: c_int, why: &io::Error, plan: &Plan) -> NotStarted {
    let [path, others @ ..] = plan.candidates.as_slice() else {
        return NotStarted::not_found("the command is an empty string");
    };
    let path = path.to_string_lossy();
    let name = path.rsplit('/').next().unwrap_or_default();
    match (errno, others.is_empty()) {
        (libc::ENOENT | libc::ENOTDIR, false) => {
            NotStarted::not_found(format!("command {name:?} is in no directory of PATH"))
        }
        (libc::ENOENT | libc::ENOTDIR, true) => {
            NotStarted::not_found(format!("{path:?} is not there, or its interpreter is not"))
        }
        (libc::ENOEXEC, _) => {
            NotStarted::cannot(format!("{name:?} is neither a program nor a script with `#!`"))
        }
        (_, false) => NotStarted::cannot(format!("cannot execute {name:?}: {why}")),
        (_, true) => NotStarted::cannot(format!("cannot execute {path:?}: {why}")),
    }
}
