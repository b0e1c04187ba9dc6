//! Sandboxes: create, list, get, start, stop, destroy.

use axum::Json;
use axum::body::Body;
use axum::extract::{FromRequestParts, Path, State};
use axum::http::header::LOCATION;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, StatusCode};
use serde::Serialize;
use utoipa::ToSchema;

use super::body;
use super::openapi::{Guarded, InState, Inside, OfSandbox, WithBody};
use super::problem::Refusal;
use super::who::Who;
use crate::broker::{Broker, View};
use crate::sandbox::{SandboxId, SpecDraft};

#[derive(Serialize, ToSchema)]
#[schema(as = Sandboxes)]
pub struct Listing {
    items: Vec<View>,
}

/// The id in a path. What is not an id names no sandbox, so it is not found like any other.
pub struct Id(pub SandboxId);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let text = match Path::<String>::from_request_parts(parts, state).await {
            Ok(Path(text)) => text,
            // It is not even text once decoded; then the path itself has to do.
            Err(_) => parts.uri.path().to_owned(),
        };
        text.parse().map(Self).map_err(|_| Refusal::NotAnId { text })
    }
}

/// Create a sandbox
#[utoipa::path(
    post, path = "/api/v1/sandboxes", operation_id = "create_sandbox", tag = "sandboxes",
    request_body = Option<SpecDraft>,
    responses(
        (status = 201, body = View, headers(("Location" = String, description = "its path"))),
        Guarded, WithBody, Inside
    )
)]
pub async fn create(
    State(broker): State<Broker>,
    Who(who): Who,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, [(HeaderName, String); 1], Json<View>), Refusal> {
    let draft = body::optional(&headers, body).await?;
    let view = broker.create(&who, draft).await?;
    let location = format!("/api/v1/sandboxes/{}", view.id);
    Ok((StatusCode::CREATED, [(LOCATION, location)], Json(view)))
}

/// List sandboxes, the oldest first
#[utoipa::path(
    get, path = "/api/v1/sandboxes", operation_id = "list_sandboxes", tag = "sandboxes",
    responses((status = 200, body = Listing), Guarded)
)]
pub async fn list(State(broker): State<Broker>, Who(who): Who) -> Result<Json<Listing>, Refusal> {
    let items = broker.list(&who).await?;
    Ok(Json(Listing { items }))
}

/// Look at a sandbox
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}", operation_id = "get_sandbox", tag = "sandboxes",
    params(("id" = SandboxId, Path)),
    responses((status = 200, body = View), Guarded, OfSandbox)
)]
pub async fn get(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(id): Id,
) -> Result<Json<View>, Refusal> {
    Ok(Json(broker.get(&who, &id).await?))
}

/// Start a stopped or failed sandbox
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/start", operation_id = "start_sandbox", tag = "sandboxes",
    params(("id" = SandboxId, Path)),
    responses((status = 200, body = View), Guarded, OfSandbox, Inside)
)]
pub async fn start(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(id): Id,
) -> Result<Json<View>, Refusal> {
    Ok(Json(broker.start(&who, &id).await?))
}

/// Stop a sandbox; its files stay
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/stop", operation_id = "stop_sandbox", tag = "sandboxes",
    params(("id" = SandboxId, Path)),
    responses((status = 200, body = View), Guarded, OfSandbox, Inside)
)]
pub async fn stop(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(id): Id,
) -> Result<Json<View>, Refusal> {
    Ok(Json(broker.stop(&who, &id).await?))
}

/// Destroy a sandbox and all it holds
#[utoipa::path(
    delete, path = "/api/v1/sandboxes/{id}", operation_id = "destroy_sandbox", tag = "sandboxes",
    params(("id" = SandboxId, Path)),
    responses((status = 204), Guarded, OfSandbox, InState)
)]
pub async fn destroy(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(id): Id,
) -> Result<StatusCode, Refusal> {
    broker.destroy(&who, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}
