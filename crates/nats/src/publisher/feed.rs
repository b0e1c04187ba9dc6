//! What becomes of an event: the messages that tell of it.

use std::borrow::Cow;

use async_nats::HeaderMap;
use async_nats::header::{NATS_EXPECTED_STREAM, NATS_MESSAGE_ID};
use bytes::Bytes;
use jiff::Timestamp;

use crate::subject;
use sandkeep_broker::Delivery;
use sandkeep_core::event::CloudEvent;
use sandkeep_core::{Owner, SandboxId};

/// A message before it is sent.
#[derive(Clone, Debug)]
pub struct Message {
    pub subject: String,
    pub headers: HeaderMap,
    pub payload: Bytes,
}

impl Message {
    /// `id` names the message wherever and however often it is sent.
    pub fn new(subject: String, id: &str, payload: Bytes) -> Self {
        let mut headers = HeaderMap::new();
        headers.insert(NATS_MESSAGE_ID, id);
        Self { subject, headers, payload }
    }

    /// Only this stream may store it.
    pub fn expect_stream(&mut self, stream: &str) {
        self.headers.insert(NATS_EXPECTED_STREAM, stream);
    }
}

/// Messages of one lane arrive in the order of the log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    Sandbox(SandboxId),
    /// Events about no sandbox.
    Owner(Owner),
    /// Reports of missing events.
    Gaps,
}

impl Lane {
    pub fn of(delivery: &Delivery) -> Self {
        match delivery {
            Delivery::Event(event) => match &event.subject.sandbox {
                Some(id) => Self::Sandbox(id.clone()),
                None => Self::Owner(event.subject.owner.clone()),
            },
            Delivery::Gap { .. } => Self::Gaps,
        }
    }
}

/// A kind of messages about events.
pub trait Feed: Send + 'static {
    /// A short name, for logs, metrics and the file that holds the position.
    fn name(&self) -> &'static str;

    /// Messages about a delivery, in order; none if it is of no interest.
    fn messages(&self, delivery: &Delivery) -> Vec<Message>;
}

/// Every event as a CloudEvent.
pub struct CloudEvents {
    pub prefix: String,
    pub instance: String,
}

impl Feed for CloudEvents {
    fn name(&self) -> &'static str {
        "nats"
    }

    fn messages(&self, delivery: &Delivery) -> Vec<Message> {
        let (subject, cloud, kind) = match delivery {
            Delivery::Event(event) => {
                let cloud = CloudEvent::of(event, &self.instance);
                (subject::of_event(&self.prefix, event), cloud, event.kind.name())
            }
            Delivery::Gap { after, oldest } => {
                let at = Timestamp::now();
                let cloud = CloudEvent::gap(&self.instance, *after, *oldest, at);
                (subject::of_gap(&self.prefix), cloud, "gap")
            }
        };
        let payload = serde_json::to_vec(&cloud).expect("an event holds strings and numbers");
        let mut message = Message::new(subject, &cloud.id, payload.into());
        let mut header = |name: &'static str, value: Cow<'_, str>| {
            message.headers.insert(name, value.as_ref());
        };
        header("Content-Type", CloudEvent::MEDIA_TYPE.into());
        header("Sandkeep-Kind", kind.into());
        if let Delivery::Event(event) = delivery {
            header("Sandkeep-Seq", event.seq.to_string().into());
        }
        if let Some(parent) = &cloud.traceparent {
            header("traceparent", parent.as_str().into());
        }
        vec![message]
    }
}
