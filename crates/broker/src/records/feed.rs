//! The events that a principal may see, for those who ask over a door: page by page, or as they come.
//!
//! A feed is pulled. A slow reader holds one batch of the log and no thread.

use std::io;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::events::{Delivery, EVENTS, Subscription};
use crate::Broker;
use crate::error::Error;
use crate::policy::slots::Slot;
use sandkeep_core::event::{Event, EventKind, EventSeq, Kinds};
use sandkeep_core::{Principal, SandboxId, limits};

/// Which of the events that a principal may see it wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventFilter {
    pub kinds: Kinds,
    pub sandbox: Option<SandboxId>,
    pub project: Option<String>,
}

impl EventFilter {
    /// Whether it lets an event through to this principal.
    pub fn admits(&self, who: &Principal, event: &Event) -> bool {
        let owner = &event.subject.owner;
        let project = self.project.as_ref().is_none_or(|project| *project == owner.project);
        project
            && self.sandbox.as_ref().is_none_or(|id| concerns(event, id))
            && self.kinds.matches(&event.kind)
            && who.may_see(owner)
    }
}

/// A fork concerns the new sandboxes too.
fn concerns(event: &Event, id: &SandboxId) -> bool {
    let forks = match &event.kind {
        EventKind::SandboxForked { sandboxes, .. } => sandboxes.as_slice(),
        _ => &[],
    };
    event.subject.sandbox.as_ref() == Some(id) || forks.contains(id)
}

/// One item of a feed.
#[derive(Clone, Debug, PartialEq)]
pub enum Fed {
    Event(Box<Event>),
    /// The events after `after` and before `oldest` are not kept any more.
    Gap {
        after: EventSeq,
        oldest: EventSeq,
    },
    /// Everything up to this one was looked at. Comes when all events have been read, and then at intervals.
    UpTo(EventSeq),
}

/// Some of the events, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct EventPage {
    pub items: Vec<Event>,
    /// The events in this range are missing, because they are not kept any more.
    pub gap: Option<(EventSeq, EventSeq)>,
    /// After which event the next page begins.
    pub next: EventSeq,
    /// Whether there were events after that one.
    pub more: bool,
}

/// What a principal may see of the events, as they come.
pub struct EventFeed {
    who: Principal,
    filter: EventFilter,
    subscription: Subscription,
    /// When a follower without events hears that there are none; `None` before it has read all that there are.
    next_heartbeat: Option<Instant>,
    stop: CancellationToken,
    _slot: Slot,
}

impl EventFeed {
    /// The next item; `None` when the daemon shuts down. Cancel-safe.
    pub async fn next(&mut self) -> io::Result<Option<Fed>> {
        loop {
            let delivery = match self.next_heartbeat {
                // It is behind: every event is there.
                None => self.subscription.poll().await?,
                Some(at) => tokio::select! {
                    biased;
                    () = self.stop.cancelled() => return Ok(None),
                    () = tokio::time::sleep_until(at) => None,
                    next = self.subscription.next() => Some(next?),
                },
            };
            match delivery {
                Some(Delivery::Event(event)) if self.filter.admits(&self.who, &event) => {
                    return Ok(Some(Fed::Event(event)));
                }
                Some(Delivery::Event(_)) => {}
                Some(Delivery::Gap { after, oldest }) => {
                    return Ok(Some(Fed::Gap { after, oldest }));
                }
                None => {
                    self.next_heartbeat = Some(Instant::now() + HEARTBEAT);
                    return Ok(Some(Fed::UpTo(self.subscription.position())));
                }
            }
        }
    }
}

const HEARTBEAT: Duration = limits::EVENT_HEARTBEAT;

impl Broker {
    /// Follows the events that this principal may see: those after this one, or only new ones.
    pub fn follow_events(
        &self,
        who: &Principal,
        filter: EventFilter,
        after: Option<EventSeq>,
    ) -> Result<EventFeed, Error> {
        let slot = self.shared.followers.take(&who.organization)?;
        let subscription = self.subscribe_from(after.unwrap_or(self.last_event()))?;
        let stop = self.shared.detaching.clone();
        let who = who.clone();
        Ok(EventFeed { who, filter, subscription, next_heartbeat: None, stop, _slot: slot })
    }

    /// At most so many of the events that this principal may see: those after this one, or the oldest.
    pub async fn event_page(
        &self,
        who: &Principal,
        filter: &EventFilter,
        after: Option<EventSeq>,
        limit: usize,
    ) -> Result<EventPage, Error> {
        let _turn = self.shared.log_reads.wait(&who.organization).await;
        let mut subscription = self.subscribe_from(after.unwrap_or(EventSeq::START))?;
        let (mut items, mut gap, mut more) = (Vec::new(), None, true);
        for _ in 0..limits::EVENT_PAGE_SCAN_MAX {
            if items.len() >= limit {
                break;
            }
            match subscription.poll().await.map_err(|e| self.unreadable(e))? {
                Some(Delivery::Event(event)) if filter.admits(who, &event) => items.push(*event),
                Some(Delivery::Event(_)) => {}
                // Nobody who asks for the oldest misses those that are gone.
                Some(Delivery::Gap { after: from, oldest }) => {
                    gap = after.map(|_| (gap.map_or(from, |(first, _)| first), oldest));
                }
                None => {
                    more = false;
                    break;
                }
            }
        }
        let next = subscription.position();
        Ok(EventPage { items, gap, more: more && next < self.last_event(), next })
    }

    fn subscribe_from(&self, after: EventSeq) -> Result<Subscription, Error> {
        let last = self.last_event();
        if after > last {
            let problem = format!("is {after}, but the last event is {last}");
            return Err(Error::InvalidField { field: "after", problem });
        }
        Ok(self.shared.events.subscribe(Some(after)))
    }

    fn unreadable(&self, source: io::Error) -> Error {
        Error::DataDir { path: self.shared.data.path().join(EVENTS).display().to_string(), source }
    }
}
