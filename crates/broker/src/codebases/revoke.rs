//! The end of processes that hold what new rules forbid: with passthrough, the kernel goes on reading and writing files
//! that were opened before.
//!
//! New opens are refused already, so only those who hold a file can pass it on, and they are looked for until none is
//! left.

use std::sync::Arc;

use sandkeep_core::rules::Permission;
use sandkeep_core::{SandboxId, limits};
use sandkeep_sys::holders::{self, Hold, Holder};
use sandkeep_sys::pidfd;

use super::serving::{self, Served};
use crate::error::Error;
use crate::shared::Shared;

/// Kills them; how many there were.
pub(super) async fn kill_holders(shared: &Arc<Shared>, id: &SandboxId) -> Result<u64, Error> {
    let Some(served) = shared.codebases.serving.of(id) else { return Ok(0) };
    let mut killed = 0;
    for _ in 0..limits::REVOKE_ROUNDS_MAX {
        let minor = served.server.connection();
        let found = shared.blocking(move |_| holders::of_file_system(minor)).await?;
        let forbidden = forbidden(&served, found).await?;
        if forbidden.is_empty() {
            return Ok(killed);
        }
        for holder in forbidden {
            pidfd::kill(&holder.pidfd).map_err(|error| failed(&error.to_string()))?;
            // Until it has ended, its files are open.
            let ended = tokio::time::timeout(limits::RULEFS_ENDS, has_ended(&holder)).await;
            ended
                .unwrap_or(Err(std::io::ErrorKind::TimedOut.into()))
                .map_err(|error| failed(&format!("process {}: {error}", holder.pid)))?;
            killed += 1;
        }
    }
    Err(failed("they pass the files on faster than they are ended; stop the sandbox"))
}

fn failed(problem: &str) -> Error {
    let problem = format!(
        "the new rules hold, but processes that have files open that they forbid could not all be ended: {problem}"
    );
    Error::RulesServer { problem }
}

async fn has_ended(holder: &Holder) -> std::io::Result<()> {
    let pidfd = holder.pidfd.try_clone()?;
    drop(sandkeep_sys::reactor::watch(pidfd, tokio::io::Interest::READABLE)?.readable().await?);
    Ok(())
}

/// Those that hold more than the rules allow now.
async fn forbidden(served: &Served, found: Vec<Holder>) -> Result<Vec<Holder>, Error> {
    let mut forbidden = Vec::new();
    for holder in found {
        let inodes: Vec<u64> = holder.held.keys().copied().collect();
        let mut holds_too_much = false;
        for inodes in inodes.chunks(limits::RULEFS_INODES_MAX) {
            let allowed = served.server.permissions(inodes).await.map_err(serving::failed)?;
            holds_too_much |= inodes.iter().zip(allowed).any(|(inode, allowed)| {
                let needed = match holder.held.get(inode) {
                    Some(Hold::Write) => Permission::Write,
                    Some(Hold::Read) | None => Permission::Read,
                };
                allowed < needed
            });
        }
        if holds_too_much {
            forbidden.push(holder);
        }
    }
    Ok(forbidden)
}
