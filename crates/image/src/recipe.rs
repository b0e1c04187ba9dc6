//! Build files: how a template is made from another, step by step. Pure: nothing is read or run here.
//!
//! ```text
//!                                     the config of the base
//!                                            │
//! a Dockerfile ──▶ Recipe { stages } ────────┴──▶ Scene ──▶ Effect, Effect, …   for whoever carries them out
//!                  what was written       variables │
//!                                                   └──▶ Key   what came before, what is done, to which files
//! ```
//!
//! A [`Recipe`] is what was written, checked as far as that can be done without the images it names. A
//! [`Scene`] walks one stage and says for each step what is to be done, with all variables in their
//! places. Two effects with the same [`Key`] leave the same files, so the second need not be carried out.
//!
//! The invariant: whatever a file says that is not understood is an error with its line; nothing is
//! skipped in silence.
//!
//! What no instruction of a Dockerfile can say, two labels do: [`START`], which is what runs in every
//! sandbox of the template, and [`READY`], which is how to see that it is up.

mod dockerfile;
mod glob;
mod ignore;
mod key;
mod lines;
mod problem;
mod scene;
mod text;

use std::collections::{BTreeMap, BTreeSet};

pub use glob::Pattern;
pub use ignore::Ignore;
pub use key::{CopiedFile, Key};
pub use problem::{Problem, RecipeError};
pub use scene::{Beginning, Copied, CopiedFrom, Directory, Effect, Running, Scene};
pub use text::Text;

/// The label that says what runs in every sandbox of the template, for the shell.
pub const START: &str = "sandkeep.start";
/// The label that says how to see that it is up; see [`Ready`].
pub const READY: &str = "sandkeep.ready";

/// A build file that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// At least one; the last is what the file is about.
    pub stages: Vec<Stage>,
    /// What the caller gave for `ARG`s.
    given: BTreeMap<String, String>,
    /// What `ARG`s before the first stage, and the platform, came to.
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

/// What a stage starts from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Base {
    /// Nothing at all.
    Scratch,
    /// An image or template, as callers name it.
    Image(String),
    /// What an earlier stage came to.
    Stage(usize),
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub line: usize,
    /// As it was written, in one line.
    pub written: String,
    pub instruction: Instruction,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Instruction {
    Run(Command),
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
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// For the shell that holds at this point.
    Shell(String),
    Exec(Vec<String>),
}

/// How to see that what [`START`] began is up: `port N`, `http PORT /path` or `run COMMAND`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ready {
    Port(u16),
    Http {
        port: u16,
        path: String,
    },
    /// It is when this succeeds.
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
    /// The directory that came with the file.
    Context,
    Stage(usize),
    Image(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Copyable {
    /// A path, or a pattern of paths.
    Path(Text),
    /// A file that is written in the build file itself.
    Inline { name: String, content: Text },
}

/// What becomes of an archive that is copied.
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
    /// Reads a Dockerfile, with what the caller gives for its `ARG`s.
    pub fn dockerfile(text: &str, given: BTreeMap<String, String>) -> Result<Self, RecipeError> {
        dockerfile::read(text, given)
    }

    /// The stage of this name, or the last.
    pub fn target(&self, name: Option<&str>) -> Option<usize> {
        match name {
            None => self.stages.len().checked_sub(1),
            Some(name) => stage_named(&self.stages, name),
        }
    }

    /// The stages that this one cannot do without, itself included, in their order.
    pub fn needed(&self, target: usize) -> BTreeSet<usize> {
        let mut needed = BTreeSet::from([target]);
        // What a stage needs comes before it, so one way back finds everything.
        for index in (0..self.stages.len().min(target + 1)).rev() {
            if needed.contains(&index) {
                needed.extend(self.stages[index].leans_on());
            }
        }
        needed
    }
}

impl Stage {
    fn leans_on(&self) -> impl Iterator<Item = usize> {
        let base = match self.base {
            Base::Stage(index) => Some(index),
            Base::Scratch | Base::Image(_) => None,
        };
        let copied = self.steps.iter().filter_map(|step| match &step.instruction {
            Instruction::Copy(Copy { from: Origin::Stage(index), .. }) => Some(*index),
            _ => None,
        });
        base.into_iter().chain(copied)
    }
}

/// A stage by its name or number.
fn stage_named(stages: &[Stage], name: &str) -> Option<usize> {
    let lower = name.to_ascii_lowercase();
    let named = stages.iter().position(|stage| stage.name.as_ref() == Some(&lower));
    named.or_else(|| name.parse().ok().filter(|index| *index < stages.len()))
}

#[cfg(test)]
mod tests;
