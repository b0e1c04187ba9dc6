//! Long work on the files of sandboxes: so much at once, and so much of it for one user. Each piece holds a thread
//! for as long as the files take, so without a bound one user would leave no threads for the others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::Error;
use sandkeep_core::{Principal, limits};

/// An organization and a user of it.
type User = (String, String);

#[derive(Clone, Default)]
pub(crate) struct Turns(Arc<Mutex<HashMap<User, usize>>>);

/// The right to work, until it is dropped.
pub(crate) struct Turn {
    of: Turns,
    user: User,
}

impl Turns {
    fn all(&self) -> MutexGuard<'_, HashMap<User, usize>> {
        // Nothing panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn begin(&self, who: &Principal) -> Result<Turn, Error> {
        let user = (who.organization.clone(), who.user.clone());
        let mut all = self.all();
        let own = all.get(&user).copied().unwrap_or(0);
        let limit = limits::TREE_WORK_PER_USER_MAX;
        if own >= limit {
            return Err(Error::LimitReached {
                what: "diffs and reverts of one user at once",
                limit,
            });
        }
        let limit = limits::TREE_WORK_AT_ONCE_MAX;
        if all.values().sum::<usize>() >= limit {
            return Err(Error::LimitReached { what: "diffs and reverts at once", limit });
        }
        all.insert(user.clone(), own + 1);
        Ok(Turn { of: self.clone(), user })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut all = self.of.all();
        if let Some(own) = all.get_mut(&self.user) {
            *own -= 1;
            if *own == 0 {
                all.remove(&self.user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str) -> Principal {
        let (organization, user) = ("org".to_owned(), name.to_owned());
        Principal { organization, user, project: None, scopes: [].into_iter().collect() }
    }

    #[test]
    fn one_user_leaves_turns_for_the_others_and_gets_its_own_back() {
        let turns = Turns::default();
        let greedy: Vec<Turn> = std::iter::from_fn(|| turns.begin(&user("greedy")).ok()).collect();
        assert_eq!(greedy.len(), limits::TREE_WORK_PER_USER_MAX);
        let modest = turns.begin(&user("modest")).expect("there are turns left");
        drop(greedy);
        turns.begin(&user("greedy")).map(drop).expect("they are given back");
        drop(modest);
        assert!(turns.all().is_empty(), "nobody is remembered");
        let many = (0..).map_while(|n| turns.begin(&user(&format!("user{n}"))).ok());
        assert_eq!(many.collect::<Vec<_>>().len(), limits::TREE_WORK_AT_ONCE_MAX);
    }
}
