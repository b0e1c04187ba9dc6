//! The servers of sandboxes whose rules mounts alone cannot keep: a process of crate `rulefs` for each that runs.
//!
//! ```text
//! launch                    server starts ─▶ its detached mount is in the plan ─▶ runtime
//! end of the sandbox        server stopped, however the sandbox ended
//! end of the server         sandbox ended, and its state says why
//! restart of the daemon     server found by its socket, <data>/rules/<id>
//! ```
//!
//! The kernel keeps what a server has told it until the server says otherwise. Servers of one codebase tell each other
//! what they change, and the API tells them; `members` knows who is there.

mod members;

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::{CWD, Mode as FileMode, OFlags, openat};
use tokio::io::Interest;
use tracing::{debug, warn};

use super::refusals;
use crate::error::Error;
use crate::shared::Shared;
use members::{Members, Way};
use sandkeep_core::rules::Rules;
use sandkeep_core::{CodebaseMount, Operation, SandboxId, limits};
use sandkeep_rulefs::{Ids, Mode, RulefsError, Server, Start};
use sandkeep_runtime::Runtime;
use sandkeep_sys::board::Board;
use sandkeep_sys::reactor;

pub(super) use members::{Asks, Decided, Serve, Served};

/// This program itself, with the argument that makes it a server.
const PROGRAM: [&str; 2] = ["/proc/self/exe", "rulefs"];
/// Why a sandbox ends whose server did.
pub const LOST: &str = "the server that keeps the rules of its codebase has ended";

/// How running sandboxes have their codebases.
#[derive(Default)]
pub(super) struct Serving(Mutex<Members>);

impl Serving {
    /// Held for a look or one change; nothing panics meanwhile.
    fn members(&self) -> MutexGuard<'_, Members> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server of a sandbox.
    pub fn of(&self, id: &SandboxId) -> Option<Arc<Served>> {
        match self.members().get(id) {
            Some(Way::Served(served)) => Some(Arc::clone(served)),
            Some(Way::Reads | Way::Writes | Way::Starting(_)) | None => None,
        }
    }

