//! What a sandbox is made of, as descriptors: whoever makes it needs no path of the host.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::{Premises, open_dir};
use crate::home;
use crate::limits;
use crate::runtime::{Bind, Lifetime, Plan, RuntimeError};
use crate::sandbox::Privilege;
use crate::storage::Root;
use crate::sys::cgroup::{Entry, Place};
use crate::sys::launcher::{self, EntryKind, Lifeline};
use crate::sys::{mount, socket};

/// What every sandbox calls itself.
pub const HOSTNAME: &str = "sandbox";
/// Connections that wait while the guest comes up; as many as execs may be started at once.
const BACKLOG: i32 = 1024;

/// How the host gets connections to the guest.
pub enum Host {
    Connects,
    /// The guest dials, and shows the token that it reads here.
    IsDialed(OwnedFd),
}

/// The descriptors of a start, open until whoever makes the sandbox has its copies.
pub struct Parts {
    /// The guest's listening socket, or what it reads its token from.
    meeting: OwnedFd,
    /// The root, then the binds.
    mounts: Vec<OwnedFd>,
    entry: Vec<OwnedFd>,
    /// `None` where there are no control groups. Then nobody here may clone mounts either.
    pub entry_kind: Option<EntryKind>,
    pub lifeline: Lifeline,
    /// Where the binds go, relative to the root.
    pub bind_targets: Vec<String>,
}

impl Parts {
    /// Clones root and template as detached mounts, opens the control groups and binds the guest's
    /// socket. Everything but the socket goes with the descriptors.
    pub fn open(
        runtime: &'static str,
        premises: &Premises,
        plan: &Plan,
        place: Place,
        host: Host,
    ) -> Result<Self, RuntimeError> {
        let failed = |what: &'static str| {
            move |source| RuntimeError::Io { runtime, what: what.to_owned(), source }
        };
        let Root::Dir(root) = &plan.root else {
            let what = "start from an image on this storage; use btrfs";
            return Err(RuntimeError::Unsupported { runtime, what });
        };
        let entry = premises.entry(plan, place).map_err(failed("open its control groups"))?;
        let (entry, entry_kind) = match entry {
            Entry::V1(tasks) => (tasks, Some(EntryKind::V1)),
            Entry::V2(dir) => (vec![dir], Some(EntryKind::V2)),
            Entry::None => (Vec::new(), None),
        };
        let sources = [root].into_iter().chain(plan.binds.iter().map(|bind| &bind.source));
        let mounts = match entry_kind {
            Some(_) => sources.map(|path| mount::clone_path(path)).collect::<io::Result<_>>(),
            None => Ok(Vec::new()),
        };
        let meeting = match host {
            Host::Connects => open_dir(&plan.home)
                .and_then(|home| socket::listen_in(home, home::GUEST_SOCKET, BACKLOG)),
            Host::IsDialed(token) => Ok(token),
        };
        let target = |bind: &Bind| bind.target.to_string_lossy().into_owned();
        Ok(Self {
            meeting: meeting.map_err(failed("listen for its guest"))?,
            mounts: mounts.map_err(failed("open its root and template"))?,
            entry,
            entry_kind,
            lifeline: match plan.lifetime {
                Lifetime::Detached => Lifeline::None,
                Lifetime::WithDaemon => Lifeline::Passed,
            },
            bind_targets: plan.binds.iter().map(target).collect(),
        })
    }

    /// The listening socket or the token, the lifeline if there is one, the root and the binds, in this
    /// order.
    pub fn before_entry<'a>(&'a self, premises: &'a Premises) -> Vec<BorrowedFd<'a>> {
        let mut fds = vec![self.meeting.as_fd()];
        match self.lifeline {
            Lifeline::None => {}
            Lifeline::Passed => fds.push(premises.lifeline()),
        }
        fds.extend(self.mounts.iter().map(AsFd::as_fd));
        fds
    }

    /// The way into the control groups, which comes last.
    pub fn entry(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.entry.iter().map(AsFd::as_fd)
    }
}

/// How much fits into /dev/shm. It counts as the sandbox's memory, so it is less than all of that.
pub fn shm_bytes(plan: &Plan) -> u64 {
    plan.resources.memory_mb * limits::MIB / 2
}

pub fn privilege(plan: &Plan) -> launcher::Privilege {
    match plan.privilege {
        Privilege::None => launcher::Privilege::None,
        Privilege::Root => launcher::Privilege::Root,
    }
}
