//! Flex's sandbox host: `/rpc.v1.SandboxService/*` over the Connect protocol, with the JSON of Go structs.
//!
//! ```text
//!   session    a sandbox; SessionID is its name, or its id if the client chose none
//!   tool       ours of the same name, with the parameters as Flex calls them
//!   turn       ours; SnapshotID is the snapshot's name
//!   process    ours; Address is a socket of this host that holds connections until the process listens
//! ```
//!
//! As in Flex, fields that it does not know are ignored, and a tool that fails is a normal answer. docs/guides/flex.md
//! lists the differences.

mod arguments;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod messages;
mod processes;
mod sessions;
mod snapshots;
mod tools;

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::{HeaderValue, Uri};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};

use crate::connect::{Code as ConnectCode, Failure, Form, keep_deadline};
use crate::kit::{Dialect, Kit, Refusal};
use sandkeep_audit::Effect;
use sandkeep_broker::Broker;
use sandkeep_core::{Code, Scope};

const SERVICE: &str = "/rpc.v1.SandboxService/";
const STREAMS: &str = "/rpc.v1.SandboxService/ExecuteToolStream";
const HEALTH: &str = "/health";

const VERSION_HEADER: &str = "x-api-version";
/// What we speak, and the oldest that we still do.
const VERSION: &str = "v1";
const VERSION_MIN: u64 = 1;

/// The methods that only look.
const READS: [&str; 5] =
    ["GetSession", "ListSessions", "ListSnapshots", "HealthCheck", "GetProcessStatus"];

const METHODS: [&str; 16] = [
    "CreateSession",
    "GetSession",
    "ListSessions",
    "PauseSession",
    "ResumeSession",
    "DestroySession",
    "ExecuteTool",
    "ExecuteToolStream",
    "TurnComplete",
    "CreateSnapshot",
    "RollbackSession",
    "ListSnapshots",
    "HealthCheck",
    "LaunchProcess",
    "KillProcess",
    "GetProcessStatus",
];

struct Flex;

impl Dialect for Flex {
    fn name(&self) -> &'static str {
        "flex"
    }

    /// Every method is a POST, so the method's name says it.
    fn effect(&self, request: &Request) -> Effect {
        match self.needs(request) {
            None | Some(Scope::Read) => Effect::Reads,
            Some(Scope::Write | Scope::Organization | Scope::Admin) => Effect::Changes,
        }
    }

    fn needs(&self, request: &Request) -> Option<Scope> {
        let method = request.uri().path().strip_prefix(SERVICE)?;
        let looks = READS.contains(&method);
        Some(if looks { Scope::Read } else { Scope::Write })
    }

    fn refuse(&self, refusal: &Refusal, path: &str) -> Response {
        failure(refusal).answer(form(path))
    }
}

fn form(path: &str) -> Form {
    if path == STREAMS { Form::Stream } else { Form::Unary }
}

/// A refusal in Flex's words. Most follow from its kind.
fn failure(refusal: &Refusal) -> Failure {
    let code = match refusal.code() {
        Code::NameTaken | Code::SlotTaken | Code::SnapshotExists | Code::FileExists => {
            ConnectCode::AlreadyExists
        }
        // Flex counts a host that is full of sessions among these.
        Code::LimitReached | Code::QuotaExceeded => ConnectCode::FailedPrecondition,
        other => other.kind().into(),
    };
    let message = format!("rpc error: {}: {}", code.as_str(), refusal.detail());
    Failure { code, message }
}

/// Refuses clients that are too old, and those whose version cannot be read. Without a header it is the first.
async fn check_version(request: Request, next: Next) -> Response {
    let given = request.headers().get(VERSION_HEADER).map(HeaderValue::as_bytes);
    let given = String::from_utf8_lossy(given.unwrap_or(VERSION.as_bytes())).into_owned();
    let number = given.strip_prefix('v').unwrap_or(&given).parse::<u64>().unwrap_or(0);
    if number >= VERSION_MIN {
        return next.run(request).await;
    }
    let code = ConnectCode::FailedPrecondition;
    let message = format!("rpc error: {}: version {given:?} is below {VERSION}", code.as_str());
    Failure { code, message }.answer(form(request.uri().path()))
}

