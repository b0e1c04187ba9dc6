//! `GET /events`: a page of the events that the caller may see, or a stream that follows them.
//!
//! ```text
//! (event | gap)*  heartbeat  (event | gap | heartbeat)*     until the client leaves, its key is revoked or the daemon ends
//! ```
//!
//! The stream is pulled: a slow client holds one batch of the log, and falls behind into a `gap` at worst.

use std::io;

use axum::Json;
use axum::extract::{FromRequestParts, Query, State};
use axum::http::HeaderMap;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use utoipa::IntoParams;

use super::openapi::{Guarded, WithQuery};
use crate::kit::Refusal;
use crate::kit::frames::Form;
use crate::kit::query::query;
use crate::kit::who::Who;
use sandkeep_broker::{Broker, EventFeed, EventFilter, EventPage, Fed};
use sandkeep_core::api::{EventFormat, EventGap, EventItem, EventLine, EventNotice, Events};
use sandkeep_core::event::{CloudEvent, Event, EventSeq, KindPattern, Kinds};
use sandkeep_core::{SandboxId, limits};

/// Where a client of Server-Sent Events that reconnects has stopped.
const LAST_EVENT_ID: &str = "last-event-id";

/// What a query string can ask for; it is read by hand, because `kind` may come several times.
#[derive(Debug, Default, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct EventQuery {
    /// Only events after this number. Without it a page begins with the oldest event, and a stream with the next one.
    /// The header `Last-Event-ID` has the same effect, and wins.
    #[param(value_type = Option<u64>)]
    after: Option<EventSeq>,
    /// Only these kinds, such as `exec.ended`, or `sandbox.*` for all with that prefix; repeatable, or separated by commas.
    #[param(required = false, value_type = Vec<String>)]
    kind: Vec<KindPattern>,
    /// Only events of this sandbox, which may be gone.
    sandbox: Option<SandboxId>,
    /// Only events of this project.
    project: Option<String>,
    /// Keep the stream open and send events as they happen.
    #[param(required = false)]
    follow: bool,
    /// Maximum number of events of a page; 100 by default.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// `cloudevents`: each event as a CloudEvent 1.0.
    #[param(required = false, inline)]
    format: EventFormat,
}

impl<S: Send + Sync> FromRequestParts<S> for EventQuery {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Refusal> {
        let mut asked = read(query(Query::try_from_uri(&parts.uri))?)?;
        if let Some(value) = parts.headers.get(LAST_EVENT_ID) {
            let text = value.to_str().unwrap_or_default();
            asked.after = Some(number(LAST_EVENT_ID, text)?);
        }
        Ok(asked)
    }
}

fn wrong<T>(name: &str, problem: impl ToString) -> Result<T, Refusal> {
    Err(Refusal::QueryMalformed { problem: format!("{name}: {}", problem.to_string()) })
}

fn number<T: std::str::FromStr>(name: &str, text: &str) -> Result<T, Refusal> {
    text.parse().or_else(|_| wrong(name, format!("{text:?} is not a number")))
}

