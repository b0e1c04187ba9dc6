//! Idempotency keys: a create that is repeated under its key answers with the sandbox that it made,
//! also when the daemon was killed in between, and never makes a second one.
//!
//! ```text
//!   (none) ──▶ pending ──▶ made         pending: written before the row; its sandbox may never come
//!     ▲           │          │          made:    written before the answer, beside the outcome
//!     └───────────┴──────────┘
//!      it failed     too old
//! ```
//!
//! An entry is of one user. `pending` without a sandbox is what a crash left: nobody was answered, and
//! the next create under the key takes it over. Errors are never kept.

use std::sync::Arc;

use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use tracing::{debug, warn};

use super::rows;
use crate::error::Error;
use crate::shared::Shared;
use crate::view::View;
use sandkeep_core::{IdempotencyKey, Principal, SandboxId, limits};
use sandkeep_store::{Entry, Key, Prefix, Revision, StateStore, StoreError};

/// The first segment of every entry's key.
const KEYS: &str = "idempotency";

/// The name of a key in the store: one user's key is never another's.
pub(crate) fn entry_key(key: &IdempotencyKey, who: &Principal) -> Key {
    Key::new([KEYS, &who.organization, &who.user, key.as_str()])
}

/// What the store keeps of a key.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Kept {
    /// Of what was asked for, so that something else under the same key is noticed.
    fingerprint: String,
    sandbox: SandboxId,
    /// The others, of a request that makes several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    others: Vec<SandboxId>,
    phase: Phase,
    at: jiff::Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Phase {
    Pending,
    Made,
}

/// What was asked for, as a whole.
pub(crate) fn fingerprint(asked: &impl Serialize) -> String {
    let asked = serde_json::to_vec(asked).expect("a request holds strings, numbers and maps");
    hex::encode(digest(&SHA256, &asked))
}

/// What is known of a key.
pub(crate) enum Known {
    /// Nothing that counts: a new sandbox may be made, in place of the entry at this revision.
    Nothing(Option<Revision>),
    /// It was asked for something else.
    OtherRequest,
    Sandboxes(Made),
}

/// What was made under a key. It may or may not exist; only if the caller was answered it surely did.
pub(crate) struct Made {
    ids: Vec<SandboxId>,
    answered: Answered,
    revision: Revision,
}

impl Made {
    /// The answer to whoever asks again; or the revision of an entry that a new request takes over.
    pub fn answer(
        self,
        shared: &Shared,
        key: &IdempotencyKey,
    ) -> Result<Result<Vec<View>, Revision>, Error> {
        let mut views = Vec::with_capacity(self.ids.len());
        for id in self.ids {
            match (shared.supervised(&id), self.answered) {
                (Some(handle), _) => views.push(handle.view()),
                (None, Answered::Surely) => {
                    return Err(Error::IdempotencyGone { key: key.clone(), id });
                }
                (None, Answered::Perhaps) => return Ok(Err(self.revision)),
            }
        }
        Ok(Ok(views))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answered {
    Surely,
    Perhaps,
}

#[derive(Clone)]
pub(crate) struct Idempotency {
    store: Arc<dyn StateStore>,
}

impl Idempotency {
    pub fn new(store: Arc<dyn StateStore>) -> Self {
        Self { store }
    }

    pub async fn look(
        &self,
        key: &Key,
        fingerprint: &str,
        now: jiff::Timestamp,
    ) -> Result<Known, StoreError> {
        let Some(Entry { value, revision, .. }) = self.store.get(key).await? else {
            return Ok(Known::Nothing(None));
        };
        // An entry that cannot be read, or is too old, is as good as none.
        let Some(kept) = kept(&value).filter(|kept| !is_old(kept, now)) else {
            return Ok(Known::Nothing(Some(revision)));
        };
        if kept.fingerprint != fingerprint {
            return Ok(Known::OtherRequest);
        }
        let answered = match kept.phase {
            Phase::Made => Answered::Surely,
            Phase::Pending => Answered::Perhaps,
        };
        let ids = std::iter::once(kept.sandbox).chain(kept.others).collect();
        Ok(Known::Sandboxes(Made { ids, answered, revision }))
    }

    /// Removes the entries that are too old, and the oldest of those that are too many.
    pub async fn sweep(&self, now: jiff::Timestamp) -> Result<(), StoreError> {
        let listing = self.store.list(&Prefix::new([KEYS])).await?;
        let dated = |entry: Entry| (kept(&entry.value), entry.key, entry.revision);
        let mut entries: Vec<_> = listing.entries.into_iter().map(dated).collect();
        entries.sort_by_key(|(kept, ..)| std::cmp::Reverse(kept.as_ref().map(|kept| kept.at)));
        for (place, (kept, key, revision)) in entries.into_iter().enumerate() {
            let old = kept.is_none_or(|kept| is_old(&kept, now));
            if old || place >= limits::IDEMPOTENCY_KEYS_MAX {
                // Whoever was faster has made it new.
                match self.store.delete(&key, revision).await {
                    Ok(_) | Err(StoreError::Conflict { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }
}

fn kept(value: &[u8]) -> Option<Kept> {
    serde_json::from_slice(value).ok()
}

/// What comes from the future was written before the clock was set back. It is not new for ever: a
/// day away is a day away.
fn is_old(kept: &Kept, now: jiff::Timestamp) -> bool {
    now.duration_since(kept.at).unsigned_abs() > limits::IDEMPOTENCY_KEPT
}

/// The entry of a create that is under way; its supervisor writes it.
pub(crate) struct Claim {
    store: Arc<dyn StateStore>,
    key: Key,
    kept: Kept,
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
    pub fn claim(self, idempotency: &Idempotency, sandboxes: Vec<SandboxId>) -> Claim {
        let Self { key, fingerprint, revision, at } = self;
        let mut sandboxes = sandboxes.into_iter();
        let sandbox = sandboxes.next().expect("a request makes at least one");
        let others = sandboxes.collect();
        let kept = Kept { fingerprint, sandbox, others, phase: Phase::Pending, at };
        Claim { store: Arc::clone(&idempotency.store), key, kept, revision }
    }
}

impl Claim {
    /// Before the row: from now on the key leads to this sandbox.
    pub async fn begin(&mut self) -> Result<(), Error> {
        self.revision = Some(self.put(self.revision).await?);
        Ok(())
    }

    /// Before the answer. If it cannot be written, the key still leads to the sandbox while that
    /// exists.
    pub async fn made(&mut self) {
        self.kept.phase = Phase::Made;
        match self.put(self.revision).await {
            Ok(revision) => self.revision = Some(revision),
            Err(error) => {
                warn!(id = %self.kept.sandbox, %error, "cannot settle an idempotency key")
            }
        }
    }

    /// There is no sandbox, and an error is not kept. What cannot be removed is taken over by the
    /// next create under the key.
    pub async fn withdraw(&self) {
        let Some(revision) = self.revision else { return };
        if let Err(error) = self.store.delete(&self.key, revision).await {
            debug!(id = %self.kept.sandbox, %error, "cannot remove an idempotency key");
        }
    }

    /// One flight at a time writes a key, so a conflict is an earlier write of our own or the sweep.
    async fn put(&self, known: Option<Revision>) -> Result<Revision, StoreError> {
        let value = serde_json::to_vec(&self.kept).expect("an entry holds only strings");
        rows::put(&*self.store, &self.key, value, known).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandkeep_core::{Owner, SpecDraft};

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
