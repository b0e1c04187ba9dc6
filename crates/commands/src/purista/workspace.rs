//! `/workspace`, where commands and relative paths begin. Templates need not have it, so it is made when a sandbox is first
//! used by this daemon. Made twice, it stays as it is.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sandkeep_broker::{Broker, ExecDraft};
use sandkeep_core::limits::{OWN_COMMAND_MAX, SANDBOXES_MAX};
use sandkeep_core::{Principal, SandboxId};

use super::door::{Failed, Fault};
use super::exec::finished;

pub const ROOT: &str = "/workspace";
const PREPARE: &str = "[ -d /workspace ] || mkdir -m 1777 /workspace";

/// Sandboxes that are known to have it.
#[derive(Default)]
pub struct Workspaces {
    prepared: Mutex<HashSet<SandboxId>>,
}

impl Workspaces {
    pub async fn prepare(
        &self,
        broker: &Broker,
        who: &Principal,
        id: &SandboxId,
    ) -> Result<(), Failed> {
        if self.prepared().contains(id) {
            return Ok(());
        }
        let draft = ExecDraft {
            argv: ["/bin/sh", "-c", PREPARE].map(str::to_owned).to_vec(),
            user: Some("0".to_owned()),
            cwd: Some("/".to_owned()),
            timeout: Some(OWN_COMMAND_MAX),
            ..ExecDraft::default()
        };
        if let Err(failed) = finished(broker.exec(who, id, draft).await?).await {
            tracing::warn!(%id, "cannot make {ROOT}: {failed}");
            return Err(Fault::internal().into());
        }
        let mut prepared = self.prepared();
        // Those that were destroyed elsewhere are still in it.
        if prepared.len() >= SANDBOXES_MAX {
            prepared.clear();
        }
        prepared.insert(id.clone());
        Ok(())
    }

    pub fn forget(&self, id: &SandboxId) {
        self.prepared().remove(id);
    }

    fn prepared(&self) -> MutexGuard<'_, HashSet<SandboxId>> {
        // Nothing panics while it holds the lock.
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A path of a caller, who means one beneath the root unless it is absolute.
pub fn absolute(path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("{ROOT}/{path}") }
}