fn read(pairs: Vec<(String, String)>) -> Result<EventQuery, Refusal> {
    let mut asked = EventQuery::default();
    let mut seen = Vec::new();
    for (name, value) in pairs {
        if name != "kind" && seen.contains(&name) {
            return wrong(&name, "it is given twice");
        }
        match name.as_str() {
            "after" => asked.after = Some(number("after", &value)?),
            "kind" => {
                for text in value.split(',') {
                    let pattern = text.trim().parse::<KindPattern>();
                    asked.kind.push(pattern.or_else(|error| wrong("kind", error))?);
                }
            }
            "sandbox" => {
                asked.sandbox = Some(value.parse().or_else(|error| wrong("sandbox", error))?);
            }
            "project" => asked.project = Some(value),
            "follow" => {
                asked.follow = value
                    .parse()
                    .or_else(|_| wrong("follow", format!("{value:?} is neither true nor false")))?;
            }
            "limit" => {
                let limit: usize = number("limit", &value)?;
                if !(1..=limits::PAGE_MAX).contains(&limit) {
                    let problem = format!("{limit} is not between 1 and {}", limits::PAGE_MAX);
                    return wrong("limit", problem);
                }
                asked.limit = Some(limit);
            }
            "format" => {
                let known = EventFormat::ALL.into_iter().find(|format| format.as_str() == value);
                let names = EventFormat::ALL.map(EventFormat::as_str).join(", ");
                match known {
                    Some(format) => asked.format = format,
                    None => return wrong("format", format!("{value:?} is none of {names}")),
                }
            }
            other => {
                let known = "after, kind, sandbox, project, follow, limit and format";
                return wrong(other, format!("there is no such parameter; there are {known}"));
            }
        }
        seen.push(name);
    }
    if asked.follow && asked.limit.is_some() {
        return wrong("limit", "a stream has none; leave it out, or follow");
    }
    Ok(asked)
}

/// List or follow events
///
/// Events of the sandboxes, templates, keys and webhooks that the caller may see, in the order in which they were
/// recorded. `docs/reference/events.md` has the kinds. A page says where the next one begins (`next`). With `follow=true`
/// the answer is a stream of lines of JSON, or of Server-Sent Events whose `id` is the event's number. A line whose kind
/// is `gap` says which events are not kept any more; one whose kind is `heartbeat` says up to where all events were sent.
#[utoipa::path(
    get, path = "/api/v1/events", operation_id = "list_events", tag = "events",
    params(EventQuery),
    responses(
        (status = 200, content(
            (Events = "application/json"),
            (EventLine = "application/x-ndjson"),
            (EventLine = "text/event-stream"),
        )),
        Guarded, WithQuery
    )
)]
pub async fn list(
    State(broker): State<Broker>,
    Who(who): Who,
    asked: EventQuery,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let EventQuery { after, kind, sandbox, project, follow, limit, format } = asked;
    let filter = EventFilter { kinds: Kinds(kind), sandbox, project };
    let instance = broker.instance().to_owned();
    let teller = |form| EventWriter { form, format, instance: instance.clone() };
    if follow {
        let form = match Form::accepted(&headers) {
            Some(Form::Sse) => Form::Sse,
            Some(Form::Ndjson | Form::Raw) | None => Form::Ndjson,
        };
        let feed = broker.follow_events(&who, filter, after)?;
        return Ok(form.response(lines(feed, teller(form))));
    }
    let limit = limit.unwrap_or(limits::PAGE_DEFAULT);
    let page = broker.event_page(&who, &filter, after, limit).await?;
    Ok(match Form::accepted(&headers) {
        Some(form @ (Form::Ndjson | Form::Sse)) => {
            let lines = teller(form).page(page).into_iter().map(Ok::<_, io::Error>);
            form.response(stream::iter(lines))
        }
        Some(Form::Raw) | None => Json(teller(Form::Ndjson).object(page)).into_response(),
    })
}

fn lines(
    feed: EventFeed,
    teller: EventWriter,
) -> impl futures_util::Stream<Item = io::Result<Bytes>> + Send {
    stream::unfold(Some((feed, teller)), |state| async move {
        let (mut feed, teller) = state?;
        match feed.next().await {
            Ok(Some(fed)) => {
                let line = teller.line(fed);
                Some((Ok(line), Some((feed, teller))))
            }
            Ok(None) => None,
            Err(error) => {
                tracing::warn!(%error, "a follower of the events is cut off: they cannot be read");
                Some((Err(error), None))
            }
        }
    })
}

/// Writes events in the form that was asked for.
struct EventWriter {
    form: Form,
    format: EventFormat,
    instance: String,
}

