//! Sandboxes: create, list, get, start, stop, destroy.

use axum::Json;
use axum::body::Body;
use axum::extract::{FromRequestParts, Path, State};
use axum::http::header::LOCATION;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, StatusCode};
use serde::Serialize;

use super::body;
use super::problem::Refusal;
use crate::broker::{Broker, View};
use crate::sandbox::{Principal, SandboxId};

#[derive(Serialize)]
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

pub async fn create(
    State(broker): State<Broker>,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, [(HeaderName, String); 1], Json<View>), Refusal> {
    let draft = body::optional(&headers, body).await?;
    let view = broker.create(&Principal::local(), draft).await?;
    let location = format!("/api/v1/sandboxes/{}", view.id);
    Ok((StatusCode::CREATED, [(LOCATION, location)], Json(view)))
}

pub async fn list(State(broker): State<Broker>) -> Result<Json<Listing>, Refusal> {
    let items = broker.list(&Principal::local()).await?;
    Ok(Json(Listing { items }))
}

pub async fn get(State(broker): State<Broker>, Id(id): Id) -> Result<Json<View>, Refusal> {
    Ok(Json(broker.get(&Principal::local(), &id).await?))
}

pub async fn start(State(broker): State<Broker>, Id(id): Id) -> Result<Json<View>, Refusal> {
    Ok(Json(broker.start(&Principal::local(), &id).await?))
}

pub async fn stop(State(broker): State<Broker>, Id(id): Id) -> Result<Json<View>, Refusal> {
    Ok(Json(broker.stop(&Principal::local(), &id).await?))
}

pub async fn destroy(State(broker): State<Broker>, Id(id): Id) -> Result<StatusCode, Refusal> {
    broker.destroy(&Principal::local(), &id).await?;
    Ok(StatusCode::NO_CONTENT)
}
