//! Policy refusals as events. A refused client is likely to retry at once, and must not push all other events out of a
//! bounded log: refusals of one user for one reason within a short time are combined into one event.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::Broker;
use sandkeep_core::event::{EventKind, Subject};
use sandkeep_core::{Code, Kind, Principal, limits};

#[derive(Default)]
pub(crate) struct Refusals(Mutex<HashMap<(String, String, Code), Recent>>);

struct Recent {
    /// In time since boot.
    told_at: Duration,
    untold: u64,
}

impl Refusals {
    /// Counts one more; returns the number to publish now, if any.
    fn count(&self, who: &Principal, code: Code, now: Duration) -> Option<u64> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_recent =
            |recent: &Recent| now.saturating_sub(recent.told_at) < limits::REFUSALS_TOLD_EVERY;
        if all.len() >= limits::REFUSALS_TOLD_MAX {
            all.retain(|_, recent| is_recent(recent));
        }
        let key = (who.organization.clone(), who.user.clone(), code);
        if let Some(recent) = all.get_mut(&key).filter(|recent| is_recent(recent)) {
            recent.untold += 1;
            return None;
        }
        let before = all.insert(key, Recent { told_at: now, untold: 0 });
        Some(1 + before.map_or(0, |before| before.untold))
    }
}

impl Broker {
    /// Records that a request of this principal was refused with this code; publishes an event for policy refusals.
    pub fn note_refusal(&self, who: &Principal, code: Code) {
        if !is_policy(code) {
            return;
        }
        let shared = &self.shared;
        let Some(count) = shared.refusals.count(who, code, shared.clock.uptime()) else { return };
        let Ok(owner) = who.owner(None) else { return };
        let kind = EventKind::PolicyRefused { code: code.as_str().to_owned(), count };
        shared.emit(&Subject { owner, sandbox: None }, &kind);
    }
}

/// Whether it was refused by a rule about the caller, and not because of the request's content.
fn is_policy(code: Code) -> bool {
    match code.kind() {
        Kind::Quota | Kind::RateLimited => true,
        Kind::Forbidden => {
            matches!(code, Code::Forbidden | Code::SourceForbidden | Code::TemplateShared)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_refusals_are_counted_and_told_together() {
        let (refusals, who) = (Refusals::default(), Principal::local());
        let at = |millis| Duration::from_millis(millis);
        let count = |code, millis| refusals.count(&who, code, at(millis));
        assert_eq!(count(Code::QuotaExceeded, 5_000), Some(1));
        assert_eq!(count(Code::QuotaExceeded, 5_001), None);
        assert_eq!(count(Code::RateLimited, 5_002), Some(1), "another reason");
        assert_eq!(count(Code::QuotaExceeded, 5_999), None);
        assert_eq!(count(Code::QuotaExceeded, 6_000), Some(3), "two were not told before");
        let other = Principal { user: "other".to_owned(), ..Principal::local() };
        assert_eq!(refusals.count(&other, Code::QuotaExceeded, at(6_000)), Some(1));
    }

    #[test]
    fn only_refusals_by_policy_are_told() {
        assert!(is_policy(Code::QuotaExceeded) && is_policy(Code::RateLimited));
        assert!(is_policy(Code::Forbidden) && is_policy(Code::TemplateShared));
        assert!(!is_policy(Code::FileNotPermitted) && !is_policy(Code::NotFound));
    }
}
