//! The servers of sandboxes whose rules mounts alone cannot keep: a process of crate `rulefs` for each that runs.
//!
//! ```text
//! launch                    server starts ─▶ its detached mount is in the plan ─▶ runtime
//! end of the sandbox        server stopped, however the sandbox ended
//! end of the server         sandbox ended, and its state says why
//! restart of the daemon     server found by its socket, <data>/rules/<id>
//! ```
//!
//! The kernel keeps what a server has told it until the server says otherwise, and a server knows of what passes
//! through it. So a sandbox that is served has its codebase alone, and is told of what the API changes.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::{CWD, Mode as FileMode, OFlags, openat};
use tokio::io::Interest;
use tracing::{debug, warn};

use crate::error::Error;
use crate::shared::Shared;
use sandkeep_core::rules::Rules;
use sandkeep_core::{CodebaseId, SandboxId};
use sandkeep_rulefs::{Ids, Mode, RulefsError, Server, Start};
use sandkeep_runtime::Runtime;
use sandkeep_sys::reactor;

/// This program itself, with the argument that makes it a server.
const PROGRAM: [&str; 2] = ["/proc/self/exe", "rulefs"];
/// Why a sandbox ends whose server did.
pub const LOST: &str = "the server that keeps the rules of its codebase has ended";

/// The servers of running sandboxes.
#[derive(Default)]
pub(super) struct Serving(Mutex<HashMap<SandboxId, Arc<Server>>>);

impl Serving {
    /// Held for a look or one change; nothing panics meanwhile.
    fn all(&self) -> MutexGuard<'_, HashMap<SandboxId, Arc<Server>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, id: &SandboxId) -> Option<Arc<Server>> {
        self.all().remove(id)
    }

    pub fn of(&self, id: &SandboxId) -> Option<Arc<Server>> {
        self.all().get(id).cloned()
    }

    /// Takes out this very server; `false` if it was taken out, or replaced, before.
    fn forget(&self, id: &SandboxId, server: &Arc<Server>) -> bool {
        let mut all = self.all();
        let same = all.get(id).is_some_and(|known| Arc::ptr_eq(known, server));
        if same {
            all.remove(id);
        }
        same
    }
}

/// The directory of the sockets.
async fn sockets(shared: &Arc<Shared>) -> Result<OwnedFd, Error> {
    shared
        .blocking(|data| {
            let path = data.path().join(sandkeep_home::RULES);
            sandkeep_home::make_directory(&path)?;
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            Ok(openat(CWD, path, flags, FileMode::empty())?)
        })
        .await
}

/// Starts the server of a sandbox that is about to be launched; its mount, detached.
pub(super) async fn serve(
    shared: &Arc<Shared>,
    id: &SandboxId,
    tree: &Path,
    rules: &Rules,
) -> Result<OwnedFd, Error> {
    end(shared, id).await?;
    let home = sockets(shared).await?;
    let command = PROGRAM.map(OsString::from);
    let start = Start {
        command: &command,
        tree,
        rules,
        mode: Mode::ZeroMessage,
        ids: Ids::SAME,
        home: home.as_fd(),
        socket: id.as_str(),
    };
    let (server, mount) = Server::start(start).await.map_err(failed)?;
    watch(shared, id, Arc::new(server));
    Ok(mount)
}

/// Finds the server that an earlier daemon started for a sandbox that runs. Without it the sandbox is of no use.
pub(super) async fn adopt(shared: &Arc<Shared>, id: &SandboxId) -> Result<(), Error> {
    let home = sockets(shared).await?;
    match Server::reconnect(home.as_fd(), id.as_str()).await.map_err(failed)? {
        Some(server) => {
            watch(shared, id, Arc::new(server));
            Ok(())
        }
        None => Err(failed(RulefsError::Unreachable(io::Error::other(LOST)))),
    }
}

/// Ends the server of a sandbox, if it has one, whichever daemon started it. The sandbox no longer runs.
pub(crate) async fn end(shared: &Arc<Shared>, id: &SandboxId) -> Result<(), Error> {
    let known = shared.codebases.serving.take(id);
    if let Some(server) = known {
        return server.stop().await.map_err(failed);
    }
    let home = sockets(shared).await?;
    if let Some(server) = Server::reconnect(home.as_fd(), id.as_str()).await.map_err(failed)? {
        server.stop().await.map_err(failed)?;
    }
    match rustix::fs::unlinkat(&home, id.as_str(), rustix::fs::AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(errno) => Err(failed(RulefsError::Stop(errno.into()))),
    }
}

/// Ends the sandbox when its server does.
fn watch(shared: &Arc<Shared>, id: &SandboxId, server: Arc<Server>) {
    shared.codebases.serving.all().insert(id.clone(), Arc::clone(&server));
    let (shared, id) = (Arc::clone(shared), id.clone());
    let tasks = shared.tasks.clone();
    tasks.spawn(async move {
        let watched = server.pidfd().try_clone_to_owned();
        let watched = watched.and_then(|pidfd| reactor::watch(pidfd, Interest::READABLE));
        let Ok(watched) = watched else { return };
        tokio::select! {
            () = shared.closing.cancelled() => return,
            _ = watched.readable() => {}
        }
        // Whoever stops it has taken it out before.
        if !shared.codebases.serving.forget(&id, &server) {
            return;
        }
        let Some(handle) = shared.supervised(&id) else { return };
        warn!(%id, "a sandbox is ended: {LOST}");
        handle.ends_because(LOST.to_owned());
        let runtime = handle.meta().spec.runtime().to_owned();
        let stopped = match shared.runtime(&runtime) {
            Ok(runtime) => {
                Runtime::stop(runtime.as_ref(), &id, Duration::ZERO).await.map_err(Error::from)
            }
            Err(error) => Err(error),
        };
        if let Err(error) = stopped {
            warn!(%id, %error, "cannot end a sandbox whose rules nobody keeps");
        }
    });
}

/// Tells the servers of a codebase that the API has changed something in it. To them it is as with new rules: all names
/// are looked up again.
pub(super) async fn changed(shared: &Arc<Shared>, codebase: &CodebaseId) {
    for id in super::users(shared, codebase) {
        let Some(server) = shared.codebases.serving.of(&id) else { continue };
        let Some(handle) = shared.supervised(&id) else { continue };
        let rules = super::mounting::rules_of(&handle.meta().terms);
        let told = match rules {
            Ok(rules) => server.replace_rules(&rules).await.map(drop).map_err(failed),
            Err(error) => Err(error),
        };
        if let Err(error) = told {
            debug!(%id, %error, "a server was not told of a change");
        }
    }
}

pub(super) fn failed(error: RulefsError) -> Error {
    Error::RulesServer { problem: sandkeep_core::with_causes(&error) }
}
