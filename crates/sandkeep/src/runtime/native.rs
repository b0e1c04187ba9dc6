//! The native runtime: namespaces, seccomp and Landlock, made by our own launcher.

#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use async_trait::async_trait;

use super::grouped::{GroupedRuntime, Premises, Started, Starter, open_dir};
use super::{Bind, Capabilities, Lifetime, Plan, RuntimeError};
use crate::home;
use crate::limits;
use crate::sandbox::Privilege;
use crate::storage::Root;
use crate::sys::cgroup::{Controllers, Entry, Place};
use crate::sys::launcher::{self, EntryKind, Launch, LaunchError, Launched, Launcher, Lifeline};
use crate::sys::{mount, socket};

/// What every sandbox calls itself.
const HOSTNAME: &str = "sandbox";
/// Connections that wait while the guest comes up; as many as execs may be started at once.
const BACKLOG: i32 = 1024;
/// User namespaces to have ready for the next sandboxes.
const NEXT_ID_BASES: usize = 4;
/// The launcher may die under us once; twice is no accident.
const LAUNCH_TRIES: usize = 2;

pub struct Native {
    launcher: Arc<Launcher>,
}

/// The descriptors of a launch, open until the launcher has its copies.
struct Descriptors {
    root: OwnedFd,
    listener: OwnedFd,
    binds: Vec<OwnedFd>,
    entry: Vec<OwnedFd>,
    entry_kind: EntryKind,
}

impl Native {
    pub const NAME: &str = "native";

    /// Starts the launcher: `launcher` is how to execute it, this program with the arguments that
    /// make it one.
    pub async fn runtime(
        premises: Arc<Premises>,
        launcher: Vec<OsString>,
    ) -> io::Result<Arc<GroupedRuntime<Self>>> {
        let launcher = Launcher::start(launcher).await?;
        Ok(Arc::new(GroupedRuntime::new(premises, Self { launcher })))
    }

    fn failed(what: &'static str) -> impl FnOnce(io::Error) -> RuntimeError {
        move |source| RuntimeError::Io { runtime: Self::NAME, what: what.to_owned(), source }
    }

    async fn launch(
        &self,
        premises: &Premises,
        plan: &Plan,
        id_base: u32,
    ) -> Result<Launched, RuntimeError> {
        let mut tries = 0;
        loop {
            tries += 1;
            let descriptors = descriptors(premises, plan)?;
            let (launch, fds) = request(premises, plan, id_base, &descriptors);
            match self.launcher.launch(launch, &fds).await {
                Ok(launched) => return Ok(launched),
                Err(LaunchError::Failed { step, source }) => {
                    return Err(RuntimeError::Io { runtime: Self::NAME, what: step, source });
                }
                Err(LaunchError::Died(error)) if tries >= LAUNCH_TRIES => {
                    return Err(Self::failed("have the launcher start it")(error));
                }
                Err(LaunchError::Died(_)) => {
                    // It may have got as far as a running guest; there must be none.
                    let killed = premises.kill(&plan.id, Place::Beside).await;
                    killed.map_err(Self::failed("kill its guest"))?;
                }
            }
        }
    }
}

#[async_trait]
impl Starter for Native {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn capabilities(&self, limits: Controllers) -> Capabilities {
        Capabilities {
            isolation: true,
            own_id_range: true,
            memory_limit: limits.memory,
            cpu_limit: limits.cpu,
            pids_limit: limits.pids,
            pause: true,
            terminals: true,
            shells: true,
            ports: true,
            survives_daemon: true,
        }
    }

    async fn start(&self, premises: &Arc<Premises>, plan: &Plan) -> Result<Started, RuntimeError> {
        let ids = premises.take_ids().map_err(Self::failed("find a free range of ids"))?;
        let launched = self.launch(premises, plan, ids.base()).await?;
        Ok(Started { pidfd: launched.pidfd, ids: Some(ids) })
    }
}

fn descriptors(premises: &Premises, plan: &Plan) -> Result<Descriptors, RuntimeError> {
    let entry = premises.entry(plan, Place::Beside);
    let (entry, entry_kind) = match entry.map_err(Native::failed("open its control groups"))? {
        Entry::V1(tasks) => (tasks, EntryKind::V1),
        Entry::V2(dir) => (vec![dir], EntryKind::V2),
    };
    let Root::Dir(root) = &plan.root;
    let clone = |bind: &Bind| mount::clone_path(&bind.source);
    let binds = plan.binds.iter().map(clone).collect::<io::Result<_>>();
    let listener =
        open_dir(&plan.home).and_then(|home| socket::listen_in(home, home::GUEST_SOCKET, BACKLOG));
    Ok(Descriptors {
        root: mount::clone_path(root).map_err(Native::failed("open its root"))?,
        listener: listener.map_err(Native::failed("listen for its guest"))?,
        binds: binds.map_err(Native::failed("open its template"))?,
        entry,
        entry_kind,
    })
}

fn request<'a>(
    premises: &'a Premises,
    plan: &Plan,
    id_base: u32,
    descriptors: &'a Descriptors,
) -> (Launch, Vec<BorrowedFd<'a>>) {
    let mut fds = vec![descriptors.root.as_fd(), descriptors.listener.as_fd()];
    let lifeline = match plan.lifetime {
        Lifetime::Detached => Lifeline::None,
        Lifetime::WithDaemon => {
            fds.push(premises.lifeline());
            Lifeline::Passed
        }
    };
    fds.extend(descriptors.binds.iter().map(AsFd::as_fd));
    fds.extend(descriptors.entry.iter().map(AsFd::as_fd));
    let target = |bind: &Bind| bind.target.to_string_lossy().into_owned();
    let launch = Launch {
        hostname: HOSTNAME.to_owned(),
        id_base,
        privilege: match plan.privilege {
            Privilege::None => launcher::Privilege::None,
            Privilege::Root => launcher::Privilege::Root,
        },
        shm_bytes: plan.resources.memory_mb * limits::MIB / 2,
        lifeline,
        bind_targets: plan.binds.iter().map(target).collect(),
        entry: descriptors.entry_kind,
        next_id_bases: premises.next_id_bases(NEXT_ID_BASES),
    };
    (launch, fds)
}
