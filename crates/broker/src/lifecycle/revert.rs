//! Having some files of a sandbox be as they were in a snapshot.

use super::diff::inside;
use super::supervisor::LifecycleVerb;
use super::verbs::{RevertWish, Reverted};
use crate::Broker;
use crate::error::Error;
use sandkeep_core::{Principal, SandboxId, SnapshotName, limits};

impl Broker {
    /// Answers with the paths that were not so.
    pub async fn revert(
        &self,
        who: &Principal,
        id: &SandboxId,
        snapshot: &SnapshotName,
        paths: &[String],
    ) -> Result<Vec<String>, Error> {
        let handle = self.shared.find(who, id)?;
        let max = limits::REVERT_PATHS_MAX;
        if paths.is_empty() || paths.len() > max {
            let problem =
                format!("there must be 1 to {max} of them, and there are {}", paths.len());
            return Err(Error::InvalidField { field: "paths", problem });
        }
        let paths: Result<_, Error> = paths.iter().map(|path| inside("paths", path)).collect();
        let reverted = Reverted::default();
        let wish = RevertWish {
            snapshot: handle.snapshot_named(snapshot)?.id.clone(),
            paths: paths?,
            hidden: self.hidden(&handle)?,
            reverted: reverted.clone(),
            woken: false,
        };
        self.ask(&handle, LifecycleVerb::Revert(Box::new(wish))).await?;
        let shown = reverted.take().into_iter().map(|path| match path.is_root() {
            true => "/".to_owned(),
            false => format!("/{}", path.shown()),
        });
        Ok(shown.collect())
    }
}
