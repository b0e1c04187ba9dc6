//! From a plan to a running process.
//!
//! The child is created by clone with CLONE_VM: it uses the guest's memory, on a stack of its own, until it has
//! executed the command. Nothing is copied, so the cost does not depend on the guest's size. Meanwhile the child makes
//! system calls only: no allocation, no lock, no panic. It writes failures to a report in the shared memory.
//!
//! The guest waits meanwhile, but not forever, as CLONE_VFORK would: once the child has changed its user, other
//! processes of that user can stop it, or delay its execve by a lease on the file. The kernel clears a word of the
//! report when the child releases our memory; if that takes too long the child is killed. Its memory is not reused
//! before it was released. gVisor's kernel does not clear the word when a child executes; there the end of a pipe
//! signals it, which the child has open until then.

#![expect(unsafe_code, reason = "clone, and what a child does before exec")]

mod child;

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use libc::pid_t;

use crate::arguments::Kernel;
use crate::plan::{NotStarted, Plan};
use crate::sys;
use crate::tree::Leaf;

/// Far more than the child's few frames need; only touched pages cost memory.
const STACK_LEN: usize = 64 * 1024;
const PAGE: usize = 4096;
/// Size of the report at the stack's upper end; a multiple of the stack alignment.
const REPORT_LEN: usize = 64;

/// How long a child may take to execute. It needs a fraction of a millisecond; a busy CPU or a cold disk may make that
/// much more, and the whole sandbox waits meanwhile.
const EXEC_PATIENCE: Duration = Duration::from_secs(2);
/// How long SIGKILL may take. It works on stopped processes; only one that is frozen or waits for a device survives,
/// and it can do nothing but die.
const KILL_PATIENCE: Duration = Duration::from_secs(1);
/// Polling interval for the death of a killed child: one killed in its first instructions has not yet asked the kernel
/// to wake us.
const LOOK_PAUSE: Duration = Duration::from_millis(10);

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

/// Where a child reports its failure.
struct FailurePipe {
    /// Not 0 until the child has executed or exited: the kernel clears it then, and wakes us.
    working: AtomicU32,
    step: AtomicU32,
    errno: AtomicI32,
}

/// Whether a child may still use its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    InUse,
    LetGo,
}

/// How the guest notices that a child has released its memory.
enum Sign {
    /// The word of the report.
    Word,
    /// The reading end of a pipe whose other end only the child has.
    Pipe(OwnedFd),
}

/// Above all numbers at which a command gets descriptors.
const PIPE_LOWEST: RawFd = 256;

impl Sign {
    /// Also returns the descriptor that the child has to keep open.
    fn new(kernel: Kernel) -> io::Result<(Self, Option<OwnedFd>)> {
        match kernel {
            Kernel::Linux => Ok((Self::Word, None)),
            Kernel::Gvisor => {
                let (end, held) = sys::pipe()?;
                Ok((Self::Pipe(end), Some(sys::copy_above(held.as_fd(), PIPE_LOWEST)?)))
            }
        }
    }
}

/// The memory of a child: its stack, and the report at its upper end. Never unmapped.
struct Ground {
    stack: NonNull<c_void>,
}

