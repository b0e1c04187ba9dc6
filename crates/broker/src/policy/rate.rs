//! Rate limits: a token bucket for each user and each organization. A request takes one token from both. A bucket is
//! refilled at the allowed rate, up to the tokens of one second. Without a rate there are no buckets.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::error::Error;
use crate::policy::Quotas;
use sandkeep_core::{Principal, limits};

#[derive(Debug, Default)]
pub(crate) struct Rates {
    organization: Option<Rate>,
    user: Option<Rate>,
    buckets: Mutex<Buckets>,
}

#[derive(Debug, Default)]
struct Buckets {
    organizations: HashMap<String, Bucket>,
    users: HashMap<(String, String), Bucket>,
}

#[derive(Clone, Copy, Debug)]
struct Rate {
    per_second: f64,
}

/// The tokens at a time since boot.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    tokens: f64,
    at: Duration,
}

impl Rate {
    /// At least one token fits; otherwise a rate below one per second would allow nothing.
    fn size(self) -> f64 {
        self.per_second.max(1.0)
    }

    fn filled(self, bucket: Bucket, now: Duration) -> f64 {
        let passed = now.saturating_sub(bucket.at).as_secs_f64();
        (bucket.tokens + passed * self.per_second).min(self.size())
    }
}

impl Rates {
    pub fn new(quotas: &Quotas) -> Self {
        let rate = |per_second: Option<f64>| per_second.map(|per_second| Rate { per_second });
        Self {
            organization: rate(quotas.organization.requests_per_second),
            user: rate(quotas.user.requests_per_second),
            buckets: Mutex::default(),
        }
    }

    /// Whether any rate is set.
    pub fn are_limited(&self) -> bool {
        self.organization.is_some() || self.user.is_some()
    }

    /// Takes a token for one request. A refused request takes none from either bucket.
    pub fn admit(&self, who: &Principal, now: Duration) -> Result<(), Error> {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let Buckets { organizations, users } = &mut *buckets;
        let user = (who.organization.clone(), who.user.clone());
        let of_organization = look(self.organization, organizations, &who.organization, now);
        let of_user = look(self.user, users, &user, now);
        for (whose, found) in [("organization", of_organization), ("user", of_user)] {
            if let Some((rate, tokens)) = found
                && tokens < 1.0
            {
                let retry_after = Duration::from_secs_f64((1.0 - tokens) / rate.per_second);
                let limit = rate.per_second;
                return Err(Error::RateLimited { whose, limit, retry_after });
            }
        }
        if let Some((_, tokens)) = of_organization {
            let bucket = Bucket { tokens: tokens - 1.0, at: now };
            organizations.insert(who.organization.clone(), bucket);
        }
        if let Some((_, tokens)) = of_user {
            users.insert(user, Bucket { tokens: tokens - 1.0, at: now });
        }
        Ok(())
    }
}

/// The tokens of a caller; a new caller has a full bucket.
fn look<K: Hash + Eq>(
    rate: Option<Rate>,
    buckets: &mut HashMap<K, Bucket>,
    key: &K,
    now: Duration,
) -> Option<(Rate, f64)> {
    let rate = rate?;
    if buckets.len() >= limits::RATE_BUCKETS_MAX {
        // A full bucket is the same as none.
        buckets.retain(|_, bucket| rate.filled(*bucket, now) < rate.size());
    }
    let tokens = buckets.get(key).map_or(rate.size(), |bucket| rate.filled(*bucket, now));
    Some((rate, tokens))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Quota;

    fn rates(organization: Option<f64>, user: Option<f64>) -> Rates {
        let quota = |requests_per_second| Quota { requests_per_second, ..Quota::default() };
        Rates::new(&Quotas { organization: quota(organization), user: quota(user) })
    }

    fn who(user: &str) -> Principal {
        Principal { user: user.to_owned(), ..Principal::local() }
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_burst_of_one_second_is_allowed_and_then_the_rate() {
        let rates = rates(None, Some(2.0));
        let now = ms(1000);
        rates.admit(&who("ann"), now).expect("the first");
        rates.admit(&who("ann"), now).expect("the second");
        let error = rates.admit(&who("ann"), now).expect_err("the third");
        let Error::RateLimited { retry_after, whose, .. } = error else { panic!("{error}") };
        assert_eq!((retry_after, whose), (ms(500), "user"));
        rates.admit(&who("bob"), now).expect("another user");
        rates.admit(&who("ann"), now + ms(500)).expect("when it was told to come back");
        rates.admit(&who("ann"), now + ms(500)).expect_err("not twice");
    }

    #[test]
    fn an_organization_shares_its_rate_and_a_refused_request_costs_nobody() {
        let rates = rates(Some(3.0), Some(2.0));
        let now = ms(1000);
        for _ in 0..2 {
            rates.admit(&who("ann"), now).expect("hers");
        }
        for _ in 0..10 {
            rates.admit(&who("ann"), now).expect_err("she has none left");
        }
        rates.admit(&who("bob"), now).expect("the organization has one left");
        let error = rates.admit(&who("bob"), now).expect_err("now it has none");
        assert!(matches!(error, Error::RateLimited { whose: "organization", .. }), "{error}");
    }

    #[test]
    fn less_than_one_a_second_is_a_rate_too() {
        let rates = rates(None, Some(0.1));
        rates.admit(&who("ann"), ms(0)).expect("one");
        rates.admit(&who("ann"), ms(9_900)).expect_err("too early");
        rates.admit(&who("ann"), ms(10_000)).expect("after ten seconds");
    }

    #[test]
    fn callers_come_and_go_without_end() {
        let rates = rates(None, Some(1.0));
        for n in 0..=limits::RATE_BUCKETS_MAX as u64 {
            rates.admit(&who(&n.to_string()), ms(n * 10)).expect("each once");
        }
        let buckets = rates.buckets.lock().expect("whole");
        assert!(buckets.users.len() < 1000, "{} are remembered", buckets.users.len());
    }
}
