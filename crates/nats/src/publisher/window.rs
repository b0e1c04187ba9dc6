//! What is on its way, and in which order. Knows nothing of NATS or time.
//!
//! ```text
//!   put ──▶ waiting ──▶ ready ──take──▶ in flight ──acknowledged──▶ gone
//!            behind its    ▲                │
//!            lane          └────again───────┘
//! ```
//!
//! Messages about one sandbox share a lane, and only the first of a lane is in flight. So they arrive in order even if one
//! of them is refused or lost and has to be sent again. Lanes do not wait for each other.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::Hash;

use sandkeep_core::event::EventSeq;

/// A message of a window, in the order in which they were put there.
pub type Ordinal = u64;

pub struct Window<L, M> {
    items: BTreeMap<Ordinal, Item<L, M>>,
    /// All messages of each lane, oldest first.
    lanes: HashMap<L, VecDeque<Ordinal>>,
    ready: BTreeSet<Ordinal>,
    next: Ordinal,
    /// Everything up to this event was put here.
    read: EventSeq,
}

struct Item<L, M> {
    lane: L,
    message: M,
    /// Everything up to this event is before the message.
    before: EventSeq,
}

impl<L: Clone + Eq + Hash, M> Window<L, M> {
    pub fn new(read: EventSeq) -> Self {
        let (items, lanes, ready) = (BTreeMap::new(), HashMap::new(), BTreeSet::new());
        Self { items, lanes, ready, next: 0, read }
    }

    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Adds the messages that one position of the log leads to; there may be none.
    pub fn put(&mut self, position: EventSeq, lane: &L, messages: impl IntoIterator<Item = M>) {
        let before = self.read;
        for message in messages {
            let ordinal = self.next;
            self.next += 1;
            let of_lane = self.lanes.entry(lane.clone()).or_default();
            if of_lane.is_empty() {
                self.ready.insert(ordinal);
            }
            of_lane.push_back(ordinal);
            self.items.insert(ordinal, Item { lane: lane.clone(), message, before });
        }
        self.read = position;
    }

    /// The oldest message that may be sent. It is in flight from now on.
    pub fn take(&mut self) -> Option<(Ordinal, &M)> {
        let ordinal = self.ready.pop_first()?;
        self.items.get(&ordinal).map(|item| (ordinal, &item.message))
    }

    /// The message has arrived; the next one of its lane may be sent. `false` if that was known.
    pub fn acknowledge(&mut self, ordinal: Ordinal) -> bool {
        let is_first = |lane: &VecDeque<Ordinal>| lane.front() == Some(&ordinal);
        let Some(item) = self.items.get(&ordinal) else { return false };
        let Some(lane) = self.lanes.get_mut(&item.lane).filter(|lane| is_first(lane)) else {
            return false;
        };
        lane.pop_front();
        match lane.front() {
            Some(next) => {
                self.ready.insert(*next);
            }
            None => {
                self.lanes.remove(&item.lane);
            }
        }
        self.ready.remove(&ordinal);
        self.items.remove(&ordinal);
        true
    }

    /// The message must be sent again, unless it has arrived meanwhile.
    pub fn again(&mut self, ordinal: Ordinal) {
        if self.items.contains_key(&ordinal) {
            self.ready.insert(ordinal);
        }
    }

    /// Everything that is in flight must be sent again.
    pub fn all_again(&mut self) {
        self.ready.extend(self.lanes.values().filter_map(|lane| lane.front()));
    }

    /// Everything up to this event has arrived.
    pub fn arrived(&self) -> EventSeq {
        self.items.first_key_value().map_or(self.read, |(_, item)| item.before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(events: &[(u64, &'static str)]) -> Window<&'static str, u64> {
        let mut window = Window::new(EventSeq::START);
        for (seq, lane) in events {
            window.put(EventSeq::new(*seq), lane, [*seq]);
        }
        window
    }

    fn taken(window: &mut Window<&'static str, u64>) -> Vec<u64> {
        std::iter::from_fn(|| window.take().map(|(_, message)| *message)).collect()
    }

    #[test]
    fn only_the_first_of_a_lane_is_in_flight() {
        let mut window = window(&[(1, "a"), (2, "b"), (3, "a"), (4, "a")]);
        assert_eq!(taken(&mut window), [1, 2]);
        assert!(window.acknowledge(0));
        assert_eq!(taken(&mut window), [3]);
        window.again(2);
        assert_eq!(taken(&mut window), [3], "again before the one behind it");
        assert!(!window.acknowledge(3), "it was not sent yet");
        assert!(window.acknowledge(2));
        assert!(!window.acknowledge(2), "a second acknowledgement says nothing");
        assert_eq!(taken(&mut window), [4]);
    }

    #[test]
    fn the_position_moves_only_over_what_has_arrived() {
        let mut window = window(&[(1, "a"), (2, "b"), (5, "c")]);
        window.put(EventSeq::new(9), &"d", []);
        assert_eq!(window.arrived().get(), 0);
        taken(&mut window);
        window.acknowledge(1);
        assert_eq!(window.arrived().get(), 0);
        window.acknowledge(0);
        assert_eq!(window.arrived().get(), 2);
        window.acknowledge(2);
        assert_eq!(window.arrived().get(), 9, "also over events that lead to no message");
    }

    #[test]
    fn after_a_reconnect_exactly_what_was_in_flight_is_sent_again() {
        let mut window = window(&[(1, "a"), (2, "b"), (3, "a")]);
        assert_eq!(taken(&mut window), [1, 2]);
        window.all_again();
        assert_eq!(taken(&mut window), [1, 2]);
        window.all_again();
        window.acknowledge(0);
        assert_eq!(taken(&mut window), [2, 3], "one that arrived late is not sent again");
    }

    /// A small generator: the same numbers in every run.
    struct Dice(u64);

    impl Dice {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.0 >> 33) % bound
        }
    }

    #[test]
    fn whatever_is_lost_every_message_arrives_in_the_order_of_its_lane() {
        for seed in 0..200 {
            let mut dice = Dice(seed);
            let lanes = ["a", "b", "c"];
            let mut window = Window::new(EventSeq::START);
            let (mut arrived, mut flying): (Vec<(&str, u64)>, Vec<Ordinal>) = Default::default();
            let mut seq = 0;
            while seq < 60 || window.len() > 0 {
                match dice.below(5) {
                    0 if seq < 60 => {
                        seq += 1;
                        let lane = lanes[dice.below(3) as usize];
                        window.put(EventSeq::new(seq), &lane, [(lane, seq)]);
                    }
                    1 | 2 => flying.extend(window.take().map(|(ordinal, _)| ordinal)),
                    3 if !flying.is_empty() => {
                        let ordinal = flying.remove(dice.below(flying.len() as u64) as usize);
                        // The server stores a repeated message once.
                        let message = window.items.get(&ordinal).map(|item| item.message);
                        arrived.extend(message.filter(|message| !arrived.contains(message)));
                        if dice.below(3) > 0 {
                            window.acknowledge(ordinal);
                        }
                    }
                    4 => {
                        flying.clear();
                        window.all_again();
                    }
                    _ => {}
                }
                let last = window.arrived().get();
                assert!((1..=last).all(|seq| arrived.iter().any(|(_, got)| *got == seq)));
            }
            for lane in lanes {
                let of_lane = arrived.iter().filter(|(of, _)| *of == lane);
                let seqs: Vec<u64> = of_lane.map(|(_, seq)| *seq).collect();
                assert!(seqs.is_sorted(), "seed {seed}: {seqs:?}");
            }
            assert_eq!(arrived.len(), 60);
        }
    }
}
