//! The REST API as a NATS micro service.
//!
//! ```text
//!   ‹prefix›.v1.‹verb›                   a command; its credential is in a header
//!   ‹prefix›.accounts.‹NAME›.v1.‹verb›   the same in the name of a configured account
//!   $SRV.PING, $SRV.INFO, $SRV.STATS     what tools for micro services ask
//! ```
//!
//! A command **is** the request of the same name: errors, owners, quotas and idempotency are those of the API.

mod micro;
mod reference;
mod reply;
mod request;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::header;
use axum::response::Response;
use sandkeep_broker::error::Error;
use sandkeep_core::limits::{COMMAND_MAX, MESSAGES_AT_ONCE_MAX};
use sandkeep_core::{Principal, Scope};
use sandkeep_doors::commands::{Command, commands};
use sandkeep_doors::kit::Refusal;
use sandkeep_doors::kit::message::Messages;
use sandkeep_doors::rest::problem;
use sandkeep_nats::async_nats::{Client, Message, Subject, SubscribeError};
use tokio_util::sync::CancellationToken;

use crate::inbox::Inboxes;
use crate::intake::{Intake, Work};
use micro::Micro;
use reply::{End, Replier};
use request::Incoming;

pub use reference::reference;

/// The queue group of all daemons that share the work.
pub const QUEUE: &str = "sandkeep";

/// Where commands come from, and where answers go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    pub prefix: String,
    pub inboxes: Inboxes,
    pub accounts: Vec<Account>,
}

/// An account of the server that need not send credentials: the server lets nobody else publish below its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    pub name: String,
    pub organization: String,
    pub user: String,
    pub project: Option<String>,
    pub scopes: Vec<Scope>,
}

impl Account {
    fn principal(&self) -> Principal {
        Principal {
            organization: self.organization.clone(),
            user: self.user.clone(),
            project: self.project.clone(),
            scopes: self.scopes.iter().copied().collect(),
        }
    }
}

/// One way for commands to come in.
struct Entrance {
    shared: Arc<Shared>,
    /// In whose name; the sender's own if none.
    vouched: Option<Principal>,
}

struct Shared {
    client: Client,
    messages: Messages,
    inboxes: Inboxes,
    table: HashMap<String, Command>,
    micro: Micro,
    ending: CancellationToken,
}

/// Answers commands until `intake` is drained.
pub async fn serve(
    client: &Client,
    messages: Messages,
    options: &Options,
    intake: &Intake,
) -> Result<(), SubscribeError> {
    let table: HashMap<String, Command> =
        commands().into_iter().map(|command| (command.verb.clone(), command)).collect();
    let roots = std::iter::once((options.prefix.clone(), None)).chain(options.accounts.iter().map(
        |account| {
            let root = format!("{}.accounts.{}", options.prefix, account.name);
            (root, Some(account.principal()))
        },
    ));
    let roots: Vec<(String, Option<Principal>)> = roots.collect();
    let subjects = roots.iter().map(|(root, _)| root.as_str());
    let shared = Arc::new(Shared {
        micro: Micro::new(subjects, table.keys().map(String::as_str)),
        client: client.clone(),
        messages,
        inboxes: options.inboxes.clone(),
        table,
        ending: intake.ending(),
    });
    for (root, vouched) in roots {
        let subject = format!("{root}.v1.*");
        let subscriber = client.queue_subscribe(subject, QUEUE.to_owned()).await?;
        intake.read(subscriber, Arc::new(Entrance { shared: Arc::clone(&shared), vouched }));
    }
    for subject in shared.micro.asked_at() {
        let subscriber = client.subscribe(subject).await?;
        intake.read(subscriber, Arc::new(Presence(Arc::clone(&shared))));
    }
    Ok(())
}

impl Work for Entrance {
    async fn work(&self, message: Message) {
        let shared = &self.shared;
        let Some(reply) = shared.inboxes.of(&message) else { return };
        let began = Instant::now();
        let verb = message.subject.rsplit('.').next().unwrap_or_default().to_owned();
        let problem = shared.answer(message, reply, &verb, self.vouched.as_ref()).await;
        shared.micro.count(&verb, began.elapsed(), problem);
    }

