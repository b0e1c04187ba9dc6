//! The view of a sandbox, and listing.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::codebases::served_alone;
use super::lifecycle::handle::Handle;
use crate::error::Error;
use sandkeep_core::api::{MountedCodebase, ServedBy};
use sandkeep_core::{CodebaseMount, HOME, Principal, SandboxId, State, limits};

pub use sandkeep_core::api::{Order, Sandbox as View};

impl Handle {
    pub fn view(&self) -> View {
        let published = self.published.borrow();
        let (status, meta) = (&published.status, &published.meta);
        let (spec, terms) = (&meta.spec, &meta.terms);
        let expires_at = terms.timeout().map(|timeout| {
            published.meta.began.wall_after(timeout, &self.activity.now(), limits::CLOCK_DRIFT)
        });
        View {
            id: self.id.clone(),
            name: meta.shown_name(),
            state: status.state(),
            operation: status.operation(),
            reason: status.reason().map(ToString::to_string),
            runtime: spec.runtime().to_owned(),
            template: spec.template().to_owned(),
            template_digest: spec.image().map(|image| image.digest.clone()),
            profile: spec.profile().map(str::to_owned),
            owner: meta.owner.clone(),
            slot: meta.slot.clone(),
            labels: terms.labels.clone(),
            resources: spec.resources().clone(),
            privilege: spec.privilege(),
            created_at: meta.created_at,
            expires_at,
            timeout_secs: terms.timeout_secs,
            idle_timeout_secs: terms.idle_timeout_secs,
            on_timeout: terms.on_timeout,
            workdir: spec.workdir().unwrap_or(HOME).to_owned(),
            forked_from: meta.forked_from.clone(),
            source: spec.source().cloned(),
            codebase: spec.codebase().map(|codebase| {
                let served = self.served().unwrap_or_else(|| served_alone(terms));
                mounted(codebase, served)
            }),
            last_activity_at: self.activity.shown(),
            turn_count: published.meta.turn,
            max_snapshots: terms.max_snapshots,
            snapshot_tool_calls: spec.snapshots_tool_calls(),
            snapshot_count: self.snapshots.count() as u64,
            space_used_bytes: self.space.bytes(),
            space_used: self.space.bytes(),
        }
    }

    fn place(&self) -> (jiff::Timestamp, &SandboxId) {
        (self.meta().created_at, &self.id)
    }
}

fn mounted(codebase: &CodebaseMount, served: ServedBy) -> MountedCodebase {
    MountedCodebase {
        id: codebase.codebase.clone(),
        name: codebase.name.clone(),
        mount: codebase.path.clone(),
        mode: codebase.mode,
        served,
    }
}

/// Which sandboxes to list; by default the first page of all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// It must have all of these.
    pub labels: Vec<(String, String)>,
    /// It must be in one of these; any state if empty.
    pub states: Vec<State>,
    pub project: Option<String>,
    pub order: Order,
    pub limit: usize,
    /// Sandboxes after this position, which must be of the same order.
    pub after: Option<Cursor>,
}

impl Default for Filter {
    fn default() -> Self {
        Self {
            labels: Vec::new(),
            states: Vec::new(),
            project: None,
            order: Order::default(),
            limit: limits::PAGE_DEFAULT,
            after: None,
        }
    }
}

impl Filter {
    fn lets_through(&self, who: &Principal, handle: &Handle) -> bool {
        let published = handle.published.borrow();
        let meta = &published.meta;
        if !who.may_see(&meta.owner) {
            return false;
        }
        let project = self.project.as_ref().is_none_or(|project| *project == meta.owner.project);
        let after = self.after.as_ref().is_none_or(|at| {
            let (place, at) = ((meta.created_at, &handle.id), (at.created_at, &at.id));
            self.order.compare(&place, &at).is_gt()
        });
        if !project || !after {
            return false;
        }
        let state = self.states.is_empty() || self.states.contains(&published.status.state());
        let mut wanted = self.labels.iter();
        state && wanted.all(|(name, value)| meta.terms.labels.get(name) == Some(value))
    }

