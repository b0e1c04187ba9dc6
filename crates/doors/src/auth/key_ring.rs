//! All API keys, one row each in the state store.
//!
//! Keys are not cached in memory. Every request looks its key up, so that a change by another process on the same store
//! (`sandkeep keys` beside a running daemon) takes effect with the next request.

use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::key::KeyHash;
use super::{ApiKey, AuthError, Latch, with_implied};
use sandkeep_broker::error::Error;
use sandkeep_broker::{Directory, DirectoryError};
use sandkeep_core::{
    KeyId, Principal, Scope,
    limits::{KEYS_MAX, OWNER_MAX_BYTES},
};

pub use sandkeep_core::api::{KeyDraft, KeyInfo, NewKey};

/// The version of a row's layout.
const VERSION: u32 = 1;
/// Scopes of a key that was created without any.
const SCOPES_DEFAULT: [Scope; 2] = [Scope::Read, Scope::Write];

/// A key's row.
#[derive(Serialize, Deserialize)]
struct Row {
    version: u32,
    hash: KeyHash,
    #[serde(flatten)]
    info: KeyInfo,
}

#[derive(Clone)]
pub struct KeyRing {
    directory: Arc<dyn Directory>,
    latch: Arc<Latch>,
}

impl KeyRing {
    pub fn new(directory: Arc<dyn Directory>, latch: Arc<Latch>) -> Self {
        Self { directory, latch }
    }

    pub(super) async fn close_if_used(&self) -> Result<(), Error> {
        if self.directory.api_keys().await?.is_empty() { Ok(()) } else { self.latch.close() }
    }

    /// Creates a key. Keys mode is switched on before the first key is written, so that a crash never leaves a key
    /// behind while the API is still open.
    pub async fn create(&self, draft: KeyDraft) -> Result<NewKey, Error> {
        let key = ApiKey::random();
        let info = check(draft, key.id().clone(), Timestamp::now())?;
        if self.directory.api_keys().await?.len() >= KEYS_MAX {
            return Err(Error::LimitReached { what: "keys", limit: KEYS_MAX });
        }
        self.latch.close()?;
        let row = Row { version: VERSION, hash: key.hash(), info: info.clone() };
        let value = serde_json::to_vec(&row).expect("a row holds only strings and numbers");
        self.directory.add_api_key(key.id(), value).await?;
        Ok(NewKey { info, key: key.reveal().to_owned() })
    }

    /// All keys, the oldest first.
    pub async fn list(&self) -> Result<Vec<KeyInfo>, Error> {
        let rows = self.directory.api_keys().await?;
        let mut keys: Vec<KeyInfo> =
            rows.iter().filter_map(|row| read(row)).map(|row| row.info).collect();
        keys.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        Ok(keys)
    }

    /// Revokes a key; it is refused from the next request on. Returns its metadata, if the row could be read.
    pub async fn revoke(&self, id: &KeyId) -> Result<Option<KeyInfo>, Error> {
        let row = self.row(id).await?;
        if self.directory.remove_api_key(id).await? {
            Ok(row.map(|row| row.info))
        } else {
            Err(Error::KeyNotFound { id: id.clone() })
        }
    }

    pub(super) async fn recognize(&self, key: &ApiKey) -> Result<Principal, AuthError> {
        // The same message for both cases, so that guessing reveals nothing.
        let unknown = || AuthError::refused("there is no such API key; it may have been revoked");
        let row = self.row(key.id()).await?.ok_or_else(unknown)?;
        if !row.hash.matches(key) {
            return Err(unknown());
        }
        if row.info.has_expired(Timestamp::now()) {
            Err(AuthError::refused(format!("the API key {} has expired", key.id())))
        } else {
            Ok(row.info.into_principal())
        }
    }

    pub(super) async fn holds(&self, id: &KeyId) -> bool {
        match self.row(id).await {
            Ok(Some(row)) => !row.info.has_expired(Timestamp::now()),
            Ok(None) => false,
            Err(_) => true,
        }
    }

    pub(super) async fn info(&self, id: &KeyId) -> Result<Option<KeyInfo>, DirectoryError> {
        Ok(self.row(id).await?.map(|row| row.info))
    }

    async fn row(&self, id: &KeyId) -> Result<Option<Row>, DirectoryError> {
        Ok(self.directory.api_key(id).await?.and_then(|row| read(&row)))
    }
}

/// An unreadable row grants nothing, and does not affect other keys.
fn read(row: &[u8]) -> Option<Row> {
    match serde_json::from_slice::<Row>(row) {
        Ok(row) if row.version == VERSION => Some(row),
        Ok(row) => {
            tracing::warn!(version = row.version, "a key was made by another version of sandkeep");
            None
        }
        Err(error) => {
            tracing::warn!(%error, "the row of a key cannot be read");
            None
        }
    }
}

fn check(draft: KeyDraft, id: KeyId, now: Timestamp) -> Result<KeyInfo, Error> {
    let KeyDraft { organization, user, project, scopes, name, expires_at } = draft;
    for (field, value) in [
        ("organization", Some(&organization)),
        ("user", Some(&user)),
        ("project", project.as_ref()),
        ("name", name.as_ref()),
    ] {
        if let Some(problem) = value.and_then(|value| name_problem(value)) {
            return Err(Error::InvalidField { field, problem });
        }
    }
    if expires_at.is_some_and(|end| end <= now) {
        let problem = "is in the past: the key could never be used".to_owned();
        return Err(Error::InvalidField { field: "expires_at", problem });
    }
    let scopes = if scopes.is_empty() { SCOPES_DEFAULT.to_vec() } else { scopes };
    let scopes = with_implied(scopes).iter().collect();
    Ok(KeyInfo { id, name, organization, user, project, scopes, created_at: now, expires_at })
}

/// What is wrong with a part of an owner's name; `None` if it is valid. Any content is allowed; only the length is
/// limited.
pub(super) fn name_problem(value: &str) -> Option<String> {
    match value.len() {
        0 => Some("must not be empty".to_owned()),
        length if length > OWNER_MAX_BYTES => {
            Some(format!("has {length} bytes, more than {OWNER_MAX_BYTES}"))
        }
        _ => None,
    }
}
