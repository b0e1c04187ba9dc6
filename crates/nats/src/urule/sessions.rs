//! Urule's events of sessions.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::ulid::ulid;
use crate::publisher::{Feed, Message};
use sandkeep_broker::Delivery;
use sandkeep_core::event::{Event, EventKind};

const WORKSPACE: &str = "urule.workspace_id";
const PROFILE: &str = "urule.runtime_profile";
const PROFILE_DEFAULT: &str = "default";

/// The labels that events must have for this.
pub const SESSION_LABELS: [&str; 2] = [WORKSPACE, PROFILE];
/// What Urule's stream takes.
pub const SESSION_SUBJECTS: &str = "urule.>";

const SOURCE: &str = "sandkeep";
const VERSION: u32 = 1;

/// Which sandboxes are told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Those with the label of a workspace.
    Sessions,
    All,
}

/// Urule's events about the sandboxes of this instance.
pub struct Sessions {
    pub which: Which,
    pub instance: String,
}

/// What Urule wraps its events in.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    id: String,
    r#type: String,
    source: &'static str,
    timestamp: String,
    version: u32,
    correlation_id: String,
    data: Value,
}

impl Feed for Sessions {
    fn name(&self) -> &'static str {
        "urule"
    }

    fn messages(&self, delivery: &Delivery) -> Vec<Message> {
        // Urule has no word for events that are missing.
        let Delivery::Event(event) = delivery else { return Vec::new() };
        match &event.kind {
            EventKind::SandboxCreated { runtime, labels, .. } => {
                let Some(data) = self.data(event, Some(runtime), labels) else { return Vec::new() };
                let mut allocated = data.clone();
                allocated.insert("runtimeId".to_owned(), json!(self.instance));
                vec![
                    self.message(event, "allocated", allocated),
                    self.message(event, "ready", data),
                ]
            }
            EventKind::SandboxFailed { reason, runtime, labels } => {
                let Some(mut data) = self.data(event, runtime.as_ref(), labels) else {
                    return Vec::new();
                };
                data.insert("error".to_owned(), json!(reason));
                vec![self.message(event, "error", data)]
            }
            EventKind::SandboxDestroyed { reason, runtime, labels } => {
                let Some(mut data) = self.data(event, runtime.as_ref(), labels) else {
                    return Vec::new();
                };
                let reason = reason.as_deref().unwrap_or("terminated");
                data.insert("reason".to_owned(), json!(reason));
                vec![self.message(event, "terminated", data)]
            }
            _ => Vec::new(),
        }
    }
}

impl Sessions {
    /// What all events of a session say; `None` if it is none.
    fn data(
        &self,
        event: &Event,
        provider: Option<&String>,
        labels: &BTreeMap<String, String>,
    ) -> Option<Map<String, Value>> {
        let workspace = match (self.which, labels.get(WORKSPACE)) {
            (_, Some(workspace)) => workspace,
            (Which::All, None) => &event.subject.owner.project,
            (Which::Sessions, None) => return None,
        };
        let profile = labels.get(PROFILE).map_or(PROFILE_DEFAULT, String::as_str);
        let mut data = Map::new();
        data.insert("sessionId".to_owned(), json!(event.subject.sandbox.as_ref()?));
        data.insert("workspaceId".to_owned(), json!(workspace));
        data.insert("runtimeProfile".to_owned(), json!(profile));
        if let Some(provider) = provider {
            data.insert("provider".to_owned(), json!(provider));
        }
        Some(data)
    }

