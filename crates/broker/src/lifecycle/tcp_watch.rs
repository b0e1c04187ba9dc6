//! Ends the sandbox that takes the host's memory for TCP from all others.
//!
//! All network namespaces share that memory, and data in connections that nobody has accepted counts to no control group.
//! So somebody looks: above half of what the host has for TCP, the sandbox with most of it is ended, and its state says
//! why. One that has little is never ended for what others do, be they other daemons or the host itself.
//!
//! Sandboxes are known by their control groups. A container engine has groups of its own, so those of Docker and Podman
//! are not watched; gVisor has its own TCP.

use std::sync::Arc;
use std::time::Duration;

use tracing::{debug, warn};

use crate::error::Error;
use crate::shared::Shared;
use sandkeep_core::{SandboxId, limits};
use sandkeep_sys::tcp::{self, TcpMemory};

/// Who has too much, and how much that is.
struct Culprit {
    id: SandboxId,
    mib: u64,
}

/// Looks until the broker closes.
pub(crate) async fn run(shared: Arc<Shared>) {
    let mut pause = limits::TCP_LOOK_INTERVAL;
    loop {
        tokio::select! {
            () = shared.closing.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
        pause = match look(&shared).await {
            Ok(None) => limits::TCP_LOOK_INTERVAL,
            Ok(Some(culprit)) => end(&shared, culprit).await,
            Err(error) => {
                debug!(%error, "cannot see how much memory TCP uses");
                limits::TCP_SETTLES
            }
        };
    }
}

async fn look(shared: &Arc<Shared>) -> Result<Option<Culprit>, Error> {
    // Two small files, most of the time.
    let full = |memory: TcpMemory| memory.used_pages > memory.max_pages / limits::TCP_SHARE;
    if !TcpMemory::now().is_ok_and(full) {
        return Ok(None);
    }
    shared
        .blocking(|data| {
            let max_bytes = TcpMemory::now()?.max_pages * rustix::param::page_size() as u64;
            let queued = tcp::queued_bytes(data.instance().as_str())?;
            let most = queued.into_iter().max_by_key(|(_, bytes)| *bytes);
            Ok(most.and_then(|(sandbox, bytes)| {
                let much = bytes > max_bytes / limits::TCP_CULPRIT_SHARE;
                let id = sandbox.parse().ok().filter(|_| much)?;
                Some(Culprit { id, mib: bytes / limits::MIB })
            }))
        })
        .await
}

/// Ends it, and says how long it takes until the memory is free.
async fn end(shared: &Arc<Shared>, Culprit { id, mib }: Culprit) -> Duration {
    let Some(handle) = shared.supervised(&id) else { return limits::TCP_SETTLES };
    warn!(%id, mib, "a sandbox is ended: it holds most of the host's memory for TCP");
    handle.ends_because(format!(
        "its TCP connections held {mib} MiB of data that nobody reads, and the host had little left"
    ));
    let runtime = handle.meta().spec.runtime().to_owned();
    let stopped = match shared.runtime(&runtime) {
        Ok(runtime) => runtime.stop(&id, Duration::ZERO).await.map_err(Error::from),
        Err(error) => Err(error),
    };
    if let Err(error) = stopped {
        warn!(%id, %error, "cannot end a sandbox that holds most of the host's memory for TCP");
    }
    limits::TCP_SETTLES
}
