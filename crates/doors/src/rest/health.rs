//! `/healthz`, `/readyz`, `/metrics`: for operators and monitoring.

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::openapi::{Guarded, Public};
use crate::kit::who::{Admin, MaybeWho};
use sandkeep_broker::{Broker, Health, Readiness, telemetry};
use sandkeep_core::Scope;

/// The daemon answers.
#[derive(Serialize, ToSchema)]
pub struct Alive {
    #[schema(example = "ok")]
    status: &'static str,
    version: &'static str,
}

/// Check that the daemon answers
///
/// Answers as soon as the daemon runs, whatever the state of its components. Needs no credentials.
#[utoipa::path(
    get, path = "/healthz", operation_id = "healthz", tag = "service", security(()),
    responses((status = 200, description = "the daemon answers", body = Alive), Public)
)]
pub async fn healthz() -> Json<Alive> {
    Json(Alive { status: "ok", version: env!("CARGO_PKG_VERSION") })
}

/// The answer of `/readyz` to callers without the scope `admin`.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Ready {
    status: Readiness,
}

/// `Health` for the local user and admins, `Ready` for everybody else.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub enum ReadyAnswer {
    Detailed(Health),
    Brief(Ready),
}

/// Check whether the daemon is ready for requests
///
/// 503 when the storage is critical or unusable, the state store fails, no runtime is usable, or the daemon is shutting
/// down. Takes at most two seconds. Needs no credentials; callers without the scope `admin` get only `status`.
#[utoipa::path(
    get, path = "/readyz", operation_id = "readyz", tag = "service", security(()),
    responses(
        (status = 200, description = "ready", body = ReadyAnswer),
        (status = 503, description = "not ready", body = ReadyAnswer),
        Public
    )
)]
pub async fn readyz(
    State(broker): State<Broker>,
    MaybeWho(who): MaybeWho,
) -> (StatusCode, Json<ReadyAnswer>) {
    let health = broker.health().await;
    let status = match health.status {
        Readiness::Ready => StatusCode::OK,
        Readiness::NotReady => StatusCode::SERVICE_UNAVAILABLE,
    };
    let answer = if who.is_some_and(|who| who.scopes.allow(Scope::Admin)) {
        ReadyAnswer::Detailed(health)
    } else {
        ReadyAnswer::Brief(Ready { status: health.status })
    };
    (status, Json(answer))
}

/// Get the daemon's metrics
///
/// In the OpenMetrics text format; docs/reference/metrics.md lists all of them. Needs the scope `admin`.
#[utoipa::path(
    get, path = "/metrics", operation_id = "metrics", tag = "service",
    responses(
        (status = 200, description = "all metrics", body = String,
         content_type = "application/openmetrics-text"),
        Guarded
    )
)]
pub async fn metrics(State(broker): State<Broker>, _admin: Admin) -> Response {
    let page = broker.metrics().await;
    ([(header::CONTENT_TYPE, telemetry::MEDIA_TYPE)], page).into_response()
}
