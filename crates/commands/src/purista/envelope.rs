//! The envelopes of PURISTA: what is read of a command, and what replies and events look like.

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::door::Fault;
use super::input::NAME_MAX_BYTES;
use super::{SERVICE, SERVICE_VERSION};
use sandkeep_core::{Principal, Scope};

/// A command. Nothing in it is required: a reply needs none of it.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Envelope {
    pub id: Value,
    pub correlation_id: Value,
    pub trace_id: Value,
    pub tenant_id: Value,
    pub principal_id: Value,
    pub otp: Value,
    pub sender: Value,
    pub payload: Value,
}

impl Envelope {
    pub fn read(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }

    /// Who asks: both names, without the space around them. `None` if one is missing.
    pub fn principal(&self) -> Option<Principal> {
        let name = |value: &Value| {
            let name = value.as_str()?.trim();
            (!name.is_empty() && name.len() <= NAME_MAX_BYTES).then(|| name.to_owned())
        };
        Some(Principal {
            organization: name(&self.tenant_id)?,
            user: name(&self.principal_id)?,
            project: None,
            scopes: [Scope::Read, Scope::Write].into_iter().collect(),
        })
    }

    /// The trace that it is part of.
    pub fn traceparent(&self) -> Option<String> {
        let otp: Value = serde_json::from_str(self.otp.as_str()?).ok()?;
        otp["traceparent"].as_str().map(str::to_owned)
    }

    /// The reply with a result.
    pub fn success(&self, instance: &str, target: &str, payload: Value) -> Value {
        let mut reply = self.reply(instance, target, "commandSuccessResponse");
        reply["payload"] = payload;
        reply
    }

    /// The reply with an error.
    pub fn error(&self, instance: &str, target: &str, fault: &Fault) -> Value {
        let mut reply = self.reply(instance, target, "commandErrorResponse");
        let mut payload = json!({ "status": fault.status, "message": fault.message });
        if let Some(data) = &fault.data {
            payload["data"] = data.clone();
        }
        if !self.trace_id.is_null() {
            payload["traceId"] = self.trace_id.clone();
        }
        reply["isHandledError"] = fault.handled.into();
        reply["payload"] = payload;
        reply
    }

    fn reply(&self, instance: &str, target: &str, message_type: &str) -> Value {
        let mut reply = framed(instance, target, message_type);
        reply["id"] = self.id.clone();
        reply["correlationId"] = self.correlation_id.clone();
        reply["receiver"] = self.sender.clone();
        self.carry(&mut reply);
        reply
    }

    /// A message to whoever listens, about what this command did.
    pub fn event(&self, instance: &str, target: &str, name: &str, payload: Value) -> Value {
        let mut event = event(instance, target, name, payload);
        self.carry(&mut event);
        event
    }

    /// What goes from a command into everything that comes of it.
    fn carry(&self, to: &mut Value) {
        let carried = [
            ("traceId", &self.trace_id),
            ("tenantId", &self.tenant_id),
            ("principalId", &self.principal_id),
            ("otp", &self.otp),
        ];
        for (name, value) in carried.into_iter().filter(|(_, value)| !value.is_null()) {
            to[name] = value.clone();
        }
    }
}

/// A custom message.
pub fn event(instance: &str, target: &str, name: &str, payload: Value) -> Value {
    let mut event = framed(instance, target, "customMessage");
    event["id"] = new_id().into();
    event["eventName"] = name.into();
    event["payload"] = payload;
    event
}

/// What every message of ours has.
pub fn framed(instance: &str, target: &str, message_type: &str) -> Value {
    let mut message = Map::new();
    message.insert("messageType".to_owned(), message_type.into());
    message.insert("timestamp".to_owned(), Timestamp::now().as_millisecond().into());
    message.insert("contentType".to_owned(), "application/json".into());
    message.insert("contentEncoding".to_owned(), "utf-8".into());
    let sender = json!({
        "serviceName": SERVICE, "serviceVersion": SERVICE_VERSION, "serviceTarget": target,
        "instanceId": instance,
    });
    message.insert("sender".to_owned(), sender);
    Value::Object(message)
}

/// 32 hex digits, as PURISTA's own ids are.
pub fn new_id() -> String {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the kernel's random source always answers once booted");
    hex::encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command() -> Envelope {
        let command = json!({
            "id": "1", "correlationId": "2", "traceId": "3", "tenantId": " acme ",
            "principalId": "ann", "otp": "{\"traceparent\":\"00-a-b-01\"}",
            "sender": { "serviceName": "Caller", "instanceId": "x" },
            "messageType": "command", "payload": { "payload": 1, "parameter": {} },
        });
        Envelope::read(command.to_string().as_bytes()).expect("JSON")
    }

    #[test]
    fn a_reply_goes_back_with_all_that_it_came_with() {
        let reply = command().success("me", "readFile", json!("text"));
        for (field, value) in [
            ("id", "1"),
            ("correlationId", "2"),
            ("traceId", "3"),
            ("tenantId", " acme "),
            ("principalId", "ann"),
            ("messageType", "commandSuccessResponse"),
            ("payload", "text"),
            ("contentType", "application/json"),
            ("contentEncoding", "utf-8"),
        ] {
            assert_eq!(reply[field], value, "{field}");
        }
        assert_eq!(reply["receiver"]["serviceName"], "Caller");
        let sender = json!({ "serviceName": "Sandbox", "serviceVersion": "1",
            "serviceTarget": "readFile", "instanceId": "me" });
        assert_eq!(reply["sender"], sender);
        assert!(reply["timestamp"].is_i64() && reply.get("isHandledError").is_none());
    }

    #[test]
    fn an_error_says_whether_it_was_expected() {
        let fault = Fault::new(409, "taken").with(json!({ "sandboxId": "s" }));
        let reply = command().error("me", "createSandbox", &fault);
        assert_eq!(reply["messageType"], "commandErrorResponse");
        assert_eq!(reply["isHandledError"], true);
        let payload = json!({ "status": 409, "message": "taken", "data": { "sandboxId": "s" },
            "traceId": "3" });
        assert_eq!(reply["payload"], payload);
        assert_eq!(command().error("me", "x", &Fault::internal())["isHandledError"], false);
    }

    #[test]
    fn who_asks_is_both_names_or_nobody() {
        let who = command().principal().expect("both");
        assert_eq!((who.organization.as_str(), who.user.as_str()), ("acme", "ann"));
        assert!(!who.scopes.allow(Scope::Admin) && !who.scopes.allow(Scope::Organization));
        assert_eq!(command().traceparent().as_deref(), Some("00-a-b-01"));
        for odd in [json!(null), json!(""), json!("  "), json!(7), json!("x".repeat(256))] {
            let envelope = Envelope { tenant_id: odd.clone(), ..command() };
            assert!(envelope.principal().is_none(), "{odd}");
        }
    }

    #[test]
    fn an_empty_command_can_be_answered() {
        let reply = Envelope::read(b"{}").expect("JSON").success("me", "readFile", json!(null));
        assert!(reply["payload"].is_null() && reply["receiver"].is_null());
    }
}
