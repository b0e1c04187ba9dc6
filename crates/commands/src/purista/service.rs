//! The service on NATS: subscriptions, replies, and what is told to others.

use std::sync::Arc;

use axum::body::Body;
use axum::http::Request;
use axum::response::Response;
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use sandkeep_core::limits::{COMMAND_MAX, REPLY_HEADERS_MAX_BYTES};
use sandkeep_doors::kit::message::Messages;
use sandkeep_nats::async_nats::{Client, Message, Subject, SubscribeError};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::door::{Call, Fault, Made, path_of};
use super::envelope::{self, Envelope};
use super::subject::{self, Published};
use super::{Command, events, info};
use crate::inbox::Inboxes;
use crate::intake::{Intake, Work};

/// Where the service is, and where its replies go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The first token of all subjects; that of PURISTA's NATS bridge.
    pub prefix: String,
    pub inboxes: Inboxes,
}

/// The service of this daemon.
pub struct Service {
    pub client: Client,
    messages: Messages,
    options: Options,
    /// Its own name among all that offer the service.
    pub instance: String,
    ending: CancellationToken,
}

/// Commands of one kind.
struct Entrance {
    service: Arc<Service>,
    command: Command,
}

/// Answers commands until `intake` is drained, and tells that it does.
pub async fn serve(
    client: &Client,
    messages: Messages,
    options: &Options,
    intake: &Intake,
) -> Result<(), SubscribeError> {
    let service = Arc::new(Service {
        client: client.clone(),
        messages: messages.clone(),
        options: options.clone(),
        instance: envelope::new_id(),
        ending: intake.ending(),
    });
    for command in Command::ALL {
        let subject = subject::commands(&options.prefix, command);
        let queue = subject::queue(&options.prefix, command);
        let subscriber = client.queue_subscribe(subject, queue).await?;
        intake.read(subscriber, Arc::new(Entrance { service: Arc::clone(&service), command }));
    }
    for command in Command::ALL {
        service.announce(command).await;
    }
    intake.beside(events::tell(service, messages.broker().clone()));
    Ok(())
}

impl Work for Entrance {
    async fn work(&self, message: Message) {
        let Some(reply) = self.service.options.inboxes.of(&message) else { return };
        self.service.answer(self.command, message.payload, reply).await;
    }

    async fn refuse(&self, message: Message) {
        let Some(reply) = self.service.options.inboxes.of(&message) else { return };
        let envelope = Envelope::read(&message.payload).unwrap_or_default();
        let fault = Fault::new(503, "too many commands at once; try again");
        self.service.reply(&envelope, self.command, Err(fault), reply).await;
    }
}

impl Service {
    async fn answer(&self, command: Command, message: Bytes, reply: Subject) {
        let Some(mut envelope) = Envelope::read(&message) else {
            let fault = Fault::new(400, "the message is not JSON");
            return self.reply(&Envelope::default(), command, Err(fault), reply).await;
        };
        let request = request(command, &mut envelope);
        let answered = async {
            let response = self.messages.answer(request, envelope.principal()).await;
            let (made, place) = (response.extensions().get::<Made>().cloned(), held(&response));
            (self.result(response).await, made, place)
        };
        let (result, made, _place) = tokio::select! {
            answered = answered => answered,
            () = tokio::time::sleep(COMMAND_MAX) => (Err(Fault::new(504, "too late")), None, None),
            () = self.ending.cancelled() => {
                (Err(Fault::new(503, "the service is shutting down")), None, None)
            }
        };
        self.reply(&envelope, command, result, reply).await;
        if let Some(Made(payload)) = made {
            let target = command.name();
            let event = envelope.event(&self.instance, target, events::STARTED, payload);
            self.publish_event(target, events::STARTED, &event).await;
        }
    }

    /// What a response comes down to.
    async fn result(&self, response: Response) -> Result<Value, Fault> {
        let ok = response.status().is_success();
        let collected =
            Limited::new(response.into_body(), self.client.max_payload()).collect().await;
        let bytes = match collected {
            Ok(body) => body.to_bytes(),
            Err(e) if e.is::<LengthLimitError>() => return Err(too_large()),
            Err(_) => return Err(Fault::internal()),
        };
        if ok {
            serde_json::from_slice(&bytes).map_err(|_| Fault::internal())
        } else {
            Err(serde_json::from_slice(&bytes).unwrap_or_else(|_| Fault::internal()))
        }
    }

    async fn reply(
        &self,
        envelope: &Envelope,
        command: Command,
        result: Result<Value, Fault>,
        reply: Subject,
    ) {
        let (instance, target) = (&self.instance, command.name());
        let message = match result {
            Ok(payload) => envelope.success(instance, target, payload),
            Err(fault) => envelope.error(instance, target, &fault),
        };
        let mut bytes = message.to_string();
        if bytes.len() > self.client.max_payload().saturating_sub(REPLY_HEADERS_MAX_BYTES) {
            bytes = envelope.error(instance, target, &too_large()).to_string();
        }
        if let Err(error) = self.client.publish(reply, bytes.into()).await {
            tracing::debug!(%error, "a reply could not be sent");
        }
    }

    /// Publishes a custom message.
    pub async fn publish_event(&self, target: &str, name: &str, event: &Value) {
        let published = Published {
            message_type: "customMessage",
            principal: event["principalId"].as_str(),
            tenant: event["tenantId"].as_str(),
            instance: &self.instance,
            target,
            event: Some(name),
        };
        self.publish(&published, event).await;
    }

    async fn announce(&self, command: Command) {
        let published = Published {
            message_type: info::MESSAGE_TYPE,
            principal: None,
            tenant: None,
            instance: &self.instance,
            target: command.name(),
            event: None,
        };
        self.publish(&published, &info::message(command, &self.instance)).await;
    }

    async fn publish(&self, published: &Published<'_>, message: &Value) {
        let subject = published.subject(&self.options.prefix);
        if let Err(error) = self.client.publish(subject, message.to_string().into()).await {
            tracing::debug!(%error, "a message could not be published");
        }
    }
}

fn too_large() -> Fault {
    Fault::new(413, "the result does not fit into one message")
}

/// The place of its sender among all, which a response holds.
fn held(response: &Response) -> Option<axum::http::Extensions> {
    Some(response.extensions().clone())
}

/// The request that a command asks for.
fn request(command: Command, envelope: &mut Envelope) -> Request<Body> {
    let call = match envelope.payload.take() {
        Value::Object(mut fields) => Call {
            payload: fields.remove("payload").unwrap_or_default(),
            parameter: fields.remove("parameter").unwrap_or_default(),
        },
        _ => Call::default(),
    };
    let body = serde_json::to_vec(&call).expect("JSON is written as it was read");
    let mut request = Request::post(path_of(command));
    for (name, value) in [
        ("traceparent", envelope.traceparent()),
        ("x-correlation-id", envelope.correlation_id.as_str().map(str::to_owned)),
    ] {
        let value = value.and_then(|value| axum::http::HeaderValue::try_from(value).ok());
        if let Some(value) = value {
            request = request.header(name, value);
        }
    }
    request.body(Body::from(body)).expect("a path and checked headers")
}
