//! Sessions: allocate, list, get, terminate.

use std::collections::BTreeMap;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::{Extension, Json};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::kit::Refusal;
use crate::kit::audit::Concerns;
use crate::kit::body;
use crate::kit::path::Id;
use crate::kit::who::Who;
use crate::rest::openapi::{Guarded, InState, Inside, OfSandbox, Sourced, Stored, WithBody};
use sandkeep_broker::{Broker, Filter, View, error::Error};
use sandkeep_core::{Principal, SandboxId, SpecDraft, State as SandboxState};

const WORKSPACE_LABEL: &str = "urule.workspace_id";
const PROFILE_LABEL: &str = "urule.runtime_profile";

/// A session to allocate.
#[derive(Deserialize, ToSchema)]
#[schema(as = AllocateSession)]
#[serde(rename_all = "camelCase")]
pub struct Allocation {
    /// The runtime; the default one if left out.
    #[schema(example = "native")]
    provider: Option<String>,
    /// The workspace of the session; kept as a label, and the project of its owner.
    #[schema(example = "ws-1")]
    workspace_id: String,
    /// The profile of this name, or the default one if it does not exist; kept as a label.
    #[schema(min_length = 1, example = "node-20")]
    runtime_profile: String,
    /// Environment of all its tasks. Values are never shown again.
    env: Option<BTreeMap<String, String>>,
}

/// A session.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Session {
    /// The id of the sandbox.
    session_id: SandboxId,
    status: SandboxState,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
}

/// A session in a list.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ListedSession {
    #[serde(flatten)]
    session: Session,
    workspace_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    runtime_profile: Option<String>,
    provider: String,
}

#[derive(Serialize, ToSchema)]
pub struct Sessions {
    sessions: Vec<ListedSession>,
}

impl Allocation {
    /// If the profile does not exist, the default one is used.
    fn into_draft(self, broker: &Broker) -> Result<SpecDraft, Error> {
        if self.runtime_profile.is_empty() {
            let problem = "it is empty".to_owned();
            return Err(Error::InvalidField { field: "runtimeProfile", problem });
        }
        let profile = broker.has_profile(&self.runtime_profile);
        let profile = profile.then(|| self.runtime_profile.clone());
        let project = Some(self.workspace_id.clone()).filter(|project| !project.is_empty());
        let labels = [
            (WORKSPACE_LABEL.to_owned(), self.workspace_id),
            (PROFILE_LABEL.to_owned(), self.runtime_profile),
        ];
        Ok(SpecDraft {
            runtime: self.provider,
            profile,
            project,
            labels: Some(labels.into()),
            env: self.env,
            ..SpecDraft::default()
        })
    }
}

impl From<View> for Session {
    fn from(view: View) -> Self {
        Self { session_id: view.id, status: view.state, created_at: view.created_at }
    }
}

impl ListedSession {
    /// `None` if the sandbox is not a session.
    fn of(mut view: View) -> Option<Self> {
        let workspace_id = view.labels.remove(WORKSPACE_LABEL)?;
        let runtime_profile = view.labels.remove(PROFILE_LABEL);
        let provider = std::mem::take(&mut view.runtime);
        Some(Self { session: view.into(), workspace_id, runtime_profile, provider })
    }
}

/// The sandbox of a session. A sandbox that is not a session does not exist here.
pub async fn find(broker: &Broker, who: &Principal, id: SandboxId) -> Result<View, Error> {
    let view = broker.get(who, &id).await?;
    if view.labels.contains_key(WORKSPACE_LABEL) { Ok(view) } else { Err(Error::NotFound { id }) }
}

/// Allocate a session
#[utoipa::path(
    post, path = "/api/v1/sessions", operation_id = "allocate_session", tag = "urule",
    request_body = Allocation,
    responses(
        (status = 201, description = "the session is running", body = Session), Guarded, WithBody, Inside, Sourced,
        Stored
    )
)]
pub async fn create(
    State(broker): State<Broker>,
    Who(who): Who,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, Extension<Concerns>, Json<Session>), Refusal> {
    let allocation: Allocation = body::required(&headers, body).await?;
    let view = broker.create(&who, allocation.into_draft(&broker)?).await?;
    let about = Concerns::sandbox(&view.id);
    Ok((StatusCode::CREATED, Extension(about), Json(view.into())))
}

/// List sessions, oldest first
#[utoipa::path(
    get, path = "/api/v1/sessions", operation_id = "list_sessions", tag = "urule",
    responses((status = 200, description = "all sessions of the caller", body = Sessions), Guarded)
)]
pub async fn list(State(broker): State<Broker>, Who(who): Who) -> Result<Json<Sessions>, Refusal> {
    let all = Filter { limit: usize::MAX, ..Filter::default() };
    let views = broker.list(&who, &all).await?.items;
    Ok(Json(Sessions { sessions: views.into_iter().filter_map(ListedSession::of).collect() }))
}

/// Get a session
#[utoipa::path(
    get, path = "/api/v1/sessions/{id}/status", operation_id = "session_status", tag = "urule",
    params(("id" = SandboxId, Path, description = "the sessionId")),
    responses((status = 200, description = "the sandbox", body = Session), Guarded, OfSandbox)
)]
pub async fn status(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(id): Id,
) -> Result<Json<Session>, Refusal> {
    Ok(Json(find(&broker, &who, id).await?.into()))
}

/// Terminate a session
#[utoipa::path(
    delete, path = "/api/v1/sessions/{id}", operation_id = "terminate_session", tag = "urule",
    params(("id" = SandboxId, Path, description = "the sessionId")),
    responses((status = 204, description = "deleted"), Guarded, OfSandbox, InState)
)]
pub async fn terminate(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(id): Id,
) -> Result<StatusCode, Refusal> {
    let session = find(&broker, &who, id).await?;
    broker.destroy(&who, &session.id).await?;
    Ok(StatusCode::NO_CONTENT)
}
