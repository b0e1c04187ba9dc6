//! Starting a guest, and finding one that runs already.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, PoisonError};

use rustix::fs::{CWD, Mode, OFlags, openat};

use super::NativeRuntime;
use super::leaves::Leaves;
use super::live::Live;
use crate::guest::GuestClient;
use crate::home;
use crate::limits;
use crate::runtime::{Bind, Death, Lifetime, Plan, RuntimeError};
use crate::sandbox::{Privilege, SandboxId};
use crate::storage::Root;
use crate::sys::cgroup::{Entry, Limits};
use crate::sys::launcher::{self, EntryKind, Launch, LaunchError, Launched, Lifeline};
use crate::sys::{mount, pidfd, socket};

/// What every sandbox calls itself.
const HOSTNAME: &str = "sandbox";
/// Connections that wait while the guest comes up; as many as execs may be started at once.
const BACKLOG: i32 = 1024;
/// User namespaces to have ready for the next sandboxes.
const NEXT_ID_BASES: usize = 4;
/// The launcher may die under us once; twice is no accident.
const LAUNCH_TRIES: usize = 2;

/// The descriptors of a launch, open until the launcher has its copies.
struct Descriptors {
    root: OwnedFd,
    listener: OwnedFd,
    binds: Vec<OwnedFd>,
    entry: Vec<OwnedFd>,
    entry_kind: EntryKind,
}

impl NativeRuntime {
    pub(super) fn make_groups(&self, plan: &Plan) -> Result<(), RuntimeError> {
        let resources = &plan.resources;
        let limits = Limits {
            memory_bytes: resources.memory_mb * limits::MIB,
            cpus: resources.cpus,
            pids: resources.pids,
        };
        self.cgroups
            .make(plan.id.as_str(), &limits)
            .map_err(Self::failed("make its control groups"))
    }

    pub(super) async fn start_guest(&self, plan: &Plan) -> Result<(), RuntimeError> {
        if self.live(&plan.id)?.is_some() {
            return Ok(());
        }
        let base = self.take_id_range()?;
        let started = self.launch(plan, base).await;
        if started.is_err() {
            self.id_ranges.lock().unwrap_or_else(PoisonError::into_inner).give_back(base);
        }
        let live =
            self.watch(&plan.id, base, started?.pidfd).map_err(Self::failed("watch its guest"))?;
        let mut all = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(plan.id.clone(), live);
        Ok(())
    }

    fn take_id_range(&self) -> Result<u32, RuntimeError> {
        let mut ranges = self.id_ranges.lock().unwrap_or_else(PoisonError::into_inner);
        ranges.take().ok_or_else(|| {
            Self::failed("find a free range of ids")(io::ErrorKind::QuotaExceeded.into())
        })
    }

    async fn launch(&self, plan: &Plan, base: u32) -> Result<Launched, RuntimeError> {
        let mut tries = 0;
        loop {
            tries += 1;
            let descriptors = self.descriptors(plan)?;
            let (launch, fds) = self.request(plan, base, &descriptors);
            match self.launcher.launch(launch, &fds).await {
                Ok(launched) => return Ok(launched),
                Err(LaunchError::Failed { step, source }) => {
                    return Err(RuntimeError::Io { runtime: Self::NAME, what: step, source });
                }
                Err(LaunchError::Died(error)) => {
                    // It may have got as far as a running guest; there must be none.
                    self.kill(&plan.id).await?;
                    if tries >= LAUNCH_TRIES {
                        return Err(Self::failed("have the launcher start it")(error));
                    }
                }
            }
        }
    }

    fn descriptors(&self, plan: &Plan) -> Result<Descriptors, RuntimeError> {
        let (entry, entry_kind) = match self.entry(plan)? {
            Entry::V1(tasks) => (tasks, EntryKind::V1),
            Entry::V2(dir) => (vec![dir], EntryKind::V2),
        };
        let Root::Dir(root) = &plan.root;
        let clone = |bind: &Bind| mount::clone_path(&bind.source);
        let binds = plan.binds.iter().map(clone).collect::<io::Result<_>>();
        let listener = open_dir(&plan.home)
            .and_then(|home| socket::listen_in(home, home::GUEST_SOCKET, BACKLOG));
        Ok(Descriptors {
            root: mount::clone_path(root).map_err(Self::failed("open its root"))?,
            listener: listener.map_err(Self::failed("listen for its guest"))?,
            binds: binds.map_err(Self::failed("open its template"))?,
            entry,
            entry_kind,
        })
    }

