//! Quotas of each organization and each user. No sums are stored: a new sandbox writes its row first, and its rank
//! among the rows of its owner decides, on whichever nodes they are ([`standing`]).

use crate::error::Error;
use crate::policy::{Quota, Quotas};
use crate::records::directory::{FoundRow, Phase, Share, millicpus};
use sandkeep_core::Owner;
use sandkeep_store::Revision;

impl Quotas {
    /// Whether any quota on sandboxes is set.
    pub(crate) fn count_sandboxes(&self) -> bool {
        counts(&self.organization) || counts(&self.user)
    }
}

/// Whether a quota limits any sum. Without one there is nothing to count.
fn counts(quota: &Quota) -> bool {
    // The others are counted elsewhere: templates in the store, requests as they arrive.
    let Quota { sandboxes, cpus, memory_mb, disk_mb, .. } = quota;
    sandboxes.is_some() || cpus.is_some() || memory_mb.is_some() || disk_mb.is_some()
}

/// A pair, so that no two tenants' strings can be confused.
fn user(owner: &Owner) -> (String, String) {
    (owner.organization.clone(), owner.user.clone())
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

/// Whether a sandbox that is being placed is within its owner's quotas.
pub(crate) enum QuotaStanding {
    Within,
    Over(Error),
    /// It is over only if all sandboxes ahead of it are placed, and some are still undecided.
    Undecided(Error),
}

/// Judges the row `placing` at `revision` by all rows of its organization, listed after it was written.
///
/// Ahead of it are all placed rows, and the earlier ones of those being placed. Of any two rows being placed one
/// therefore sees the other, so both cannot take the last slot. A row that was placed although it came later has
/// counted this one, so this one is not refused because of it.
pub(crate) fn standing(
    quotas: &Quotas,
    rows: &[FoundRow],
    owner: &Owner,
    more: Share,
    revision: Revision,
) -> QuotaStanding {
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
    let mut standing = QuotaStanding::Within;
    let bounds = [(&quotas.organization, "organization"), (&quotas.user, "user")];
    for (whose, (quota, name)) in bounds.into_iter().enumerate() {
        let Err(refused) = within(quota, name, all[whose], more) else { continue };
        match within(quota, name, placed[whose], more) {
            Ok(()) => standing = QuotaStanding::Undecided(refused),
            Err(refused) => return QuotaStanding::Over(refused),
        }
    }
    standing
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::directory::{Node, Placement};
    use sandkeep_core::SandboxId;

    fn owner(organization: &str, user: &str) -> Owner {
        let own = str::to_owned;
        Owner { organization: own(organization), user: own(user), project: own("p") }
    }

    /// A row of the user at this revision.
    fn row(user: &str, phase: Phase, revision: u64, share: Share) -> FoundRow {
        let placement = Placement {
            phase,
            at: Node { node: "n".to_owned(), epoch: 1 },
            slot: None,
            names: Vec::new(),
            share,
            writer: "w".to_owned(),
        };
        FoundRow {
            id: SandboxId::random(),
            owner: Some(owner("acme", user)),
            revision: Revision(revision),
            placement: Some(placement),
            value: Vec::new(),
        }
    }

    fn share(millicpus: u64) -> Share {
        Share { sandboxes: 1, millicpus, memory_mb: 100, disk_mb: 10 }
    }

    fn quotas() -> Quotas {
        Quotas {
            organization: Quota { memory_mb: Some(400), ..Quota::default() },
            user: Quota { sandboxes: Some(2), cpus: Some(0.3), ..Quota::default() },
        }
    }

    /// The standing of one more row of this user, written after all of these.
    fn one_more(rows: &[FoundRow], user: &str, millicpus: u64) -> QuotaStanding {
        standing(&quotas(), rows, &owner("acme", user), share(millicpus), Revision(100))
    }

    #[test]
    fn each_quota_is_reached_exactly() {
        let placed =
            |user, revision, millicpus| row(user, Phase::Placed, revision, share(millicpus));
        let of_ann = [placed("ann", 1, 100)];
        assert!(matches!(one_more(&of_ann, "ann", 200), QuotaStanding::Within), "0.3 of 0.3");
        assert!(matches!(one_more(&of_ann, "ann", 201), QuotaStanding::Over(_)), "more than 0.3");
        let two = [placed("ann", 1, 100), placed("ann", 2, 100)];
        let QuotaStanding::Over(Error::QuotaExceeded { whose, what, limit, used, .. }) =
            one_more(&two, "ann", 100)
        else {
            panic!("a third is not refused")
        };
        assert_eq!((whose, what, limit, used), ("user", "sandboxes", 2.0, 2.0));
        assert!(matches!(one_more(&two, "bob", 100), QuotaStanding::Within), "another user");
        let four = [1, 2, 3, 4].map(|revision| placed("cho", revision, 0));
        let QuotaStanding::Over(over) = one_more(&four, "eve", 100) else { panic!("over 400 MB") };
        assert!(over.to_string().contains("organization"), "{over}");
    }

    #[test]
    fn what_is_going_does_not_count_and_what_came_later_is_behind() {
        let rows = [
            row("ann", Phase::Placed, 1, share(0)),
            row("ann", Phase::Destroying, 2, share(0)),
            row("ann", Phase::Placing, 101, share(0)),
        ];
        assert!(matches!(one_more(&rows, "ann", 0), QuotaStanding::Within));
    }

    #[test]
    fn who_is_ahead_but_not_decided_is_waited_for() {
        let rows =
            [row("ann", Phase::Placed, 1, share(0)), row("ann", Phase::Placing, 2, share(0))];
        assert!(matches!(one_more(&rows, "ann", 0), QuotaStanding::Undecided(_)));
    }
}
