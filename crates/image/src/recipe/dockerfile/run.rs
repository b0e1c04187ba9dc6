//! `RUN`.

use super::super::lines::{Document, Line};
use super::super::problem::Problem;
use super::super::{Command, Run, mounts};
use super::{Flagged, Reader, command, flagged, no_flag};
use sandkeep_core::limits::BUILD_MOUNTS_MAX;

/// The argument with which interpreters read their script from stdin. A path such as /dev/stdin would not do: the pipe
/// belongs to root, and only root may open it again.
const SCRIPT: &str = "-";

impl Reader {
    pub(super) fn run(&self, line: &Line) -> Result<Run, Problem> {
        let Flagged { flags, rest } = flagged(&line.rest);
        let mut found = Vec::new();
        for (flag, value) in flags {
            match (flag, value) {
                ("mount", Some(mount)) => {
                    let text = |written: &str| self.read(written);
                    let origin = |name: &str| self.origin("RUN --mount", name);
                    found.push(mounts::read(mount, text, origin)?);
                }
                // A build has the network and the security that the daemon gives it.
                ("network", Some("default")) | ("security", Some("sandbox")) => {}
                _ => return Err(no_flag("RUN", flag)),
            }
        }
        if found.len() > BUILD_MOUNTS_MAX {
            return Err(Problem::TooManyMounts);
        }
        if rest.is_empty() {
            return Err(Problem::Needs { instruction: "RUN", needs: "a command" });
        }
        let (command, stdin) = match &line.documents[..] {
            [] => (command(rest), None),
            // A single document is the script itself.
            [script] if script.written == rest => alone(&script.content)?,
            several => (Command::Shell(with_documents(rest, several)), None),
        };
        Ok(Run { command, stdin, mounts: found })
    }
}

/// The shell reads them, as from a script.
fn with_documents(rest: &str, documents: &[Document]) -> String {
    let mut script = format!("{rest}\n");
    for document in documents {
        script.push_str(&document.content);
        script.push_str(&format!("{}\n", document.name));
    }
    script
}

/// A script for the shell, or for the interpreter that its first line names. Like the kernel, we take everything after
/// the interpreter as one argument.
fn alone(script: &str) -> Result<(Command, Option<String>), Problem> {
    let Some(first) = script.strip_prefix("#!") else {
        return Ok((Command::Shell(script.to_owned()), None));
    };
    let line = first.lines().next().unwrap_or_default().trim();
    if !line.starts_with('/') {
        let needs = "an absolute path after #!, as in #!/usr/bin/env python3";
        return Err(Problem::Needs { instruction: "RUN", needs });
    }
    let (interpreter, argument) =
        line.split_once(char::is_whitespace).map_or((line, ""), |(path, rest)| (path, rest.trim()));
    let argument = Some(argument).filter(|argument| !argument.is_empty());
    let argv = [Some(interpreter), argument, Some(SCRIPT)].into_iter().flatten();
    Ok((Command::Exec(argv.map(str::to_owned).collect()), Some(script.to_owned())))
}