    /// After a reboot, or a crash in the middle of create, the groups are not there.
    fn entry(&self, plan: &Plan) -> Result<Entry, RuntimeError> {
        match self.cgroups.entry(plan.id.as_str()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.make_groups(plan)?;
                self.cgroups.entry(plan.id.as_str())
            }
            opened => opened,
        }
        .map_err(Self::failed("open its control groups"))
    }

    fn request<'a>(
        &'a self,
        plan: &Plan,
        base: u32,
        descriptors: &'a Descriptors,
    ) -> (Launch, Vec<BorrowedFd<'a>>) {
        let mut fds = vec![descriptors.root.as_fd(), descriptors.listener.as_fd()];
        let lifeline = match plan.lifetime {
            Lifetime::Detached => Lifeline::None,
            Lifetime::WithDaemon => {
                fds.push(self.lifeline.as_fd());
                Lifeline::Passed
            }
        };
        fds.extend(descriptors.binds.iter().map(AsFd::as_fd));
        fds.extend(descriptors.entry.iter().map(AsFd::as_fd));
        let ranges = self.id_ranges.lock().unwrap_or_else(PoisonError::into_inner);
        let target = |bind: &Bind| bind.target.to_string_lossy().into_owned();
        let launch = Launch {
            hostname: HOSTNAME.to_owned(),
            id_base: base,
            privilege: match plan.privilege {
                Privilege::None => launcher::Privilege::None,
                Privilege::Root => launcher::Privilege::Root,
            },
            shm_bytes: plan.resources.memory_mb * limits::MIB / 2,
            lifeline,
            bind_targets: plan.binds.iter().map(target).collect(),
            entry: descriptors.entry_kind,
            next_id_bases: ranges.next(NEXT_ID_BASES),
        };
        (launch, fds)
    }

    fn watch(&self, id: &SandboxId, base: u32, pidfd: OwnedFd) -> io::Result<Arc<Live>> {
        let leaves = Leaves::open(Arc::clone(&self.cgroups), id.clone())?;
        let guest = GuestClient::new(open_dir(self.home(id).path())?, leaves)?;
        Ok(Arc::new(Live::new(pidfd, guest, base, Arc::clone(&self.id_ranges))?))
    }

    /// Takes over a guest that an earlier daemon started. `None` if it is gone in the meantime.
    pub(super) fn adopt(&self, id: &SandboxId, pid: u32) -> io::Result<Option<Arc<Live>>> {
        let Ok(pidfd) = pidfd::open(pid) else { return Ok(None) };
        // The pid may have ended and be another's by now: the group tells.
        if self.cgroups.guest_pid(id.as_str())? != Some(pid) {
            return Ok(None);
        }
        let Some(base) = id_base_of(pid)? else { return Ok(None) };
        self.id_ranges.lock().unwrap_or_else(PoisonError::into_inner).adopt(base);
        self.watch(id, base, pidfd).map(Some)
    }

    /// Why a sandbox that does not run does not.
    pub(super) fn last_death(&self, id: &SandboxId) -> Death {
        let all = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = all.get(id).and_then(|live| live.death());
        seen.unwrap_or_else(|| Death { reason: "it is not running".to_owned() })
    }
}

/// The first id of a process's user namespace; `None` if the process is gone. One that has not
/// entered its own namespace yet shows the host's whole map, whose base is no range of ours.
fn id_base_of(pid: u32) -> io::Result<Option<u32>> {
    match std::fs::read_to_string(format!("/proc/{pid}/uid_map")) {
        Ok(map) => Ok(map.split_whitespace().nth(1).and_then(|base| base.parse().ok())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(None),
        Err(error) => Err(error),
    }
}

fn open_dir(path: &std::path::Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(CWD, path, flags, Mode::empty())?)
}
