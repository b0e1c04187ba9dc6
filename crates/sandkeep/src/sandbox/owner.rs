//! Who a sandbox belongs to, and who asks.

use serde::{Deserialize, Serialize};

/// The full owner of a sandbox. All three are any strings; nothing may join them without
/// escaping (see `store::Key`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Owner {
    pub organization: String,
    pub user: String,
    pub project: String,
}

impl Owner {
    /// The owner of everything on a machine without keys.
    pub fn local() -> Self {
        Self {
            organization: "local".to_owned(),
            user: "local".to_owned(),
            project: "default".to_owned(),
        }
    }
}

/// Who makes a request, as the front door authenticated it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    pub owner: Owner,
}

impl Principal {
    pub fn local() -> Self {
        Self { owner: Owner::local() }
    }

    /// Another organization's sandbox does not exist for this principal.
    pub fn may_see(&self, owner: &Owner) -> bool {
        self.owner.organization == owner.organization
    }
}