    /// One page. Every sandbox that exists from the first page to the last is on exactly one of them, whatever is
    /// created or destroyed meanwhile, because its position never changes.
    pub(super) fn page(&self, who: &Principal, mut all: Vec<Arc<Handle>>) -> Result<Page, Error> {
        if self.after.as_ref().is_some_and(|after| after.order != self.order) {
            let problem = "it belongs to the other order; repeat the sort of the page before";
            return Err(Error::InvalidField { field: "cursor", problem: problem.to_owned() });
        }
        let compare = |a: &Arc<Handle>, b: &Arc<Handle>| self.order.compare(&a.place(), &b.place());
        all.retain(|handle| self.lets_through(who, handle));
        let more = all.len() > self.limit;
        if more {
            // Only the page is sorted, not everything after it.
            all.select_nth_unstable_by(self.limit, compare);
            all.truncate(self.limit);
        }
        all.sort_unstable_by(compare);
        let last = all.last().filter(|_| more);
        let next = last.map(|last| Cursor {
            order: self.order,
            created_at: last.meta().created_at,
            id: last.id.clone(),
        });
        Ok(Page { items: all.iter().map(|handle| handle.view()).collect(), next })
    }
}

/// Some of the sandboxes, and the position of the next page, if there is one.
#[derive(Clone, Debug, PartialEq)]
pub struct Page {
    pub items: Vec<View>,
    pub next: Option<Cursor>,
}

/// A position in a list of this order: after this sandbox, whether or not it still exists. To callers it is an opaque
/// string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    order: Order,
    created_at: jiff::Timestamp,
    id: SandboxId,
}

/// A string that no page returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is not a next_cursor of this list")]
pub struct InvalidCursor;

/// Prefix of a cursor's text if its order is not the default.
const NEWEST_FIRST: &str = "newest ";

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = match self.order {
            Order::OldestFirst => "",
            Order::NewestFirst => NEWEST_FIRST,
        };
        let place = format!("{order}{} {}", self.created_at.as_nanosecond(), self.id);
        f.write_str(&URL_SAFE_NO_PAD.encode(place))
    }
}

impl FromStr for Cursor {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        let decoded = URL_SAFE_NO_PAD.decode(text).map_err(|_| InvalidCursor)?;
        let place = std::str::from_utf8(&decoded).map_err(|_| InvalidCursor)?;
        let (order, place) = match place.strip_prefix(NEWEST_FIRST) {
            Some(place) => (Order::NewestFirst, place),
            None => (Order::OldestFirst, place),
        };
        let (nanoseconds, id) = place.split_once(' ').ok_or(InvalidCursor)?;
        let nanoseconds = nanoseconds.parse().map_err(|_| InvalidCursor)?;
        let created_at =
            jiff::Timestamp::from_nanosecond(nanoseconds).map_err(|_| InvalidCursor)?;
        Ok(Self { order, created_at, id: id.parse().map_err(|_| InvalidCursor)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_as_it_was_written_and_nothing_else_is_one() {
        for order in [Order::OldestFirst, Order::NewestFirst] {
            let (created_at, id) = (jiff::Timestamp::now(), SandboxId::random());
            let cursor = Cursor { order, created_at, id };
            assert_eq!(cursor.to_string().parse(), Ok(cursor));
        }
        let far = URL_SAFE_NO_PAD.encode(format!("{} {}", i128::MAX, SandboxId::random()));
        for bad in
            ["", "x", "!", &URL_SAFE_NO_PAD.encode("1 sb"), &URL_SAFE_NO_PAD.encode(b"\xff"), &far]
        {
            assert_eq!(bad.parse::<Cursor>(), Err(InvalidCursor), "{bad}");
        }
    }
}
