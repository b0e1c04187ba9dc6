//! Limits connections, so that no client can take all of them from the others.
//!
//! ```text
//!  accepted ──▶ the daemon's own user (local mode) ─────────────────────────▶ known
//!           └─▶ stranger ── a credential or port token is accepted ──▶ known, up to a share of each
//!                  │
//!                  └── too many of one user or address, of all, or no slot left: the oldest stranger is closed
//! ```
//!
//! A stranger never waits for another stranger, and a known client never waits for a stranger: each new connection
//! replaces the oldest stranger. An unauthenticated connection therefore lives long enough to send a credential, and
//! not much longer under load.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use sandkeep_core::limits::{
    CONNECTIONS_EACH_MAX, CONNECTIONS_MAX, STRANGERS_MAX, STRANGERS_OF_ADDRESS_MAX,
    STRANGERS_OF_USER_MAX,
};

/// The source of an unauthenticated connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Another user of this machine; `None` if unknown.
    User(Option<u32>),
    Address(IpAddr),
    /// A Unix socket of a daemon that requires keys.
    Unknown,
}

impl Source {
    /// An IPv6 network counts as one source, because networks are assigned as a whole.
    pub fn address(address: IpAddr) -> Self {
        Self::Address(match address {
            IpAddr::V4(_) => address,
            IpAddr::V6(v6) => {
                let [a, b, c, d, ..] = v6.segments();
                IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
            }
        })
    }

    fn max(self) -> usize {
        match self {
            Self::User(_) => STRANGERS_OF_USER_MAX,
            Self::Address(_) | Self::Unknown => STRANGERS_OF_ADDRESS_MAX,
        }
    }
}

/// All connection slots.
#[derive(Debug)]
pub struct ConnectionSlots {
    all: Arc<Semaphore>,
    book: Mutex<Book>,
}

#[derive(Debug, Default)]
struct Book {
    next: u64,
    /// In order of arrival.
    strangers: BTreeMap<u64, Stranger>,
    /// Authenticated connections, which cannot be displaced.
    known: HashMap<u64, String>,
    counts: HashMap<String, usize>,
}

#[derive(Debug)]
struct Stranger {
    from: Source,
    cut: CancellationToken,
}

/// A connection slot, held until dropped.
#[derive(Debug)]
pub struct ConnectionSlot {
    standing: ConnectionClass,
    _permit: OwnedSemaphorePermit,
}

/// How a connection counts: as a stranger or as known.
#[derive(Clone, Debug)]
pub struct ConnectionClass {
    places: Arc<ConnectionSlots>,
    number: u64,
}

impl ConnectionSlots {
    /// File descriptors are needed for more than connections, so at most half of them are used here.
    pub fn new(descriptors_max: Option<u64>) -> Arc<Self> {
        let half = descriptors_max
            .map_or(usize::MAX, |max| usize::try_from(max / 2).unwrap_or(usize::MAX));
        let all = Arc::new(Semaphore::new(CONNECTIONS_MAX.min(half)));
        Arc::new(Self { all, book: Mutex::default() })
    }

    /// Waits for a free slot; closes a stranger to get one if necessary.
    pub async fn room(&self) -> OwnedSemaphorePermit {
        if self.all.available_permits() == 0 {
            self.cut_oldest();
        }
        let permit = Arc::clone(&self.all).acquire_owned().await;
        permit.expect("the semaphore is never closed")
    }

    /// Closes the oldest stranger, to free a slot or a file descriptor.
    pub fn cut_oldest(&self) {
        self.book().cut_oldest(|_| true);
    }

    /// Takes a slot. `stranger` is `None` for the daemon's own user.
    pub fn enter(
        self: &Arc<Self>,
        permit: OwnedSemaphorePermit,
        stranger: Option<Source>,
        cut: &CancellationToken,
    ) -> ConnectionSlot {
        let mut book = self.book();
        let number = book.next;
        book.next += 1;
        if let Some(from) = stranger {
            book.strangers.insert(number, Stranger { from, cut: cut.clone() });
            book.keep_below_limits(from);
        }
        ConnectionSlot {
            standing: ConnectionClass { places: Arc::clone(self), number },
            _permit: permit,
        }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Book {
    fn keep_below_limits(&mut self, from: Source) {
        if self.strangers.values().filter(|stranger| stranger.from == from).count() > from.max() {
            self.cut_oldest(|stranger| stranger.from == from);
        }
        if self.strangers.len() > STRANGERS_MAX {
            self.cut_oldest(|_| true);
        }
    }

    fn cut_oldest(&mut self, which: impl Fn(&Stranger) -> bool) {
        let oldest = self.strangers.iter().find(|(_, stranger)| which(stranger)).map(|(at, _)| *at);
        if let Some(stranger) = oldest.and_then(|number| self.strangers.remove(&number)) {
            tracing::debug!(from = ?stranger.from, "a connection without credentials is cut off for another");
            stranger.cut.cancel();
        }
    }

    fn leave(&mut self, number: u64) {
        self.strangers.remove(&number);
        let Some(who) = self.known.remove(&number) else { return };
        if let Some(count) = self.counts.get_mut(&who) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&who);
            }
        }
    }
}

