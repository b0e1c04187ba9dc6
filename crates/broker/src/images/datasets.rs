//! Templates made of snapshots in the pool of a zfs storage, in datasets that the operator has opened for all
//! (`source_datasets`).

use std::fs::File;
use std::sync::Arc;

use super::opening::{TemplateSource, given as given_file};
use super::{Audience, TemplateDraft};
use crate::Broker;
use crate::error::Error;
use crate::shared::Shared;
use sandkeep_core::{Principal, TemplateName};
use sandkeep_image::source::Given;
use sandkeep_storage::{DatasetSnapshot, ForeignTree};

impl Broker {
    /// Whether the operator has opened any.
    pub fn has_source_datasets(&self) -> bool {
        !self.shared.policy.source_datasets.is_empty()
    }

    /// The caller's template of this snapshot. It has the snapshot's name, and is imported when it is first asked for:
    /// that takes as long as reading the snapshot.
    pub async fn template_of_dataset(
        &self,
        who: &Principal,
        snapshot: &DatasetSnapshot,
    ) -> Result<TemplateName, Error> {
        let name: TemplateName = snapshot.to_string().parse().map_err(|wrong| {
            let problem = format!("{snapshot}: {wrong}");
            Error::InvalidField { field: "template", problem }
        })?;
        match self.template(who, name.as_str(), None).await {
            Err(Error::TemplateNotFound { .. }) => {}
            found => return found.map(|_| name),
        }
        let source = TemplateSource::Dataset(snapshot.clone());
        let audience = Audience::Owner;
        let (project, network) = (None, None);
        let draft = TemplateDraft { name: name.clone(), project, audience, source, network };
        self.import_template(who, draft).await?.done().await?;
        Ok(name)
    }
}

pub async fn open(shared: &Shared, snapshot: &DatasetSnapshot) -> Result<ForeignTree, Error> {
    let open = &shared.policy.source_datasets;
    if !open.iter().any(|dataset| dataset.contains(&snapshot.dataset)) {
        let (path, setting) = (snapshot.to_string(), "source_datasets");
        return Err(Error::SourceForbidden { path, setting });
    }
    Ok(shared.storage.foreign(snapshot).await?)
}

pub fn given(tree: &ForeignTree) -> Result<Given, Error> {
    let unreadable = |error: std::io::Error| Error::SourceInvalid { problem: error.to_string() };
    given_file(File::open(tree.root()).map_err(unreadable)?)
}

/// Returns when nothing of it is left in the pool.
pub async fn release(shared: &Arc<Shared>, tree: ForeignTree) {
    // It ends with the daemon at the latest, and the next one clears up.
    let _ = shared.tasks.spawn_blocking(move || tree.release()).await;
}