impl Ground {
    fn new() -> io::Result<Self> {
        let stack = map(STACK_LEN, libc::MAP_PRIVATE | libc::MAP_STACK)?;
        // SAFETY: the first page of our own mapping; a stack that overflows faults there.
        if unsafe { libc::mprotect(stack.as_ptr(), PAGE, libc::PROT_NONE) } == -1 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { stack })
    }

    /// The upper end of the stack, where the report starts.
    fn top(&self) -> NonNull<c_void> {
        // SAFETY: within the mapping.
        unsafe { self.stack.byte_add(STACK_LEN - REPORT_LEN) }
    }

    fn report(&self) -> &FailurePipe {
        const { assert!(size_of::<FailurePipe>() <= REPORT_LEN) };
        // SAFETY: mapped for as long as the guest runs, aligned, zeroed at first, which is a valid
        // report, and all its fields are atomic.
        unsafe { self.top().cast().as_ref() }
    }

    fn prepare(&self) {
        self.report().step.store(Step::None as u32, Ordering::Relaxed);
        self.report().working.store(1, Ordering::Release);
    }

    fn clone_onto(&self, job: &child::Job) -> io::Result<pid_t> {
        let flags = libc::CLONE_VM | libc::SIGCHLD;
        // SAFETY: the stack is ours and unused, and the caller leaves it, the report and the job
        // alone until the child has let go of them. The child also shares our thread-local
        // storage, which means errno: until then we make no system call whose errno we look at,
        // and none that would fail and overwrite the child's: a wait for the report fails only
        // when the child has let go, or when it is about to be killed.
        let pid = unsafe {
            let job = std::ptr::from_ref(job).cast_mut().cast();
            libc::clone(child::run, self.top().as_ptr(), flags, job)
        };
        if pid == -1 { Err(io::Error::last_os_error()) } else { Ok(pid) }
    }

    fn memory(&self, sign: &Sign) -> Memory {
        let working = self.report().working.load(Ordering::Acquire) != 0;
        match sign {
            Sign::Word if working => Memory::InUse,
            Sign::Pipe(end) if working && !sys::wait_readable(end.as_fd(), Duration::ZERO) => {
                Memory::InUse
            }
            Sign::Word | Sign::Pipe(_) => Memory::LetGo,
        }
    }

    /// Waits for the signal, up to this time.
    fn wait_for(&self, sign: &Sign, left: Duration) {
        match sign {
            Sign::Word => sys::futex_wait(&self.report().working, 1, left),
            Sign::Pipe(end) => drop(sys::wait_readable(end.as_fd(), left)),
        }
    }

    /// Waits until the child has executed or exited, or the time limit is reached.
    fn wait(&self, sign: &Sign) -> Memory {
        let deadline = Instant::now() + EXEC_PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if self.memory(sign) == Memory::LetGo || left.is_zero() {
                return self.memory(sign);
            }
            self.wait_for(sign, left);
        }
    }

    /// Kills the child, and waits until it is dead or turns out to be unkillable.
    fn kill(&self, pid: pid_t, sign: &Sign) -> Memory {
        let _ = sys::kill(pid, libc::SIGKILL);
        let deadline = Instant::now() + KILL_PATIENCE;
        loop {
            if self.memory(sign) == Memory::LetGo || sys::is_dead(pid) {
                return Memory::LetGo;
            }
            if Instant::now() >= deadline {
                return Memory::InUse;
            }
            self.wait_for(sign, LOOK_PAUSE);
        }
    }

    fn failure(&self) -> Option<(Step, c_int)> {
        let step = self.report().step.load(Ordering::Acquire) as usize;
        match STEPS.get(step).copied() {
            Some(Step::None) | None => None,
            Some(step) => Some((step, self.report().errno.load(Ordering::Relaxed))),
        }
    }
}

pub struct Spawner {
    /// `None` after a child could not be killed: it keeps its memory.
    ground: Option<Ground>,
    null: Option<OwnedFd>,
    kernel: Kernel,
    /// The descriptor limit for commands; the guest has raised its own.
    pub descriptor_limit: libc::rlimit,
}

impl Spawner {
    pub fn new(kernel: Kernel) -> io::Result<Self> {
        Ok(Self {
            ground: Some(Ground::new()?),
            null: None,
            kernel,
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

    /// Starts the command in its leaf. When this returns, it is running or has failed.
    pub fn spawn(&mut self, plan: Plan, leaf: &Leaf) -> Result<pid_t, NotStarted> {
        let ground = match self.ground.take() {
            Some(ground) => ground,
            None => Ground::new().map_err(no_more_processes)?,
        };
        let (sign, held) = Sign::new(self.kernel).map_err(no_more_processes)?;
        ground.prepare();
        let job = Box::new(child::Job { plan, report: NonNull::from(ground.report()) });
        let cloned = ground.clone_onto(&job);
        drop(held);
        let memory = match cloned {
            Ok(_) => ground.wait(&sign),
            Err(_) => Memory::LetGo,
        };
        // The child may have made us traceable again when it changed its user.
        let _ = sys::hide_from_ptrace();
        let result = match (cloned, memory) {
            (Err(error), _) => Err(no_more_processes(error)),
            (Ok(pid), Memory::InUse) => return Err(self.give_up(pid, (ground, sign), job, leaf)),
            (Ok(pid), Memory::LetGo) => match ground.failure() {
                None => Ok(pid),
                Some((step, errno)) => {
                    sys::reap_this(pid);
                    Err(explain(step, errno, &job.plan))
                }
            },
        };
        self.ground = Some(ground);
        result
    }

    /// Ends a child that is stuck.
    fn give_up(
        &mut self,
        pid: pid_t,
        (ground, sign): (Ground, Sign),
        job: Box<child::Job>,
        leaf: &Leaf,
    ) -> NotStarted {
        match ground.kill(pid, &sign) {
            Memory::LetGo => self.ground = Some(ground),
            // The kernel may still read the job and write to the report before it is dead.
            Memory::InUse => drop(Box::leak(job)),
        }
        // It may have executed at the last moment, and have children by now.
        let _ = leaf.kill();
        sys::reap_this(pid);
        NotStarted::cannot(format!(
            "the command was not executed within {} s: something in the sandbox holds it up",
            EXEC_PATIENCE.as_secs()
        ))
    }
}

fn no_more_processes(error: io::Error) -> NotStarted {
    NotStarted::cannot(format!("the sandbox cannot start another process: {error}"))
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

/// A child's failure as a message, with the exit code a shell would return.
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
    if plan.program.is_some() {
        return NotStarted::cannot(format!("cannot execute the program that is kept: {why}"));
    }
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
