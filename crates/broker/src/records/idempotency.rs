//! Idempotency keys: a create that is repeated under its key answers with the sandbox that it made,
//! also when the daemon was killed in between, and never makes a second one.
//!
//! ```text
//!   (none) ──▶ pending ──▶ made         pending: written after the row; its sandbox may never come
//!     ▲           │          │          made:    written before the answer, beside the outcome
//!     └───────────┴──────────┘
//!      it failed     too old
//! ```
//!
//! An entry is of one user. `pending` without a sandbox is what a crash left: nobody was answered, and
//! the next create under the key takes it over. Errors are never kept.

use std::sync::Arc;

use ring::digest::{SHA256, digest};
use serde::Serialize;
use tracing::{debug, warn};

use super::directory::{Directory, RequestPhase, RequestRecord};
use crate::error::Error;
use crate::shared::Shared;
use crate::view::View;
use sandkeep_core::{IdempotencyKey, Owner, SandboxId, limits};
use sandkeep_store::{Key, Revision};

/// What was asked for, as a whole.
pub(crate) fn fingerprint(asked: &impl Serialize) -> String {
    let asked = serde_json::to_vec(asked).expect("a request holds strings, numbers and maps");
    hex::encode(digest(&SHA256, &asked))
}

/// What is known of a key.
pub(crate) enum Known {
    /// What was made under it, for whoever asks again.
    Made(Vec<View>),
    /// Nothing that counts.
    Nothing(Vacancy),
}

/// What is known of a key now. The caller sees to it that nobody else asks under the same one meanwhile.
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
    // What cannot be read, or is too old, is as good as none.
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
    /// What comes from the future was written before the clock was set back. It is not new for ever: a
    /// day away is a day away.
    pub(super) fn is_old(&self, now: jiff::Timestamp) -> bool {
        now.duration_since(self.at).unsigned_abs() > limits::IDEMPOTENCY_KEPT
    }
}

/// The record of a create that is under way; its supervisor writes it.
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
    /// In place of what was found there.
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
    /// After the row: from now on the key leads to this sandbox. `Fenced`: to another one.
    pub async fn begin(&mut self) -> Result<(), Error> {
        self.revision = Some(self.put().await?);
        Ok(())
    }

    /// Before the answer. If it cannot be written, the key still leads to the sandbox while that
    /// exists.
    pub async fn made(&mut self) {
        self.record.phase = RequestPhase::Made;
        match self.put().await {
            Ok(revision) => self.revision = Some(revision),
            Err(error) => {
                warn!(id = %self.record.sandbox, %error, "cannot settle an idempotency key")
            }
        }
    }

    /// There is no sandbox, and an error is not kept. What cannot be removed is taken over by the
    /// next create under the key.
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
        ];
        for draft in drafts {
            assert_ne!(plain, fingerprint(&(&owner, &draft)), "{draft:?}");
        }
        let elsewhere = Owner { project: "other".to_owned(), ..owner };
        assert_ne!(plain, fingerprint(&(&elsewhere, SpecDraft::default())));
    }
}
