//! Executes calls with the broker of this process.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, header};
use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use rmcp::model::Extensions;
use serde::Serialize;
use serde_json::Value;

use super::session::{self, Means};
use super::{Backend, Call, DEFAULT_SLOT, Failure, Telling, ToolCall, ToolEvents};
use crate::kit::frames::Form;
use crate::kit::{Refusal, SignedBy};
use crate::ports::PortDoor;
use crate::rest::diff::wanted;
use crate::rest::files::{
    self, Shown, checked, directory_to_list, directory_to_make, move_to_make,
};
use crate::rest::known_execs::{beginning, opening};
use crate::rest::listing::{filter, page};
use crate::rest::races::race_draft;
use crate::rest::sandboxes::in_flight;
use crate::rest::snapshots::{fork_draft, on_execs};
use crate::rest::tools::{CallBody, Live};
use crate::rest::{exec_stream, problem::problem_of, processes};
use sandkeep_broker::{Broker, ExecWatch, Listener, error::Error};
use sandkeep_core::api::{Forks, ReadOutput, Reverted, Snapshots, ToolEvent};
use sandkeep_core::limits::MCP_ANSWER_MAX_BYTES;
use sandkeep_core::{Principal, SandboxId, SpecDraft};
use sandkeep_guestlink::journal;

pub struct Direct {
    pub broker: Broker,
    pub ports: Arc<PortDoor>,
    /// The caller to use if the request does not carry one.
    pub usual: Option<Caller>,
    /// What a default sandbox is made as; its slot is our own.
    pub default: SpecDraft,
}

impl Direct {
    /// For the user who started this process; `address` is where its doors listen.
    pub fn for_this_user(
        broker: Broker,
        ports: Arc<PortDoor>,
        address: SocketAddr,
        default: SpecDraft,
    ) -> Self {
        let host = HeaderValue::try_from(address.to_string()).expect("an address is a host");
        let headers = HeaderMap::from_iter([(header::HOST, host)]);
        let usual = Some(Caller { who: Principal::local(), headers, key: SignedBy::default() });
        Self { broker, ports, usual, default }
    }
}

/// Who calls.
#[derive(Clone)]
pub struct Caller {
    pub who: Principal,
    /// The headers tell under which name the caller reaches us.
    pub headers: HeaderMap,
    pub key: SignedBy,
}

impl Direct {
    /// The gate has stored the principal in the request.
    fn caller(&self, from: &Extensions) -> Result<Caller, Refusal> {
        let known = from.get::<Parts>().and_then(|parts| {
            let who = parts.extensions.get::<Principal>()?.clone();
            let key = parts.extensions.get::<SignedBy>().cloned().unwrap_or_default();
            Some(Caller { who, headers: parts.headers.clone(), key })
        });
        let nobody = || Refusal::Unauthenticated { problem: "nobody is known".to_owned() };
        known.or_else(|| self.usual.clone()).ok_or_else(nobody)
    }

    async fn carry_out(&self, call: Call, caller: &Caller) -> Result<Value, Failure> {
        let Self { broker, ports, usual: _, default: _ } = self;
        let Caller { who, headers, key } = caller;
        match call {
            Call::CreateSandbox(draft) => json(broker.create(who, *draft).await?),
            Call::ListSandboxes(asked) => json(page(broker.list(who, &filter(asked)?).await?)),
            Call::GetSandbox(id) => json(broker.get(who, &id).await?),
            Call::DestroySandbox(id) => json(broker.destroy(who, &id).await?),
            Call::PauseSandbox(id, asked) => {
                json(broker.pause(who, &id, in_flight(&asked)?).await?)
            }
            Call::ResumeSandbox(id) => json(broker.resume(who, &id).await?),
            Call::StartSandbox(id) => json(broker.start(who, &id).await?),
            Call::StopSandbox(id) => json(broker.stop(who, &id).await?),
            Call::StatFile(id, asked) => {
                let path = checked("path", asked.path.into_bytes())?;
                json(Shown::from(broker.stat_file(who, &id, path).await?))
            }
            Call::ListFiles(id, mut asked) => {
                let path = asked.path.take().unwrap_or_else(|| ".".to_owned());
                let path = checked("path", path.into_bytes())?;
                let request = directory_to_list(path, asked)?;
                json(files::Listing::from(broker.list_files(who, &id, request).await?))
            }
            Call::MakeDirectory(id, asked) => {
                let request = directory_to_make(asked)?;
                json(Shown::from(broker.make_directory(who, &id, request).await?))
            }
            Call::MoveFile(id, asked) => {
                json(Shown::from(broker.move_file(who, &id, move_to_make(asked)?).await?))
            }
            Call::DeleteFile(id, asked) => {
                let path = checked("path", asked.path.into_bytes())?;
                json(broker.remove_file(who, &id, path, files::reach(asked.recursive)).await?)
            }
            Call::StartProcess(id, asked) => {
                json(processes::start(broker, ports, who, &id, asked, headers).await?)
            }
            Call::ListProcesses(id) => {
                json(processes::all(broker, ports, who, &id, headers).await?)
            }
            Call::ReadLogs(id, process, asked) => {
                let watch = |from| broker.watch_process(who, &id, &process, from);
                let unread =
                    |error: std::io::Error| Failure::Unreachable { problem: error.to_string() };
                text(output_so_far(&asked, watch)?.map_err(unread)).await
            }
            Call::EndProcess(id, process) => json(broker.end_process(who, &id, &process).await?),
            Call::ListPorts(id) => json(ports.list(who, &id, headers).await?),
            Call::SignPortUrl(id, port, asked) => {
                json(ports.sign(who, &id, port, asked, headers, key)?)
            }
            Call::ListenPort(id, port) => json(ports.listen(who, &id, port).await?),
            Call::CreateSnapshot(id, asked) => {
                json(broker.snapshot(who, &id, asked.name, asked.note).await?)
            }
            Call::ListSnapshots(id) => json(Snapshots { items: broker.snapshots(who, &id)? }),
            Call::DeleteSnapshot(id, name) => json(broker.delete_snapshot(who, &id, &name).await?),
            Call::SealTurn(id, asked) => json(broker.seal_turn(who, &id, asked.note).await?),
            Call::Rollback(id, asked) => {
                json(broker.rollback(who, &id, &asked.snapshot, on_execs(&asked)).await?)
            }
            Call::Fork(id, asked) => {
                let sandboxes = broker.fork(who, &id, fork_draft(asked), None).await?;
                json(Forks::from(sandboxes))
            }
            Call::Race(id, asked) => {
                json(broker.race(who, &id, race_draft(*asked)?).await?.done().await?)
            }
            Call::Diff(id, asked) => json(broker.diff(who, &id, wanted(asked)).await?.0),
            Call::Revert(id, asked) => {
                let reverted = broker.revert(who, &id, &asked.snapshot, &asked.paths).await?;
                json(Reverted { reverted })
            }
            Call::AskForNetwork(id, asked) => json(broker.ask_for_network(who, &id, &asked)?),
        }
    }
}

