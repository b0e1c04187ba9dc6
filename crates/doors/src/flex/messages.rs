//! The messages, as Go's `encoding/json` writes structs without tags: PascalCase, every field there, durations in
//! nanoseconds. What a client sends may leave fields out or have them `null`.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

/// `null` is the default, as in Go.
fn or_default<'de, T: Default + Deserialize<'de>, D: Deserializer<'de>>(
    from: D,
) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(from)?.unwrap_or_default())
}

fn nanoseconds<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

macro_rules! requests {
    ($($(#[$doc:meta])* $name:ident { $($field:ident $json:literal: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Default, Deserialize)]
        #[serde(default)]
        pub struct $name {
            $(
                #[serde(rename = $json, deserialize_with = "or_default")]
                pub $field: $type,
            )*
        }
    )*};
}

requests! {
    CreateSessionRequest {
        base_snapshot "BaseSnapshot": String,
        session_id "SessionID": String,
        quota "Quota": i64,
        labels "Labels": BTreeMap<String, String>,
    }
    /// Of every method that takes a session and nothing else.
    SessionRequest { session_id "SessionID": String, }
    NothingRequest {}
    CreateSnapshotRequest { session_id "SessionID": String, name "Name": String, }
    RollbackRequest { session_id "SessionID": String, snapshot_id "SnapshotID": String, }
    ToolRequest {
        session_id "SessionID": String,
        tool_call_id "ToolCallID": String,
        tool_name "ToolName": String,
        params "Params": Map<String, Value>,
        resources "Resources": Resources,
    }
    /// Zero is no limit of its own.
    Resources { cpus "CPUs": f64, mem_mb "MemMB": u64, }
    LaunchRequest {
        session_id "SessionID": String,
        binary "Binary": String,
        args "Args": Vec<String>,
        env "Env": BTreeMap<String, String>,
        expose_port "ExposePort": i64,
    }
    KillRequest {
        session_id "SessionID": String,
        process_id "ProcessID": String,
        signal "Signal": i32,
    }
    ProcessRequest { session_id "SessionID": String, process_id "ProcessID": String, }
}

/// The answer of a method that has none.
#[derive(Debug, Serialize)]
pub struct Nothing {}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Session {
    #[serde(rename = "ID")]
    pub id: String,
    pub state: &'static str,
    /// A path of Flex's host. Ours are nobody's business, so it is empty.
    pub mountpoint: &'static str,
    pub turn_count: u64,
    pub snap_count: u64,
    pub created: Timestamp,
    pub labels: BTreeMap<String, String>,
    pub space_used: u64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct SessionAnswer {
    pub session: Session,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct SessionsAnswer {
    pub sessions: Vec<Session>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct CreateSessionAnswer {
    pub session: Session,
    pub server_capabilities: ServerCapabilities,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct ServerCapabilities {
    pub snapshots: bool,
    pub rollback: bool,
    pub pause: bool,
    pub streaming_progress: bool,
    pub tier_routing: bool,
}

/// What a turn or a snapshot came to.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct SnapshotAnswer {
    #[serde(rename = "SnapshotID")]
    pub snapshot_id: String,
    pub turn_number: u64,
    pub space_used: u64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct SnapshotInfo {
    pub name: String,
    pub dataset: String,
    pub used: u64,
    pub refer: u64,
    pub created_at: Timestamp,
    pub holds: u32,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct SnapshotsAnswer {
    pub snapshots: Vec<SnapshotInfo>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct ToolResponse {
    #[serde(rename = "SessionID")]
    pub session_id: String,
    #[serde(rename = "ToolCallID")]
    pub tool_call_id: String,
    pub tool_name: String,
    pub content: String,
    pub content_blocks: Vec<ContentBlock>,
    #[serde(rename = "SnapshotID")]
    pub snapshot_id: String,
    pub exit_code: Option<i32>,
    pub tier: u8,
    #[serde(serialize_with = "nanoseconds")]
    pub duration: Duration,
}

/// Ours are all text.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct ContentBlock {
    #[serde(rename = "Type")]
    pub kind: &'static str,
    pub text: String,
    pub text_signature: &'static str,
    pub thinking: &'static str,
    pub thinking_signature: &'static str,
    pub redacted: bool,
    pub image_data: &'static str,
    pub image_mime_type: &'static str,
    #[serde(rename = "ToolCallID")]
    pub tool_call_id: &'static str,
    pub tool_call_name: &'static str,
    pub tool_call_arguments: Option<Map<String, Value>>,
    pub thought_signature: &'static str,
}

impl ContentBlock {
    pub fn text(text: String) -> Self {
        Self { kind: "text", text, ..Self::default() }
    }
}

/// One frame of a call that tells how far it is; exactly one of both is there.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct ToolFrame {
    pub progress: Option<Progress>,
    pub response: Option<ToolResponse>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Progress {
    pub content: String,
    pub is_error: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct LaunchAnswer {
    #[serde(rename = "ProcessID")]
    pub process_id: String,
    pub address: String,
    pub status: &'static str,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct ProcessAnswer {
    pub status: &'static str,
    pub exit_code: Option<i32>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct HealthAnswer {
    pub status: &'static str,
    pub pool_state: Value,
    /// Bytes; `null` where the storage cannot tell.
    pub pool_space: PoolSpace,
    pub session_count: usize,
    pub active_tools: usize,
    #[serde(serialize_with = "nanoseconds")]
    pub uptime: Duration,
    pub errors: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct PoolSpace {
    pub total: Option<u64>,
    pub used: Option<u64>,
    pub free: Option<u64>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_go_sends_is_read_with_its_nulls_and_without_fields() {
        let sent = json!({
            "SessionID": "s", "ToolCallID": "c", "ToolName": "bash", "Params": null, "Resources": null, "Later": 1
        });
        let request: ToolRequest = serde_json::from_value(sent).expect("a request");
        assert_eq!((request.session_id.as_str(), request.params.len()), ("s", 0));
        let request: CreateSessionRequest =
            serde_json::from_value(json!({ "Labels": null })).expect("a request");
        assert!(request.session_id.is_empty() && request.labels.is_empty());
    }

    #[test]
    fn answers_have_every_field_in_the_words_of_go() {
        let answer = ToolResponse {
            session_id: "s".to_owned(),
            tool_call_id: "c".to_owned(),
            tool_name: "bash".to_owned(),
            content: "hi".to_owned(),
            content_blocks: vec![ContentBlock::text("hi".to_owned())],
            snapshot_id: String::new(),
            exit_code: None,
            tier: 2,
            duration: Duration::from_millis(2),
        };
        let frame = ToolFrame { progress: None, response: Some(answer) };
        let expected = json!({ "Progress": null, "Response": {
            "SessionID": "s", "ToolCallID": "c", "ToolName": "bash", "Content": "hi",
            "ContentBlocks": [{
                "Type": "text", "Text": "hi", "TextSignature": "", "Thinking": "", "ThinkingSignature": "",
                "Redacted": false, "ImageData": "", "ImageMimeType": "", "ToolCallID": "", "ToolCallName": "",
                "ToolCallArguments": null, "ThoughtSignature": ""
            }],
            "SnapshotID": "", "ExitCode": null, "Tier": 2, "Duration": 2_000_000
        }});
        assert_eq!(json!(frame), expected);
    }
}
