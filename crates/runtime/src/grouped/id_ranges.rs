//! Which range of the host's user ids belongs to which sandbox. A range is in use exactly as long as a guest runs in
//! it; files on volumes have the ids used inside, so ranges need not be permanent.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;

use sandkeep_sys::namespace::{ID_RANGE, SHARED_ID_BASE};

/// Above the ids that distributions assign to people and services.
const FIRST_BASE: u32 = 524_288;
/// The shared range is above it. Both are below 2^31: before Linux 6.12 devpts reads its gid option as a signed number.
const LAST_BASE: u32 = SHARED_ID_BASE - ID_RANGE;

pub struct IdRanges {
    /// Ranges assigned to users by /etc/subuid and /etc/subgid, as (first, last).
    foreign: Vec<(u32, u32)>,
    used: BTreeSet<u32>,
    /// Where the search starts. It wraps around, so that `next` stays correct when a range is returned in between.
    cursor: u32,
}

impl IdRanges {
    /// Two instances on one host do not know each other's ranges, so each starts at another place.
    pub fn new(instance: &str) -> io::Result<Self> {
        let mut foreign = Vec::new();
        for file in ["/etc/subuid", "/etc/subgid"] {
            match std::fs::read_to_string(file) {
                Ok(text) => foreign.extend(parse_subids(&text)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        let mut hasher = DefaultHasher::new();
        instance.hash(&mut hasher);
        let ranges = u64::from((LAST_BASE - FIRST_BASE) / ID_RANGE);
        // The remainder is below the number of ranges, so it fits.
        let cursor = FIRST_BASE + (hasher.finish() % ranges) as u32 * ID_RANGE;
        Ok(Self { foreign, used: BTreeSet::new(), cursor })
    }

    /// Whether one of our ranges may start with this id.
    pub fn is_range(base: u32) -> bool {
        (FIRST_BASE..=LAST_BASE).contains(&base) && (base - FIRST_BASE).is_multiple_of(ID_RANGE)
    }

    /// Takes the next free range.
    pub fn take(&mut self) -> Option<u32> {
        let base = self.free().next()?;
        self.used.insert(base);
        self.cursor =
            base.checked_add(ID_RANGE).filter(|next| *next <= LAST_BASE).unwrap_or(FIRST_BASE);
        Some(base)
    }

    /// Marks the range of a running guest as used.
    pub fn adopt(&mut self, base: u32) {
        self.used.insert(base);
    }

    pub fn give_back(&mut self, base: u32) {
        self.used.remove(&base);
    }

    /// The ranges that the next calls of `take` will return.
    pub fn next(&self, count: usize) -> Vec<u32> {
        self.free().take(count).collect()
    }

    fn free(&self) -> impl Iterator<Item = u32> {
        let step = ID_RANGE as usize;
        let ahead = (self.cursor..=LAST_BASE).step_by(step);
        ahead
            .chain((FIRST_BASE..self.cursor).step_by(step))
            .filter(|base| !self.used.contains(base) && !self.is_foreign(*base))
    }

    fn is_foreign(&self, base: u32) -> bool {
        let last = base + (ID_RANGE - 1);
        self.foreign.iter().any(|(from, to)| *from <= last && base <= *to)
    }
}

/// Lines of `name:first:count`.
fn parse_subids(text: &str) -> impl Iterator<Item = (u32, u32)> {
    text.lines().filter_map(|line| {
        let mut fields = line.split(':').skip(1);
        let first: u32 = fields.next()?.trim().parse().ok()?;
        let count: u32 = fields.next()?.trim().parse().ok()?;
        Some((first, first.saturating_add(count.checked_sub(1)?)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(subids: &str) -> IdRanges {
        IdRanges {
            foreign: parse_subids(subids).collect(),
            used: BTreeSet::new(),
            cursor: FIRST_BASE,
        }
    }

    #[test]
    fn no_two_sandboxes_share_a_range() {
        let mut ranges = ranges("");
        let taken: BTreeSet<u32> = (0..1000).filter_map(|_| ranges.take()).collect();
        assert_eq!(taken.len(), 1000);
        let bases: Vec<u32> = taken.into_iter().collect();
        assert!(bases.windows(2).all(|pair| pair[1] - pair[0] >= ID_RANGE));
    }

    #[test]
    fn ranges_of_people_are_left_alone() {
        let mut ranges = ranges("a:524288:65536\nb:600000:1\n");
        // 600000 is in the range that starts at 589824.
        assert_eq!(ranges.take(), Some(FIRST_BASE + 2 * ID_RANGE));
    }

    #[test]
    fn the_range_that_is_shared_is_never_given_to_one_alone() {
        let mut ranges = ranges("");
        ranges.cursor = LAST_BASE;
        assert_eq!((ranges.take(), ranges.take()), (Some(LAST_BASE), Some(FIRST_BASE)));
        assert!(LAST_BASE + ID_RANGE <= SHARED_ID_BASE && !IdRanges::is_range(SHARED_ID_BASE));
    }

    #[test]
    fn what_is_announced_next_is_what_is_taken_next() {
        let mut ranges = ranges("");
        ranges.adopt(FIRST_BASE);
        let next = ranges.next(2);
        assert_eq!(next, [ranges.take(), ranges.take()].map(Option::unwrap_or_default));
        let announced = ranges.next(1);
        ranges.give_back(next[0]);
        assert_eq!(ranges.take(), announced.first().copied());
    }
}
