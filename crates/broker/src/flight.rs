//! Single flight: of several callers that want the same thing, one does the work and the others wait. They share its
//! result, which is dropped once nobody waits.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::OwnedMutexGuard;

use sandkeep_store::Key;

type Seats<T> = HashMap<Key, Arc<tokio::sync::Mutex<T>>>;

pub(super) struct Flights<T> {
    seats: Mutex<Seats<T>>,
}

impl<T> Default for Flights<T> {
    fn default() -> Self {
        Self { seats: Mutex::default() }
    }
}

/// The only flight for its key, until it is dropped.
pub(super) struct Flight<'a, T> {
    flights: &'a Flights<T>,
    key: Key,
    /// Taken only during drop.
    seat: Option<OwnedMutexGuard<T>>,
}

impl<T: Default> Flights<T> {
    /// Waits until no other flight with this key is in progress.
    pub async fn join(&self, key: Key) -> Flight<'_, T> {
        let seat = Arc::clone(self.seats().entry(key.clone()).or_default());
        let seat = Some(seat.lock_owned().await);
        Flight { flights: self, key, seat }
    }
}

impl<T> Flights<T> {
    /// The lock is held for one change of the map.
    fn seats(&self) -> MutexGuard<'_, Seats<T>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Drop for Flight<'_, T> {
    fn drop(&mut self) {
        let mut seats = self.flights.seats();
        drop(self.seat.take());
        // A waiting caller also holds the seat, and got it under the lock that is held now.
        if seats.get(&self.key).is_some_and(|seat| Arc::strong_count(seat) == 1) {
            seats.remove(&self.key);
        }
    }
}

impl<T> Deref for Flight<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.seat.as_deref().expect("it is there until the drop")
    }
}

impl<T> DerefMut for Flight<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.seat.as_deref_mut().expect("it is there until the drop")
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn one_goes_the_others_wait_and_nothing_is_left() {
        let flights = Flights::<u32>::default();
        let (a, b) = (Key::new(["a"]), Key::new(["b"]));
        let mut first = flights.join(a.clone()).await;
        assert!(flights.join(b).now_or_never().is_some(), "another key need not wait");
        let mut second = Box::pin(flights.join(a.clone()));
        assert!((&mut second).now_or_never().is_none(), "one at a time");
        let left = flights.join(a.clone()).now_or_never();
        assert!(left.is_none(), "a caller may leave while it waits");
        *first = 7;
        drop(first);
        let second = second.await;
        assert_eq!(*second, 7, "what the first left");
        drop(second);
        assert!(flights.seats().is_empty());
        assert_eq!(*flights.join(a).await, 0, "it is forgotten when nobody waits");
    }
}
