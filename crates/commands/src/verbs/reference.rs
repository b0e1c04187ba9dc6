//! `docs/reference/nats.md`: one row per command, from the table that is served.

use std::fmt::Write;

use sandkeep_doors::commands::{Command, CommandBody, commands};

const INTRODUCTION: &str = "\
# Commands over NATS

<!-- Generated: SANDKEEP_REGENERATE=1 cargo nextest run nats_md -->

With `[nats] commands = true` the API is also a NATS micro service, `sandkeep`. The command `VERB` has the subject `sandkeep.v1.VERB`; `sandkeep` is
`nats.prefix`. Daemons with the same prefix share the commands (queue group `sandkeep`). See the [guide](../guides/nats-commands.md).

A command is the request of the [HTTP API](api.md) in its row: it has the same fields, defaults, permissions, quotas and [errors](errors.md).

- **Payload**: a JSON object with the parameters and the fields of the body. *bytes* means that the payload is a file or an archive.
- **Parameters** can also be headers: `id` is `Sandkeep-Id`, `exec_id` is `Sandkeep-Exec-Id`. Commands that take bytes need them as headers.
- **Headers** of the request that are passed on: `Authorization` or `X-API-Key`, `Idempotency-Key`, `X-Correlation-Id`, `Traceparent`,
  `Tracestate`, `Accept`, `Content-Type`, `Range`, `Last-Event-Id`.
- **Reply**: `Sandkeep-Status` is the HTTP status, the payload is the body. Errors also have `Nats-Service-Error` and `Nats-Service-Error-Code`.
- **Streams**: with `Sandkeep-Stream: true`, or where the request asks for a stream, the body comes in several messages with `Sandkeep-Seq` and
  `Sandkeep-Offset`. The last one has no payload and `Sandkeep-End`: `complete`, `broken`, `timed_out` or `shutting_down`.
- **Size**: a reply that does not fit into one message is refused with 413 `answer_too_large`; a stream has no limit.
- **Time**: `Sandkeep-Timeout-Ms` bounds the answer, by default one hour. A command that is not answered in time ends with 504. Its effects may remain,
  as when an HTTP client disconnects.
- A message without a reply subject is ignored. Replies go only to subjects below `nats.inboxes`.

| command | purpose | parameters | payload | request |
|---|---|---|---|---|
";

/// The whole document.
pub fn reference() -> String {
    let mut text = INTRODUCTION.to_owned();
    let mut commands = commands();
    commands.sort_by(|a, b| (&a.tag, &a.verb).cmp(&(&b.tag, &b.verb)));
    for command in &commands {
        let Command { verb, method, path, summary, .. } = command;
        let summary = summary.trim_end_matches('.');
        let (parameters, payload) = (parameters(command), payload(command));
        writeln!(text, "| `{verb}` | {summary} | {parameters} | {payload} | `{method} {path}` |")
            .expect("a String can be written to");
    }
    text
}

fn parameters(command: &Command) -> String {
    let required = command.in_path.iter().map(|name| format!("`{name}`"));
    let query = command.in_query.iter().map(|query| {
        if query.required { format!("`{}`", query.name) } else { format!("`{}?`", query.name) }
    });
    required.chain(query).collect::<Vec<_>>().join(" ")
}

fn payload(command: &Command) -> &'static str {
    match command.body {
        CommandBody::None => "JSON, parameters only",
        CommandBody::Json => "JSON",
        CommandBody::Bytes => "bytes",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nats_md_lists_every_command() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/nats.md");
        if std::env::var_os("SANDKEEP_REGENERATE").is_some() {
            std::fs::write(path, reference()).expect("docs can be written");
        }
        let written = std::fs::read_to_string(path).expect("docs/reference/nats.md exists");
        assert!(
            written == reference(),
            "docs/reference/nats.md is stale: run with SANDKEEP_REGENERATE=1"
        );
    }
}
