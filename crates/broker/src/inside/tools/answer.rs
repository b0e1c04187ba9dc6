//! What a tool answers.

use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use toolbox::tools::{Progress, Refusal};

use super::catalogue::Tool;
use sandkeep_core::{ExecId, SnapshotId};
use sandkeep_guestlink::OutputStream;

/// The answer to a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct ToolAnswer {
    /// For the model to read, in this order.
    pub content: Vec<Block>,
    /// Of a command that ran to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Whether the tool did not do what it was asked, or its command failed; `content` says why.
    pub is_error: bool,
    pub duration_ms: u64,
    /// 1: it works on files. 2: it is a command.
    pub tier: u8,
    /// Snapshot taken after the call, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_id: Option<SnapshotId>,
    /// The exec that a command was, whose whole output is kept like any other's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exec_id: Option<ExecId>,
    /// Why it was refused, in one word that does not change: `docs/reference/refusals.md` lists them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<&'static str>,
}

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schema(as = ToolBlock)]
pub enum Block {
    Text { text: String },
}

/// What is told of a call before its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolEvent {
    /// The exec that a command is.
    Started {
        exec_id: ExecId,
    },
    Output {
        stream: OutputStream,
        offset: u64,
        data: Bytes,
    },
    /// How far a search is.
    Progress(Progress),
}

impl Block {
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into() }
    }

    fn len(&self) -> usize {
        let Self::Text { text } = self;
        text.len()
    }
}

impl ToolAnswer {
    /// The answer of a tool that works on files.
    pub(super) fn of_files(tool: &Tool, done: Result<String, Refusal>, took: Duration) -> Self {
        let (text, refusal) = match done {
            Ok(text) => (text, None),
            Err(refusal) => (refusal.to_string(), Some(refusal.said().code)),
        };
        Self {
            content: vec![Block::text(text)],
            exit_code: None,
            is_error: refusal.is_some(),
            duration_ms: in_ms(took),
            tier: tool.tier.number(),
            snapshot_id: None,
            exec_id: None,
            refusal,
        }
    }

    /// How much memory it takes, about.
    pub(super) fn size(&self) -> usize {
        size_of::<Self>() + self.content.iter().map(Block::len).sum::<usize>()
    }
}

pub(super) fn in_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use toolbox::tools::Said;

    use super::*;

    fn cell(text: &str) -> String {
        text.replace('|', "\\|").replace('\n', "<br>")
    }

    fn table() -> String {
        let mut text = String::from(
            "# Refusals\n\n\
             When a tool refuses a call, its answer has `is_error` and the code in `refusal`. The text says what was refused, by\n\
             which rule, and what to do instead. This table has one example of each. Problems with the request itself or with the\n\
             sandbox are API errors: see [errors.md](errors.md).\n\n\
             <!-- Generated: SANDKEEP_REGENERATE=1 cargo nextest run refusals_md -->\n\n\
             | code | what was refused | rule | instead |\n|---|---|---|---|\n",
        );
        for refusal in Refusal::samples() {
            let Said { code, what, rule, instead } = refusal.said();
            let (what, rule, instead) = (cell(&what), cell(rule), cell(&instead));
            writeln!(text, "| `{code}` | {what} | {rule} | {instead} |")
                .expect("a String can be written to");
        }
        text
    }

    #[test]
    fn refusals_md_lists_every_refusal() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/refusals.md");
        if std::env::var_os("SANDKEEP_REGENERATE").is_some() {
            std::fs::write(path, table()).expect("docs can be written");
        }
        let written = std::fs::read_to_string(path).expect("docs/reference/refusals.md exists");
        assert!(
            written == table(),
            "docs/reference/refusals.md is stale: run with SANDKEEP_REGENERATE=1"
        );
    }
}
