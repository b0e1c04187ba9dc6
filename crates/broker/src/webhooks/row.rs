//! The row of a webhook in the store.

use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::error::Error;
use crate::records::rows;
use crate::shared::Shared;
use sandkeep_core::event::Kinds;
use sandkeep_core::{Principal, Scope, WebhookId};
use sandkeep_store::{Key, Prefix, StateStore};

const ROWS: &str = "webhooks";
const VERSION: u32 = 1;

/// Everything about a webhook that survives the daemon, but for its position in the log.
#[derive(Clone, Serialize, Deserialize)]
pub struct Row {
    pub(super) version: u32,
    /// The node whose events it delivers.
    pub(super) node: Option<String>,
    pub id: WebhookId,
    pub url: String,
    pub kinds: Kinds,
    pub secret: String,
    /// Who made it: it delivers only what this principal could see.
    pub(super) organization: String,
    pub(super) user: String,
    pub(super) scopes: Vec<Scope>,
    pub project: Option<String>,
    pub created_at: Timestamp,
    pub disabled: Option<String>,
    pub failing_since: Option<Timestamp>,
}

impl Row {
    pub fn new(
        shared: &Shared,
        who: &Principal,
        project: Option<String>,
        url: String,
        kinds: Kinds,
        secret: &str,
    ) -> Self {
        Self {
            version: VERSION,
            node: shared.node(),
            id: WebhookId::random(),
            url,
            kinds,
            secret: secret.to_owned(),
            organization: who.organization.clone(),
            user: who.user.clone(),
            scopes: who.scopes.iter().collect(),
            project,
            created_at: shared.clock.wall(),
            disabled: None,
            failing_since: None,
        }
    }

    /// On whose behalf it delivers.
    pub fn principal(&self) -> Principal {
        Principal {
            organization: self.organization.clone(),
            user: self.user.clone(),
            project: self.project.clone(),
            scopes: self.scopes.iter().copied().collect(),
        }
    }

    pub async fn write(&self, shared: &Shared) -> Result<(), Error> {
        let value = serde_json::to_vec(self).expect("a row holds strings and numbers");
        rows::replace(shared.store.as_ref(), &key(&self.id), value).await?;
        Ok(())
    }
}

fn key(id: &WebhookId) -> Key {
    Key::new([ROWS, id.as_str()])
}

pub async fn remove(shared: &Shared, id: &WebhookId) -> Result<(), Error> {
    Ok(rows::remove(shared.store.as_ref(), &key(id), None).await?)
}

/// Those of this node. A row that cannot be read is no reason to deliver nothing else.
pub async fn all(shared: &Arc<Shared>) -> Result<Vec<Row>, Error> {
    let entries = shared.store.list(&Prefix::new([ROWS])).await?.entries;
    let read = entries.iter().filter_map(|entry| match serde_json::from_slice::<Row>(&entry.value) {
        Ok(row) if row.version == VERSION => Some(row),
        Ok(row) => {
            warn!(version = row.version, id = %row.id, "a webhook was registered by another version of sandkeep");
            None
        }
        Err(error) => {
            warn!(%error, "the row of a webhook cannot be read");
            None
        }
    });
    Ok(read.filter(|row| !shared.is_elsewhere(row.node.as_deref())).collect())
}
