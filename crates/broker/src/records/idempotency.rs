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

use ring::hmac;
use serde::Serialize;
use tracing::{debug, warn};

use super::directory::{Directory, RequestPhase, RequestRecord};
use crate::error::Error;
use crate::shared::Shared;
use crate::view::View;
use sandkeep_core::{IdempotencyKey, Owner, SandboxId, limits};
use sandkeep_home::Secret;
use sandkeep_store::{Key, Revision};

/// A hash of the whole request. It needs the secret of the data directory: a request may hold secrets, which nobody who
/// reads the hash may try to guess.
pub(crate) fn fingerprint(asked: &impl Serialize, secret: &Secret) -> String {
    let asked = serde_json::to_vec(asked).expect("a request holds strings, numbers and maps");
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    hex::encode(hmac::sign(&key, &asked))
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
    use sandkeep_core::SpecDraft;
    use sandkeep_core::network::Network;

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
        let [one, other] = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
        let open = |dir: &tempfile::TempDir| sandkeep_home::DataDir::open(dir.path());
        let (one, other) = (open(&one).expect("ours"), open(&other).expect("ours"));
        let fingerprint = |asked: &(&Owner, &SpecDraft)| fingerprint(asked, one.secret());
        let owner = Owner::local();
        let empty = SpecDraft::default();
        let plain = fingerprint(&(&owner, &empty));
        assert_eq!(plain, fingerprint(&(&owner, &empty)));
        let env = Some([("A".to_owned(), "1".to_owned())].into());
        let secrets = serde_json::json!({ "A": { "hosts": ["a.example"], "value": "1" } });
        let drafts = [
            SpecDraft { runtime: Some("mock".to_owned()), ..SpecDraft::default() },
            SpecDraft { env, ..SpecDraft::default() },
            SpecDraft { timeout_secs: Some(1), ..SpecDraft::default() },
            SpecDraft { network: Some(Network::open()), ..SpecDraft::default() },
            SpecDraft { secrets: serde_json::from_value(secrets).ok(), ..SpecDraft::default() },
        ];
        for draft in &drafts {
            assert_ne!(plain, fingerprint(&(&owner, draft)), "{draft:?}");
        }
        assert_ne!(plain, super::fingerprint(&(&owner, &empty), other.secret()));
        let elsewhere = Owner { project: "other".to_owned(), ..owner };
        assert_ne!(plain, fingerprint(&(&elsewhere, &empty)));
    }
}
