//! Processes that outlive the call which launched them.

use axum::extract::State;
use axum::{Extension, Json};

use super::LaunchAddress;
use super::messages::{
    KillRequest, LaunchAnswer, LaunchRequest, Nothing, ProcessAnswer, ProcessRequest,
};
use super::sessions::find;
use crate::connect::Message;
use crate::kit::Refusal;
use crate::kit::path::parse;
use crate::kit::who::Who;
use sandkeep_broker::{Broker, ExecDraft, ProcessStatus, error::Error};
use sandkeep_core::api::ProcessView;
use sandkeep_core::{Port, ProcessId, ProcessTerms, Signal};

const SIGTERM: i32 = 15;
/// What a shell adds to the number of the signal that ended a command.
const SIGNALED: i32 = 128;
/// What Flex answers of a process that could not be launched, or was lost.
const NO_EXIT_CODE: i32 = -1;

fn invalid(field: &'static str, problem: impl Into<String>) -> Refusal {
    Error::InvalidField { field, problem: problem.into() }.into()
}

/// Zero is none.
fn port(asked: i64) -> Result<Option<Port>, Refusal> {
    match u16::try_from(asked) {
        Ok(number) => Ok(Port::new(number)),
        Err(_) => Err(invalid("ExposePort", format!("{asked} is not from 0 to 65535"))),
    }
}

pub async fn launch(
    State(broker): State<Broker>,
    Who(who): Who,
    Extension(LaunchAddress(host)): Extension<LaunchAddress>,
    Message(asked): Message<LaunchRequest>,
) -> Result<Json<LaunchAnswer>, Refusal> {
    let LaunchRequest { session_id, binary, args, env, expose_port } = asked;
    if binary.is_empty() {
        return Err(invalid("Binary", "it is empty"));
    }
    let port = port(expose_port)?;
    let id = find(&broker, &who, &session_id).await?;
    let argv = [binary].into_iter().chain(args).collect();
    let draft = ExecDraft { argv, env, ..ExecDraft::default() };
    let process = broker.launch(&who, &id, draft, ProcessTerms { port, ready: None }).await?;
    let address = match port {
        Some(port) => match broker.expose(&who, &id, port, host).await {
            Ok(address) => address.to_string(),
            Err(error) => {
                // Nobody was told of a process that cannot be reached.
                broker.end_process(&who, &id, &process).await?;
                return Err(error.into());
            }
        },
        None => String::new(),
    };
    let status = status_of(&broker.process(&who, &id, &process).await?);
    Ok(Json(LaunchAnswer { process_id: process.to_string(), address, status }))
}

pub async fn kill(
    State(broker): State<Broker>,
    Who(who): Who,
    Message(asked): Message<KillRequest>,
) -> Result<Json<Nothing>, Refusal> {
    let id = find(&broker, &who, &asked.session_id).await?;
    let process: ProcessId = parse(&asked.process_id)?;
    let number = if asked.signal == 0 { SIGTERM } else { asked.signal };
    let signal = Signal::try_from(number).map_err(|wrong| invalid("Signal", wrong.to_string()))?;
    match broker.signal_process(&who, &id, &process, signal).await {
        Ok(()) | Err(Error::ProcessEnded { .. }) => Ok(Json(Nothing {})),
        Err(error) => Err(error.into()),
    }
}

pub async fn status(
    State(broker): State<Broker>,
    Who(who): Who,
    Message(asked): Message<ProcessRequest>,
) -> Result<Json<ProcessAnswer>, Refusal> {
    let id = find(&broker, &who, &asked.session_id).await?;
    let process: ProcessId = parse(&asked.process_id)?;
    let view = broker.process(&who, &id, &process).await?;
    Ok(Json(ProcessAnswer { status: status_of(&view), exit_code: exit_code(&view) }))
}

fn status_of(view: &ProcessView) -> &'static str {
    match view.status {
        ProcessStatus::Starting => "starting",
        ProcessStatus::Running => "running",
        ProcessStatus::Exited => "exited",
    }
}

/// Only of one that has exited.
fn exit_code(view: &ProcessView) -> Option<i32> {
    if view.status != ProcessStatus::Exited {
        return None;
    }
    Some(match (&view.error, view.exit_code, view.signal) {
        (None, Some(code), _) => code,
        (None, None, Some(signal)) => SIGNALED + signal,
        (Some(_), ..) | (None, None, None) => NO_EXIT_CODE,
    })
}