    /// Takes out this very server; `false` if it was taken out, or replaced, before.
    fn forget(&self, id: &SandboxId, server: &Arc<Served>) -> bool {
        let mut members = self.members();
        let same =
            matches!(members.get(id), Some(Way::Served(known)) if Arc::ptr_eq(known, server));
        if same {
            members.remove(id);
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

/// Decides how a sandbox that is about to be launched has its codebase. What it had before is ended.
pub(super) async fn decide(
    shared: &Arc<Shared>,
    id: &SandboxId,
    codebase: &CodebaseMount,
    asks: Asks,
) -> Result<Decided, Error> {
    end(shared, id).await?;
    let decided = shared.codebases.serving.members().decide(
        id,
        &codebase.codebase,
        (asks, shared.policy.codebase_serving),
        Board::create,
    );
    match decided {
        Ok(Ok(decided)) => Ok(decided),
        Ok(Err(error)) => Err(failed(RulefsError::Unreachable(error))),
        Err(members::Exclusive { holder }) => Err(exclusive(codebase, holder)),
    }
}

fn exclusive(codebase: &CodebaseMount, holder: SandboxId) -> Error {
    Error::CodebaseExclusive { name: codebase.name.clone(), holder }
}

/// Starts the server of a sandbox as it was decided; its mount, detached.
pub(super) async fn serve(
    shared: &Arc<Shared>,
    id: &SandboxId,
    codebase: &CodebaseMount,
    (tree, rules): (&Path, &Rules),
    decided: Serve,
) -> Result<OwnedFd, Error> {
    let started = start(shared, id, (tree, rules), &decided).await;
    let board = Arc::clone(&decided.board);
    match started {
        Ok((server, mode, mount)) => {
            watch(shared, id, codebase, Arc::new(Served { server, mode, board }));
            Ok(mount)
        }
        Err(error) => {
            shared.codebases.serving.members().remove(id);
            match decided.holder {
                None => Err(error),
                Some(holder) => {
                    debug!(%id, %error, "no server can be started beside a sandbox that writes");
                    Err(exclusive(codebase, holder))
                }
            }
        }
    }
}

async fn start(
    shared: &Arc<Shared>,
    id: &SandboxId,
    (tree, rules): (&Path, &Rules),
    decided: &Serve,
) -> Result<(Server, Mode, OwnedFd), Error> {
    let home = sockets(shared).await?;
    let command = PROGRAM.map(OsString::from);
    let mut modes = decided.modes.iter().copied().peekable();
    loop {
        let Some(mode) = modes.next() else {
            return Err(failed(RulefsError::Unreachable(io::ErrorKind::Unsupported.into())));
        };
        let start = Start {
            command: &command,
            tree,
            rules,
            mode,
            ids: Ids::SAME,
            board: &decided.board,
            writers: decided.writers,
            home: home.as_fd(),
            socket: id.as_str(),
        };
        match Server::start(start).await {
            Ok((server, mount)) => return Ok((server, mode, mount)),
            Err(error) if modes.peek().is_some() => {
                debug!(%id, %error, "a codebase cannot be served with passthrough here");
            }
            Err(error) => return Err(failed(error)),
        }
    }
}

/// Finds out how a sandbox that runs has its codebase, and finds its server again if it has one. Without it the sandbox
/// is of no use.
pub(super) async fn adopt(
    shared: &Arc<Shared>,
    id: &SandboxId,
    codebase: &CodebaseMount,
    asks: Asks,
) -> Result<(), Error> {
    let home = sockets(shared).await?;
    let server = Server::reconnect(home.as_fd(), id.as_str()).await.map_err(failed)?;
    let Some(server) = server else {
        let found = rustix::fs::statat(&home, id.as_str(), rustix::fs::AtFlags::SYMLINK_NOFOLLOW);
        let way = match asks {
            Asks::Read => Way::Reads,
            Asks::Write => Way::Writes,
            Asks::Server => return Err(failed(RulefsError::Unreachable(io::Error::other(LOST)))),
        };
        // Rules that mounts could keep may have had a server, because others had one.
        if found.is_ok() {
            return Err(failed(RulefsError::Unreachable(io::Error::other(LOST))));
        }
        shared.codebases.serving.members().set(id, &codebase.codebase, way);
        return Ok(());
    };
    let (board, mode) = server.join().await.map_err(failed)?;
    let known = shared.codebases.serving.members().board(&codebase.codebase);
    let board = known.unwrap_or_else(|| Arc::new(board));
    watch(shared, id, codebase, Arc::new(Served { server, mode, board }));
    Ok(())
}

/// Tells what was refused so far. To be called before the processes of a sandbox end, because its server ends with the
/// last of them.
pub(crate) async fn tell_refusals(shared: &Arc<Shared>, id: &SandboxId) {
    let served = match shared.codebases.serving.members().get(id) {
        Some(Way::Served(served)) => Arc::clone(served),
        _ => return,
    };
    refusals::emit(shared, id, &served).await;
}

/// Ends the server of a sandbox, if it has one, whichever daemon started it. The sandbox no longer runs.
pub(crate) async fn end(shared: &Arc<Shared>, id: &SandboxId) -> Result<(), Error> {
    if let Some(handle) = shared.supervised(id) {
        handle.set_served(None);
    }
    let way = shared.codebases.serving.members().remove(id);
    if let Some(Way::Served(served)) = way {
        refusals::emit(shared, id, &served).await;
        let stopped = served.server.stop().await;
        // The others need not ask any more about what it had open.
        sandkeep_rulefs::left(&served.board, served.server.member());
        return stopped.map_err(failed);
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
fn watch(shared: &Arc<Shared>, id: &SandboxId, codebase: &CodebaseMount, served: Arc<Served>) {
    let way = Way::Served(Arc::clone(&served));
    shared.codebases.serving.members().set(id, &codebase.codebase, way);
    if let Some(handle) = shared.supervised(id) {
        handle.set_served(Some(served.by()));
    }
    let (shared, id) = (Arc::clone(shared), id.clone());
    let tasks = shared.tasks.clone();
    tasks.spawn(async move {
        let watched = served.server.pidfd().try_clone_to_owned();
        let watched = watched.and_then(|pidfd| reactor::watch(pidfd, Interest::READABLE));
        let Ok(watched) = watched else { return };
        loop {
            tokio::select! {
                () = shared.closing.cancelled() => return,
                _ = watched.readable() => break,
                () = tokio::time::sleep(limits::REFUSALS_INTERVAL) => {
                    refusals::emit(&shared, &id, &served).await;
                }
            }
        }
        // A server that is stopped on purpose has been taken out before.
        if !shared.codebases.serving.forget(&id, &served) {
            return;
        }
        let Some(handle) = shared.supervised(&id) else { return };
        let under_way = handle.published.borrow().status.operation();
        if matches!(under_way, Some(Operation::Stop | Operation::Rollback | Operation::Destroy)) {
            // It has ended with the last process of the sandbox.
            return;
        }
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
pub(super) async fn changed(shared: &Arc<Shared>, codebase: &sandkeep_core::CodebaseId) {
    let servers = shared.codebases.serving.members().servers(codebase);
    for (id, served) in servers {
        let Some(handle) = shared.supervised(&id) else { continue };
        let rules = super::mounting::rules_of(&handle.meta().terms);
        let told = match rules {
            Ok(rules) => served.server.replace_rules(&rules).await.map(drop).map_err(failed),
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
