//! The native runtime: namespaces, seccomp and Landlock, set up by our own launcher.
//!
//! A non-root daemon has one id to give, its own, which is `user` inside; root does not exist there.

#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;

use super::grouped::{
    self, GroupedRuntime, Host, HostResources, IdRange, Networks, Parts, Started, Starter, pieces,
    privilege, shm_bytes,
};
use super::{Capabilities, MountSource, Plan, PlannedMount, RuntimeError};
use sandkeep_sys::{
    cgroup::{Controllers, GroupPlacement},
    launcher::{Launch, LaunchError, Launched, Launcher, LauncherRights, Means},
    stage::Stage,
};

/// User namespaces to prepare for the next sandboxes.
const NEXT_ID_BASES: usize = 4;
/// The launcher may die once; twice is no accident.
const LAUNCH_TRIES: usize = 2;

pub struct Native {
    launcher: Arc<Launcher>,
    standing: LauncherRights,
    networks: Networks,
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

impl Native {
    pub const NAME: &str = "native";

    /// Starts the launcher: `launcher` is the command, this program with the arguments that make it one.
    pub async fn runtime(
        host_resources: Arc<HostResources>,
        launcher: Vec<OsString>,
        stage: &Stage,
    ) -> Result<Arc<GroupedRuntime<Self>>, NoLauncher> {
        let launcher = Launcher::start(launcher).await?;
        let standing = LauncherRights::own();
        match standing {
            LauncherRights::Root => {}
            LauncherRights::User => launcher.hello().await.map_err(NoLauncher::Refused)?,
        }
        let networks = Networks::of(standing, stage).await;
        Ok(Arc::new(GroupedRuntime::new(host_resources, Self { launcher, standing, networks })))
    }

    fn failed(what: &'static str) -> impl FnOnce(io::Error) -> RuntimeError {
        move |source| RuntimeError::Io { runtime: Self::NAME, what: what.to_owned(), source }
    }

    async fn launch(
        &self,
        host_resources: &HostResources,
        plan: &Plan,
        ids: Option<&IdRange>,
    ) -> Result<Launched, RuntimeError> {
        let mut tries = 0;
        loop {
            tries += 1;
            let parts = Parts::open(
                Self::NAME,
                host_resources,
                plan,
                GroupPlacement::Beside,
                Host::Connects,
            )?;
            let (launch, fds) = request(host_resources, plan, ids, &parts)
                .map_err(Self::failed("name its root"))?;
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
                    let killed = host_resources.kill(&plan.id, GroupPlacement::Beside).await;
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
        Capabilities { mounts: true, ..grouped::capabilities_of(self.standing, limits) }
    }

    fn networks(&self) -> &Networks {
        &self.networks
    }

    async fn start(
        &self,
        host_resources: &Arc<HostResources>,
        plan: &Plan,
    ) -> Result<Started, RuntimeError> {
        let ids = host_resources.ids_for(Self::NAME, self.standing, plan)?;
        let launched = self.launch(host_resources, plan, ids.as_ref()).await?;
        Ok(Started { pidfd: launched.pidfd, ids })
    }
}

fn request<'a>(
    host_resources: &'a HostResources,
    plan: &Plan,
    ids: Option<&IdRange>,
    parts: &'a Parts,
) -> io::Result<(Launch, Vec<BorrowedFd<'a>>)> {
    let mut fds = parts.before_entry(host_resources);
    fds.extend(parts.entry());
    let means = match (ids, parts.entry_kind) {
        (Some(ids), Some(entry)) => Means::Root {
            id_base: ids.base(),
            entry,
            next_id_bases: host_resources.next_id_bases(NEXT_ID_BASES),
        },
        (None, _) | (_, None) => named(host_resources, plan)?,
    };
    let launch = Launch {
        hostname: plan.id.to_string(),
        privilege: privilege(plan),
        shm_bytes: shm_bytes(plan),
        lifeline: parts.lifeline,
        root: parts.root_kind.clone(),
        bind_targets: parts.bind_targets.clone(),
        attachments: parts.attachments.clone(),
        means,
    };
    Ok((launch, fds))
}

fn named_mount(mount: &PlannedMount) -> io::Result<Vec<u8>> {
    match &mount.source {
        MountSource::Dir(path, _) => Ok(path.as_os_str().as_bytes().to_owned()),
        MountSource::Opened(..) | MountSource::Served(..) => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// A non-root daemon has no mounts to pass: the launcher finds them by path.
fn named(host_resources: &HostResources, plan: &Plan) -> io::Result<Means> {
    let bytes = |path: &Path| path.as_os_str().as_bytes().to_owned();
    let files = plan.stored()?;
    let (_, roots) = pieces(&files.root)?;
    Ok(Means::User {
        roots: roots.into_iter().map(bytes).collect(),
        binds: files.binds.iter().map(|bind| bytes(&bind.source)).collect(),
        attachments: plan.mounts.iter().map(named_mount).collect::<io::Result<_>>()?,
        badge: host_resources.badge(&plan.id),
    })
}
