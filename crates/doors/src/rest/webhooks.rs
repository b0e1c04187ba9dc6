//! Webhooks: register, list, look, test, enable, replay, delete.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, StatusCode, header};

use super::openapi::{Guarded, OfSandbox, Stored, WithBody};
use crate::kit::Refusal;
use crate::kit::body;
use crate::kit::path::Id;
use crate::kit::who::Who;
use sandkeep_broker::Broker;
use sandkeep_core::WebhookId;
use sandkeep_core::api::{
    CreateWebhook, NewWebhook, ReplayWebhook, Webhook, WebhookTest, Webhooks,
};

/// Register a webhook
///
/// Events from now on are sent to the URL as CloudEvents 1.0, at least once and in order, signed as Standard Webhooks
/// describes. The answer has the secret, which is not shown again. The webhook delivers what the caller may see now.
#[utoipa::path(
    post, path = "/api/v1/webhooks", operation_id = "create_webhook", tag = "events",
    request_body = CreateWebhook,
    responses((status = 201, body = NewWebhook), WithBody, Guarded, Stored)
)]
pub async fn create(
    Who(who): Who,
    State(broker): State<Broker>,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, [(HeaderName, &'static str); 1], Json<NewWebhook>), Refusal> {
    let draft: CreateWebhook = body::required(&headers, body).await?;
    let made = broker.create_webhook(&who, draft).await?;
    Ok((StatusCode::CREATED, [(header::CACHE_CONTROL, "no-store")], Json(made)))
}

/// List webhooks
#[utoipa::path(
    get, path = "/api/v1/webhooks", operation_id = "list_webhooks", tag = "events",
    responses((status = 200, body = Webhooks), Guarded)
)]
pub async fn list(Who(who): Who, State(broker): State<Broker>) -> Json<Webhooks> {
    Json(Webhooks { items: broker.webhooks(&who) })
}

/// Get a webhook: its state, its position, and why its last delivery failed
#[utoipa::path(
    get, path = "/api/v1/webhooks/{id}", operation_id = "get_webhook", tag = "events",
    params(("id" = WebhookId, Path)),
    responses((status = 200, body = Webhook), Guarded, OfSandbox)
)]
pub async fn get(
    Who(who): Who,
    State(broker): State<Broker>,
    Id(id): Id<WebhookId>,
) -> Result<Json<Webhook>, Refusal> {
    Ok(Json(broker.webhook(&who, &id)?))
}

/// Delete a webhook
#[utoipa::path(
    delete, path = "/api/v1/webhooks/{id}", operation_id = "delete_webhook", tag = "events",
    params(("id" = WebhookId, Path)),
    responses((status = 204, description = "Nothing more is delivered"), Guarded, OfSandbox, Stored)
)]
pub async fn delete(
    Who(who): Who,
    State(broker): State<Broker>,
    Id(id): Id<WebhookId>,
) -> Result<StatusCode, Refusal> {
    broker.delete_webhook(&who, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Send a test message to a webhook
///
/// Its type is `dev.sandkeep.webhook.test`. The answer says whether the receiver took it.
#[utoipa::path(
    post, path = "/api/v1/webhooks/{id}/test", operation_id = "test_webhook", tag = "events",
    params(("id" = WebhookId, Path)),
    responses((status = 200, body = WebhookTest), Guarded, OfSandbox)
)]
pub async fn test(
    Who(who): Who,
    State(broker): State<Broker>,
    Id(id): Id<WebhookId>,
) -> Result<Json<WebhookTest>, Refusal> {
    Ok(Json(broker.test_webhook(&who, &id).await?))
}

/// Enable a disabled webhook
///
/// It continues with the first event that was not delivered. One that waits after a failure tries again at once.
#[utoipa::path(
    post, path = "/api/v1/webhooks/{id}/enable", operation_id = "enable_webhook", tag = "events",
    params(("id" = WebhookId, Path)),
    responses((status = 200, body = Webhook), Guarded, OfSandbox, Stored)
)]
pub async fn enable(
    Who(who): Who,
    State(broker): State<Broker>,
    Id(id): Id<WebhookId>,
) -> Result<Json<Webhook>, Refusal> {
    Ok(Json(broker.enable_webhook(&who, &id).await?))
}

/// Deliver events again
///
/// All events after a number are delivered, in order, whether they were delivered before or not.
#[utoipa::path(
    post, path = "/api/v1/webhooks/{id}/replay", operation_id = "replay_webhook", tag = "events",
    params(("id" = WebhookId, Path)),
    request_body = ReplayWebhook,
    responses((status = 200, body = Webhook), WithBody, Guarded, OfSandbox, Stored)
)]
pub async fn replay(
    Who(who): Who,
    State(broker): State<Broker>,
    Id(id): Id<WebhookId>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Webhook>, Refusal> {
    let ReplayWebhook { after } = body::required(&headers, body).await?;
    Ok(Json(broker.replay_webhook(&who, &id, after).await?))
}