impl ConnectionSlot {
    pub fn standing(&self) -> &ConnectionClass {
        &self.standing
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let ConnectionClass { places, number } = &self.standing;
        places.book().leave(*number);
    }
}

impl ConnectionClass {
    /// Marks the connection as authenticated. A client that already holds more than its share stays a stranger with the
    /// rest: still served, but the first to be closed.
    pub fn know(&self, who: impl FnOnce() -> String) {
        let mut book = self.places.book();
        if !book.strangers.contains_key(&self.number) {
            return;
        }
        let who = who();
        let count = book.counts.entry(who.clone()).or_default();
        if *count < CONNECTIONS_EACH_MAX {
            *count += 1;
            book.strangers.remove(&self.number);
            book.known.insert(self.number, who);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Crowd {
        places: Arc<ConnectionSlots>,
        held: Vec<(ConnectionSlot, CancellationToken)>,
    }

    impl Crowd {
        fn new(descriptors_max: u64) -> Self {
            Self { places: ConnectionSlots::new(Some(descriptors_max)), held: Vec::new() }
        }

        async fn enter(&mut self, from: Option<Source>) -> usize {
            let (permit, cut) = (self.places.room().await, CancellationToken::new());
            self.held.push((self.places.enter(permit, from, &cut), cut));
            self.held.len() - 1
        }

        fn is_cut(&self, at: usize) -> bool {
            self.held[at].1.is_cancelled()
        }

        fn cut(&self) -> usize {
            self.held.iter().filter(|(_, cut)| cut.is_cancelled()).count()
        }

        /// Simulates what the server does with closed connections.
        fn sweep(&mut self) {
            self.held.retain(|(_, cut)| !cut.is_cancelled());
        }
    }

    #[tokio::test]
    async fn one_source_takes_places_from_itself_alone() {
        let mut crowd = Crowd::new(1 << 20);
        let other = crowd.enter(Some(Source::User(Some(2)))).await;
        for _ in 0..STRANGERS_OF_USER_MAX + 10 {
            crowd.enter(Some(Source::User(Some(1)))).await;
        }
        assert_eq!(crowd.cut(), 10);
        assert!(!crowd.is_cut(other), "who came first, but from elsewhere, stays");
        assert!(crowd.is_cut(1) && !crowd.is_cut(crowd.held.len() - 1), "the oldest goes");
    }

    #[tokio::test]
    async fn who_has_shown_a_key_stays_however_many_come() {
        let mut crowd = Crowd::new(1 << 20);
        let known = crowd.enter(Some(Source::User(None))).await;
        crowd.held[known].0.standing().know(|| "somebody".to_owned());
        let own = crowd.enter(None).await;
        for at in 0..STRANGERS_MAX + 50 {
            let address = Ipv6Addr::from_bits((at as u128) << 64);
            crowd.enter(Some(Source::address(address.into()))).await;
        }
        assert_eq!(crowd.cut(), 50);
        assert!(!crowd.is_cut(known) && !crowd.is_cut(own));
    }

    #[tokio::test]
    async fn a_full_house_makes_room_for_the_next() {
        let mut crowd = Crowd::new(8);
        for _ in 0..4 {
            crowd.enter(Some(Source::Unknown)).await;
        }
        // The fifth has to wait until the first, which is closed for it, is gone.
        let places = Arc::clone(&crowd.places);
        let next = tokio::spawn(async move { places.room().await });
        while crowd.cut() == 0 {
            tokio::task::yield_now().await;
        }
        assert!(crowd.is_cut(0), "the oldest goes");
        crowd.sweep();
        drop(next.await.expect("it gets a place"));
    }

    #[tokio::test]
    async fn nobody_keeps_more_than_a_share_for_good() {
        let mut crowd = Crowd::new(1 << 20);
        for _ in 0..=CONNECTIONS_EACH_MAX {
            let at = crowd.enter(Some(Source::Unknown)).await;
            crowd.held[at].0.standing().know(|| "greedy".to_owned());
        }
        let book = |crowd: &Crowd| {
            let book = crowd.places.book();
            (book.known.len(), book.strangers.len(), book.counts.len())
        };
        assert_eq!(book(&crowd), (CONNECTIONS_EACH_MAX, 1, 1));
        crowd.held.clear();
        assert_eq!(book(&crowd), (0, 0, 0), "nothing is kept of those who left");
        assert_eq!(crowd.places.all.available_permits(), CONNECTIONS_MAX);
    }
}
