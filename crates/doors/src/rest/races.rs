//! Races: forks of a sandbox each try something, and the files of the best are kept.

use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use serde::Deserialize;
use utoipa::IntoParams;

use super::execs::argv_of;
use super::openapi::{Guarded, Inside, OfSandbox, Stored, WithBody};
use super::problem::Problem;
use crate::kit::Refusal;
use crate::kit::body;
use crate::kit::frames::Form;
use crate::kit::path::Id;
use crate::kit::query::{QueryResult, query};
use crate::kit::who::Who;
use sandkeep_broker::{Broker, Race, RaceDraft, RaceTold, RacerDraft, error::Error};
use sandkeep_core::api::{RaceEvent, RaceResult, RaceSandbox};
use sandkeep_core::{SandboxId, limits};

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct RaceQuery {
    /// Answer live: NDJSON, or Server-Sent Events if the request accepts those. Each line is a `RaceEvent`.
    #[serde(default)]
    stream: bool,
}

/// Fork a sandbox, try something in each fork, and keep the best
///
/// Each racer is a fork. In each, its patch is applied, its command runs, and then the judge, which prints a number. The
/// files of the racer with the highest number become the sandbox's, as a turn; a turn before it holds what the sandbox
/// was. A patch, a command or a judge that fails puts its racer out. The forks are destroyed at the end, and also if the
/// client disconnects. Processes in the sandbox keep running.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/race", operation_id = "race_sandbox", tag = "snapshots",
    params(("id" = SandboxId, Path), RaceQuery),
    request_body = RaceSandbox,
    responses(
        (status = 200, description = "the race has ended or, live, its events", content(
            (RaceResult = "application/json"),
            (RaceEvent = "application/x-ndjson"),
            (String = "text/event-stream"),
        )),
        Guarded, WithBody, OfSandbox, Inside, Stored
    )
)]
pub async fn race(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(id): Id,
    asked: QueryResult<RaceQuery>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    let form = Form::live(query(asked)?.stream, &headers);
    let draft = race_draft(body::required(&headers, body).await?)?;
    let race = broker.race(&who, &id, draft).await?;
    match form {
        None => Ok(Json(race.done().await?).into_response()),
        Some(form) => Ok(form.response(stream::unfold(race, move |race| next(race, form)))),
    }
}

async fn next(
    mut race: Race,
    form: Form,
) -> Option<(Result<Bytes, std::convert::Infallible>, Race)> {
    let event = match race.next().await? {
        RaceTold::Started(racers) => RaceEvent::Started { racers },
        RaceTold::Racer(racer) => RaceEvent::Racer { racer },
        RaceTold::Done(Ok(result)) => RaceEvent::Done { result },
        RaceTold::Done(Err(error)) => {
            let problem = Problem::from(&Refusal::from(error));
            RaceEvent::Failed { problem }
        }
    };
    Some((Ok(form.frame(event.name(), None, &event)), race))
}

/// The request for the broker: what each racer tries.
pub fn race_draft(asked: RaceSandbox) -> Result<RaceDraft, Error> {
    let RaceSandbox { count, command, argv, commands, patches, judge, .. } = asked;
    if judge.trim().is_empty() {
        return Err(invalid("judge", "it is empty; name a command that prints a number"));
    }
    let same = argv_of(command, argv)?;
    let same = (!same.is_empty()).then_some(same);
    if same.is_some() && commands.is_some() {
        return Err(invalid("commands", "give one command for all, or one for each"));
    }
    let given = |list: &Option<Vec<String>>| list.as_ref().map(Vec::len);
    let Some(number) = count.or(given(&commands)).or(given(&patches)) else {
        return Err(invalid("count", "say how many racers, or give commands or patches"));
    };
    for (field, list) in [("commands", &commands), ("patches", &patches)] {
        if given(list).is_some_and(|length| length != number) {
            let problem = format!("there must be one for each of {number} racers");
            return Err(invalid(field, &problem));
        }
    }
    if same.is_none() && commands.is_none() && patches.is_none() {
        return Err(invalid("command", "give a command, commands or patches to try"));
    }
    let of_shell = |command: String| argv_of(Some(command), None);
    let mut racers = Vec::new();
    // A number that is refused later must not be counted up to.
    for at in 0..number.min(limits::FORKS_MAX + 1) {
        let own = commands.as_ref().and_then(|commands| commands.get(at).cloned());
        let argv = own.map(of_shell).transpose()?.or_else(|| same.clone());
        let patch = patches.as_ref().and_then(|patches| patches.get(at).cloned());
        racers.push(RacerDraft { patch: patch.map(Bytes::from), argv });
    }
    let millis = |field, ms: Option<u64>| match ms {
        Some(0) => Err(invalid(field, "must be at least 1")),
        ms => Ok(ms.map(Duration::from_millis)),
    };
    Ok(RaceDraft {
        racers,
        judge: of_shell(judge)?,
        env: asked.env.unwrap_or_default(),
        cwd: asked.cwd,
        timeout: millis("timeout_ms", asked.timeout_ms)?,
        judge_timeout: millis("judge_timeout_ms", asked.judge_timeout_ms)?
            .unwrap_or(limits::RACE_JUDGE),
        snapshot: asked.snapshot,
    })
}

fn invalid(field: &'static str, problem: &str) -> Error {
    Error::InvalidField { field, problem: problem.to_owned() }
}
