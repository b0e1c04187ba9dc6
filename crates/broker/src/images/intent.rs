//! The intent of an import, written before any effect. After a crash it identifies what was left: unused layers, and a
//! frozen sandbox.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use super::collect;
use crate::lifecycle::quiesce;
use crate::records::rows;
use crate::shared::Shared;
use sandkeep_core::{ImportId, SandboxId, TemplateName};
use sandkeep_store::{Key, Prefix, Revision, StateStore, StoreError};

/// The first segment of every intent's key.
const IMPORTS: &str = "template-imports";

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Intent {
    pub name: TemplateName,
    /// The sandbox that becomes a template, and that may be frozen for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxId>,
    /// The node that runs the import; `None` in rows of an earlier version.
    #[serde(default)]
    pub node: Option<String>,
}

/// A written intent.
pub struct Begun {
    key: Key,
    revision: Revision,
}

impl Intent {
    pub async fn write(&self, store: &dyn StateStore, id: &ImportId) -> Result<Begun, StoreError> {
        let key = Key::new([IMPORTS, id.as_str()]);
        let value = serde_json::to_vec(self).expect("an intent holds only strings");
        let revision = rows::put(store, &key, value, None).await?;
        Ok(Begun { key, revision })
    }
}

impl Begun {
    /// The import has ended. If the intent cannot be removed now, the next start removes it.
    pub async fn over(self, store: &dyn StateStore) {
        if let Err(error) = rows::remove(store, &self.key, Some(self.revision)).await {
            warn!(%error, "cannot remove the intent of an import");
        }
    }
}

/// Ends the imports of an earlier daemon and removes unused layers. Runs before any new import can start.
pub async fn sweep(shared: &Arc<Shared>) -> Result<(), StoreError> {
    let store = shared.images.records.store();
    for entry in store.list(&Prefix::new([IMPORTS])).await?.entries {
        let intent = serde_json::from_slice::<Intent>(&entry.value).ok();
        if shared.is_elsewhere(intent.as_ref().and_then(|intent| intent.node.as_deref())) {
            continue;
        }
        if let Some(sandbox) = intent.as_ref().and_then(|intent| intent.sandbox.as_ref()) {
            quiesce::thaw(shared, sandbox).await;
        }
        rows::remove(&**store, &entry.key, Some(entry.revision)).await?;
        let name = intent.map(|intent| intent.name.to_string());
        info!(name, "an import did not come to its end; what it left is removed");
    }
    collect::soon(shared);
    Ok(())
}