    fn message(&self, event: &Event, action: &str, data: Map<String, Value>) -> Message {
        let kind = format!("urule.runtime.session.{action}");
        let name = format!("{}-{}-{action}", self.instance, event.seq);
        let session = data["sessionId"].as_str().unwrap_or_default();
        let envelope = Envelope {
            id: ulid(event.at, &name),
            r#type: kind.clone(),
            source: SOURCE,
            timestamp: format!("{:.3}", event.at),
            version: VERSION,
            // All events of a session belong together.
            correlation_id: session.to_owned(),
            data: Value::Object(data),
        };
        let payload = serde_json::to_vec(&envelope).expect("it holds strings and numbers");
        let mut message = Message::new(kind, &envelope.id, payload.into());
        message.headers.insert("Content-Type", "application/json");
        message
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;
    use sandkeep_core::event::{EventSeq, Subject};
    use sandkeep_core::{Owner, SandboxId};

    fn labels(workspace: Option<&str>) -> BTreeMap<String, String> {
        let workspace = workspace.map(|id| (WORKSPACE.to_owned(), id.to_owned()));
        let profile = workspace.is_some().then(|| (PROFILE.to_owned(), "node-20".to_owned()));
        workspace.into_iter().chain(profile).collect()
    }

    fn told(which: Which, kind: EventKind, sandbox: &SandboxId) -> Vec<(String, Value)> {
        let subject = Subject { owner: Owner::local(), sandbox: Some(sandbox.clone()) };
        let at = Timestamp::UNIX_EPOCH;
        let event = Event { seq: EventSeq::new(9), at, subject, kind, traceparent: None };
        let feed = Sessions { which, instance: "abc".to_owned() };
        let messages = feed.messages(&Delivery::Event(Box::new(event)));
        let read = |message: &Message| serde_json::from_slice(&message.payload).expect("JSON");
        messages.iter().map(|message| (message.subject.clone(), read(message))).collect()
    }

    fn created(workspace: Option<&str>) -> EventKind {
        let (runtime, template) = ("native".to_owned(), "host".to_owned());
        EventKind::SandboxCreated { runtime, template, labels: labels(workspace) }
    }

    #[test]
    fn a_session_is_allocated_and_then_ready() {
        let id = SandboxId::random();
        let told = told(Which::Sessions, created(Some("ws-1")), &id);
        let subjects: Vec<&str> = told.iter().map(|(subject, _)| subject.as_str()).collect();
        assert_eq!(subjects, ["urule.runtime.session.allocated", "urule.runtime.session.ready"]);
        let allocated = &told[0].1;
        assert_eq!(allocated["type"], "urule.runtime.session.allocated");
        assert_eq!(allocated["timestamp"], "1970-01-01T00:00:00.000Z");
        assert_eq!(allocated["version"], 1);
        assert_eq!(allocated["correlationId"], json!(id));
        let expected = json!({
            "sessionId": id, "workspaceId": "ws-1", "provider": "native",
            "runtimeProfile": "node-20", "runtimeId": "abc",
        });
        assert_eq!(allocated["data"], expected);
        assert_ne!(allocated["id"], told[1].1["id"]);
    }

    #[test]
    fn the_end_and_the_failure_of_a_session_say_whose_it_was() {
        let id = SandboxId::random();
        let runtime = Some("native".to_owned());
        let labels = labels(Some("ws-1"));
        let failed = EventKind::SandboxFailed {
            reason: "out of memory".to_owned(),
            runtime: runtime.clone(),
            labels: labels.clone(),
        };
        let failed = told(Which::Sessions, failed, &id);
        assert_eq!(failed[0].0, "urule.runtime.session.error");
        assert_eq!(failed[0].1["data"]["error"], "out of memory");
        assert_eq!(failed[0].1["data"]["workspaceId"], "ws-1");
        let ended = EventKind::SandboxDestroyed { reason: None, runtime, labels };
        let ended = told(Which::Sessions, ended, &id);
        assert_eq!(ended[0].0, "urule.runtime.session.terminated");
        assert_eq!(ended[0].1["data"]["provider"], "native");
        assert_eq!(ended[0].1["data"]["reason"], "terminated");
    }

    #[test]
    fn a_sandbox_without_a_workspace_is_told_of_only_by_setting() {
        let id = SandboxId::random();
        assert!(told(Which::Sessions, created(None), &id).is_empty());
        let all = told(Which::All, created(None), &id);
        assert_eq!(all[0].1["data"]["workspaceId"], "default");
        assert_eq!(all[0].1["data"]["runtimeProfile"], "default");
    }
}
