//! What a tool for agents answers, and what it says before.

use std::borrow::Cow;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{OutputStream, Problem};
use crate::{ExecId, SnapshotId};

/// The answer to a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ToolAnswer {
    /// For the model to read, in this order.
    pub content: Vec<ToolBlock>,
    /// Of a command that ran to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Whether the tool did not do what it was asked, or its command failed; `content` says why.
    pub is_error: bool,
    pub duration_ms: u64,
    /// 1: it works on files. 2: it is a command.
    pub tier: u8,
    /// What the sandbox's files were after the call, if that was to be kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_id: Option<SnapshotId>,
    /// The exec that a command was, whose whole output is kept like any other's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exec_id: Option<ExecId>,
    /// Why it was refused, in one word that does not change: `docs/reference/refusals.md` lists them.
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
    /// The exec that a command is.
    Started {
        exec_id: ExecId,
    },
    /// How far a search is.
    Progress {
        files_seen: u64,
        found: u64,
    },
    Result(ToolAnswer),
    Failed {
        problem: Problem,
    },
    /// Bytes of a stream, the first of them at this offset.
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
    /// As a stream of Server-Sent Events names it.
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
