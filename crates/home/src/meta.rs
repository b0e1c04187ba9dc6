//! `meta.json`: everything needed to adopt a sandbox without its registry row.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::layout::{self, Unread, VERSION};
use sandkeep_core::api::ForkPoint;
use sandkeep_core::{Labels, Moment, Owner, SandboxId, SandboxName, SlotName, Spec, Terms};

/// The progress of the sandbox, as far as its files are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Incomplete; no caller was promised it.
    Creating,
    /// Only a recorded destroy may remove it.
    Ready,
    /// A destroy was requested.
    Destroying,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Meta {
    version: u32,
    pub id: SandboxId,
    /// The data directory it was created in.
    pub instance: String,
    /// The host's boot id at its last start.
    pub boot_id: String,
    pub created_at: jiff::Timestamp,
    pub spec: Spec,
    pub terms: Terms,
    /// The start of its timeout: the creation, the last start or the last keepalive.
    pub began: Moment,
    pub owner: Owner,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<SlotName>,
    /// What it is a fork of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<ForkPoint>,
    /// The name that its owner chose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<SandboxName>,
    /// The name that it is about to get instead. A daemon that finds one gives it back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renaming: Option<SandboxName>,
    pub phase: Phase,
    /// Number of turns.
    pub turn: u64,
}

/// Why a meta.json cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    #[error("meta.json cannot be read: {0}")]
    Io(#[from] io::Error),
    #[error("meta.json is no metadata of a sandbox: {0}")]
    Malformed(#[from] serde_json::Error),
    #[error("meta.json has version {found}; this build knows {VERSION}")]
    Version { found: u32 },
    #[error("meta.json is of {found}")]
    OtherSandbox { found: SandboxId },
    #[error("meta.json is of the data directory {found}")]
    OtherInstance { found: String },
}

impl From<Unread> for Unreadable {
    fn from(unread: Unread) -> Self {
        match unread {
            Unread::Malformed(error) => Self::Malformed(error),
            Unread::Version { found } => Self::Version { found },
        }
    }
}

impl Meta {
    /// The metadata of a new sandbox, with default terms.
    pub fn new(id: SandboxId, labels: Labels, spec: Spec, boot_id: String) -> Self {
        let created_at = jiff::Timestamp::now();
        Self {
            version: VERSION,
            id,
            instance: labels.instance,
            boot_id,
            created_at,
            spec,
            terms: Terms::default(),
            began: Moment::of_wall(created_at),
            owner: labels.owner,
            slot: None,
            forked_from: None,
            name: None,
            renaming: None,
            phase: Phase::Creating,
            turn: 0,
        }
    }

    /// The name that it is shown with: the chosen one, or that derived from its id.
    pub fn shown_name(&self) -> SandboxName {
        self.name.clone().unwrap_or_else(|| SandboxName::derived(&self.id))
    }

    /// What a runtime needs to know of whose it is.
    pub fn labels(&self) -> Labels {
        Labels { instance: self.instance.clone(), owner: self.owner.clone() }
    }

    pub(super) fn read(path: &Path, id: &SandboxId, instance: &str) -> Result<Self, Unreadable> {
        let content = std::fs::read(path)?;
        let meta: Self = layout::read(&content)?;
        if meta.id != *id {
            return Err(Unreadable::OtherSandbox { found: meta.id });
        }
        if meta.instance != instance {
            return Err(Unreadable::OtherInstance { found: meta.instance });
        }
        Ok(meta)
    }

    pub(super) fn content(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("metadata holds only strings, numbers and maps of strings")
    }
}
