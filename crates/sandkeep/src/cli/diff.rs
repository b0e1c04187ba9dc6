//! `sandkeep diff`: shows what changed in a sandbox.

use std::io::IsTerminal as _;

use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::print;
use sandkeep_client::Client;
use sandkeep_core::SnapshotName;
use sandkeep_tree::diff::{ChangeKind, FileChange, FileKind, Omitted};

/// Show what changed in a sandbox since it started, or since a snapshot
///
/// One line per file: A added, M modified, D deleted, R renamed, m if only mode, owner or attributes changed.
#[derive(Debug, clap::Args)]
pub struct DiffArgs {
    /// Sandbox name, id or unique prefix of an id
    id: String,
    /// Compare from this snapshot [default: base, the files that the sandbox started with]
    #[arg(long, value_name = "SNAPSHOT")]
    from: Option<SnapshotName>,
    /// Compare to this snapshot [default: the current files]
    #[arg(long, value_name = "SNAPSHOT")]
    to: Option<SnapshotName>,
    /// Compare only this file or directory; a relative path begins in the working directory
    #[arg(long, value_name = "PATH")]
    path: Option<String>,
    #[command(flatten)]
    shape: DiffFormat,
}

/// What to show.
#[derive(Clone, Copy, Debug, clap::Args)]
#[group(multiple = false)]
struct DiffFormat {
    /// Show the changed lines
    #[arg(long)]
    text: bool,
    /// Show the number of changed lines
    #[arg(long)]
    stat: bool,
    /// Print JSON, including the changed lines
    #[arg(long)]
    json: bool,
}

/// Whether to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Colours {
    Yes,
    No,
}

/// The part of the answer that is displayed.
#[derive(serde::Deserialize)]
struct Compared {
    changes: Vec<FileChange>,
    truncated: bool,
    frozen: Option<bool>,
}

pub async fn run(args: DiffArgs, client: &Client) -> Result<Exit, Failure> {
    let id = client.resolve(&args.id).await?;
    let DiffFormat { text, stat, json } = args.shape;
    let text_too = text || stat || json;
    let mut query = vec![("text", text_too.to_string())];
    for (name, snapshot) in [("from", args.from), ("to", args.to)] {
        if let Some(snapshot) = snapshot {
            let snapshot = client.resolve_snapshot(&id, &snapshot).await?;
            query.push((name, snapshot.into()));
        }
    }
    query.extend(args.path.map(|path| ("path", path)));
    let answer = client.get_query(&format!("/api/v1/sandboxes/{id}/diff"), &query).await?;
    if json {
        print::json(&answer)?;
        return Ok(Exit::Ok);
    }
    let detail = match (text, stat) {
        (true, _) => Detail::Lines,
        (false, true) => Detail::Statistics,
        (false, false) => Detail::Names,
    };
    show(client.read(answer)?, detail)
}

/// How much of a change is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Detail {
    Names,
    Lines,
    Statistics,
}

/// Shows the changes of a codebase.
pub fn of_codebase(answer: serde_json::Value, client: &Client) -> Result<Exit, Failure> {
    // It is never frozen, and its manual says so.
    let compared = Compared { frozen: None, ..client.read(answer)? };
    show(compared, Detail::Names)
}

fn show(compared: Compared, detail: Detail) -> Result<Exit, Failure> {
    let Compared { changes, truncated, frozen } = compared;
    let colours = if std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none() {
        Colours::Yes
    } else {
        Colours::No
    };
    let lines: Vec<String> = match detail {
        Detail::Lines => changes.iter().flat_map(|change| texts(change, colours)).collect(),
        Detail::Statistics => statistics(&changes, colours),
        Detail::Names => changes.iter().map(|change| line(change, colours)).collect(),
    };
    lines.iter().try_for_each(|line| print::line(line))?;
    if truncated {
        print::note("the list is incomplete; select less with --path");
    }
    if frozen == Some(false) {
        print::note("the sandbox was not frozen: files written meanwhile may be incomplete");
    }
    Ok(Exit::Ok)
}

/// As in git's short format.
fn line(change: &FileChange, colours: Colours) -> String {
    let (letter, colour) = match change.kind {
        ChangeKind::Added => ('A', GREEN),
        ChangeKind::Modified => ('M', YELLOW),
        ChangeKind::Deleted => ('D', RED),
        ChangeKind::Renamed => ('R', CYAN),
        ChangeKind::Mode => ('m', YELLOW),
    };
    let name = match &change.from_path {
        Some(from) => format!("{} -> {}", shown(from), named(change)),
        None => named(change),
    };
    let note = match (&change.before, &change.after) {
        (Some(old), Some(new)) if old.kind != new.kind => {
            format!(" ({} -> {})", kind(old.kind), kind(new.kind))
        }
        (Some(old), Some(new)) if old.mode != new.mode => {
            format!(" ({} -> {})", old.mode, new.mode)
        }
        (Some(old), Some(new)) if (old.uid, old.gid) != (new.uid, new.gid) => {
            format!(" ({}:{} -> {}:{})", old.uid, old.gid, new.uid, new.gid)
        }
        _ => String::new(),
    };
    paint(&format!("{letter}  {name}{note}"), colour, colours)
}

