//! The commands, as a door that only messages can come through. The kit does everything before and after a handler.
//!
//! ```text
//!   create, ensure   400 → 401 → 403 → 409
//!   all others       400 → 404 → 401 → 403
//! ```

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use sandkeep_broker::error::Error;
use sandkeep_broker::{Broker, View};
use sandkeep_core::limits::BODY_MAX_BYTES;
use sandkeep_core::{Code, Kind, Principal, Scope, SpecDraft};
use sandkeep_doors::MessageDoor;
use sandkeep_doors::kit::who::MaybeWho;
use sandkeep_doors::kit::{Dialect, Kit, Refusal};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::id::{ids_of, uuid_of};
use super::input::{Creation, Input, Issue, Named};
use super::workspace::Workspaces;
use super::{Command, exec, files, owner};

/// The door. Merge it where messages come in, and nowhere else.
pub const MESSAGE_DOOR: MessageDoor = MessageDoor { routes: door, paths: &[PATH] };

const PATH: &str = "/purista/v1/{command}";

/// The path of a command.
pub fn path_of(command: Command) -> String {
    PATH.replace("{command}", command.name())
}

/// A command without its envelope.
#[derive(Default, Deserialize, Serialize)]
pub struct Call {
    #[serde(default)]
    pub payload: Value,
    #[serde(default)]
    pub parameter: Value,
}

/// An error as PURISTA has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    pub status: u16,
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
    /// Whether its caller is told what was wrong.
    pub handled: bool,
}

impl Fault {
    pub fn new(status: u16, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), data: None, handled: true }
    }

    pub fn with(self, data: Value) -> Self {
        Self { data: Some(data), ..self }
    }

    pub fn invalid(issues: &[Issue]) -> Self {
        Self::new(400, "input validation for payload failed:").with(json!(issues))
    }

    /// What callers are told of what is not theirs to know.
    pub fn internal() -> Self {
        Self { handled: false, ..Self::new(500, "Internal Server Error") }
    }

    fn not_found() -> Self {
        Self::new(404, "sandbox not found")
    }
}

impl IntoResponse for Fault {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, Json(self)).into_response()
    }
}

/// Why a command has no result.
pub enum Failed {
    Here(Fault),
    Elsewhere(Refusal),
}

impl From<Fault> for Failed {
    fn from(fault: Fault) -> Self {
        Self::Here(fault)
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Elsewhere(error.into())
    }
}

impl From<Vec<Issue>> for Failed {
    fn from(issues: Vec<Issue>) -> Self {
        Self::Here(Fault::invalid(&issues))
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        match self {
            Self::Here(fault) => fault.into_response(),
            Self::Elsewhere(refusal) => refusal.into_response(),
        }
    }
}

/// A sandbox that this answer has made: the sender's service tells others.
#[derive(Clone, Debug)]
pub struct Made(pub Value);

/// PURISTA's errors. Who asks is checked by the handlers, in PURISTA's order.
struct Purista;

impl Dialect for Purista {
    fn needs(&self, _request: &axum::extract::Request) -> Option<Scope> {
        None
    }

    fn refuse(&self, refusal: &Refusal, _path: &str) -> Response {
        fault_of(refusal).into_response()
    }
}

/// The one table from our errors to PURISTA's.
fn fault_of(refusal: &Refusal) -> Fault {
    if let Refusal::Broker(Error::SlotTaken { holder, .. }) = refusal {
        let data = json!({ "sandboxId": uuid_of(holder) });
        return Fault::new(409, "the owner already has a sandbox").with(data);
    }
    let code = refusal.code();
    let status = match (code, code.kind()) {
        // A service that does not expect a file to be missing fails.
        (Code::FileNotFound, _) | (_, Kind::Upstream | Kind::Internal) => return Fault::internal(),
        (_, Kind::Invalid | Kind::Unsupported) => 400,
        (_, Kind::Unauthenticated) => 401,
        (_, Kind::Forbidden) => 403,
        (_, Kind::NotFound) => 404,
        (_, Kind::Conflict | Kind::Precondition) => 409,
        (_, Kind::TooLarge) => 413,
        (_, Kind::Quota | Kind::RateLimited) => 429,
        (_, Kind::Unavailable) => 503,
        (_, Kind::Timeout) => 504,
        (_, Kind::NoSpace) => 507,
    };
    Fault::new(status, refusal.detail())
}

fn door(kit: &Kit) -> Router {
    let routes =
        Router::new().route(PATH, post(run)).layer(Extension(Arc::new(Workspaces::default())));
    kit.door(Purista, routes)
}

