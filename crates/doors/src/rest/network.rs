//! The network of a sandbox: its policy, the log of decisions, and what waits for one.

use std::convert::Infallible;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use serde_json::json;

use super::openapi::{Guarded, InState, OfSandbox, WithBody, WithQuery};
use crate::kit::Refusal;
use crate::kit::body;
use crate::kit::frames::Form;
use crate::kit::path::{Id, In, RequestNumber};
use crate::kit::query::{QueryResult, query};
use crate::kit::who::Who;
use sandkeep_broker::{Broker, NetworkLogFeed, NetworkLogNext, NetworkLogPart};
use sandkeep_core::api::{
    AskForNetwork, DecideNetworkRequest, NetworkLog, NetworkPresets, NetworkRequests,
    ReadNetworkLog, SandboxNetwork,
};
use sandkeep_core::network::{NetworkPatch, PendingRequest, Policy};
use sandkeep_core::{SandboxId, limits};

/// Get the network of a sandbox
///
/// Its policy as it was written, what each entry means for connections, and what was used. Values of secrets are never
/// shown.
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/network", operation_id = "get_network", tag = "network",
    params(("id" = SandboxId, Path)),
    responses((status = 200, body = SandboxNetwork), Guarded, OfSandbox)
)]
pub async fn get(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(id): Id,
) -> Result<Json<SandboxNetwork>, Refusal> {
    Ok(Json(broker.network(&who, &id)?))
}

/// Change the network policy and the secrets of a sandbox
///
/// `policy` replaces all of it; the other fields change a part. New connections follow it at once, and open ones that it
/// does not allow end. `secrets` adds, changes and removes secrets: the placeholder of a changed one stays, and new
/// connections get its new value. A sandbox that was started without a network, or without secrets and rules for
/// requests, gets them when it is started again.
#[utoipa::path(
    patch, path = "/api/v1/sandboxes/{id}/network", operation_id = "patch_network", tag = "network",
    params(("id" = SandboxId, Path)),
    request_body = NetworkPatch,
    responses((status = 200, body = SandboxNetwork), Guarded, WithBody, OfSandbox, InState)
)]
pub async fn amend(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(id): Id,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<SandboxNetwork>, Refusal> {
    let patch = body::required(&headers, body).await?;
    Ok(Json(broker.amend_network(&who, &id, patch).await?))
}

/// Read what was decided about the connections of a sandbox
///
/// The newest decisions, oldest first. With `follow=true` the answer is a stream of lines of JSON with decisions from now
/// on; a line whose kind is `gap` says how many were missed because the reader is too slow.
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/network/log", operation_id = "read_network_log",
    tag = "network",
    params(("id" = SandboxId, Path), ReadNetworkLog),
    responses(
        (status = 200, content((NetworkLog = "application/json"), (Object = "application/x-ndjson"))),
        Guarded, WithQuery, OfSandbox
    )
)]
pub async fn log(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(id): Id,
    asked: QueryResult<ReadNetworkLog>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let ReadNetworkLog { limit, refused, follow } = query(asked)?;
    let part = if refused { NetworkLogPart::Refused } else { NetworkLogPart::All };
    let limit = match limit {
        None => limits::PAGE_DEFAULT,
        Some(limit) if (1..=limits::PAGE_MAX).contains(&limit) => limit,
        Some(_) => {
            let problem = format!("limit: must be from 1 to {}", limits::PAGE_MAX);
            return Err(Refusal::QueryMalformed { problem });
        }
    };
    if follow {
        let feed = broker.follow_network_log(&who, &id, part)?;
        return Ok(Form::Ndjson.response(lines(feed)));
    }
    let items = broker.network_log(&who, &id, part, limit).await?;
    Ok(match Form::accepted(&headers) {
        Some(Form::Ndjson) => {
            let lines = items.into_iter().map(|item| Ok::<_, Infallible>(frame(&item)));
            Form::Ndjson.response(stream::iter(lines))
        }
        Some(Form::Sse | Form::Raw) | None => Json(NetworkLog { items }).into_response(),
    })
}

fn frame(item: &impl serde::Serialize) -> Bytes {
    Form::Ndjson.frame("", None, item)
}

fn lines(feed: NetworkLogFeed) -> impl futures_util::Stream<Item = Result<Bytes, Infallible>> {
    stream::unfold(feed, |mut feed| async move {
        let line = match feed.next().await? {
            NetworkLogNext::Decision(decision) => frame(&*decision),
            NetworkLogNext::Missed(missed) => frame(&json!({ "kind": "gap", "missed": missed })),
        };
        Some((Ok(line), feed))
    })
}

/// List the requests of a sandbox that wait for a decision
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/network/requests", operation_id = "list_network_requests",
    tag = "network",
    params(("id" = SandboxId, Path)),
    responses((status = 200, body = NetworkRequests), Guarded, OfSandbox)
)]
pub async fn requests(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(id): Id,
) -> Result<Json<NetworkRequests>, Refusal> {
    Ok(Json(NetworkRequests { items: broker.network_requests(&who, &id)? }))
}

/// Ask for a destination, on behalf of an agent in the sandbox
///
/// Its owner decides, as about a connection that waits. Only with `on_deny: ask`.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/network/requests", operation_id = "ask_for_network",
    tag = "network",
    params(("id" = SandboxId, Path)),
    request_body = AskForNetwork,
    responses((status = 200, body = PendingRequest), Guarded, WithBody, OfSandbox, InState)
)]
pub async fn ask(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(id): Id,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<PendingRequest>, Refusal> {
    let asked: AskForNetwork = body::required(&headers, body).await?;
    Ok(Json(broker.ask_for_network(&who, &id, &asked)?))
}

/// Decide about a request of a sandbox
///
/// `once`: what waits passes. `always`: the destination is also added to the policy. `refuse`: it is refused.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/network/requests/{request_id}",
    operation_id = "decide_network_request", tag = "network",
    params(("id" = SandboxId, Path), ("request_id" = u64, Path)),
    request_body = DecideNetworkRequest,
    responses((status = 204), Guarded, WithBody, OfSandbox, InState)
)]
pub async fn decide(
    State(broker): State<Broker>,
    Who(who): Who,
    In(id, request): In<RequestNumber>,
    headers: HeaderMap,
    body: Body,
) -> Result<StatusCode, Refusal> {
    let DecideNetworkRequest { choice } = body::required(&headers, body).await?;
    broker.decide_network_request(&who, &id, request.0, choice).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Suggest the smallest policy that covers what was used
///
/// Everything that the sandbox reached since its network was opened, also what only `on_deny: audit` let pass.
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/network/suggest", operation_id = "suggest_network",
    tag = "network",
    params(("id" = SandboxId, Path)),
    responses((status = 200, body = Policy), Guarded, OfSandbox, InState)
)]
pub async fn suggest(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(id): Id,
) -> Result<Json<Policy>, Refusal> {
    Ok(Json(broker.suggest_network(&who, &id)?))
}

/// List the presets that a policy can name
#[utoipa::path(
    get, path = "/api/v1/network/presets", operation_id = "list_network_presets", tag = "network",
    responses((status = 200, body = NetworkPresets), Guarded)
)]
pub async fn presets(State(broker): State<Broker>) -> Json<NetworkPresets> {
    Json(broker.network_presets())
}