/// A directory has a trailing slash.
fn named(change: &FileChange) -> String {
    let facts = change.after.as_ref().or(change.before.as_ref());
    let slash = facts.is_some_and(|facts| facts.kind == FileKind::Directory && change.path != "/");
    format!("{}{}", shown(&change.path), if slash { "/" } else { "" })
}

/// Names may contain terminal escape sequences.
fn shown(path: &str) -> String {
    if path.chars().any(char::is_control) { format!("{path:?}") } else { path.to_owned() }
}

fn kind(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "link",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
        FileKind::Device => "device",
    }
}

/// The change, and its lines if any.
fn texts(change: &FileChange, colours: Colours) -> Vec<String> {
    let mut lines = vec![line(change, colours)];
    let omitted = change.text_omitted.map(|omitted| match omitted {
        Omitted::Binary => "   binary files differ",
        Omitted::TooLarge => "   too large to be compared line by line",
    });
    lines.extend(omitted.map(str::to_owned));
    let text = change.text.as_deref().unwrap_or_default();
    lines.extend(text.lines().map(|text| {
        let colour = match text.as_bytes() {
            [b'@', ..] => CYAN,
            [b'+', b'+', b'+', ..] | [b'-', b'-', b'-', ..] => BOLD,
            [b'+', ..] => GREEN,
            [b'-', ..] => RED,
            _ => PLAIN,
        };
        // File contents may contain terminal escape sequences as well; to a pipe they are written unchanged.
        let text = match colours {
            Colours::Yes => text.replace(|c: char| c.is_control() && c != '\t', "\u{fffd}"),
            Colours::No => text.to_owned(),
        };
        paint(&text, colour, colours)
    }));
    lines
}

/// The number of added and removed lines, per file and in total.
fn statistics(changes: &[FileChange], colours: Colours) -> Vec<String> {
    let counts = |text: &str| {
        let body = text.lines().skip(2);
        let (plus, minus) = (body.clone().filter(|line| line.starts_with('+')), body);
        (plus.count(), minus.filter(|line| line.starts_with('-')).count())
    };
    let (mut plus, mut minus) = (0, 0);
    let mut lines = Vec::new();
    for change in changes {
        let told = match (&change.text, change.text_omitted) {
            (Some(text), _) => {
                let (more, less) = counts(text);
                (plus, minus) = (plus + more, minus + less);
                format!(" | +{more} -{less}")
            }
            (None, Some(Omitted::Binary)) => " | binary".to_owned(),
            (None, Some(Omitted::TooLarge)) => " | too large".to_owned(),
            (None, None) => String::new(),
        };
        lines.push(format!("{}{told}", line(change, colours)));
    }
    let files = changes.len();
    lines.push(format!("{files} changed, {plus} lines added, {minus} lines removed"));
    lines
}

const PLAIN: &str = "";
const BOLD: &str = "1";
const RED: &str = "31";
const GREEN: &str = "32";
const YELLOW: &str = "33";
const CYAN: &str = "36";

fn paint(text: &str, colour: &str, colours: Colours) -> String {
    match colours {
        Colours::Yes if colour != PLAIN => format!("\x1b[{colour}m{text}\x1b[0m"),
        Colours::Yes | Colours::No => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn told(value: Value) -> FileChange {
        serde_json::from_value(value).expect("a change")
    }

    #[test]
    fn changes_are_shown_as_git_shows_them() {
        let file =
            |mode: &str| json!({ "type": "file", "mode": mode, "uid": 0, "gid": 0, "bytes": 1 });
        let renamed = told(json!({
            "kind": "renamed", "path": "/new", "from_path": "/old",
            "before": file("0644"), "after": file("0755"),
        }));
        assert_eq!(line(&renamed, Colours::No), "R  /old -> /new (0644 -> 0755)");
        let odd =
            told(json!({ "kind": "deleted", "path": "/a\u{1b}[31m", "before": file("0644") }));
        assert_eq!(line(&odd, Colours::No), "D  \"/a\\u{1b}[31m\"");
        let text = "--- a/x\n+++ b/x\n@@ -1 +1,2 @@\n-one\n+two\n+--- three\n";
        let modified = told(json!({
            "kind": "modified", "path": "/x", "text": text,
            "before": file("0644"), "after": file("0644"),
        }));
        let lines = statistics(std::slice::from_ref(&modified), Colours::No);
        let all = "1 changed, 2 lines added, 1 lines removed";
        assert_eq!(lines, ["M  /x | +2 -1", all]);
        assert_eq!(texts(&modified, Colours::Yes)[4], "\x1b[31m-one\x1b[0m");
    }
}
