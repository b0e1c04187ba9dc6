//! The catalogue of tools: their names, descriptions and parameters. Every door that offers tools to a model offers
//! these.

use std::str::FromStr;

use serde_json::{Map, Value};
use toolbox::tools::{GREP_RESULTS_DEFAULT, GREP_RESULTS_MAX, READ_LINES_MAX};

use super::parameter::{Kind, Misfit, Need, Parameter, check, listed, schema};
use crate::error::Error;
use sandkeep_core::limits::{GIT_LOG_COMMITS_MAX, TOOL_TIMEOUT_MAX};

/// A tool, as described to models and programs.
#[derive(Clone, Copy, Debug)]
pub struct Tool {
    pub name: ToolName,
    pub tier: Tier,
    pub annotations: Annotations,
    /// For a model.
    pub description: &'static str,
    pub(super) parameters: &'static [Parameter],
}

/// The kind of a tool: 1 operates on files, 2 runs a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    Files,
    Commands,
}

/// Annotations of a tool, as in the Model Context Protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
#[schema(as = ToolAnnotations)]
pub struct Annotations {
    /// The tool changes nothing.
    pub read_only: bool,
    /// The tool may replace or remove data.
    pub destructive: bool,
    /// Idempotent.
    pub idempotent: bool,
}

const READS: Annotations = Annotations { read_only: true, destructive: false, idempotent: true };
const ADDS: Annotations = Annotations { read_only: false, destructive: false, idempotent: false };
const ADDS_ONCE: Annotations = Annotations { idempotent: true, ..ADDS };
const CHANGES: Annotations = Annotations { read_only: false, destructive: true, idempotent: false };
const REPLACES: Annotations = Annotations { idempotent: true, ..CHANGES };

impl Tier {
    pub fn number(self) -> u8 {
        match self {
            Self::Files => 1,
            Self::Commands => 2,
        }
    }
}

impl Tool {
    /// Its parameters, in short: `path, offset?, limit?`.
    pub fn takes(&self) -> String {
        listed(self.parameters.iter())
    }

    /// JSON Schema of the arguments.
    pub fn input_schema(&self) -> Value {
        Value::Object(schema(self.parameters.iter()))
    }

    pub(super) fn check(&self, arguments: &Map<String, Value>) -> Result<(), Error> {
        check(self.parameters.iter(), arguments).map_err(|misfit| {
            let Misfit { parameter, problem, known } = misfit;
            Error::ToolArgument { tool: self.name.as_str(), parameter, problem, known }
        })
    }
}

/// Which tool it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ToolName {
    ReadFile,
    WriteFile,
    EditFile,
    Ls,
    Grep,
    Glob,
    Bash,
    Git(GitVerb),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GitVerb {
    Status,
    Diff,
    Log,
    Show,
    Add,
    Commit,
    Clone,
    Fetch,
    Pull,
    Push,
}

impl ToolName {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ReadFile => "read_file",
            Self::WriteFile => "write_file",
            Self::EditFile => "edit_file",
            Self::Ls => "ls",
            Self::Grep => "grep",
            Self::Glob => "glob",
            Self::Bash => "bash",
            Self::Git(GitVerb::Status) => "git_status",
            Self::Git(GitVerb::Diff) => "git_diff",
            Self::Git(GitVerb::Log) => "git_log",
            Self::Git(GitVerb::Show) => "git_show",
            Self::Git(GitVerb::Add) => "git_add",
            Self::Git(GitVerb::Commit) => "git_commit",
            Self::Git(GitVerb::Clone) => "git_clone",
            Self::Git(GitVerb::Fetch) => "git_fetch",
            Self::Git(GitVerb::Pull) => "git_pull",
            Self::Git(GitVerb::Push) => "git_push",
        }
    }
}

/// A text that is not the name of a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the tools are: {}", catalogue().iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>().join(", "))]
pub struct UnknownTool;

impl FromStr for ToolName {
    type Err = UnknownTool;

    fn from_str(text: &str) -> Result<Self, UnknownTool> {
        let found = CATALOGUE.iter().find(|tool| tool.name.as_str() == text);
        found.map(|tool| tool.name).ok_or(UnknownTool)
    }
}

const fn required(name: &'static str, kind: Kind, description: &'static str) -> Parameter {
    Parameter { name, kind, need: Need::Required, description }
}

const fn optional(name: &'static str, kind: Kind, description: &'static str) -> Parameter {
    Parameter { name, kind, need: Need::Optional, description }
}

const fn up_to(max: u64) -> Kind {
    Kind::Whole { min: 1, max }
}

const CWD: Parameter = optional(
    "cwd",
    Kind::Path,
    "The directory to work in, absolute or from the working directory. Default: the working directory.",
);
const GITIGNORE: Parameter =
    optional("gitignore", Kind::Flag, "Skip files that .gitignore files exclude. Default false.");
const REMOTE: Parameter = optional("remote", Kind::Word, "The remote. Default: git's own choice.");
const BRANCH: Parameter = optional("branch", Kind::Word, "The branch; needs remote.");
const PATHS: Parameter = optional("paths", Kind::Paths, "Only these files or directories.");

