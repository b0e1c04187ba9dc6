//! The native runtime: namespaces, seccomp and Landlock, made by our own launcher.
//!
//! A daemon that is not root has one id to give, its own, which is `user` inside; nobody is root there.

#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;

use super::grouped::{GroupedRuntime, IdRange, Premises, Started, Starter, open_dir};
use super::{Bind, Capabilities, Lifetime, Plan, RuntimeError};
use crate::home;
use crate::limits;
use crate::sandbox::Privilege;
use crate::storage::Root;
use crate::sys::cgroup::{Controllers, Entry, Place};
use crate::sys::launcher::{
    self, EntryKind, Launch, LaunchError, Launched, Launcher, Lifeline, Means, Standing,
};
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
    standing: Standing,
}

/// Why no sandbox can be launched here.
#[derive(Debug, thiserror::Error)]
pub enum NoLauncher {
    #[error("the launcher does not start: {0}")]
    NotStarted(#[from] io::Error),
    #[error(
        "without root it needs user namespaces, and here it {0}; let users have them (sysctl \
         user.max_user_namespaces, kernel.unprivileged_userns_clone or \
         kernel.apparmor_restrict_unprivileged_userns) or be root"
    )]
    Refused(#[source] LaunchError),
}

/// What a launch needs, its descriptors open until the launcher has its copies.
struct Prepared {
    listener: OwnedFd,
    /// In the order of the means.
    fds: Vec<OwnedFd>,
    means: Means,
}

impl Native {
    pub const NAME: &str = "native";

    /// Starts the launcher: `launcher` is how to execute it, this program with the arguments that
    /// make it one.
    pub async fn runtime(
        premises: Arc<Premises>,
        launcher: Vec<OsString>,
    ) -> Result<Arc<GroupedRuntime<Self>>, NoLauncher> {
        let launcher = Launcher::start(launcher).await?;
        let standing = Standing::own();
        match standing {
            Standing::Root => {}
            Standing::User => launcher.hello().await.map_err(NoLauncher::Refused)?,
        }
        Ok(Arc::new(GroupedRuntime::new(premises, Self { launcher, standing })))
    }

    fn failed(what: &'static str) -> impl FnOnce(io::Error) -> RuntimeError {
        move |source| RuntimeError::Io { runtime: Self::NAME, what: what.to_owned(), source }
    }

    async fn launch(
        &self,
        premises: &Premises,
        plan: &Plan,
        ids: Option<&IdRange>,
    ) -> Result<Launched, RuntimeError> {
        let mut tries = 0;
        loop {
            tries += 1;
            let prepared = prepare(premises, plan, ids)?;
            let (launch, fds) = request(premises, plan, &prepared);
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
            own_id_range: self.standing == Standing::Root,
            any_user: self.standing == Standing::Root,
            memory_limit: limits.memory,
            cpu_limit: limits.cpu,
            pids_limit: limits.pids,
            pause: limits.freezer,
            terminals: true,
            shells: true,
            ports: true,
            survives_daemon: true,
        }
    }

    async fn start(&self, premises: &Arc<Premises>, plan: &Plan) -> Result<Started, RuntimeError> {
        let ids = match (self.standing, plan.privilege) {
            (Standing::Root, _) => {
                Some(premises.take_ids().map_err(Self::failed("find a free range of ids"))?)
            }
            (Standing::User, Privilege::None) => None,
            (Standing::User, Privilege::Root) => {
                let what = "give the privilege of root without having it";
                return Err(RuntimeError::Unsupported { runtime: Self::NAME, what });
            }
        };
        let launched = self.launch(premises, plan, ids.as_ref()).await?;
        Ok(Started { pidfd: launched.pidfd, ids })
    }
}

fn prepare(
    premises: &Premises,
    plan: &Plan,
    ids: Option<&IdRange>,
) -> Result<Prepared, RuntimeError> {
    let listener =
        open_dir(&plan.home).and_then(|home| socket::listen_in(home, home::GUEST_SOCKET, BACKLOG));
    let listener = listener.map_err(Native::failed("listen for its guest"))?;
    let entry = premises.entry(plan, Place::Beside);
    let entry = entry.map_err(Native::failed("open its control groups"))?;
    let (ids, (entry, kind)) = match (ids, entry) {
        (Some(ids), Entry::V1(tasks)) => (ids, (tasks, EntryKind::V1)),
        (Some(ids), Entry::V2(dir)) => (ids, (vec![dir], EntryKind::V2)),
        (None, _) | (_, Entry::None) => {
            return Ok(Prepared { listener, fds: Vec::new(), means: named(premises, plan) });
        }
    };
    let Root::Dir(root) = &plan.root;
    let mut fds = vec![mount::clone_path(root).map_err(Native::failed("open its root"))?];
    for bind in plan.binds.iter() {
        let clone = mount::clone_path(&bind.source);
        fds.push(clone.map_err(Native::failed("open its template"))?);
    }
    fds.extend(entry);
    let next_id_bases = premises.next_id_bases(NEXT_ID_BASES);
    let means = Means::Root { id_base: ids.base(), entry: kind, next_id_bases };
    Ok(Prepared { listener, fds, means })
}

/// Whoever is not root has no mounts to pass: the launcher finds them.
fn named(premises: &Premises, plan: &Plan) -> Means {
    let bytes = |path: &Path| path.as_os_str().as_bytes().to_owned();
    let Root::Dir(root) = &plan.root;
    Means::User {
        root: bytes(root),
        binds: plan.binds.iter().map(|bind| bytes(&bind.source)).collect(),
        badge: premises.badge(&plan.id),
    }
}

fn request<'a>(
    premises: &'a Premises,
    plan: &Plan,
    prepared: &'a Prepared,
) -> (Launch, Vec<BorrowedFd<'a>>) {
    let mut fds = vec![prepared.listener.as_fd()];
    let lifeline = match plan.lifetime {
        Lifetime::Detached => Lifeline::None,
        Lifetime::WithDaemon => {
            fds.push(premises.lifeline());
            Lifeline::Passed
        }
    };
    fds.extend(prepared.fds.iter().map(AsFd::as_fd));
    let target = |bind: &Bind| bind.target.to_string_lossy().into_owned();
    let launch = Launch {
        hostname: HOSTNAME.to_owned(),
        privilege: match plan.privilege {
            Privilege::None => launcher::Privilege::None,
            Privilege::Root => launcher::Privilege::Root,
        },
        shm_bytes: plan.resources.memory_mb * limits::MIB / 2,
        lifeline,
        bind_targets: plan.binds.iter().map(target).collect(),
        means: prepared.means.clone(),
    };
    (launch, fds)
}
