//! Accounting of storage per owner: bytes that the daemon writes for a tenant outside of the tenant's sandboxes, or
//! while a template is created. A writer reserves bytes first, and returns them when they are deleted.
//!
//! A [`Ledger`] counts the bytes of each organization and each user. A [`Reservation`] is one part of them; the rest of
//! it is returned when it is dropped.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::{Owner, limits};

/// Why bytes cannot be reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Over {
    /// The owner has reached a quota.
    #[error("the {whose} has {used_mb} of its quota of {limit_mb} {what}")]
    Quota { whose: &'static str, what: &'static str, limit_mb: u64, used_mb: u64, asked_mb: u64 },
    /// This reservation has reached its own maximum.
    #[error("no more than {} MiB are kept here", max_bytes / limits::MIB)]
    Bound { max_bytes: u64 },
    /// The rest of the pool is for running sandboxes.
    #[error("{storage} storage is more than {percent} % full")]
    Pool { storage: &'static str, percent: u64 },
    /// The rest of the disk is for the daemon itself.
    #[error("less than {} MiB of the disk are free", reserve_bytes / limits::MIB)]
    Reserve { reserve_bytes: u64 },
}

impl Over {
    /// Whether deleting data of the same owner helps.
    pub fn gives_way(&self) -> bool {
        match self {
            Self::Quota { .. } | Self::Bound { .. } => true,
            // The deleted data may be needed more than the new data.
            Self::Pool { .. } | Self::Reserve { .. } => false,
        }
    }
}

/// Quotas of one organization and one user, in MiB; `None` means no quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shares {
    pub organization_mb: Option<u64>,
    pub user_mb: Option<u64>,
}

/// Checks whether the disk has room for this many more bytes.
type SpaceCheck = Box<dyn Fn(u64) -> Result<(), Over> + Send + Sync>;

/// The reserved bytes, by organization and by user.
pub struct Ledger {
    what: &'static str,
    shares: Shares,
    room: SpaceCheck,
    held: Mutex<HashMap<Account, u64>>,
}

/// An organization, or a user of one.
type Account = (String, Option<String>);

fn accounts(owner: &Owner) -> [Account; 2] {
    let organization = || owner.organization.clone();
    [(organization(), None), (organization(), Some(owner.user.clone()))]
}

impl std::fmt::Debug for Ledger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ledger").field("what", &self.what).finish_non_exhaustive()
    }
}

impl Ledger {
    /// `what` is the name of the quota.
    pub fn new(
        what: &'static str,
        shares: Shares,
        room: impl Fn(u64) -> Result<(), Over> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self { what, shares, room: Box::new(room), held: Mutex::default() })
    }

    /// A ledger without limits.
    pub fn unlimited() -> Arc<Self> {
        Self::new("bytes", Shares::default(), |_| Ok(()))
    }

    /// An empty reservation.
    pub fn open(self: &Arc<Self>, owner: &Owner) -> Reservation {
        self.open_beside(owner, [0, 0])
    }

    /// The same for an owner whose organization and user have this many bytes that are counted elsewhere.
    pub fn open_beside(self: &Arc<Self>, owner: &Owner, beside: [u64; 2]) -> Reservation {
        let (ledger, accounts) = (Arc::clone(self), accounts(owner));
        let (bytes, refused) = (AtomicU64::new(0), OnceLock::new());
        Reservation { ledger, accounts, beside, max_bytes: u64::MAX, bytes, refused }
    }

    fn held(&self) -> MutexGuard<'_, HashMap<Account, u64>> {
        // No code panics between two changes that belong together.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(
        &self,
        accounts: &[Account; 2],
        beside: [u64; 2],
        bytes: u64,
        whole: Whole,
    ) -> Result<(), Over> {
        (self.room)(bytes)?;
        let mut held = self.held();
        let limits = [self.shares.organization_mb, self.shares.user_mb];
        for (place, whose) in ["organization", "user"].into_iter().enumerate() {
            let Some(limit_mb) = limits[place] else { continue };
            let used = held.get(&accounts[place]).copied().unwrap_or(0) + beside[place];
            if used.saturating_add(bytes) > whole.of(limit_mb.saturating_mul(limits::MIB)) {
                let mb = |bytes: u64| bytes.div_ceil(limits::MIB);
                let (used_mb, asked_mb) = (mb(used), mb(bytes));
                return Err(Over::Quota { whose, what: self.what, limit_mb, used_mb, asked_mb });
            }
        }
        add(&mut held, accounts, bytes);
        Ok(())
    }

    fn give(&self, accounts: &[Account; 2], bytes: u64) {
        let mut held = self.held();
        for account in accounts {
            if let Some(sum) = held.get_mut(account) {
                *sum = sum.saturating_sub(bytes);
                if *sum == 0 {
                    held.remove(account);
                }
            }
        }
    }
}

fn add(held: &mut HashMap<Account, u64>, accounts: &[Account; 2], bytes: u64) {
    for account in accounts {
        match held.get_mut(account) {
            Some(sum) => *sum += bytes,
            None => drop(held.insert(account.clone(), bytes)),
        }
    }
}

/// How much of a limit may be used.
#[derive(Clone, Copy)]
enum Whole {
    All,
    ForGrowth,
}