/// All tools, in the order in which they are listed.
pub fn catalogue() -> &'static [Tool] {
    &CATALOGUE
}

pub(super) fn find(name: ToolName) -> &'static Tool {
    let found = CATALOGUE.iter().find(|tool| tool.name == name);
    found.expect("a test looks every name up")
}

static CATALOGUE: [Tool; 17] = [
    Tool {
        name: ToolName::ReadFile,
        tier: Tier::Files,
        annotations: READS,
        description: "Read a text file. Lines are numbered; at most 2000 are returned, each cut at 2000 characters; use \
                      offset to continue. Files of more than 10 MB and binary files are refused.",
        parameters: &[
            required("path", Kind::Path, "The file, absolute or from the working directory."),
            optional(
                "offset",
                Kind::Whole { min: 0, max: u64::MAX },
                "The first line to read, from 1.",
            ),
            optional("limit", up_to(u64::MAX), "How many lines to read. Default 2000."),
        ],
    },
    Tool {
        name: ToolName::WriteFile,
        tier: Tier::Files,
        annotations: REPLACES,
        description: "Write a whole file. Missing directories are created; an existing file is replaced atomically and \
                      keeps its mode. Use edit_file to change a part of a file.",
        parameters: &[
            required("path", Kind::Path, "The file, absolute or from the working directory."),
            required("content", Kind::Text, "The new content of the file."),
        ],
    },
    Tool {
        name: ToolName::EditFile,
        tier: Tier::Files,
        annotations: CHANGES,
        description: "Replace a text in a file. old_string must occur exactly once, unless replace_all is true; give it \
                      with its indentation and without read_file's line numbers. Line endings and mode are kept. If it is \
                      not found, the most similar text is shown.",
        parameters: &[
            required("path", Kind::Path, "The file, absolute or from the working directory."),
            required(
                "old_string",
                Kind::Text,
                "The text to replace, exactly as it is in the file.",
            ),
            required("new_string", Kind::Text, "The text to put in its place."),
            optional("replace_all", Kind::Flag, "Replace all occurrences. Default false."),
        ],
    },
    Tool {
        name: ToolName::Ls,
        tier: Tier::Files,
        annotations: READS,
        description: "List a directory by name: directories end with /, links show their target, files their size. \
                      1000 entries at most.",
        parameters: &[required(
            "path",
            Kind::Path,
            "The directory, absolute or from the working directory.",
        )],
    },
    Tool {
        name: ToolName::Grep,
        tier: Tier::Files,
        annotations: READS,
        description: "Search the lines of text files with a regular expression (ripgrep's syntax; (?i) ignores case). \
                      Returns path:line:text, sorted by path. .git and binary files are skipped.",
        parameters: &[
            required("pattern", Kind::Path, "The regular expression; it matches within one line."),
            optional(
                "path",
                Kind::Path,
                "A file, or a directory to search. Default: the working directory.",
            ),
            optional(
                "glob",
                Kind::Path,
                "Only files whose path matches, e.g. *.rs or src/**/*.ts; !*.md leaves out.",
            ),
            optional("max_results", up_to(u64::MAX), MAX_RESULTS),
            GITIGNORE,
        ],
    },
    Tool {
        name: ToolName::Glob,
        tier: Tier::Files,
        annotations: READS,
        description: "Find files by a pattern of their path, e.g. **/*.rs or src/*.{ts,tsx}. At most 200, sorted by path. \
                      .git is skipped.",
        parameters: &[
            required("pattern", Kind::Path, "The glob; ** matches any number of directories."),
            optional(
                "path",
                Kind::Path,
                "The directory to look in. Default: the working directory.",
            ),
            GITIGNORE,
        ],
    },
    Tool {
        name: ToolName::Bash,
        tier: Tier::Commands,
        annotations: CHANGES,
        description: "Run a command in a shell (bash, or sh if there is no bash) and wait for its end. State such as cd \
                      and variables is not kept between calls. Long output is cut in the middle. At the timeout the \
                      command and all processes that it has started are killed.",
        parameters: &[
            required("command", Kind::Path, "The command line or script."),
            CWD,
            optional(
                "timeout_ms",
                up_to(TOOL_TIMEOUT_MAX.as_millis() as u64),
                "Timeout in milliseconds. Default 120000.",
            ),
        ],
    },
    Tool {
        name: ToolName::Git(GitVerb::Status),
        tier: Tier::Files,
        annotations: READS,
        description: "Show the branch and changed, staged and untracked files, in git's short format.",
        parameters: &[CWD],
    },
    Tool {
        name: ToolName::Git(GitVerb::Diff),
        tier: Tier::Files,
        annotations: READS,
        description: "Show unstaged changes; with staged, the staged ones; with from (and to), the differences between \
                      revisions.",
        parameters: &[
            CWD,
            optional("staged", Kind::Flag, "Show staged changes instead. Default false."),
            optional("from", Kind::Word, "A revision to compare with."),
            optional(
                "to",
                Kind::Word,
                "The other revision. Default: the current files. Needs from.",
            ),
            PATHS,
        ],
    },
    Tool {
        name: ToolName::Git(GitVerb::Log),
        tier: Tier::Files,
        annotations: READS,
        description: "List commits, newest first, one per line: hash, date, author, subject.",
        parameters: &[
            CWD,
            optional(
                "revision",
                Kind::Word,
                "Where to start, or a range such as main..HEAD. Default HEAD.",
            ),
            optional("max_count", up_to(GIT_LOG_COMMITS_MAX), "How many commits. Default 20."),
            PATHS,
        ],
    },
    Tool {
        name: ToolName::Git(GitVerb::Show),
        tier: Tier::Files,
        annotations: READS,
        description: "Show a commit with its changes, or a file of a revision (HEAD:path).",
        parameters: &[
            CWD,
            optional("revision", Kind::Word, "A commit, tag, or REVISION:PATH. Default HEAD."),
            PATHS,
        ],
    },
    Tool {
        name: ToolName::Git(GitVerb::Add),
        tier: Tier::Commands,
        annotations: ADDS_ONCE,
        description: "Stage files for the next commit.",
        parameters: &[
            required(
                "paths",
                Kind::Paths,
                "Files or directories from cwd; [\".\"] for all changes in it.",
            ),
            CWD,
        ],
    },
    Tool {
        name: ToolName::Git(GitVerb::Commit),
        tier: Tier::Commands,
        annotations: ADDS,
        description: "Commit the staged changes.",
        parameters: &[required("message", Kind::Path, "The commit message."), CWD],
    },
    Tool {
        name: ToolName::Git(GitVerb::Clone),
        tier: Tier::Commands,
        annotations: ADDS,
        description: "Clone a repository into the sandbox. A sandbox has only the network that it was created with.",
        parameters: &[
            required("url", Kind::Word, "The repository's URL, or a path in the sandbox."),
            optional("path", Kind::Word, "The new directory. Default: named after the repository."),
            optional("branch", Kind::Word, "The branch or tag to check out."),
            optional(
                "depth",
                Kind::Whole { min: 1, max: u32::MAX as u64 },
                "Only this many of the most recent commits.",
            ),
            CWD,
        ],
    },
    Tool {
        name: ToolName::Git(GitVerb::Fetch),
        tier: Tier::Commands,
        annotations: ADDS_ONCE,
        description: "Fetch from a remote, without changing your branches or files.",
        parameters: &[REMOTE, BRANCH, CWD],
    },
    Tool {
        name: ToolName::Git(GitVerb::Pull),
        tier: Tier::Commands,
        annotations: CHANGES,
        description: "Fetch from a remote and merge into the current branch.",
        parameters: &[REMOTE, BRANCH, CWD],
    },
    Tool {
        name: ToolName::Git(GitVerb::Push),
        tier: Tier::Commands,
        annotations: CHANGES,
        description: "Push commits to a remote, never by force.",
        parameters: &[
            REMOTE,
            BRANCH,
            optional(
                "set_upstream",
                Kind::Flag,
                "Set remote and branch as the upstream. Default false.",
            ),
            CWD,
        ],
    },
];

