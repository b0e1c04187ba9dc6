//! The parts of a sandbox as descriptors, so that its creation needs no path of the host.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use super::{HostResources, open_dir};
use crate::{Lifetime, MountSource, Plan, PlannedMount, RuntimeError};
use sandkeep_core::{Privilege, limits};
use sandkeep_sys::{
    cgroup::{Entry, GroupPlacement},
    launcher::{self, Attachment, EntryKind, Lifeline, MountIds, RootKind},
    mount, overlay, socket,
};
use sandkeep_tree::{Bind, Ids, Root};

/// Queued connections while the guest comes up; as many as execs may be started at once.
const BACKLOG: i32 = 1024;

/// How the host gets connections to the guest.
pub enum Host {
    Connects,
    /// The guest dials, and sends the token that it reads here.
    IsDialed(OwnedFd),
}

/// The descriptors of a start, open until the creating process has its copies.
pub struct Parts {
    /// The guest's listening socket, or the pipe with its token.
    meeting: OwnedFd,
    /// The root or its pieces, the binds, then the attachments.
    mounts: Vec<OwnedFd>,
    entry: Vec<OwnedFd>,
    /// `None` without cgroups. In that case cloning mounts is not permitted either.
    pub entry_kind: Option<EntryKind>,
    pub root_kind: RootKind,
    pub lifeline: Lifeline,
    /// Targets of the binds, relative to the root.
    pub bind_targets: Vec<String>,
    pub attachments: Vec<Attachment>,
}

impl Parts {
    /// Clones root and template as detached mounts, opens the cgroups and binds the guest's socket. Everything but the
    /// socket is released with the descriptors.
    pub fn open(
        runtime: &'static str,
        host_resources: &HostResources,
        plan: &Plan,
        place: GroupPlacement,
        host: Host,
    ) -> Result<Self, RuntimeError> {
        let failed = |what: &'static str| {
            move |source| RuntimeError::Io { runtime, what: what.to_owned(), source }
        };
        let entry = host_resources.entry(plan, place).map_err(failed("open its control groups"))?;
        let (entry, entry_kind) = match entry {
            Entry::V1(tasks) => (tasks, Some(EntryKind::V1)),
            Entry::V2(dir) => (vec![dir], Some(EntryKind::V2)),
            Entry::None => (Vec::new(), None),
        };
        let files = plan.stored().map_err(failed("find its volume"))?;
        let (root_kind, roots) = pieces(&files.root).map_err(failed("name its root"))?;
        let binds = files.binds.iter().map(|bind| bind.source.as_path());
        let sources = roots.into_iter().chain(binds);
        let mounts = match entry_kind {
            Some(_) => {
                let trees = plan.mounts.iter().map(|mount| detached(&mount.source));
                sources.map(mount::clone_path).chain(trees).collect::<io::Result<_>>()
            }
            None => Ok(Vec::new()),
        };
        let meeting = match host {
            Host::Connects => open_dir(&plan.home)
                .and_then(|home| socket::listen_in(home, sandkeep_home::GUEST_SOCKET, BACKLOG)),
            Host::IsDialed(token) => Ok(token),
        };
        let target = |bind: &Bind| bind.target.to_string_lossy().into_owned();
        Ok(Self {
            meeting: meeting.map_err(failed("listen for its guest"))?,
            mounts: mounts.map_err(failed("open its root and template"))?,
            entry,
            entry_kind,
            root_kind,
            lifeline: match plan.lifetime {
                Lifetime::Detached => Lifeline::None,
                Lifetime::WithDaemon => Lifeline::Passed,
            },
            bind_targets: files.binds.iter().map(target).collect(),
            attachments: plan.mounts.iter().map(attachment).collect(),
        })
    }

    /// How to enter the cgroups, for a tool that requires them.
    pub fn entry_needed(&self, runtime: &'static str) -> Result<EntryKind, RuntimeError> {
        let what = "work without control groups";
        self.entry_kind.ok_or(RuntimeError::Unsupported { runtime, what })
    }

    /// The listening socket or the token, the lifeline if any, the root, the binds and the attachments, in this order.
    pub fn before_entry<'a>(&'a self, host_resources: &'a HostResources) -> Vec<BorrowedFd<'a>> {
        let mut fds = vec![self.meeting.as_fd()];
        match self.lifeline {
            Lifeline::None => {}
            Lifeline::Passed => fds.push(host_resources.lifeline()),
        }
        fds.extend(self.mounts.iter().map(AsFd::as_fd));
        fds
    }

    /// The descriptors for entering the cgroups, which come last.
    pub fn entry(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.entry.iter().map(AsFd::as_fd)
    }
}

fn detached(source: &MountSource) -> io::Result<OwnedFd> {
    match source {
        MountSource::Dir(path, _) => mount::clone_path(path),
        MountSource::Opened(directory, _) => mount::clone_opened(directory),
        MountSource::Served(mount, _) => mount.try_clone(),
    }
}

fn attachment(mount: &PlannedMount) -> Attachment {
    Attachment {
        target: mount.target.clone(),
        access: mount.access,
        ids: match mount.source {
            MountSource::Dir(_, Ids::Plain)
            | MountSource::Opened(_, Ids::Plain)
            | MountSource::Served(_, Ids::Plain) => MountIds::Mapped,
            MountSource::Dir(_, Ids::Shifted)
            | MountSource::Opened(_, Ids::Shifted)
            | MountSource::Served(_, Ids::Shifted) => MountIds::AsTheyAre,
        },
    }
}

/// The pieces of a root: for an overlay, the directories of the volume and of the layers.
pub fn pieces(root: &Root) -> io::Result<(RootKind, Vec<&Path>)> {
    let strange = || io::Error::other("an overlay's directories are not where they belong");
    let (lowers, upper, work) = match root {
        Root::Dir(path) => return Ok((RootKind::Dir, vec![path])),
        Root::Shifted(path) => return Ok((RootKind::Shifted, vec![path])),
        Root::Overlay { lowers, upper, work } => (lowers, upper, work),
    };
    let volume = upper.parent().filter(|parent| work.parent() == Some(*parent));
    let layers = lowers.first().and_then(|lower| lower.parent());
    let (volume, layers) = volume.zip(layers).ok_or_else(strange)?;
    if lowers.iter().any(|lower| lower.parent() != Some(layers)) {
        return Err(strange());
    }
    let name = |path: &Path| path.file_name()?.to_str().map(str::to_owned);
    let names = overlay::Names {
        lowers: lowers.iter().map(|path| name(path)).collect::<Option<_>>().ok_or_else(strange)?,
        upper: name(upper).ok_or_else(strange)?,
        work: name(work).ok_or_else(strange)?,
    };
    Ok((RootKind::Overlay(names), vec![volume, layers]))
}

/// The size of /dev/shm. It counts as the sandbox's memory, so it is less than that.
pub fn shm_bytes(plan: &Plan) -> u64 {
    plan.resources.memory_mb * limits::MIB / 2
}

pub fn privilege(plan: &Plan) -> launcher::Privilege {
    match plan.privilege {
        Privilege::None => launcher::Privilege::None,
        Privilege::Root => launcher::Privilege::Root,
    }
}
