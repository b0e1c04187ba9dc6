//! Idempotency keys: a create that is repeated under its key returns the sandbox that it created, even if the daemon
//! was killed in between, and never creates a second one.
//!
//! ```text
//!   (none) ──▶ pending ──▶ made         pending: written after the row; its sandbox may never exist
//!     ▲           │          │          made:    written before the answer, concurrently with the outcome
//!     └───────────┴──────────┘
//!       failed     expired
//! ```
//!
//! An entry belongs to one user. `pending` without a sandbox was left by a crash: no caller got an answer, and the next
//! create under the key takes it over. Errors are never kept.

use std::sync::Arc;

use ring::digest::{SHA256, digest};
use ring::hmac;
use serde::Serialize;
use tracing::{debug, warn};

use super::directory::{Directory, RequestPhase, RequestRecord};
use crate::error::Error;
use crate::shared::Shared;
use crate::view::View;
use sandkeep_core::network::SecretValue;
use sandkeep_core::{IdempotencyKey, Owner, SandboxId, SpecDraft, limits};
use sandkeep_home::Secret;
use sandkeep_store::{Key, Revision};

/// A hash of the whole request.
pub(crate) fn fingerprint(asked: &impl Serialize) -> String {
    let asked = serde_json::to_vec(asked).expect("a request holds strings, numbers and maps");
    hex::encode(digest(&SHA256, &asked))
}

/// The draft with a keyed hash in place of each secret's value: nobody who reads a fingerprint may try to guess one.
pub(crate) fn without_values(draft: &SpecDraft, secret: &Secret) -> SpecDraft {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let mut draft = draft.clone();
    for secret in draft.secrets.iter_mut().flat_map(|secrets| secrets.values_mut()) {
        let hash = hmac::sign(&key, secret.value.reveal().as_bytes());
        secret.value = SecretValue::new(hex::encode(hash));
    }
    draft
}

/// The state of a key.
pub(crate) enum Known {
    /// What was created under it, for a repeated request.
    Made(Vec<View>),
    /// Unused.
    Nothing(Vacancy),
}

/// The current state of a key. The caller ensures that no other request with the same key runs meanwhile.
pub(crate) async fn look(
    shared: &Shared,
    key: &IdempotencyKey,
    name: Key,
    fingerprint: String,
    owner: &Owner,
) -> Result<Known, Error> {
    let at = shared.clock.wall();
    let found = shared.directory.request(&name).await?;
    let vacancy = Vacancy {
        key: name,
        fingerprint,
        revision: found.as_ref().map(|found| found.revision),
        at,
    };
    // An unreadable or expired record counts as missing.
    let record = found.and_then(|found| found.record).filter(|record| !record.is_old(at));
    let Some(record) = record else { return Ok(Known::Nothing(vacancy)) };
    if record.fingerprint != vacancy.fingerprint {
        return Err(Error::IdempotencyMismatch { key: key.clone() });
    }
    let mut views = Vec::with_capacity(1 + record.others.len());
    for id in std::iter::once(record.sandbox).chain(record.others) {
        if let Some(handle) = shared.supervised(&id) {
            views.push(handle.view());
            continue;
        }
        if let Some(node) = shared.registry.elsewhere(owner, &id).await? {
            return Err(Error::Elsewhere { id, node });
        }
        match record.phase {
            RequestPhase::Made => return Err(Error::IdempotencyGone { key: key.clone(), id }),
            RequestPhase::Pending => return Ok(Known::Nothing(vacancy)),
        }
    }
    Ok(Known::Made(views))
}

impl RequestRecord {
    /// A record from the future was written before the clock was set back. It must not stay new forever, so a day's
    /// distance in either direction counts.
    pub(super) fn is_old(&self, now: jiff::Timestamp) -> bool {
        now.duration_since(self.at).unsigned_abs() > limits::IDEMPOTENCY_KEPT
    }
}

/// The record of a create in progress; its supervisor writes it.
pub(crate) struct Claim {
    directory: Arc<dyn Directory>,
    name: Key,
    record: RequestRecord,
    revision: Option<Revision>,
}

