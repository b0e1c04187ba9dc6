//! AgentFense's services over gRPC, and the same as JSON over HTTP, as its gateway has them. Each is on a listener of its own.
//!
//! ```text
//!   codebase   ours, mounted at /workspace; permissions are its rules
//!   sandbox    ours, with the label `agentfense.schema`; others are not found here
//!   pending    stopped, and never started through this door
//!   image      a template
//!   exec       `/bin/sh -c`, 30 s unless the request says otherwise
//!   session    a shell; its id is the sandbox's and the shell's
//! ```
//!
//! Both dialects call the same functions: a function takes a message of the schema and answers with one.

mod call;
mod codebases;
mod execs;
mod health;
mod json;
mod messages;
mod sandboxes;
mod sessions;

use axum::extract::Request;
use axum::http::{StatusCode, Uri};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, post};
use axum::{Extension, Json, Router};
use serde_json::json;

use crate::grpc::{Status, keep_deadline};
use crate::kit::{Dialect, Kit, Refusal, needed_by_method};
use crate::rpc::Code;
use call::{asked, looked_up, streamed, taking, unary};
use sandkeep_audit::Effect;
use sandkeep_core::{Code as OurCode, Scope};

const SANDBOXES: &str = "/sandbox.v1.SandboxService/";
const CODEBASES: &str = "/sandbox.v1.CodebaseService/";

const CODEBASE: &str = "/v1/codebases/{codebase_id}";
const FILES: &str = "/v1/codebases/{codebase_id}/files";
const SANDBOX: &str = "/v1/sandboxes/{sandbox_id}";
const START: &str = "/v1/sandboxes/{sandbox_id}/start";
const STOP: &str = "/v1/sandboxes/{sandbox_id}/stop";
const EXEC: &str = "/v1/sandboxes/{sandbox_id}/exec";
const SESSIONS: &str = "/v1/sandboxes/{sandbox_id}/sessions";
const SESSION: &str = "/v1/sessions/{session_id}";
const SESSION_EXEC: &str = "/v1/sessions/{session_id}/exec";

/// The methods that only look.
const READS: [&str; 8] = [
    "GetSandbox",
    "ListSandboxes",
    "GetSession",
    "ListSessions",
    "GetCodebase",
    "ListCodebases",
    "DownloadFile",
    "ListFiles",
];

const CODEBASE_METHODS: [&str; 7] = [
    "CreateCodebase",
    "GetCodebase",
    "ListCodebases",
    "DeleteCodebase",
    "UploadFiles",
    "DownloadFile",
    "ListFiles",
];

const SANDBOX_METHODS: [&str; 14] = [
    "CreateSandbox",
    "GetSandbox",
    "ListSandboxes",
    "StartSandbox",
    "StopSandbox",
    "DestroySandbox",
    "Exec",
    "ExecStream",
    "CreateSession",
    "GetSession",
    "ListSessions",
    "DestroySession",
    "SessionExec",
    "SessionExecStream",
];

/// An error in the words of both dialects.
fn status(refusal: &Refusal) -> Status {
    let code = match refusal.code() {
        OurCode::NameTaken | OurCode::SlotTaken | OurCode::FileExists => Code::AlreadyExists,
        other => other.kind().into(),
    };
    Status { code, message: refusal.detail() }
}

struct Grpc;

impl Dialect for Grpc {
    fn name(&self) -> &'static str {
        "agentfense"
    }

    /// Every method is a POST, so the method's name says it.
    fn effect(&self, request: &Request) -> Effect {
        match self.needs(request) {
            None | Some(Scope::Read) => Effect::Reads,
            Some(Scope::Write | Scope::Organization | Scope::Admin) => Effect::Changes,
        }
    }

    fn needs(&self, request: &Request) -> Option<Scope> {
        let (service, method) = request.uri().path().rsplit_once('/')?;
        if service == health::SERVICE {
            return None;
        }
        let looks = READS.contains(&method);
        Some(if looks { Scope::Read } else { Scope::Write })
    }

    fn refuse(&self, refusal: &Refusal, _path: &str) -> Response {
        status(refusal).answer()
    }
}

/// The gateway's errors: numbers, and texts.
struct Gateway;

impl Dialect for Gateway {
    fn name(&self) -> &'static str {
        "agentfense"
    }

    fn needs(&self, request: &Request) -> Option<Scope> {
        Some(needed_by_method(request))
    }

    fn refuse(&self, refusal: &Refusal, _path: &str) -> Response {
        let Status { code, message } = status(refusal);
        failed(code.status(), code, &message)
    }
}

fn failed(status: StatusCode, code: Code, message: &str) -> Response {
    let body = json!({ "code": code.number(), "message": message, "details": [] });
    (status, Json(body)).into_response()
}

async fn no_method(uri: Uri) -> Response {
    let message = format!("there is no method {}", uri.path());
    Status { code: Code::Unimplemented, message }.answer()
}

async fn no_route(uri: Uri) -> Response {
    failed(StatusCode::NOT_FOUND, Code::NotFound, &format!("there is no path {}", uri.path()))
}

