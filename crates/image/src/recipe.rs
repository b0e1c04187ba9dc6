//! Build files: how a template is derived from another, step by step. Pure: nothing is read or run here.
//!
//! ```text
//!                                     the config of the base
//!                                            │
//! a Dockerfile ──▶ Recipe { stages } ────────┴──▶ Scene ──▶ Effect, Effect, …   executed by the caller
//!                  as written             variables │
//!                                                   └──▶ Key   the previous state, the effect, the files
//! ```
//!
//! A [`Recipe`] is the parsed file, checked as far as possible without the images that it names. A [`Scene`] walks one
//! stage and yields the effect of each step, with all variables expanded. Two effects with the same [`Key`] produce the
//! same files, so the second need not be executed.
//!
//! Invariant: everything in a file that is not understood is an error with its line; nothing is skipped silently. The
//! few instructions that have no meaning here are skipped with a warning.
//!
//! Two labels express what Dockerfiles have no instruction for: [`START`], the command that runs in every sandbox of
//! the template, and [`READY`], its readiness check.

mod dockerfile;
mod glob;
mod ignore;
mod key;
mod lines;
mod mounts;
mod problem;
mod scene;
mod text;

use std::collections::{BTreeMap, BTreeSet};

pub use glob::Pattern;
pub use ignore::Ignore;
pub use key::{CopiedFile, Key};
pub use mounts::{Access, Need, RunMount, Sharing, is_secret_id};
pub use problem::{Problem, RecipeError};
pub use scene::{Beginning, Copied, CopiedFrom, Directory, Effect, Running, Scene};
pub use text::Text;

/// The label with the start command, for the shell.
pub const START: &str = "sandkeep.start";
/// The label with the readiness check; see [`Ready`].
pub const READY: &str = "sandkeep.ready";

/// A parsed build file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// At least one; the last is the default target.
    pub stages: Vec<Stage>,
    /// The caller's values for `ARG`s.
    given: BTreeMap<String, String>,
    /// The values of `ARG`s before the first stage, and of the platform.
    globals: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Lower case.
    pub name: Option<String>,
    pub base: Base,
    pub steps: Vec<Step>,
    /// Counted from 1.
    pub line: usize,
}

/// The base of a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Base {
    /// Empty.
    Scratch,
    /// An image or template, by its name.
    Image(String),
    /// The result of an earlier stage.
    Stage(usize),
}

/// One instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub line: usize,
    /// As written, on one line.
    pub written: String,
    pub instruction: Instruction,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Instruction {
    Run(Run),
    Copy(Copy),
    Env(Vec<(Text, Text)>),
    Label(Vec<(Text, Text)>),
    Arg(Vec<(String, Option<Text>)>),
    Workdir(Text),
    User(Text),
    Expose(Vec<Text>),
    Cmd(Command),
    Entrypoint(Command),
    Shell(Vec<String>),
    /// It has no meaning here; the text tells the person who builds.
    Ignored(&'static str),
}

/// A command, and what is mounted while it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    pub command: Command,
    /// A script for the command to read: a here-document that names its own interpreter.
    pub stdin: Option<String>,
    pub mounts: Vec<RunMount<Text>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// For the shell that is set at this point.
    Shell(String),
    Exec(Vec<String>),
}

/// The readiness check of [`START`]: `port N`, `http PORT /path` or `run COMMAND`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ready {
    Port(u16),
    Http {
        port: u16,
        path: String,
    },
    /// Ready when this succeeds.
    Run(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copy {
    pub from: Origin,
    /// At least one.
    pub sources: Vec<Copyable>,
    pub to: Text,
    pub owner: Option<Text>,
    pub mode: Option<Text>,
    pub archives: Archives,
}

/// Where copied files come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The build context.
    Context,
    Stage(usize),
    Image(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Copyable {
    /// A path, or a pattern.
    Path(Text),
    /// A here-document in the build file itself.
    Inline { name: String, content: Text },
}

/// Whether copied archives are unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Archives {
    Kept,
    /// A local tar, compressed or not, is unpacked.
    Unpacked,
}

impl Ready {
    fn read(text: &str) -> Result<Self, Problem> {
        let needs = "`port N`, `http PORT /path` or `run COMMAND`";
        let wrong = || Problem::Needs { instruction: READY, needs };
        let (kind, about) = text.split_once([' ', '\t']).ok_or_else(wrong)?;
        let about = about.trim();
        let port = |text: &str| match text.parse::<u16>() {
            Ok(port) if port > 0 => Ok(port),
            _ => Err(Problem::Value { value: text.to_owned(), wanted: "a port" }),
        };
        match (kind, about.split_once([' ', '\t'])) {
            ("port", _) => Ok(Self::Port(port(about)?)),
            ("http", None) => Ok(Self::Http { port: port(about)?, path: "/".to_owned() }),
            ("http", Some((number, path))) if path.trim().starts_with('/') => {
                Ok(Self::Http { port: port(number)?, path: path.trim().to_owned() })
            }
            ("run", _) => Ok(Self::Run(about.to_owned())),
            _ => Err(wrong()),
        }
    }
}

impl Recipe {
    /// Parses a Dockerfile, with the caller's values for its `ARG`s.
    pub fn dockerfile(text: &str, given: BTreeMap<String, String>) -> Result<Self, RecipeError> {
        dockerfile::read(text, given)
    }

    /// The stage with this name, or the last.
    pub fn target(&self, name: Option<&str>) -> Option<usize> {
        match name {
            None => self.stages.len().checked_sub(1),
            Some(name) => stage_named(&self.stages, name),
        }
    }

    /// The stages that this one depends on, including itself, in order.
    pub fn needed(&self, target: usize) -> BTreeSet<usize> {
        let mut needed = BTreeSet::from([target]);
        // A stage's dependencies come before it, so one backward pass finds all.
        for index in (0..self.stages.len().min(target + 1)).rev() {
            if needed.contains(&index) {
                needed.extend(self.stages[index].leans_on());
            }
        }
        needed
    }
}

impl Instruction {
    /// Where its files come from.
    fn origins(&self) -> Vec<&Origin> {
        match self {
            Self::Copy(Copy { from, .. }) => vec![from],
            Self::Run(Run { mounts, .. }) => mounts.iter().filter_map(RunMount::origin).collect(),
            _ => Vec::new(),
        }
    }
}

impl Stage {
    fn leans_on(&self) -> impl Iterator<Item = usize> {
        let base = match self.base {
            Base::Stage(index) => Some(index),
            Base::Scratch | Base::Image(_) => None,
        };
        let origins = self.steps.iter().flat_map(|step| step.instruction.origins());
        let used = origins.filter_map(|origin| match origin {
            Origin::Stage(index) => Some(*index),
            Origin::Context | Origin::Image(_) => None,
        });
        base.into_iter().chain(used)
    }
}

/// A stage by name or number.
fn stage_named(stages: &[Stage], name: &str) -> Option<usize> {
    let lower = name.to_ascii_lowercase();
    let named = stages.iter().position(|stage| stage.name.as_ref() == Some(&lower));
    named.or_else(|| name.parse().ok().filter(|index| *index < stages.len()))
}

#[cfg(test)]
mod tests;
