//! The git tools: how the sandbox's own git is run so that it never waits for input, and what its errors mean.

use std::collections::BTreeMap;

use serde::Deserialize;
use toolbox::tools::{CommandRefusal, FileRefusal, Refusal};

use super::catalogue::{GitVerb, Tool};
use super::command::{Command, Kind};
use crate::error::Error;

/// Default number of commits of `git_log`.
const LOG_COMMITS_DEFAULT: u64 = 20;
/// One line per commit.
const LOG_FORMAT: &str = "--format=%h %as %an: %s%d";

/// Options before every verb: no prompts, colours, pager or background work.
const ALWAYS: [&str; 9] = [
    "git",
    "--no-pager",
    "-c",
    "color.ui=false",
    "-c",
    "core.quotePath=false",
    "-c",
    "core.fsmonitor=false",
    "--literal-pathspecs",
];

/// No prompts, and messages in the language that [`explained`] parses.
const ENVIRONMENT: [(&str, &str); 7] = [
    ("GIT_TERMINAL_PROMPT", "0"),
    ("GIT_ASKPASS", "true"),
    ("GIT_EDITOR", "true"),
    ("GIT_SSH_COMMAND", "ssh -o BatchMode=yes"),
    ("GIT_MERGE_AUTOEDIT", "no"),
    // Only if the user has configured none.
    ("EMAIL", "user@sandbox"),
    ("LC_ALL", "C.UTF-8"),
];

/// The parameters of all verbs; each verb's table says which of them it takes.
#[derive(Default, Deserialize)]
#[serde(default)]
pub struct Arguments {
    cwd: Option<String>,
    paths: Vec<String>,
    staged: bool,
    from: Option<String>,
    to: Option<String>,
    revision: Option<String>,
    max_count: Option<u64>,
    message: String,
    url: String,
    path: Option<String>,
    branch: Option<String>,
    depth: Option<u64>,
    remote: Option<String>,
    set_upstream: bool,
}

pub fn command(tool: &'static Tool, verb: GitVerb, arguments: Arguments) -> Result<Command, Error> {
    arguments.check(tool, verb)?;
    let mut argv = CommandLine::default();
    argv.say(&ALWAYS);
    arguments.say(verb, &mut argv);
    let mut env: BTreeMap<String, String> =
        ENVIRONMENT.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    if tool.annotations.read_only {
        // A read must not interfere with other processes in the repository.
        env.insert("GIT_OPTIONAL_LOCKS".to_owned(), "0".to_owned());
    }
    Ok(Command { kind: Kind::Git, ways: vec![argv.0], env, cwd: arguments.cwd })
}

impl Arguments {
    /// Checks arguments that are only valid together.
    fn check(&self, tool: &'static Tool, verb: GitVerb) -> Result<(), Error> {
        let refused = |parameter: &str, problem: &str| {
            Err(Error::ToolArgument {
                tool: tool.name.as_str(),
                parameter: parameter.to_owned(),
                problem: problem.to_owned(),
                known: tool.takes(),
            })
        };
        let takes_remote = matches!(verb, GitVerb::Fetch | GitVerb::Pull | GitVerb::Push);
        match self {
            Self { to: Some(_), from: None, .. } => refused("to", "it needs from"),
            Self { staged: true, to: Some(_), .. } => {
                refused("staged", "what is staged is compared with one revision, from")
            }
            Self { branch: Some(_), remote: None, .. } if takes_remote => {
                refused("branch", "it needs remote")
            }
            Self { set_upstream: true, branch: None, .. } => {
                refused("set_upstream", "it needs remote and branch")
            }
            _ => Ok(()),
        }
    }

