//! `sandkeep events`: what happened, and what happens.

use std::time::Duration;

use serde_json::{Value, json};

use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::show::words;
use crate::cli::{Format, print};
use sandkeep_client::{Client, Error, EventsRequest};
use sandkeep_core::api::{EventItem, EventLine, EventNotice};
use sandkeep_core::event::{Event, EventSeq, KindPattern};
use sandkeep_core::{SandboxId, limits};

/// Heartbeats come more often. A connection that says nothing for so long is dead.
const SILENCE_MAX: Duration = limits::EVENT_HEARTBEAT.saturating_mul(4);
/// So many times within a heartbeat it tries to reach a daemon that restarts.
const RECONNECTS: u32 = 30;

/// Show events: what happened to your sandboxes, templates, keys and webhooks
///
/// Without --follow it prints the events that are kept, oldest first. With --json, each line is one event.
#[derive(Debug, clap::Args)]
pub struct EventsArgs {
    /// Wait for new events; reconnects when the daemon restarts. Without --after, only new events are shown
    #[arg(long, short)]
    follow: bool,
    /// Only events after this number
    #[arg(long, value_name = "SEQ")]
    after: Option<EventSeq>,
    /// Only this kind, such as exec.ended, or sandbox.* for all with that prefix; repeatable
    #[arg(long = "kind", value_name = "KIND", value_delimiter = ',')]
    kinds: Vec<KindPattern>,
    /// Only events of this sandbox: its id, or a unique prefix if it still exists
    #[arg(long, value_name = "ID")]
    sandbox: Option<String>,
    /// Only events of this project
    #[arg(long, value_name = "NAME")]
    project: Option<String>,
    #[command(flatten)]
    format: Format,
}

pub async fn run(args: EventsArgs, client: &Client) -> Result<Exit, Failure> {
    let EventsArgs { follow, after, kinds, sandbox, project, format } = args;
    let sandbox = match sandbox {
        Some(text) => Some(sandbox_id(client, &text).await?),
        None => None,
    };
    let limit = Some(limits::PAGE_MAX);
    let request = EventsRequest { after, kinds, sandbox, project, limit, ..Default::default() };
    if follow {
        self::follow(client, request, format).await?
    } else {
        list(client, request, format).await?
    }
    Ok(Exit::Ok)
}

/// The id of a sandbox that may be gone.
async fn sandbox_id(client: &Client, text: &str) -> Result<SandboxId, Failure> {
    match text.parse() {
        Ok(id) => Ok(id),
        Err(_) => Ok(client.resolve(text).await?),
    }
}

async fn list(client: &Client, mut request: EventsRequest, format: Format) -> Result<(), Failure> {
    let mut rows = Vec::new();
    loop {
        let page = client.event_page(&request).await?;
        if let Some(gap) = page.gap {
            note_gap(gap.after, gap.oldest);
        }
        for item in page.items {
            if format.json {
                print::line(&json!(item).to_string())?;
            } else {
                rows.push(row(&item));
            }
        }
        request.after = Some(page.next);
        if !page.more {
            break;
        }
    }
    if format.json {
        Ok(())
    } else {
        print::table(["SEQ", "WHEN", "KIND", "SANDBOX", "DETAILS"], rows.into_iter())
    }
}

/// Follows until the person has seen enough. The place in the log survives the daemon.
async fn follow(
    client: &Client,
    mut request: EventsRequest,
    format: Format,
) -> Result<(), Failure> {
    if request.after.is_none() {
        let newest = EventsRequest { limit: Some(1), ..request.clone() };
        request.after = Some(last(client, newest).await?);
    }
    let mut lost = false;
    loop {
        match follow_once(client, &mut request, format).await {
            Ok(never) => match never {},
            Err(Failure::Api(
                error @ (Error::Unreachable { .. }
                | Error::WentAway { .. }
                | Error::BrokeOff { .. }),
            )) => {
                if !lost {
                    print::note(&format!("{error}; reconnecting"));
                }
                lost = true;
                tokio::time::sleep(limits::EVENT_HEARTBEAT / RECONNECTS).await;
            }
            Err(Failure::Api(error)) if error.is_retryable() => {
                tokio::time::sleep(limits::EVENT_HEARTBEAT / RECONNECTS).await;
            }
            Err(error) => return Err(error),
        }
    }
}

enum Never {}

async fn follow_once(
    client: &Client,
    request: &mut EventsRequest,
    format: Format,
) -> Result<Never, Failure> {
    let mut stream = client.follow_events(request).await?;
    loop {
        let next = tokio::time::timeout(SILENCE_MAX, stream.next()).await;
        match next.unwrap_or_else(|_| Err(client.went_away()))? {
            EventLine::Event(item) => {
                show(&item, format)?;
                request.after = seq(&item).or(request.after);
            }
            EventLine::Notice(EventNotice::Gap(gap)) => note_gap(gap.after, gap.oldest),
            EventLine::Notice(EventNotice::Heartbeat { seq }) => request.after = Some(seq),
        }
    }
}

/// The number of the last event there is.
async fn last(client: &Client, request: EventsRequest) -> Result<EventSeq, Failure> {
    let mut stream = client.follow_events(&request).await?;
    loop {
        if let EventLine::Notice(EventNotice::Heartbeat { seq }) = stream.next().await? {
            return Ok(seq);
        }
    }
}

fn note_gap(after: EventSeq, oldest: EventSeq) {
    print::note(&format!("the events after {after} and before {oldest} are not kept any more"));
}

fn seq(item: &EventItem) -> Option<EventSeq> {
    match item {
        EventItem::Native(event) => Some(event.seq),
        EventItem::Cloud(_) => None,
        EventItem::Other(value) => value["seq"].as_u64().map(EventSeq::new),
    }
}

fn show(item: &EventItem, format: Format) -> Result<(), Failure> {
    if format.json {
        return print::line(&json!(item).to_string());
    }
    let [seq, at, kind, sandbox, details] = row(item);
    print::line(format!("{seq}  {at}  {kind:<20}  {sandbox:<28}  {details}").trim_end())
}

fn row(item: &EventItem) -> [String; 5] {
    let value = json!(item);
    let at = match item {
        EventItem::Native(event) => when(event),
        EventItem::Cloud(_) | EventItem::Other(_) => words(&value["at"]),
    };
    [
        value["seq"].to_string(),
        at,
        words(&value["kind"]),
        words(&value["sandbox"]),
        details(&value["data"]),
    ]
}

fn when(event: &Event) -> String {
    format!("{:.0}", event.at)
}

fn details(data: &Value) -> String {
    let Some(fields) = data.as_object() else { return String::new() };
    let field = |(name, value): (&String, &Value)| match value {
        Value::String(text) => format!("{name}={}", text.replace(char::is_control, " ")),
        other => format!("{name}={other}"),
    };
    fields.iter().map(field).collect::<Vec<_>>().join(" ")
}
