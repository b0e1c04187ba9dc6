//! How much each organization and each user has of everything that is counted. The account is kept
//! under the same lock as the list of sandboxes, so that no two creates can both take the last place;
//! whoever has a place in the list is on the account, however it came there.
//!
//! The account knows what this node has. What the owner has on other nodes, the directory's rows tell: without a
//! counter, by the rank of a row among those of its owner ([`standing`]).

use std::collections::HashMap;

use crate::error::Error;
use crate::policy::{Quota, Quotas};
use crate::records::directory::{FoundRow, Phase, Share, millicpus};
use sandkeep_core::{Owner, Resources};
use sandkeep_store::Revision;

/// The sums that a quota bounds.
#[derive(Debug, Default)]
pub(crate) struct Account {
    quotas: Quotas,
    organizations: HashMap<String, Share>,
    users: HashMap<(String, String), Share>,
}

impl Quotas {
    /// Whether there is anything to count.
    pub(crate) fn count_sandboxes(&self) -> bool {
        counts(&self.organization) || counts(&self.user)
    }
}

/// Whether a quota bounds any sum at all. Without one there is nothing to count.
fn counts(quota: &Quota) -> bool {
    // The others are counted elsewhere: templates in the store, requests as they come.
    let Quota { sandboxes, cpus, memory_mb, disk_mb, .. } = quota;
    sandboxes.is_some() || cpus.is_some() || memory_mb.is_some() || disk_mb.is_some()
}

impl Account {
    pub fn new(quotas: Quotas) -> Self {
        Self { quotas, ..Self::default() }
    }

    /// Adds a sandbox if that leaves everybody within their quotas; otherwise nothing changes.
    pub fn reserve(&mut self, owner: &Owner, resources: &Resources) -> Result<(), Error> {
        let more = Share::of(resources);
        if counts(&self.quotas.organization) {
            let used = self.organizations.get(&owner.organization).copied().unwrap_or_default();
            within(&self.quotas.organization, "organization", used, more)?;
        }
        if counts(&self.quotas.user) {
            let used = self.users.get(&user(owner)).copied().unwrap_or_default();
            within(&self.quotas.user, "user", used, more)?;
        }
        self.add(owner, resources);
        Ok(())
    }

    /// Adds a sandbox that is there, whether or not there may be so much.
    pub fn add(&mut self, owner: &Owner, resources: &Resources) {
        let more = Share::of(resources);
        if counts(&self.quotas.organization) {
            let sum = self.organizations.entry(owner.organization.clone()).or_default();
            *sum = sum.plus(more);
        }
        if counts(&self.quotas.user) {
            let sum = self.users.entry(user(owner)).or_default();
            *sum = sum.plus(more);
        }
    }

    pub fn remove(&mut self, owner: &Owner, resources: &Resources) {
        let less = Share::of(resources);
        if counts(&self.quotas.organization) {
            subtract(&mut self.organizations, &owner.organization, less);
        }
        if counts(&self.quotas.user) {
            subtract(&mut self.users, &user(owner), less);
        }
    }
}

/// A pair, so that no two tenants' strings can be taken for one another's.
fn user(owner: &Owner) -> (String, String) {
    (owner.organization.clone(), owner.user.clone())
}

/// Who has nothing any more is forgotten.
fn subtract<K: std::hash::Hash + Eq>(sums: &mut HashMap<K, Share>, key: &K, less: Share) {
    if let Some(sum) = sums.get_mut(key) {
        *sum = sum.minus(less);
        if *sum == Share::default() {
            sums.remove(key);
        }
    }
}

fn within(quota: &Quota, whose: &'static str, used: Share, more: Share) -> Result<(), Error> {
    let whole = |number: u64| number as f64;
    let thousandths = |number: u64| number as f64 / 1000.0;
    let number = |what, limit, used, more| (what, limit, used, more, whole as fn(u64) -> f64);
    let cpus = quota.cpus.map(millicpus);
    let checks = [
        number("sandboxes", quota.sandboxes, used.sandboxes, more.sandboxes),
        number("memory_mb", quota.memory_mb, used.memory_mb, more.memory_mb),
        number("disk_mb", quota.disk_mb, used.disk_mb, more.disk_mb),
        ("cpus", cpus, used.millicpus, more.millicpus, thousandths),
    ];
    for (what, limit, used, asked, shown) in checks {
        if let Some(limit) = limit
            && used.saturating_add(asked) > limit
        {
            let (limit, used, asked) = (shown(limit), shown(used), shown(asked));
            return Err(Error::QuotaExceeded { whose, what, limit, used, asked });
        }
    }
    Ok(())
}