    /// The verb and its arguments. Texts that could be taken for options were refused before.
    fn say(&self, verb: GitVerb, words: &mut CommandLine) {
        match verb {
            GitVerb::Status => words.say(&["status", "--short", "--branch"]),
            GitVerb::Diff => {
                words.say(&["diff", "--no-ext-diff", "--no-textconv"]);
                words.say_if(self.staged, "--cached");
                words.say_some(&[&self.from, &self.to]);
                words.say_paths(&self.paths);
            }
            GitVerb::Log => {
                let count = self.max_count.unwrap_or(LOG_COMMITS_DEFAULT);
                words.say(&["log", LOG_FORMAT, &format!("--max-count={count}")]);
                words.say_some(&[&self.revision]);
                words.say_paths(&self.paths);
            }
            GitVerb::Show => {
                let revision = self.revision.as_deref().unwrap_or("HEAD");
                words.say(&["show", "--no-ext-diff", "--no-textconv", revision]);
                words.say_paths(&self.paths);
            }
            GitVerb::Add => {
                words.say(&["add"]);
                words.say_paths(&self.paths);
            }
            GitVerb::Commit => {
                words.say(&["commit", "--no-gpg-sign", "--message", &self.message]);
            }
            GitVerb::Clone => {
                let depth = self.depth.map(|depth| format!("--depth={depth}"));
                let branch = self.branch.as_ref().map(|branch| format!("--branch={branch}"));
                words.say(&["clone"]);
                words.say_some(&[&depth, &branch]);
                words.say(&["--", &self.url]);
                words.say_some(&[&self.path]);
            }
            GitVerb::Fetch => {
                words.say(&["fetch"]);
                words.say_some(&[&self.remote, &self.branch]);
            }
            GitVerb::Pull => {
                words.say(&["pull", "--no-rebase", "--no-edit"]);
                words.say_some(&[&self.remote, &self.branch]);
            }
            GitVerb::Push => {
                words.say(&["push"]);
                words.say_if(self.set_upstream, "--set-upstream");
                words.say_some(&[&self.remote, &self.branch]);
            }
        }
    }
}

/// A command line under construction.
#[derive(Default)]
struct CommandLine(Vec<String>);

impl CommandLine {
    fn say(&mut self, words: &[&str]) {
        self.0.extend(words.iter().map(|word| (*word).to_owned()));
    }

    fn say_if(&mut self, asked: bool, word: &str) {
        if asked {
            self.say(&[word]);
        }
    }

    fn say_some(&mut self, words: &[&Option<String>]) {
        self.0.extend(words.iter().filter_map(|word| (*word).clone()));
    }

    fn say_paths(&mut self, paths: &[String]) {
        self.say(&["--"]);
        self.0.extend_from_slice(paths);
    }
}

/// Translates git's messages into what the caller can do about them.
pub fn explained(exit_code: i32, stdout: &str, stderr: &str, place: &str) -> Refusal {
    let says = |any: &[&str]| any.iter().any(|words| stderr.contains(words));
    let line = |any: &[&str]| {
        let mut lines = stderr.lines().filter(|line| any.iter().any(|words| line.contains(words)));
        lines.next().unwrap_or_default().trim_start_matches("fatal: ").to_owned()
    };
    let directory = || place.to_owned();
    match () {
        () if says(&["not a git repository"]) => {
            CommandRefusal::NotRepository { directory: directory() }.into()
        }
        () if says(&["dubious ownership"]) => {
            CommandRefusal::DubiousOwnership { directory: directory() }.into()
        }
        () if says(&IDENTITY) => CommandRefusal::NoIdentity.into(),
        () if says(&CREDENTIALS) => {
            CommandRefusal::NeedsCredentials { problem: line(&CREDENTIALS) }.into()
        }
        () if says(&NETWORK) => CommandRefusal::NoNetwork { problem: line(&NETWORK) }.into(),
        () if says(&FULL) => FileRefusal::QuotaReached { path: directory() }.into(),
        () if NOTHING.iter().any(|words| stdout.contains(words)) => {
            CommandRefusal::NothingToCommit.into()
        }
        () => CommandRefusal::CommandFailed { program: "git".to_owned(), exit_code }.into(),
    }
}

const IDENTITY: [&str; 3] =
    ["Please tell me who you are", "empty ident name", "unable to auto-detect email"];
const CREDENTIALS: [&str; 5] = [
    "could not read Username",
    "could not read Password",
    "Authentication failed",
    "Permission denied (publickey",
    "Host key verification failed",
];
const NETWORK: [&str; 8] = [
    "Could not resolve host",
    "Could not resolve hostname",
    "unable to look up",
    "Name or service not known",
    "Temporary failure in name resolution",
    "Network is unreachable",
    "Connection refused",
    "Connection timed out",
];
const FULL: [&str; 2] = ["No space left on device", "Disk quota exceeded"];
const NOTHING: [&str; 3] =
    ["nothing to commit", "nothing added to commit", "no changes added to commit"];
