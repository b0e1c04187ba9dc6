//! The answer of a tool.

use std::time::Duration;

use bytes::Bytes;
use toolbox::tools::{Progress, Refusal};

use super::catalogue::Tool;
use sandkeep_core::ExecId;
use sandkeep_guestlink::OutputStream;

pub use sandkeep_core::api::{ToolAnswer, ToolBlock};

/// An event of a call before its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolEvent {
    /// The exec of a command.
    Started {
        exec_id: ExecId,
    },
    Output {
        stream: OutputStream,
        offset: u64,
        data: Bytes,
    },
    /// The progress of a search.
    Progress(Progress),
}

/// The answer of a file tool.
pub(super) fn of_files(tool: &Tool, done: Result<String, Refusal>, took: Duration) -> ToolAnswer {
    let (text, refusal) = match done {
        Ok(text) => (text, None),
        Err(refusal) => (refusal.to_string(), Some(refusal.said().code.into())),
    };
    ToolAnswer {
        content: vec![ToolBlock::text(text)],
        exit_code: None,
        is_error: refusal.is_some(),
        duration_ms: sandkeep_core::millis(took),
        tier: tool.tier.number(),
        snapshot_id: None,
        exec_id: None,
        refusal,
    }
}

/// The approximate memory of an answer.
pub(super) fn size(answer: &ToolAnswer) -> usize {
    let texts = answer.content.iter().map(|ToolBlock::Text { text }| text.len());
    size_of::<ToolAnswer>() + texts.sum::<usize>()
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