const MAX_RESULTS: &str = "How many matching lines. Default 100, at most 1000.";
const _: () =
    assert!(GREP_RESULTS_DEFAULT == 100 && GREP_RESULTS_MAX == 1000, "the descriptions say so");
const _: () = assert!(READ_LINES_MAX == 2000, "the descriptions say so");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_says_what_it_is_for_and_what_it_takes() {
        let names: std::collections::BTreeSet<_> =
            catalogue().iter().map(|tool| tool.name.as_str()).collect();
        assert_eq!(names.len(), catalogue().len());
        for tool in catalogue() {
            assert_eq!(find(tool.name).description, tool.description);
            let (name, schema) = (tool.name.as_str(), tool.input_schema());
            assert!(tool.description.ends_with('.'), "{name}");
            assert!(!(tool.annotations.read_only && tool.annotations.destructive), "{name}");
            for parameter in tool.parameters {
                let described = &schema["properties"][parameter.name]["description"];
                assert_eq!(described, parameter.description, "{name}");
            }
        }
    }

    #[test]
    fn what_agents_call_parameters_is_what_they_are_called() {
        let taken = |name: &str| find(name.parse().expect(name)).takes();
        assert_eq!(taken("read_file"), "path, offset?, limit?");
        assert_eq!(taken("write_file"), "path, content");
        assert_eq!(taken("edit_file"), "path, old_string, new_string, replace_all?");
        assert_eq!(taken("ls"), "path");
        assert_eq!(taken("grep"), "pattern, path?, glob?, max_results?, gitignore?");
        assert_eq!(taken("glob"), "pattern, path?, gitignore?");
        assert_eq!(taken("bash"), "command, cwd?, timeout_ms?");
        assert_eq!(taken("git_add"), "paths, cwd?");
        assert_eq!(taken("git_commit"), "message, cwd?");
    }
}
