//! API keys, for admins: create, list, revoke.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::{Extension, Json};
use serde::Serialize;
use utoipa::ToSchema;

use super::openapi::{Guarded, OfSandbox, WithBody};
use crate::auth::{Auth, KeyDraft, KeyInfo, NewKey};
use crate::kit::Refusal;
use crate::kit::audit::Concerns;
use crate::kit::body;
use crate::kit::path::Id;
use crate::kit::who::Admin;
use sandkeep_broker::{Broker, KeyChange};
use sandkeep_core::KeyId;

#[derive(Serialize, ToSchema)]
pub struct Keys {
    items: Vec<KeyInfo>,
}

/// Create an API key
///
/// The answer contains the key, which is not shown again. From the first key on, every request needs credentials,
/// permanently.
#[utoipa::path(
    post, path = "/api/v1/keys", operation_id = "create_key", tag = "keys",
    request_body = KeyDraft,
    responses((status = 201, body = NewKey), WithBody, Guarded)
)]
pub async fn create(
    Admin(who): Admin,
    State(broker): State<Broker>,
    Extension(auth): Extension<Arc<Auth>>,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, [(HeaderName, &'static str); 1], Extension<Concerns>, Json<NewKey>), Refusal>
{
    let draft: KeyDraft = body::required(&headers, body).await?;
    let made = auth.keys().create(draft).await?;
    broker.note_key(&made.info, KeyChange::Made);
    tracing::info!(by = who.user, key = %made.info.id, "a key was made");
    let about = Concerns::resource(&made.info.id);
    let headers = [(header::CACHE_CONTROL, "no-store")];
    Ok((StatusCode::CREATED, headers, Extension(about), Json(made)))
}

/// List the API keys
#[utoipa::path(
    get, path = "/api/v1/keys", operation_id = "list_keys", tag = "keys",
    responses((status = 200, body = Keys), Guarded)
)]
pub async fn list(
    _admin: Admin,
    Extension(auth): Extension<Arc<Auth>>,
) -> Result<Json<Keys>, Refusal> {
    Ok(Json(Keys { items: auth.keys().list().await? }))
}

/// Revoke an API key
///
/// It is refused from the next request on, and its open streams end within seconds.
#[utoipa::path(
    delete, path = "/api/v1/keys/{id}", operation_id = "revoke_key", tag = "keys",
    params(("id" = String, Path, description = "The id of the key")),
    responses((status = 204, description = "the key is revoked"), Guarded, OfSandbox)
)]
pub async fn revoke(
    Admin(who): Admin,
    State(broker): State<Broker>,
    Extension(auth): Extension<Arc<Auth>>,
    Id(id): Id<KeyId>,
) -> Result<StatusCode, Refusal> {
    if let Some(revoked) = auth.keys().revoke(&id).await? {
        broker.note_key(&revoked, KeyChange::Revoked);
    }
    tracing::info!(by = who.user, key = %id, "a key was revoked");
    Ok(StatusCode::NO_CONTENT)
}
