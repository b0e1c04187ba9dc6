//! Requests that change nothing and repeat: the first is a record at once, those that follow within a second are one
//! more, with their number. So a flood takes two records per second and loses no count.

use std::collections::HashMap;
use std::time::Duration;

use crate::record::Request;
use sandkeep_core::limits::{AUDIT_REPEATS_MAX, AUDIT_REPEATS_WITHIN};

#[derive(Default)]
pub struct Repeats {
    recent: HashMap<Request, Recent>,
}

struct Recent {
    since: Duration,
    /// The last one, for what tells it from the others.
    last: Request,
    untold: u64,
}

impl Repeats {
    /// Takes one in; returns it if it is to be written now.
    pub fn note(&mut self, request: Request, now: Duration) -> Option<Request> {
        let key = in_common(&request);
        if let Some(recent) = self.recent.get_mut(&key) {
            recent.untold += request.count;
            recent.last = request;
            return None;
        }
        if self.recent.len() < AUDIT_REPEATS_MAX {
            let recent = Recent { since: now, last: request.clone(), untold: 0 };
            self.recent.insert(key, recent);
        }
        Some(request)
    }

    /// What was counted for long enough, and so is to be written now.
    pub fn due(&mut self, now: Duration) -> Vec<Request> {
        let mut due = Vec::new();
        self.recent.retain(|_, recent| {
            if now.saturating_sub(recent.since) < AUDIT_REPEATS_WITHIN {
                return true;
            }
            let count = std::mem::take(&mut recent.untold);
            if count == 0 {
                return false;
            }
            recent.since = now;
            due.push(Request { count, ..recent.last.clone() });
            true
        });
        due
    }
}

/// What repeats have in common.
fn in_common(request: &Request) -> Request {
    Request { correlation_id: None, trace_id: None, duration_us: 0, count: 0, ..request.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Outcome;

    fn refused(code: &str) -> Request {
        let code = Some(code.to_owned());
        Request { outcome: Outcome::Refused, code, count: 1, ..Request::default() }
    }

    #[test]
    fn repeats_within_a_second_are_one_record_with_their_number() {
        let (mut repeats, at) = (Repeats::default(), Duration::from_millis);
        assert!(repeats.note(refused("forbidden"), at(0)).is_some(), "the first at once");
        for millis in 1..=40 {
            assert_eq!(repeats.note(refused("forbidden"), at(millis)), None);
        }
        assert!(repeats.note(refused("rate_limited"), at(41)).is_some(), "another reason");
        assert!(repeats.due(at(999)).is_empty());
        let due = repeats.due(at(1_100));
        assert_eq!(due.iter().map(|request| request.count).collect::<Vec<_>>(), [40]);
        assert!(repeats.due(at(2_200)).is_empty() && repeats.recent.is_empty(), "it ended");
    }

    #[test]
    fn what_is_told_apart_is_bounded() {
        let mut repeats = Repeats::default();
        for number in 0..AUDIT_REPEATS_MAX + 10 {
            assert!(repeats.note(refused(&number.to_string()), Duration::ZERO).is_some());
        }
        assert_eq!(repeats.recent.len(), AUDIT_REPEATS_MAX);
    }
}