async fn tell_version(mut answer: Response) -> Response {
    answer.headers_mut().insert(VERSION_HEADER, HeaderValue::from_static(VERSION));
    answer
}

async fn no_method(uri: Uri) -> Response {
    let code = ConnectCode::Unimplemented;
    let message = format!("rpc error: {}: there is no method {}", code.as_str(), uri.path());
    Failure { code, message }.answer(Form::Unary)
}

async fn health() -> impl IntoResponse {
    "ok\n"
}

fn routes() -> Router<Broker> {
    let method = |name: &str| format!("{SERVICE}{name}");
    Router::new()
        .route(&method("CreateSession"), post(sessions::create))
        .route(&method("GetSession"), post(sessions::get))
        .route(&method("ListSessions"), post(sessions::list))
        .route(&method("PauseSession"), post(sessions::pause))
        .route(&method("ResumeSession"), post(sessions::resume))
        .route(&method("DestroySession"), post(sessions::destroy))
        .route(&method("HealthCheck"), post(sessions::health))
        .route(&method("ExecuteTool"), post(tools::execute))
        .route(STREAMS, post(tools::execute_stream))
        .route(&method("TurnComplete"), post(snapshots::turn))
        .route(&method("CreateSnapshot"), post(snapshots::create))
        .route(&method("RollbackSession"), post(snapshots::rollback))
        .route(&method("ListSnapshots"), post(snapshots::list))
        .route(&method("LaunchProcess"), post(processes::launch))
        .route(&method("KillProcess"), post(processes::kill))
        .route(&method("GetProcessStatus"), post(processes::status))
        .route(&format!("{SERVICE}{{*method}}"), post(no_method))
        .layer(middleware::from_fn(keep_deadline))
        .layer(middleware::from_fn(check_version))
        .route(HEALTH, get(health))
}

/// Where processes that are launched can be reached.
#[derive(Clone, Copy)]
struct LaunchAddress(IpAddr);

/// This door, behind the gate.
pub fn door(kit: &Kit, launch_address: IpAddr) -> Router {
    guarded(kit, routes(), launch_address)
}

/// This door on a listener where there is nothing else.
pub fn alone(kit: &Kit, launch_address: IpAddr) -> Router {
    guarded(kit, routes().fallback(no_method), launch_address)
}

fn guarded(kit: &Kit, routes: Router<Broker>, launch_address: IpAddr) -> Router {
    let routes = routes.layer(Extension(LaunchAddress(launch_address)));
    kit.door(Flex, routes).layer(middleware::map_response(tell_version))
}

/// The paths under which its requests are counted.
pub fn paths<'a>() -> impl Iterator<Item = &'a str> {
    use std::sync::OnceLock;
    static PATHS: OnceLock<Vec<String>> = OnceLock::new();
    let paths =
        PATHS.get_or_init(|| METHODS.iter().map(|name| format!("{SERVICE}{name}")).collect());
    paths.iter().map(String::as_str).chain([HEALTH])
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandkeep_broker::error::Error;
    use sandkeep_core::{SandboxId, State, Verb};

    #[test]
    fn refusals_have_the_codes_that_flex_knows() {
        let id = SandboxId::random;
        let name = || "web".parse().expect("a name");
        let state = State::Paused;
        let cases: [(Error, &str); 6] = [
            (Error::NotFound { id: id() }, "not_found"),
            (Error::NameTaken { name: name(), holder: id() }, "already_exists"),
            (
                Error::WrongState { id: id(), state, verb: Verb::Pause, helps: None },
                "failed_precondition",
            ),
            (Error::LimitReached { what: "sandboxes", limit: 1 }, "failed_precondition"),
            (Error::ShuttingDown, "unavailable"),
            (
                Error::InvalidField { field: "name", problem: "wrong".to_owned() },
                "invalid_argument",
            ),
        ];
        for (error, code) in cases {
            let failure = failure(&error.into());
            assert_eq!(failure.code.as_str(), code);
            assert!(failure.message.starts_with(&format!("rpc error: {code}: ")), "{failure:?}");
        }
    }

    #[test]
    fn every_method_is_routed_and_reads_are_methods() {
        assert_eq!(paths().count(), METHODS.len() + 1);
        for name in READS.iter() {
            assert!(METHODS.contains(name), "{name}");
        }
    }
}
