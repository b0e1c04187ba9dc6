//! The toolbox on the host, in a directory that is its whole world. It works on the files of a tree that no sandbox is
//! asked about, while sandboxes that have the tree may change anything in it at any time.
//!
//! ```text
//! daemon ──spawn──▶ this program, as `jail`: namespaces, chroot, user, seccomp ──execveat──▶ toolbox
//! ```
//!
//! Whatever links are in the tree and however it is renamed meanwhile, the kernel resolves every name below the
//! directory: the process has no other root, holds no descriptor outside, and no right to get either. It has the ids of
//! `user` on the disk, no capability, no network but a loopback of its own, and cannot be read or traced by others. It
//! dies with the daemon.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::ExitCode;

use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Gid, Resource, Rlimit, Signal, Uid, setrlimit};

use crate::landlock::{self, Ruleset};
use crate::launcher::LauncherRights;
use crate::{namespace, sealed, seccomp};
use sandkeep_core::limits;

/// The argument that makes this program a jail.
pub const ARGUMENT: &str = "jail";

/// Only others may execute it, and nobody may read it: then its process cannot be traced, not even by its own user.
const EXECUTE_ONLY: Mode = Mode::from_raw_mode(0o111);

/// The command line of a jail, after the program's own path.
pub fn arguments(directory: &Path, owner: u32) -> [OsString; 3] {
    [ARGUMENT.into(), directory.into(), owner.to_string().into()]
}

/// Becomes the toolbox in the directory, as the user with this id on the disk. Returns only if it cannot.
pub fn main(directory: &Path, owner: u32) -> ExitCode {
    let (step, error) = match become_toolbox(directory, owner) {
        Ok(never) => match never {},
        Err(failed) => failed,
    };
    eprintln!("cannot {step}: {error}");
    ExitCode::FAILURE
}

enum Never {}

fn become_toolbox(directory: &Path, owner: u32) -> Result<Never, (&'static str, io::Error)> {
    let during = |step: &'static str| move |error: io::Error| (step, error);
    die_with_daemon().map_err(during("die with the daemon"))?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = open(directory, flags, Mode::empty());
    let directory = directory.map_err(|errno| ("open the files", errno.into()))?;
    let program = sealed::program("sandkeep-toolbox", sandkeep_embedded::TOOLBOX);
    let program = program.map_err(during("make its program"))?;
    let standing = LauncherRights::own();
    leave_host(standing).map_err(during("leave the host's namespaces"))?;
    enter(&directory).map_err(during("enter the files"))?;
    limit().map_err(during("limit itself"))?;
    match standing {
        LauncherRights::Root => {
            rustix::fs::fchmod(&program, EXECUTE_ONLY)
                .map_err(|errno| ("hide its program", errno.into()))?;
            become_user(owner).map_err(during("become the owner of the files"))?;
        }
        // The only id is that of the owner already.
        LauncherRights::User => {}
    }
    // The kernel resets this when ids change.
    die_with_daemon().map_err(during("die with the daemon"))?;
    restrict().map_err(during("restrict itself"))?;
    Err(("execute the toolbox", execute(&program)))
}

fn die_with_daemon() -> io::Result<()> {
    Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?)
}

fn leave_host(standing: LauncherRights) -> io::Result<()> {
    if standing == LauncherRights::User {
        namespace::enter_user()?;
    }
    namespace::leave_network()
}

fn enter(directory: &OwnedFd) -> io::Result<()> {
    rustix::process::fchdir(directory)?;
    rustix::process::chroot(".")?;
    rustix::process::chdir("/")?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    Ok(rustix::process::setsid().map(drop)?)
}

fn limit() -> io::Result<()> {
    let bounds = [
        (Resource::Nofile, limits::CODEBASE_WORK_DESCRIPTORS),
        (Resource::As, limits::CODEBASE_WORK_MEMORY_BYTES),
        (Resource::Core, 0),
    ];
    for (resource, most) in bounds {
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
    }
    Ok(())
}

/// With another uid than root's, the kernel drops all capabilities.
fn become_user(owner: u32) -> io::Result<()> {
    rustix::thread::set_thread_groups(&[])?;
    let (uid, gid) = (Uid::from_raw(owner), Gid::from_raw(owner));
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    Ok(rustix::thread::set_thread_res_uid(uid, uid, uid)?)
}

fn restrict() -> io::Result<()> {
    rustix::thread::set_no_new_privs(true)?;
    if landlock::available() {
        Ruleset::of_scopes()?.restrict()?;
    }
    seccomp::Filter::new().load()
}

fn execute(program: &OwnedFd) -> io::Error {
    namespace::execute_descriptor(program.as_raw_fd(), c"sandkeep-toolbox")
}
