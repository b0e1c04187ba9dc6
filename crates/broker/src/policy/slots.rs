//! Slots for long operations that cost the daemon itself: uploads, imports, builds, diffs. No organization can take all
//! of them: it gets one more only if afterwards at least as many are free as it holds. Alone it gets half, and the next
//! organization half of the rest.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::Error;

pub(crate) struct Slots {
    /// Their purpose, as named in errors.
    what: &'static str,
    total: usize,
    free: Arc<Semaphore>,
    held: Arc<Mutex<HashMap<String, usize>>>,
}

/// A slot, held until dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    organization: String,
    held: Arc<Mutex<HashMap<String, usize>>>,
    _permit: OwnedSemaphorePermit,
}

fn locked(held: &Mutex<HashMap<String, usize>>) -> MutexGuard<'_, HashMap<String, usize>> {
    // No code panics while it holds the lock.
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Slots {
    pub fn new(what: &'static str, total: usize) -> Self {
        Self { what, total, free: Arc::new(Semaphore::new(total)), held: Arc::default() }
    }

    pub fn take(&self, organization: &str) -> Result<Slot, Error> {
        let mut held = locked(&self.held);
        let has = held.get(organization).copied().unwrap_or(0);
        let refused = || Error::LimitReached { what: self.what, limit: has };
        if has >= self.free.available_permits() {
            return Err(refused());
        }
        let permit = Arc::clone(&self.free).try_acquire_owned().map_err(|_| refused())?;
        held.insert(organization.to_owned(), has + 1);
        let organization = organization.to_owned();
        Ok(Slot { organization, held: Arc::clone(&self.held), _permit: permit })
    }

    /// Waits until all are free, and gives out no more.
    pub async fn close(&self) {
        let all = u32::try_from(self.total).unwrap_or(u32::MAX);
        // Fails only if the semaphore is closed, which never happens.
        if let Ok(all) = self.free.acquire_many(all).await {
            all.forget();
        }
    }
}

/// The same rule for things that are kept: whether an organization that has `own` of `all` such things, of which there may
/// be `limit`, may have one more.
pub(crate) fn check_share(
    (what, limit): (&'static str, usize),
    all: usize,
    own: usize,
) -> Result<(), Error> {
    if own < limit.saturating_sub(all) {
        Ok(())
    } else {
        Err(Error::LimitReached { what, limit: own })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut held = locked(&self.held);
        match held.get_mut(&self.organization) {
            Some(has) if *has > 1 => *has -= 1,
            Some(_) | None => drop(held.remove(&self.organization)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_takes_all_it_can_leaves_places_to_others() {
        let slots = Slots::new("builds at once", 8);
        let all =
            |name: &str| -> Vec<Slot> { std::iter::from_fn(|| slots.take(name).ok()).collect() };
        let greedy = all("greedy");
        assert_eq!(greedy.len(), 4);
        assert!(matches!(slots.take("greedy"), Err(Error::LimitReached { limit: 4, .. })));
        let (second, third) = (all("second"), all("third"));
        assert_eq!((second.len(), third.len()), (2, 1));
        assert!(slots.take("fourth").is_ok());
        drop((greedy, second, third));
        assert_eq!(all("greedy").len(), 4, "what was given back can be had again");
        assert!(locked(&slots.held).is_empty());
    }

    #[test]
    fn things_that_are_kept_are_shared_in_the_same_way() {
        let mut all = 0;
        let mut fill = |_name: &str| {
            let more = (0..).take_while(|own| {
                let may = check_share(("webhooks of one organization", 8), all, *own).is_ok();
                all += usize::from(may);
                may
            });
            more.count()
        };
        assert_eq!(["greedy", "second", "third", "fourth"].map(&mut fill), [4, 2, 1, 1]);
        let refused = check_share(("webhooks of one organization", 8), 8, 0);
        assert!(matches!(refused, Err(Error::LimitReached { limit: 0, .. })));
    }
}
