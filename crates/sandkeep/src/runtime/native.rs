//! The native runtime: namespaces, seccomp and Landlock, made by our own launcher.

#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use async_trait::async_trait;

use super::grouped::{
    self, GroupedRuntime, HOSTNAME, Parts, Premises, Started, Starter, privilege, shm_bytes,
};
use super::{Capabilities, Plan, RuntimeError};
use crate::sys::cgroup::{Controllers, Place};
use crate::sys::launcher::{Launch, LaunchError, Launched, Launcher};

/// User namespaces to have ready for the next sandboxes.
const NEXT_ID_BASES: usize = 4;
/// The launcher may die under us once; twice is no accident.
const LAUNCH_TRIES: usize = 2;

pub struct Native {
    launcher: Arc<Launcher>,
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
            let parts = Parts::open(Self::NAME, premises, plan, Place::Beside)?;
            let (launch, fds) = request(premises, plan, id_base, &parts);
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
        grouped::capabilities(limits)
    }

    async fn start(&self, premises: &Arc<Premises>, plan: &Plan) -> Result<Started, RuntimeError> {
        let ids = premises.take_ids().map_err(Self::failed("find a free range of ids"))?;
        let launched = self.launch(premises, plan, ids.base()).await?;
        Ok(Started { pidfd: launched.pidfd, ids: Some(ids) })
    }
}

fn request<'a>(
    premises: &'a Premises,
    plan: &Plan,
    id_base: u32,
    parts: &'a Parts,
) -> (Launch, Vec<BorrowedFd<'a>>) {
    let mut fds = parts.before_entry(premises);
    fds.extend(parts.entry());
    let launch = Launch {
        hostname: HOSTNAME.to_owned(),
        id_base,
        privilege: privilege(plan),
        shm_bytes: shm_bytes(plan),
        lifeline: parts.lifeline,
        bind_targets: parts.bind_targets.clone(),
        entry: parts.entry_kind,
        next_id_bases: premises.next_id_bases(NEXT_ID_BASES),
    };
    (launch, fds)
}
