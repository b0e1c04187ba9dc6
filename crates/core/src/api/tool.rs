//! Answers and events of tools for agents.

use std::borrow::Cow;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{OutputStream, Problem};
use crate::{ExecId, SnapshotId};

/// The answer to a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ToolAnswer {
    /// For the model, in this order.
    pub content: Vec<ToolBlock>,
    /// Of a command that exited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Whether the tool failed, or its command did; `content` says why.
    pub is_error: bool,
    pub duration_ms: u64,
    /// 1: operates on files. 2: runs a command.
    pub tier: u8,
    /// The snapshot of the sandbox's files after the call, if one was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_id: Option<SnapshotId>,
    /// The exec of a command, whose whole output is kept like any other's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exec_id: Option<ExecId>,
    /// Why it was refused, as a stable code: `docs/reference/refusals.md` lists them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<Cow<'static, str>>,
}

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToolBlock {
    Text { text: String },
}

impl ToolBlock {
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into() }
    }
}

/// One line of a live call. The last one is `Result` or `Failed`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToolEvent {
    /// The exec of a command.
    Started {
        exec_id: ExecId,
    },
    /// Progress of a search.
    Progress {
        files_seen: u64,
        found: u64,
    },
    Result(ToolAnswer),
    Failed {
        problem: Problem,
    },
    /// Bytes of a stream, starting at this offset.
    #[serde(untagged)]
    Output {
        #[serde(rename = "type")]
        stream: OutputStream,
        offset: u64,
        #[serde(flatten, with = "super::data")]
        data: Bytes,
    },
}

impl ToolEvent {
    /// The event's name in Server-Sent Events.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Started { .. } => "started",
            Self::Output { stream, .. } => stream.as_str(),
            Self::Progress { .. } => "progress",
            Self::Result(_) => "result",
            Self::Failed { .. } => "failed",
        }
    }
}