impl Whole {
    fn of(self, limit_bytes: u64) -> u64 {
        match self {
            Self::All => limit_bytes,
            Self::ForGrowth => limit_bytes - limit_bytes / limits::GROWTH_SPARE_SHARE,
        }
    }
}

/// Bytes that one owner has reserved for one purpose.
#[derive(Debug)]
pub struct Reservation {
    ledger: Arc<Ledger>,
    accounts: [Account; 2],
    /// Bytes of the organization and the user that this ledger does not count.
    beside: [u64; 2],
    max_bytes: u64,
    bytes: AtomicU64,
    refused: OnceLock<Over>,
}

impl Reservation {
    /// The same, with a maximum of its own.
    pub fn bounded(mut self, max_bytes: u64) -> Self {
        self.max_bytes = max_bytes;
        self
    }

    /// Its current size.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Reserves this many more bytes, or none.
    pub fn take(&self, bytes: u64) -> Result<(), Over> {
        self.take_of(bytes, Whole::All)
    }

    /// The same for existing data that grows: it leaves a share of the limit for new data.
    pub fn grow(&self, bytes: u64) -> Result<(), Over> {
        self.take_of(bytes, Whole::ForGrowth)
    }

    fn take_of(&self, bytes: u64, whole: Whole) -> Result<(), Over> {
        let max_bytes = self.max_bytes;
        let bound = whole.of(max_bytes);
        let more = |has: u64| has.checked_add(bytes).filter(|sum| *sum <= bound);
        self.bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .map_err(|_| Over::Bound { max_bytes })
            .inspect_err(|over| self.refuse(*over))?;
        let taken = self.ledger.take(&self.accounts, self.beside, bytes, whole);
        if let Err(over) = taken {
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.refuse(over);
        }
        taken
    }

    /// Splits off a reservation with up to this many bytes.
    pub fn split(&self, bytes: u64) -> Self {
        let less = |has: u64| Some(has.saturating_sub(bytes));
        let had = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        let bytes = AtomicU64::new(bytes.min(had.unwrap_or_else(|had| had)));
        let (ledger, accounts) = (Arc::clone(&self.ledger), self.accounts.clone());
        let (beside, max_bytes, refused) = (self.beside, self.max_bytes, OnceLock::new());
        Self { ledger, accounts, beside, max_bytes, bytes, refused }
    }

    /// Records that a writer had to stop for lack of space; the first reason is kept.
    pub fn refuse(&self, over: Over) {
        let _ = self.refused.set(over);
    }

    /// The first reason for which space was refused. It explains a failure better than the resulting error.
    pub fn refused(&self) -> Option<Over> {
        self.refused.get().copied()
    }

    /// Counts existing bytes, regardless of the limits.
    pub fn count(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        add(&mut self.ledger.held(), &self.accounts, bytes);
    }

    /// Returns this many bytes, which were deleted.
    pub fn give(&self, bytes: u64) {
        let less = |has: u64| Some(has.saturating_sub(bytes));
        let had = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        let had = had.unwrap_or_else(|had| had);
        self.ledger.give(&self.accounts, bytes.min(had));
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.give(self.bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARES: Shares = Shares { organization_mb: Some(3), user_mb: Some(2) };

    fn owner(user: &str) -> Owner {
        Owner { user: user.to_owned(), ..Owner::local() }
    }

    #[test]
    fn a_user_and_an_organization_have_their_shares_and_get_them_back() {
        let ledger = Ledger::new("host_mb", SHARES, |_| Ok(()));
        let [ann, bob] = ["ann", "bob"].map(|user| ledger.open(&owner(user)));
        ann.take(2 * limits::MIB).expect("as much as a user may have");
        let over = ann.take(1).expect_err("one byte more");
        assert!(matches!(over, Over::Quota { whose: "user", limit_mb: 2, used_mb: 2, .. }));
        bob.take(limits::MIB).expect("as much as the organization may have");
        let over = bob.take(1).expect_err("one byte more");
        assert!(matches!(over, Over::Quota { whose: "organization", .. }));
        ann.give(1);
        bob.take(1).expect("what another has given back");
        let part = ann.split(limits::MIB);
        assert_eq!((part.bytes(), ann.bytes()), (limits::MIB, limits::MIB - 1));
        drop(ann);
        assert!(bob.take(limits::MIB).is_err(), "a part stays");
        drop(part);
        assert_eq!(ledger.held().len(), 2, "of whom nothing is held nothing is known");
    }

    #[test]
    fn what_was_refused_is_not_counted() {
        let full = Over::Reserve { reserve_bytes: 1 };
        let ledger = Ledger::new(
            "host_mb",
            SHARES,
            move |bytes| if bytes > 10 { Err(full) } else { Ok(()) },
        );
        let bounded = ledger.open(&owner("ann")).bounded(5);
        assert_eq!(bounded.take(11), Err(Over::Bound { max_bytes: 5 }));
        assert_eq!(ledger.open(&owner("ann")).take(11), Err(full));
        bounded.take(5).expect("its own bound");
        assert_eq!(bounded.bytes(), 5);
        bounded.count(limits::MIB * 9);
        drop(bounded);
        assert!(ledger.held().is_empty());
    }
}
