//! API keys.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{KeyId, Principal, Scope};

/// A key to create.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyDraft {
    pub organization: String,
    pub user: String,
    /// Binds the key to one project.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// `read` and `write` by default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<Scope>,
    /// Description given by the caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// When it expires; never if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Timestamp>,
}

/// Public data of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Key)]
pub struct KeyInfo {
    pub id: KeyId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub organization: String,
    pub user: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    pub scopes: Vec<Scope>,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Timestamp>,
}

impl KeyInfo {
    pub fn has_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|end| end <= now)
    }

    pub fn into_principal(self) -> Principal {
        Principal {
            organization: self.organization,
            user: self.user,
            project: self.project,
            scopes: self.scopes.into_iter().collect(),
        }
    }
}

/// A new key. This is the only time that it is shown.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct NewKey {
    #[serde(flatten)]
    pub info: KeyInfo,
    /// The key itself. It is not stored and cannot be shown again.
    pub key: String,
}