async fn run(
    State(broker): State<Broker>,
    MaybeWho(who): MaybeWho,
    Extension(workspaces): Extension<Arc<Workspaces>>,
    Path(command): Path<String>,
    body: Body,
) -> Result<Response, Failed> {
    let no_command = || Fault::new(404, "unknown command");
    let command = Command::named(&command).ok_or_else(no_command)?;
    let bytes = axum::body::to_bytes(body, BODY_MAX_BYTES).await;
    let bytes = bytes.map_err(|_| Fault::new(413, "the message is too large"))?;
    let call: Call =
        serde_json::from_slice(&bytes).map_err(|_| Fault::new(400, "not a command"))?;
    let mut input = Input::new(call.payload, call.parameter);
    match command {
        Command::CreateSandbox => {
            create(&broker, &workspaces, who, input.creation()?, Mode::Create).await
        }
        Command::EnsureSandbox => {
            create(&broker, &workspaces, who, input.creation()?, Mode::Ensure).await
        }
        Command::ExecuteBash => {
            let asked = (input.named(), input.bash());
            let (named, bash) = input.done(asked)?;
            let (who, view) = found(&broker, who, &named).await?;
            workspaces.prepare(&broker, &who, &view.id).await?;
            exec::run(&broker, &who, &named.uuid, &view.id, bash).await
        }
        Command::ReadFile => {
            let asked = (input.named(), input.path());
            let (named, path) = input.done(asked)?;
            let (who, view) = found(&broker, who, &named).await?;
            files::read(&broker, &who, &view.id, &path).await
        }
        Command::WriteFiles => {
            let asked = (input.named(), input.files());
            let (named, all) = input.done(asked)?;
            let (who, view) = found(&broker, who, &named).await?;
            workspaces.prepare(&broker, &who, &view.id).await?;
            files::write(&broker, &who, &view.id, all).await
        }
        Command::DestroySandbox => {
            let named = input.named();
            let named = input.done(named)?;
            let (who, view) = found(&broker, who, &named).await?;
            broker.destroy(&who, &view.id).await?;
            workspaces.forget(&view.id);
            Ok(Json(json!({ "sandboxId": named.uuid, "destroyed": true })).into_response())
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Create,
    Ensure,
}

async fn create(
    broker: &Broker,
    workspaces: &Workspaces,
    who: Option<Principal>,
    creation: Creation,
    mode: Mode,
) -> Result<Response, Failed> {
    let who = known(who)?;
    let other =
        |given: &Option<String>, own: &str| given.as_ref().is_some_and(|given| given.trim() != own);
    if other(&creation.organization, &who.organization) || other(&creation.user, &who.user) {
        return Err(forbidden().into());
    }
    let draft = SpecDraft {
        project: Some(creation.project.clone()),
        slot: Some(owner::slot_of(&creation.scope)),
        labels: Some(owner::labels_of(&who, &creation)),
        ..SpecDraft::default()
    };
    let (view, is_new) = match mode {
        Mode::Create => (broker.create(&who, draft).await?, true),
        Mode::Ensure => {
            let ensured = broker.ensure(&who, draft).await?;
            (ensured.sandbox, ensured.created)
        }
    };
    workspaces.prepare(broker, &who, &view.id).await?;
    if let (true, Some(git)) = (is_new, &creation.git)
        && let Err(failed) = exec::configure_git(broker, &who, &view.id, git).await
    {
        // Nobody could tell that it is not as it was asked for.
        broker.destroy(&who, &view.id).await?;
        return Err(failed);
    }
    let id = uuid_of(&view.id);
    let answer = match (mode, is_new) {
        (Mode::Create, _) => json!({ "sandboxId": id, "status": "ready" }),
        (Mode::Ensure, true) => json!({ "sandboxId": id, "status": "starting", "created": true }),
        (Mode::Ensure, false) => json!({ "sandboxId": id, "status": "ready", "created": false }),
    };
    let mut response = Json(answer).into_response();
    if is_new {
        response.extensions_mut().insert(Made(owner::described(&view.id, &view.owner)));
    }
    Ok(response)
}

fn known(who: Option<Principal>) -> Result<Principal, Fault> {
    who.ok_or_else(|| Fault::new(401, "tenantId and principalId are required"))
}

fn forbidden() -> Fault {
    Fault::new(403, "the sandbox belongs to another owner")
}

/// The sandbox that a command names, and who asks, if it is theirs.
async fn found(
    broker: &Broker,
    who: Option<Principal>,
    named: &Named,
) -> Result<(Principal, View), Failed> {
    let view = look_up(broker, &named.uuid).await.ok_or_else(Fault::not_found)?;
    let who = known(who)?;
    let owner = &view.owner;
    let other_project = named.project.as_ref().is_some_and(|project| *project != owner.project);
    if owner.organization != who.organization || owner.user != who.user || other_project {
        return Err(forbidden().into());
    }
    Ok((who, view))
}

/// Whoever's it is: that it is there is said before who asks is looked at.
async fn look_up(broker: &Broker, uuid: &str) -> Option<View> {
    let anybody = Principal { scopes: [Scope::Admin].into_iter().collect(), ..Principal::local() };
    let id = ids_of(uuid).into_iter().find(|id| broker.require(&anybody, id).is_ok())?;
    broker.get(&anybody, &id).await.ok().filter(owner::is_ours)
}
