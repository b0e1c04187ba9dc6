//! Events and webhooks, as the API answers with them.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::WebhookId;
use crate::event::{CloudEvent, Event, EventSeq, Kinds};

/// The form of events in an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventFormat {
    /// As they are in the log.
    #[default]
    Native,
    /// CloudEvents 1.0 in the structured JSON format.
    Cloudevents,
}

impl EventFormat {
    pub const ALL: [Self; 2] = [Self::Native, Self::Cloudevents];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Cloudevents => "cloudevents",
        }
    }
}

/// One event, in the form that was asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum EventItem {
    Native(Box<Event>),
    Cloud(Box<CloudEvent>),
    /// A kind that this version does not know.
    #[schema(value_type = Object)]
    Other(Value),
}

/// The events after `after` and before `oldest` are not kept any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventGap {
    pub after: EventSeq,
    pub oldest: EventSeq,
}

/// A page of events, the oldest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = EventPage)]
pub struct Events {
    pub items: Vec<EventItem>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap: Option<EventGap>,
    /// The `after` of the next page, or of a request that follows.
    pub next: EventSeq,
    /// Whether there are more events after `next`. They may be none that the filter lets through.
    pub more: bool,
}

/// A line of a stream that is not an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", content = "data", rename_all = "snake_case")]
pub enum EventNotice {
    Gap(EventGap),
    /// Everything up to `seq` was looked at: comes when all events have been sent, and then at least every 15 seconds.
    Heartbeat {
        seq: EventSeq,
    },
}

/// A line of a stream of events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum EventLine {
    Notice(EventNotice),
    Event(EventItem),
}

/// A webhook to register.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateWebhook {
    /// https, or http on this machine's loopback. Its addresses must be public, or allowed by `outgoing_allow`.
    #[schema(max_length = 2048)]
    pub url: String,
    /// Patterns such as `exec.ended` and `sandbox.*`; without any, every kind.
    #[serde(default)]
    pub kinds: Kinds,
    /// `whsec_` and 24 to 64 bytes in base64; made by the daemon if it is left out. It is not shown again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// Only events of this project.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
}

/// The secret stays out of logs, and so may what a URL carries.
impl std::fmt::Debug for CreateWebhook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CreateWebhook").field("kinds", &self.kinds).finish_non_exhaustive()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WebhookState {
    /// Events are delivered.
    Enabled,
    /// Nothing is delivered until it is enabled again; it then continues where it stopped.
    Disabled,
}

/// A webhook. Its secret is never shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Webhook {
    pub id: WebhookId,
    pub url: String,
    /// Empty: every kind.
    pub kinds: Kinds,
    pub organization: String,
    pub user: String,
    /// Only events of this project.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    pub state: WebhookState,
    /// Why it is disabled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// The number of the last event that needs no further delivery.
    pub acknowledged: EventSeq,
    /// Since when every delivery has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub failing_since: Option<Timestamp>,
    /// How many deliveries have failed since then.
    pub failures: u64,
    /// Why the last delivery failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub last_delivered_at: Option<Timestamp>,
}

/// A new webhook, and its secret, which is shown this once.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NewWebhook {
    #[serde(flatten)]
    pub webhook: Webhook,
    pub secret: String,
}

impl std::fmt::Debug for NewWebhook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewWebhook").field("webhook", &self.webhook).finish_non_exhaustive()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Webhooks {
    pub items: Vec<Webhook>,
}

/// Which events to deliver again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplayWebhook {
    /// Those after this one.
    pub after: EventSeq,
}

/// How the receiver answered a test message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WebhookTest {
    pub delivered: bool,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}
