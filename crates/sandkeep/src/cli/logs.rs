//! `sandkeep logs`: the output of commands.

use std::collections::VecDeque;

use jiff::Timestamp;

use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::{argument, events, print};
use sandkeep_client::{Client, Error, ExecEvent, ExecEvents};
use sandkeep_core::api::{Exec, Order, OutputStream};
use sandkeep_core::limits::CLI_TAIL_MAX_BYTES;
use sandkeep_core::{ExecId, SandboxId};

/// Print the output of an exec or a process
///
/// Its stdout goes to stdout and its stderr to stderr. `sandkeep ps` shows its exit code.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Sandbox name, id or unique prefix of an id
    id: String,
    /// Exec id, process id or unique prefix [default: the last one that was started]
    #[arg(conflicts_with = "since")]
    exec: Option<String>,
    #[command(flatten)]
    part: PartArgs,
    /// All execs and processes that were started since then: a duration such as 10m, or a time
    #[arg(long, value_name = "WHEN", value_parser = argument::since)]
    since: Option<Timestamp>,
}

/// Which part of the output.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct PartArgs {
    /// Follow the output until the command ends
    #[arg(long, short = 'f')]
    follow: bool,
    /// Begin with the last N lines of the output
    #[arg(long, short = 'n', value_name = "N")]
    tail: Option<usize>,
}

pub async fn run(args: Args, client: &Client) -> Result<Exit, Failure> {
    let id = client.resolve(&args.id).await?;
    if let Some(since) = args.since {
        return all_since(since, args.part, &id, client).await;
    }
    let exec = match &args.exec {
        Some(text) => client.resolve_exec(&id, text).await?,
        None => last(client, &id).await?.exec_id,
    };
    show(&exec, args.part, &id, client).await?;
    Ok(Exit::Ok)
}

async fn last(client: &Client, id: &SandboxId) -> Result<Exec, Failure> {
    let newest_first = [("sort", Order::NewestFirst.as_str().to_owned())];
    let path = format!("/api/v1/sandboxes/{id}/execs");
    let newest: Vec<Exec> = client.list(&path, &newest_first, Some(1)).await?;
    newest.into_iter().next().ok_or_else(|| Failure::Usage {
        problem: format!("nothing has been run in {id} yet, or its output is not kept any more"),
    })
}

/// One after the other, oldest first; each is announced on stderr.
async fn all_since(
    since: Timestamp,
    part: PartArgs,
    id: &SandboxId,
    client: &Client,
) -> Result<Exit, Failure> {
    let execs = client.execs(id).await?;
    for exec in execs.iter().filter(|exec| exec.started_at >= since) {
        print::note(&format!("{}: {}", exec.exec_id, exec.argv.join(" ").replace('\n', " ")));
        show(&exec.exec_id, part, id, client).await?;
    }
    Ok(Exit::Ok)
}

/// Prints the output of an exec; with `follow` until it ends.
pub async fn show(
    exec: &ExecId,
    part: PartArgs,
    id: &SandboxId,
    client: &Client,
) -> Result<(), Failure> {
    let path = format!("/api/v1/sandboxes/{id}/execs/{exec}/output");
    let query = |follow: bool, from: [u64; 2]| {
        vec![
            ("follow", follow.to_string()),
            ("stdout_offset", from[0].to_string()),
            ("stderr_offset", from[1].to_string()),
        ]
    };
    let mut from = [0, 0];
    if let Some(lines) = part.tail {
        let response = client.get_live(&path, &query(false, from)).await?;
        let mut tail = Tail::of(lines);
        from = tail.read(ExecEvents::of(client, response)).await?;
        tail.print()?;
        if !part.follow {
            return Ok(());
        }
    }
    let response = client.get_live(&path, &query(part.follow, from)).await?;
    events::follow(client, response).await?;
    Ok(())
}

/// The last lines of an output, in order of arrival.
struct Tail {
    max_lines: usize,
    lines: VecDeque<Line>,
    bytes: usize,
}

struct Line {
    stream: OutputStream,
    text: Vec<u8>,
}

impl Line {
    fn is_whole(&self) -> bool {
        self.text.last() == Some(&b'\n')
    }
}

impl Tail {
    fn of(max_lines: usize) -> Self {
        Self { max_lines, lines: VecDeque::new(), bytes: 0 }
    }

    /// Reads to the end of what there is; returns where each stream continues.
    async fn read(&mut self, mut events: ExecEvents) -> Result<[u64; 2], Failure> {
        let mut ends = [0, 0];
        let mut reached = |stream: OutputStream, end: u64| match stream {
            OutputStream::Stdout => ends[0] = end,
            OutputStream::Stderr => ends[1] = end,
        };
        loop {
            match events.next().await? {
                ExecEvent::Started { .. } => {}
                ExecEvent::Output { stream, offset, data } => {
                    reached(stream, offset + data.len() as u64);
                    self.push(stream, &data);
                }
                ExecEvent::Gap { stream, to, .. } => reached(stream, to),
                ExecEvent::Running { .. } | ExecEvent::Ended { .. } => return Ok(ends),
                ExecEvent::Detached { reason, .. } => {
                    return Err(Error::Detached { reason: reason.into_owned() }.into());
                }
            }
        }
    }

    fn push(&mut self, stream: OutputStream, data: &[u8]) {
        for piece in data.split_inclusive(|byte| *byte == b'\n') {
            let open = self.lines.iter_mut().rev().find(|line| line.stream == stream);
            match open.filter(|line| !line.is_whole()) {
                Some(line) => line.text.extend_from_slice(piece),
                None => self.lines.push_back(Line { stream, text: piece.to_vec() }),
            }
            self.bytes += piece.len();
            while self.lines.len() > self.max_lines || self.bytes > CLI_TAIL_MAX_BYTES {
                let Some(dropped) = self.lines.pop_front() else { break };
                self.bytes -= dropped.text.len();
            }
        }
    }

    fn print(&self) -> Result<(), Failure> {
        self.lines.iter().try_for_each(|line| match line.stream {
            OutputStream::Stdout => print::stdout(&line.text),
            OutputStream::Stderr => print::stderr(&line.text),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUT: OutputStream = OutputStream::Stdout;
    const ERR: OutputStream = OutputStream::Stderr;

    fn kept(max_lines: usize, pieces: &[(OutputStream, &str)]) -> Vec<String> {
        let mut tail = Tail::of(max_lines);
        for (stream, text) in pieces {
            tail.push(*stream, text.as_bytes());
        }
        let lines = tail.lines.iter().map(|line| String::from_utf8_lossy(&line.text).into_owned());
        lines.collect()
    }

    #[test]
    fn a_tail_has_the_last_lines_however_the_output_is_cut() {
        assert_eq!(kept(2, &[(OUT, "a\nb"), (OUT, "c\nd")]), ["bc\n", "d"]);
        assert_eq!(kept(0, &[(OUT, "a\nb")]), [""; 0]);
        assert_eq!(kept(9, &[(OUT, "a")]), ["a"]);
    }

    #[test]
    fn lines_of_both_streams_do_not_run_into_each_other() {
        assert_eq!(kept(3, &[(OUT, "a"), (ERR, "x\n"), (OUT, "b\n")]), ["ab\n", "x\n"]);
    }
}