#[async_trait]
impl Backend for Direct {
    async fn default_sandbox(&self, from: &Extensions) -> Result<SandboxId, Failure> {
        let caller = self.caller(from)?;
        let draft = match Means::of(from) {
            Means::Named(name) => {
                let id = self.broker.resolve(&caller.who, &name).await?;
                return Ok(self.broker.awake(&caller.who, &id).await?);
            }
            Means::OfSession(slot) => session::draft(slot, &self.default),
            Means::Shared => SpecDraft { slot: DEFAULT_SLOT.parse().ok(), ..self.default.clone() },
        };
        Ok(self.broker.ensure_running(&caller.who, draft).await?)
    }

    async fn named(&self, name: &str, from: &Extensions) -> Result<SandboxId, Failure> {
        Ok(self.broker.resolve(&self.caller(from)?.who, name).await?)
    }

    async fn call(&self, call: Call, from: &Extensions) -> Result<Value, Failure> {
        self.carry_out(call, &self.caller(from)?).await
    }

    async fn tool(
        &self,
        call: ToolCall,
        telling: Telling,
        from: &Extensions,
    ) -> Result<ToolEvents, Failure> {
        let ToolCall { sandbox, name, mut arguments } = call;
        let Caller { who, .. } = self.caller(from)?;
        let draft = arguments.request::<CallBody>()?.into_draft(name)?;
        match telling {
            Telling::AtTheEnd => {
                let answer = self.broker.call_tool(&who, &sandbox, draft, Listener::none()).await?;
                let result = ToolEvent::Result(Arc::unwrap_or_clone(answer));
                Ok(stream::iter([Ok(result)]).boxed())
            }
            Telling::AsItGoes => {
                let live = Live::begin(self.broker.clone(), who, sandbox, draft);
                let events = stream::try_unfold(live, |mut live| async move {
                    Ok(live.next().await?.map(|event| (event, live)))
                });
                Ok(events.boxed())
            }
        }
    }

    async fn read_file(
        &self,
        sandbox: &SandboxId,
        path: &str,
        from: &Extensions,
    ) -> Result<Vec<u8>, Failure> {
        let Caller { who, .. } = self.caller(from)?;
        let path = checked("path", path.as_bytes().to_vec())?;
        let (_, mut stream) = self.broker.read_file(&who, sandbox, path, None).await?;
        let mut content = Vec::new();
        while let Some(piece) = stream.next().await? {
            add(&mut content, &piece)?;
        }
        Ok(content)
    }
}

fn json(answer: impl Serialize) -> Result<Value, Failure> {
    Ok(serde_json::to_value(answer).expect("answers hold only strings, numbers and maps"))
}

/// Collects a stream as text, within bounds.
async fn text(lines: impl stream::Stream<Item = Result<Bytes, Failure>>) -> Result<Value, Failure> {
    let mut lines = std::pin::pin!(lines);
    let mut said = Vec::new();
    while let Some(line) = lines.try_next().await? {
        add(&mut said, &line)?;
    }
    Ok(Value::String(String::from_utf8_lossy(&said).into_owned()))
}

fn add(all: &mut Vec<u8>, piece: &[u8]) -> Result<(), Failure> {
    all.extend_from_slice(piece);
    if all.len() > MCP_ANSWER_MAX_BYTES { Err(Failure::TooLong) } else { Ok(()) }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        refusal.log();
        Self::refused(problem_of(&refusal, super::PATH))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Refusal::from(error).into()
    }
}

/// The output so far, line by line.
fn output_so_far(
    asked: &ReadOutput,
    watch: impl FnOnce(journal::From) -> Result<ExecWatch, Error>,
) -> Result<impl stream::Stream<Item = io::Result<Bytes>>, Refusal> {
    let from = beginning(asked, Form::Ndjson, None)?;
    let follow = journal::Follow::WhatIsThere;
    Ok(exec_stream::events(watch(from)?, Form::Ndjson, follow, opening(from)))
}