/// A key that may be taken.
pub(crate) struct Vacancy {
    pub key: Key,
    pub fingerprint: String,
    /// The revision to replace.
    pub revision: Option<Revision>,
    pub at: jiff::Timestamp,
}

impl Vacancy {
    /// Nothing is written yet.
    pub fn claim(self, directory: &Arc<dyn Directory>, sandboxes: Vec<SandboxId>) -> Claim {
        let Self { key: name, fingerprint, revision, at } = self;
        let mut sandboxes = sandboxes.into_iter();
        let sandbox = sandboxes.next().expect("a request makes at least one");
        let others = sandboxes.collect();
        let phase = RequestPhase::Pending;
        let record = RequestRecord { fingerprint, sandbox, others, phase, at, node: None };
        Claim { directory: Arc::clone(directory), name, record, revision }
    }
}

impl Claim {
    /// Called after the row: from now on the key refers to this sandbox. `Fenced`: to another one.
    pub async fn begin(&mut self) -> Result<(), Error> {
        self.revision = Some(self.put().await?);
        Ok(())
    }

    /// Called before the answer. If it cannot be written, the key still refers to the sandbox while that exists.
    pub async fn made(&mut self) {
        self.record.phase = RequestPhase::Made;
        match self.put().await {
            Ok(revision) => self.revision = Some(revision),
            Err(error) => {
                warn!(id = %self.record.sandbox, %error, "cannot settle an idempotency key")
            }
        }
    }

    /// There is no sandbox, and errors are not kept. If the record cannot be removed, the next create under the key
    /// takes it over.
    pub async fn withdraw(&self) {
        let Some(revision) = self.revision else { return };
        if let Err(error) = self.directory.remove_request(&self.name, revision).await {
            debug!(id = %self.record.sandbox, %error, "cannot remove an idempotency key");
        }
    }

    async fn put(&self) -> Result<Revision, Error> {
        Ok(self.directory.put_request(&self.name, &self.record, self.revision).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandkeep_core::network::Network;
    use sandkeep_home::DataDir;

    #[test]
    fn a_key_is_short_and_visible() {
        let longest = "k".repeat(255);
        for good in ["a", "9f8e-!~", &longest] {
            assert!(good.parse::<IdempotencyKey>().is_ok(), "{good} was refused");
        }
        for bad in ["", "a b", "ä", "a\t", "a\0", &format!("{longest}k")] {
            assert!(bad.parse::<IdempotencyKey>().is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn every_part_of_a_request_is_in_its_fingerprint() {
        let owner = Owner::local();
        let plain = fingerprint(&(&owner, SpecDraft::default()));
        assert_eq!(plain, fingerprint(&(&owner, SpecDraft::default())));
        let env = Some([("A".to_owned(), "1".to_owned())].into());
        let drafts = [
            SpecDraft { runtime: Some("mock".to_owned()), ..SpecDraft::default() },
            SpecDraft { env, ..SpecDraft::default() },
            SpecDraft { timeout_secs: Some(1), ..SpecDraft::default() },
            SpecDraft { network: Some(Network::open()), ..SpecDraft::default() },
        ];
        for draft in drafts {
            assert_ne!(plain, fingerprint(&(&owner, &draft)), "{draft:?}");
        }
        let elsewhere = Owner { project: "other".to_owned(), ..owner };
        assert_ne!(plain, fingerprint(&(&elsewhere, SpecDraft::default())));
    }

    #[test]
    fn a_value_is_part_of_a_fingerprint_and_cannot_be_guessed_from_it() {
        let dirs = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
        let [one, other] = dirs.each_ref().map(|dir| DataDir::open(dir.path()).expect("ours"));
        let draft = |value: &str| {
            let secrets = serde_json::json!({ "A": { "hosts": ["a.example"], "value": value } });
            let secrets = serde_json::from_value(secrets).expect("secrets");
            SpecDraft { secrets: Some(secrets), ..SpecDraft::default() }
        };
        let print =
            |value, data: &DataDir| fingerprint(&without_values(&draft(value), data.secret()));
        assert_eq!(print("1", &one), print("1", &one));
        assert_ne!(print("1", &one), print("2", &one));
        assert_ne!(print("1", &one), print("1", &other), "it needs the directory's own secret");
    }
}
