//! The events of a daemon: what happened, page by page or as it happens.

use sandkeep_core::SandboxId;
use sandkeep_core::api::{EventFormat, EventLine, Events};
use sandkeep_core::event::{EventSeq, KindPattern};

use crate::{Client, Error, Lines};

const EVENTS: &str = "/api/v1/events";

/// Which events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventsRequest {
    /// Only those after this one. Without it a page begins with the oldest, and a stream with the next event.
    pub after: Option<EventSeq>,
    pub kinds: Vec<KindPattern>,
    pub sandbox: Option<SandboxId>,
    pub project: Option<String>,
    pub format: EventFormat,
    /// How many a page has at most. Streams have no limit.
    pub limit: Option<usize>,
}

impl EventsRequest {
    fn query(&self) -> Vec<(&'static str, String)> {
        let mut query = vec![("format", self.format.as_str().to_owned())];
        query.extend(self.after.map(|after| ("after", after.to_string())));
        query.extend(self.kinds.iter().map(|kind| ("kind", kind.to_string())));
        query.extend(self.sandbox.iter().map(|id| ("sandbox", id.to_string())));
        query.extend(self.project.clone().map(|project| ("project", project)));
        query
    }
}

/// Events as they happen.
pub struct EventStream(Lines);

impl EventStream {
    /// The next line; a heartbeat comes at least every 15 seconds. An error is the end of the stream. To follow on, begin
    /// another one after the last event or heartbeat that came.
    pub async fn next(&mut self) -> Result<EventLine, Error> {
        self.0.next().await
    }
}

impl Client {
    /// One page of events.
    pub async fn event_page(&self, request: &EventsRequest) -> Result<Events, Error> {
        let mut query = request.query();
        query.extend(request.limit.map(|limit| ("limit", limit.to_string())));
        self.get_query(EVENTS, &query).await
    }

    /// Follows the events.
    pub async fn follow_events(&self, request: &EventsRequest) -> Result<EventStream, Error> {
        let mut query = request.query();
        query.push(("follow", "true".to_owned()));
        let response = self.get_live(EVENTS, &query).await?;
        Ok(EventStream(Lines::of(self, response)))
    }
}