impl EventWriter {
    fn item(&self, event: Event) -> EventItem {
        match self.format {
            EventFormat::Native => EventItem::Native(Box::new(event)),
            EventFormat::Cloudevents => {
                EventItem::Cloud(Box::new(CloudEvent::of(&event, &self.instance)))
            }
        }
    }

    fn object(&self, page: EventPage) -> Events {
        let EventPage { items, gap, next, more } = page;
        let items = items.into_iter().map(|event| self.item(event)).collect();
        let gap = gap.map(|(after, oldest)| EventGap { after, oldest });
        Events { items, gap, next, more }
    }

    /// The same as lines, of which the last says where the next page begins.
    fn page(&self, page: EventPage) -> Vec<Bytes> {
        let EventPage { items, gap, next, .. } = page;
        let gap = gap.map(|(after, oldest)| Fed::Gap { after, oldest });
        let events = items.into_iter().map(|event| Fed::Event(Box::new(event)));
        let all = gap.into_iter().chain(events).chain([Fed::UpTo(next)]);
        all.map(|fed| self.line(fed)).collect()
    }

    fn line(&self, fed: Fed) -> Bytes {
        let now = jiff::Timestamp::now;
        let (name, seq, line) = match (fed, self.format) {
            (Fed::Event(event), _) => {
                (event.kind.name(), event.seq, EventLine::Event(self.item(*event)))
            }
            (Fed::Gap { after, oldest }, format) => {
                let line = match format {
                    EventFormat::Native => {
                        EventLine::Notice(EventNotice::Gap(EventGap { after, oldest }))
                    }
                    EventFormat::Cloudevents => {
                        cloud(CloudEvent::gap(&self.instance, after, oldest, now()))
                    }
                };
                ("gap", EventSeq::new(oldest.get().saturating_sub(1)), line)
            }
            (Fed::UpTo(seq), format) => {
                let line = match format {
                    EventFormat::Native => EventLine::Notice(EventNotice::Heartbeat { seq }),
                    EventFormat::Cloudevents => {
                        cloud(CloudEvent::heartbeat(&self.instance, seq, now()))
                    }
                };
                ("heartbeat", seq, line)
            }
        };
        self.form.frame(name, Some(format_args!("{seq}")), &line)
    }
}

fn cloud(event: CloudEvent) -> EventLine {
    EventLine::Event(EventItem::Cloud(Box::new(event)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(pairs: &[(&str, &str)]) -> Result<EventQuery, Refusal> {
        read(pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect())
    }

    #[test]
    fn everything_that_can_be_asked_for_is_understood() {
        let pairs = [
            ("after", "7"),
            ("kind", "sandbox.*,exec.ended"),
            ("kind", "turn.completed"),
            ("project", "web"),
            ("follow", "true"),
            ("format", "cloudevents"),
        ];
        let asked = asked(&pairs).expect("valid");
        let kinds: Vec<_> = asked.kind.iter().map(KindPattern::as_str).collect();
        assert_eq!(kinds, ["sandbox.*", "exec.ended", "turn.completed"]);
        assert_eq!((asked.after, asked.follow), (Some(EventSeq::new(7)), true));
        assert_eq!(asked.format, EventFormat::Cloudevents);
        assert_eq!(asked.project.as_deref(), Some("web"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (name, value) in [
            ("after", "-1"),
            ("after", "x"),
            ("kind", "sandbox.exploded"),
            ("kind", ""),
            ("sandbox", "x"),
            ("follow", "yes"),
            ("limit", "0"),
            ("limit", "1001"),
            ("format", "xml"),
            ("kinds", "sandbox.*"),
        ] {
            let refusal = asked(&[(name, value)]).expect_err(name);
            assert!(refusal.to_string().contains(&format!("{name}: ")), "{refusal}");
        }
        assert!(asked(&[("after", "1"), ("after", "2")]).is_err());
        assert!(asked(&[("follow", "true"), ("limit", "2")]).is_err());
    }
}