/// gRPC, behind the gate.
pub fn grpc(kit: &Kit) -> Router {
    let method = |name: &str| format!("{SANDBOXES}{name}");
    let of_codebases = |name: &str| format!("{CODEBASES}{name}");
    let routes = Router::new()
        .route(&of_codebases("CreateCodebase"), unary(codebases::create))
        .route(&of_codebases("GetCodebase"), unary(codebases::get))
        .route(&of_codebases("ListCodebases"), unary(codebases::list))
        .route(&of_codebases("DeleteCodebase"), unary(codebases::delete))
        .route(&of_codebases("UploadFiles"), taking(codebases::upload))
        .route(&of_codebases("DownloadFile"), streamed(codebases::download))
        .route(&of_codebases("ListFiles"), unary(codebases::list_files))
        .route(&method("CreateSandbox"), unary(sandboxes::create))
        .route(&method("GetSandbox"), unary(sandboxes::get))
        .route(&method("ListSandboxes"), unary(sandboxes::list))
        .route(&method("StartSandbox"), unary(sandboxes::start))
        .route(&method("StopSandbox"), unary(sandboxes::stop))
        .route(&method("DestroySandbox"), unary(sandboxes::destroy))
        .route(&method("Exec"), unary(execs::exec))
        .route(&method("ExecStream"), streamed(execs::exec_stream))
        .route(&method("CreateSession"), unary(sessions::create))
        .route(&method("GetSession"), unary(sessions::get))
        .route(&method("ListSessions"), unary(sessions::list))
        .route(&method("DestroySession"), unary(sessions::destroy))
        .route(&method("SessionExec"), unary(sessions::exec))
        .route(&method("SessionExecStream"), streamed(sessions::exec_stream))
        .route(health::CHECK, post(health::check))
        .route(health::WATCH, post(health::watch))
        .fallback(no_method)
        .layer(Extension(kit.stop.clone()))
        .layer(middleware::from_fn(keep_deadline));
    kit.door(Grpc, routes)
}

/// JSON over HTTP, behind the gate.
pub fn gateway(kit: &Kit) -> Router {
    let (read, write, remove) = (MethodFilter::GET, MethodFilter::POST, MethodFilter::DELETE);
    let routes = Router::new()
        .route("/v1/codebases", looked_up(read, codebases::list, |_, _| ()))
        .route("/v1/codebases", asked(write, codebases::create, |_, _| ()))
        .route(CODEBASE, looked_up(read, codebases::get, |q, id| q.codebase_id = id))
        .route(CODEBASE, looked_up(remove, codebases::delete, |q, id| q.codebase_id = id))
        .route(FILES, looked_up(read, codebases::list_files, |q, id| q.codebase_id = id))
        .route("/v1/sandboxes", looked_up(read, sandboxes::list, |_, _| ()))
        .route("/v1/sandboxes", asked(write, sandboxes::create, |_, _| ()))
        .route(SANDBOX, looked_up(read, sandboxes::get, |q, id| q.sandbox_id = id))
        .route(SANDBOX, looked_up(remove, sandboxes::destroy, |q, id| q.sandbox_id = id))
        .route(START, asked(write, sandboxes::start, |q, id| q.sandbox_id = id))
        .route(STOP, asked(write, sandboxes::stop, |q, id| q.sandbox_id = id))
        .route(EXEC, asked(write, execs::exec, |q, id| q.sandbox_id = id))
        .route(SESSIONS, looked_up(read, sessions::list, |q, id| q.sandbox_id = id))
        .route(SESSIONS, asked(write, sessions::create, |q, id| q.sandbox_id = id))
        .route(SESSION, looked_up(read, sessions::get, |q, id| q.session_id = id))
        .route(SESSION, looked_up(remove, sessions::destroy, |q, id| q.session_id = id))
        .route(SESSION_EXEC, asked(write, sessions::exec, |q, id| q.session_id = id))
        .fallback(no_route);
    kit.door(Gateway, routes)
}

/// The paths under which requests over gRPC are counted.
pub fn grpc_paths<'a>() -> impl Iterator<Item = &'a str> {
    use std::sync::OnceLock;
    static PATHS: OnceLock<Vec<String>> = OnceLock::new();
    let paths = PATHS.get_or_init(|| {
        let codebases = CODEBASE_METHODS.iter().map(|name| format!("{CODEBASES}{name}"));
        codebases.chain(SANDBOX_METHODS.iter().map(|name| format!("{SANDBOXES}{name}"))).collect()
    });
    paths.iter().map(String::as_str).chain([health::CHECK, health::WATCH])
}

/// The same for JSON.
pub const GATEWAY_PATHS: [&str; 11] = [
    "/v1/codebases",
    CODEBASE,
    FILES,
    "/v1/sandboxes",
    SANDBOX,
    START,
    STOP,
    EXEC,
    SESSIONS,
    SESSION,
    SESSION_EXEC,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_read_is_a_method() {
        let methods = || CODEBASE_METHODS.iter().chain(SANDBOX_METHODS.iter());
        for name in READS {
            assert!(methods().any(|method| *method == name), "{name}");
        }
        assert_eq!(grpc_paths().count(), methods().count() + 2);
    }
}
