//! Events as CloudEvents 1.0, for everybody outside: webhooks, message brokers, and those who ask the API for it.
//!
//! | attribute | value |
//! |---|---|
//! | `id` | the instance and the event's number: unique everywhere, the same for each attempt to deliver it |
//! | `source` | the instance (the data directory of a node) whose log has the event |
//! | `type` | `dev.sandkeep.` and the kind |
//! | `subject` | the sandbox, if the event is about one |
//! | `sequence` | the event's number in twenty digits, which sorts as text |
//! | `organization`, `user`, `project` | the owner |

use std::borrow::Cow;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{Event, EventSeq};

const VERSION: &str = "1.0";
const TYPE_PREFIX: &str = "dev.sandkeep.";
const JSON: &str = "application/json";
/// The kind under which missing events are reported. No event of the log has it.
const GAP: &str = "gap";
/// The kind that says how far a follower has come. No event of the log has it.
const HEARTBEAT: &str = "heartbeat";
/// The kind with which a webhook is tested. No event of the log has it.
const TEST: &str = "webhook.test";

/// An event in the structured JSON format of CloudEvents 1.0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CloudEvent {
    pub specversion: Cow<'static, str>,
    pub id: String,
    pub source: String,
    pub r#type: String,
    /// The id of the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    #[schema(value_type = String, format = DateTime)]
    pub time: Timestamp,
    pub datacontenttype: Cow<'static, str>,
    pub dataschema: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub organization: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// The number of the event in the log of its source, in twenty digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence: Option<String>,
    /// The W3C trace context of the request that led to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    pub data: Value,
}

impl CloudEvent {
    /// The media type of one event.
    pub const MEDIA_TYPE: &'static str = "application/cloudevents+json";

    /// An event from the log of this instance.
    pub fn of(event: &Event, instance: &str) -> Self {
        let kind = event.kind.name();
        let mut data =
            serde_json::to_value(&event.kind).expect("an event holds strings and numbers");
        let (owner, seq) = (&event.subject.owner, event.seq);
        Self {
            subject: event.subject.sandbox.as_ref().map(ToString::to_string),
            organization: Some(owner.organization.clone()),
            user: Some(owner.user.clone()),
            project: Some(owner.project.clone()),
            sequence: Some(sequence(seq)),
            traceparent: event.traceparent.map(|parent| parent.to_string()),
            ..Self::bare(instance, id(instance, seq), kind, event.at, data["data"].take())
        }
    }

    /// Tells that events after `after` and before `oldest` are not kept any more.
    pub fn gap(instance: &str, after: EventSeq, oldest: EventSeq, at: Timestamp) -> Self {
        let id = format!("{instance}-gap-{after}-{oldest}");
        Self::bare(instance, id, GAP, at, json!({ "after": after, "oldest": oldest }))
    }

    /// Tells a follower that everything up to `seq` was looked at.
    pub fn heartbeat(instance: &str, seq: EventSeq, at: Timestamp) -> Self {
        let id = format!("{instance}-heartbeat-{seq}-{}", at.as_millisecond());
        let sequence = Some(sequence(seq));
        Self { sequence, ..Self::bare(instance, id, HEARTBEAT, at, json!({ "seq": seq })) }
    }

    /// A message with which the owner of a webhook tests it. `nonce` tells one test from another.
    pub fn test(instance: &str, webhook: &str, nonce: &str, at: Timestamp) -> Self {
        let id = format!("{instance}-test-{nonce}");
        Self::bare(instance, id, TEST, at, json!({ "webhook": webhook }))
    }

    fn bare(instance: &str, id: String, kind: &str, time: Timestamp, data: Value) -> Self {
        Self {
            specversion: VERSION.into(),
            id,
            source: format!("urn:sandkeep:instance:{instance}"),
            r#type: format!("{TYPE_PREFIX}{kind}"),
            subject: None,
            time,
            datacontenttype: JSON.into(),
            dataschema: data_schema(kind),
            organization: None,
            user: None,
            project: None,
            sequence: None,
            traceparent: None,
            data,
        }
    }
}

/// The id of an event of an instance, the same wherever and however often it is sent.
fn id(instance: &str, seq: EventSeq) -> String {
    format!("{instance}-{seq}")
}

fn sequence(seq: EventSeq) -> String {
    format!("{:020}", seq.get())
}

/// The name of the schema of the data of a kind.
pub(super) fn data_schema(kind: &str) -> String {
    format!("urn:sandkeep:event:{kind}:v1")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{EventKind, Subject};
    use crate::{Owner, SandboxId};

    fn event(kind: EventKind, sandbox: Option<SandboxId>) -> Event {
        let subject = Subject { owner: Owner::local(), sandbox };
        Event {
            seq: EventSeq::new(42),
            at: Timestamp::UNIX_EPOCH,
            subject,
            kind,
            traceparent: None,
        }
    }

    #[test]
    fn a_cloud_event_has_every_attribute_that_the_specification_requires() {
        let id = SandboxId::random();
        let kind = EventKind::SandboxStopped { reason: Some("x".to_owned()) };
        let cloud = CloudEvent::of(&event(kind, Some(id.clone())), "abc");
        let json = serde_json::to_value(&cloud).expect("JSON");
        let expected = json!({
            "specversion": "1.0",
            "id": "abc-42",
            "source": "urn:sandkeep:instance:abc",
            "type": "dev.sandkeep.sandbox.stopped",
            "subject": id,
            "time": "1970-01-01T00:00:00Z",
            "datacontenttype": "application/json",
            "dataschema": "urn:sandkeep:event:sandbox.stopped:v1",
            "organization": "local",
            "user": "local",
            "project": "default",
            "sequence": "00000000000000000042",
            "data": { "reason": "x" },
        });
        assert_eq!(json, expected);
        assert_eq!(serde_json::from_value::<CloudEvent>(json).expect("a CloudEvent"), cloud);
    }

    #[test]
    fn an_event_of_a_traced_request_carries_its_place_in_the_trace() {
        const PLACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let traced = Event {
            traceparent: Some(PLACE.parse().expect("valid")),
            ..event(EventKind::SandboxStarted {}, None)
        };
        let json = serde_json::to_string(&traced).expect("JSON");
        assert_eq!(serde_json::from_str::<Event>(&json).expect("an event"), traced);
        assert_eq!(CloudEvent::of(&traced, "abc").traceparent.as_deref(), Some(PLACE));
    }

    #[test]
    fn attribute_names_are_lower_case_letters_and_digits() {
        let cloud = CloudEvent::of(&event(EventKind::SandboxStarted {}, None), "abc");
        let json = serde_json::to_value(&cloud).expect("JSON");
        let fine =
            |name: &String| name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        assert!(json.as_object().expect("an object").keys().all(fine), "{json}");
        assert_eq!(json["data"], json!({}), "an event without data has an object");
    }

    #[test]
    fn the_schema_of_an_event_has_the_id_that_the_event_names() {
        let cloud = CloudEvent::of(&event(EventKind::SandboxStarted {}, None), "abc");
        let schemas = crate::event::schemas();
        assert!(schemas.iter().any(|schema| schema.schema["$id"] == cloud.dataschema));
    }
}