/// How a sandbox that is being placed stands to its owner's quotas.
pub(crate) enum Standing {
    Within,
    Over(Error),
    /// It is over only if all that are ahead of it are placed, and some are not decided yet.
    Undecided(Error),
}

/// Judges the row `placing` at `revision` by all rows of its organization, listed after it was written.
///
/// Ahead of it are all that are placed, and of those that are being placed the earlier ones. Of any two that are being
/// placed one therefore sees the other, so both cannot take the last place; and whoever was placed although it came
/// later has counted this one, so this one is not refused on its account.
pub(crate) fn standing(
    quotas: &Quotas,
    rows: &[FoundRow],
    owner: &Owner,
    more: Share,
    revision: Revision,
) -> Standing {
    let of_user = |row: &FoundRow| row.owner.as_ref().is_some_and(|of| user(of) == user(owner));
    let (mut all, mut placed) = ([Share::default(); 2], [Share::default(); 2]);
    for row in rows {
        let Some(placement) = &row.placement else { continue };
        let ahead = match placement.phase {
            Phase::Placed => true,
            Phase::Placing => row.revision < revision,
            Phase::Destroying => false,
        };
        for whose in [Some(0), of_user(row).then_some(1)].into_iter().flatten().filter(|_| ahead) {
            all[whose] = all[whose].plus(placement.share);
            if placement.phase == Phase::Placed {
                placed[whose] = placed[whose].plus(placement.share);
            }
        }
    }
    let mut standing = Standing::Within;
    let bounds = [(&quotas.organization, "organization"), (&quotas.user, "user")];
    for (whose, (quota, name)) in bounds.into_iter().enumerate() {
        let Err(refused) = within(quota, name, all[whose], more) else { continue };
        match within(quota, name, placed[whose], more) {
            Ok(()) => standing = Standing::Undecided(refused),
            Err(refused) => return Standing::Over(refused),
        }
    }
    standing
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(organization: &str, user: &str) -> Owner {
        let own = str::to_owned;
        Owner { organization: own(organization), user: own(user), project: own("p") }
    }

    fn resources(cpus: f64) -> Resources {
        Resources { memory_mb: 100, cpus, pids: 9, disk_mb: Some(10), disk_total_mb: None }
    }

    fn quotas() -> Quotas {
        Quotas {
            organization: Quota { memory_mb: Some(400), ..Quota::default() },
            user: Quota { sandboxes: Some(2), cpus: Some(0.3), ..Quota::default() },
        }
    }

    #[test]
    fn each_quota_is_reached_exactly_and_given_back() {
        let mut account = Account::new(quotas());
        let (ann, bob) = (owner("acme", "ann"), owner("acme", "bob"));
        account.reserve(&ann, &resources(0.1)).expect("the first");
        account.reserve(&ann, &resources(0.1)).expect("the second");
        let third = account.reserve(&ann, &resources(0.1)).expect_err("a third");
        let expected = ("user", "sandboxes", 2.0, 2.0);
        let Error::QuotaExceeded { whose, what, limit, used, .. } = third else {
            panic!("{third}")
        };
        assert_eq!((whose, what, limit, used), expected);
        account.remove(&ann, &resources(0.1));
        account.reserve(&ann, &resources(0.2)).expect("exactly 0.3 of 0.3");
        account.reserve(&bob, &resources(0.1)).expect("his own");
        account.reserve(&bob, &resources(0.1)).expect("his own, and the last 100 of 400");
        let over = account.reserve(&owner("acme", "eve"), &resources(0.1)).expect_err("over 400");
        assert!(over.to_string().contains("organization"), "{over}");
        account.reserve(&owner("other", "eve"), &resources(0.1)).expect("another organization");
    }

    #[test]
    fn what_is_refused_is_not_counted_and_nothing_is_left_of_who_left() {
        let mut account = Account::new(quotas());
        let ann = owner("acme", "ann");
        account.reserve(&ann, &resources(0.4)).expect_err("too many processors");
        account.reserve(&ann, &resources(0.3)).expect("nothing was kept");
        account.remove(&ann, &resources(0.3));
        assert!(account.users.is_empty() && account.organizations.is_empty(), "{account:?}");
    }
}