    async fn refuse(&self, message: Message) {
        let Some(reply) = self.shared.inboxes.of(&message) else { return };
        let (what, limit) = ("messages at once", MESSAGES_AT_ONCE_MAX);
        let refusal = Refusal::Broker(Error::LimitReached { what, limit });
        let _ = self.shared.replier(reply).whole(refused(&refusal, &message.subject)).await;
    }
}

impl Shared {
    fn replier(&self, reply: Subject) -> Replier {
        Replier::new(self.client.clone(), reply)
    }

    /// Answers a command. Tells what was wrong, if something was.
    async fn answer(
        &self,
        message: Message,
        reply: Subject,
        verb: &str,
        vouched: Option<&Principal>,
    ) -> Option<String> {
        let replier = self.replier(reply);
        let subject = message.subject.clone();
        let prepared = Incoming::of(&message).and_then(|incoming| {
            let command = self.table.get(verb);
            let command = command.ok_or_else(|| Refusal::NoCommand { verb: verb.to_owned() })?;
            Ok((request::build(command, &incoming)?, incoming))
        });
        let (request, incoming) = match prepared {
            Ok(prepared) => prepared,
            Err(refusal) => return replier.whole(refused(&refusal, &subject)).await,
        };
        // A credential identifies the caller, wherever the message comes from.
        let vouched = vouched.filter(|_| !incoming.has_credential).cloned();
        let limit = incoming.timeout.unwrap_or(COMMAND_MAX).min(COMMAND_MAX);
        let deadline = tokio::time::Instant::now() + limit;
        let response = tokio::select! {
            response = self.messages.answer(request, vouched) => response,
            refusal = self.too_late(deadline, limit) => {
                return replier.whole(refused(&refusal, &subject)).await;
            }
        };
        let cut = async {
            match self.too_late(deadline, limit).await {
                Refusal::AnsweredTooLate { .. } => End::TimedOut,
                _ => End::ShuttingDown,
            }
        };
        if incoming.stream || is_stream(&response) {
            return replier.stream(response, cut).await;
        }
        tokio::select! {
            problem = replier.whole(response) => problem,
            refusal = self.too_late(deadline, limit) => {
                replier.whole(refused(&refusal, &subject)).await
            }
        }
    }

    /// Resolves when no answer is worth waiting for.
    async fn too_late(&self, deadline: tokio::time::Instant, limit: Duration) -> Refusal {
        tokio::select! {
            () = tokio::time::sleep_until(deadline) => Refusal::AnsweredTooLate { limit },
            () = self.ending.cancelled() => Refusal::Broker(Error::ShuttingDown),
        }
    }
}

/// Whether somebody asked to be told as it comes about, in a field of the request.
fn is_stream(response: &Response) -> bool {
    let media_type = response.headers().get(header::CONTENT_TYPE);
    let media_type = media_type.and_then(|value| value.to_str().ok()).unwrap_or_default();
    let frames = ["application/x-ndjson", "text/event-stream"];
    response.body().size_hint().exact().is_none()
        && frames.iter().any(|frame| media_type.starts_with(frame))
}

/// A refusal of what did not become a request.
fn refused(refusal: &Refusal, subject: &str) -> Response {
    refusal.log();
    let problem = problem::problem_of(refusal, subject);
    problem::answer(problem.status, &problem)
}

/// Tells tools that this service is there.
struct Presence(Arc<Shared>);

impl Work for Presence {
    async fn work(&self, message: Message) {
        let Some(reply) = self.0.inboxes.of(&message) else { return };
        if let Some(answer) = self.0.micro.answer(&message.subject) {
            let _ = self.0.client.publish(reply, answer.into()).await;
        }
    }

    /// They ask again.
    async fn refuse(&self, _message: Message) {}
}

/// A request as the doors take it.
type DoorRequest = Request<Body>;
