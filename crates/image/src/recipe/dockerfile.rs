//! The common subset of Dockerfiles. Everything outside of it is an error, because a build that ignores an instruction
//! would be another build.

mod copy;
mod run;

use std::collections::BTreeMap;

use super::lines::{self, Line};
use super::problem::{Problem, RecipeError};
use super::text::{Text, words};
use super::{Base, Command, Instruction, Recipe, Stage, Step, stage_named};
use crate::image::Platform;
use sandkeep_core::limits::{ENV_ENTRY_MAX_BYTES, ENV_MAX, RECIPE_STEPS_MAX};

const SUPPORTED: [&str; 18] = [
    "FROM",
    "RUN",
    "COPY",
    "ADD",
    "ENV",
    "WORKDIR",
    "USER",
    "ARG",
    "CMD",
    "ENTRYPOINT",
    "EXPOSE",
    "LABEL",
    "SHELL",
    "VOLUME",
    "HEALTHCHECK",
    "STOPSIGNAL",
    "MAINTAINER",
    "ONBUILD",
];

pub fn read(text: &str, given: BTreeMap<String, String>) -> Result<Recipe, RecipeError> {
    let lines = lines::read(text)?;
    let mut reader = Reader {
        escape: lines.escape,
        recipe: Recipe { stages: Vec::new(), given, globals: platform_arguments() },
    };
    for line in &lines.instructions {
        reader.take(line).map_err(RecipeError::at(line.number))?;
    }
    if reader.recipe.stages.is_empty() {
        Err(RecipeError::at(1)(Problem::Nothing))
    } else {
        Ok(reader.recipe)
    }
}

/// BuildKit's predefined arguments.
fn platform_arguments() -> BTreeMap<String, String> {
    let here = Platform::here();
    let mut arguments = BTreeMap::new();
    for side in ["TARGET", "BUILD"] {
        arguments.insert(format!("{side}PLATFORM"), here.to_string());
        arguments.insert(format!("{side}OS"), here.os.clone());
        arguments.insert(format!("{side}ARCH"), here.architecture.clone());
        arguments.insert(format!("{side}VARIANT"), here.variant.clone().unwrap_or_default());
    }
    arguments
}

struct Reader {
    escape: char,
    recipe: Recipe,
}

/// The flags before an instruction's arguments.
struct Flagged<'a> {
    flags: Vec<(&'a str, Option<&'a str>)>,
    rest: &'a str,
}

impl Reader {
    fn take(&mut self, line: &Line) -> Result<(), Problem> {
        match (line.instruction.as_str(), self.recipe.stages.is_empty()) {
            ("FROM", _) => self.from(line),
            ("ARG", true) => self.global(line),
            (instruction, true) => {
                if SUPPORTED.contains(&instruction) {
                    Err(Problem::BeforeFrom { instruction: instruction.to_owned() })
                } else {
                    Err(unknown(instruction))
                }
            }
            (_, false) => self.step(line),
        }
    }

    fn step(&mut self, line: &Line) -> Result<(), Problem> {
        let instruction = self.instruction(line)?;
        let written = format!("{} {}", line.instruction, line.rest);
        let step = Step { line: line.number, written, instruction };
        let steps: usize = self.recipe.stages.iter().map(|stage| stage.steps.len()).sum();
        if steps >= RECIPE_STEPS_MAX {
            return Err(Problem::TooManySteps);
        }
        // Instructions before the first stage were refused above.
        self.recipe.stages.last_mut().ok_or(Problem::Nothing)?.steps.push(step);
        Ok(())
    }

    fn instruction(&self, line: &Line) -> Result<Instruction, Problem> {
        let rest = line.rest.as_str();
        Ok(match line.instruction.as_str() {
            "RUN" => Instruction::Run(self.run(line)?),
            "COPY" => Instruction::Copy(self.copy("COPY", line)?),
            "ADD" => Instruction::Copy(self.copy("ADD", line)?),
            "ENV" => Instruction::Env(self.pairs("ENV", rest)?),
            "LABEL" => Instruction::Label(self.pairs("LABEL", rest)?),
            "ARG" => Instruction::Arg(self.arguments(rest)?),
            "WORKDIR" => Instruction::Workdir(self.one("WORKDIR", "a directory", rest)?),
            "USER" => {
                Instruction::User(self.one("USER", "a user, as in 1000 or name:group", rest)?)
            }
            "EXPOSE" => Instruction::Expose(self.ports(rest)?),
            "CMD" => Instruction::Cmd(command(rest)),
            "ENTRYPOINT" => Instruction::Entrypoint(command(rest)),
            "SHELL" => Instruction::Shell(shell(rest)?),
            "VOLUME" => {
                Instruction::Ignored("VOLUME is ignored: all files of a sandbox are its own anyway")
            }
            "HEALTHCHECK" => Instruction::Ignored(
                "HEALTHCHECK is ignored: LABEL sandkeep.ready says when a sandbox is ready",
            ),
            "STOPSIGNAL" => Instruction::Ignored(
                "STOPSIGNAL is ignored: processes get SIGTERM, and SIGKILL ten seconds later",
            ),
            "MAINTAINER" => {
                Instruction::Ignored("MAINTAINER is ignored: use LABEL maintainer=NAME")
            }
            "ONBUILD" => Instruction::Ignored(
                "ONBUILD is ignored: builds from this template do not run what it says",
            ),
            other => {
                return Err(unknown(other));
            }
        })
    }

    fn read(&self, text: &str) -> Result<Text, Problem> {
        Text::read(text, self.escape)
    }

    fn one(
        &self,
        instruction: &'static str,
        needs: &'static str,
        rest: &str,
    ) -> Result<Text, Problem> {
        if rest.is_empty() { Err(Problem::Needs { instruction, needs }) } else { self.read(rest) }
    }

    /// An `ARG` before the first stage: for `FROM`, and for stages that declare it.
    fn global(&mut self, line: &Line) -> Result<(), Problem> {
        for (name, default) in self.arguments(&line.rest)? {
            let value = match self.recipe.given.get(&name) {
                Some(given) => Some(given.clone()),
                None => default.map(|text| self.globally(&text)).transpose()?,
            };
            if let Some(value) = value {
                let globals = &mut self.recipe.globals;
                if value.len() > ENV_ENTRY_MAX_BYTES || globals.len() >= ENV_MAX {
                    return Err(Problem::TooLong);
                }
                globals.insert(name, value);
            }
        }
        Ok(())
    }

    fn globally(&self, text: &Text) -> Result<String, Problem> {
        text.expand(&|name| self.recipe.globals.get(name).map(String::as_str))
    }

    fn from(&mut self, line: &Line) -> Result<(), Problem> {
        let needs = "an image, as in FROM debian:12 or FROM debian:12 AS name";
        let flagged = flagged(&line.rest);
        for (flag, value) in &flagged.flags {
            match (*flag, value) {
                ("platform", Some(platform)) => self.check_platform(platform)?,
                _ => return Err(no_flag("FROM", flag)),
            }
        }
        let (image, name) = match words(flagged.rest, self.escape)[..] {
            [image] => (image, None),
            [image, r#as, name] if r#as.eq_ignore_ascii_case("as") => (image, Some(name)),
            _ => return Err(Problem::Needs { instruction: "FROM", needs }),
        };
        let name = name.map(|name| self.stage_name(name)).transpose()?;
        let base = self.base(image)?;
        self.recipe.stages.push(Stage { name, base, steps: Vec::new(), line: line.number });
        Ok(())
    }

    fn base(&self, written: &str) -> Result<Base, Problem> {
        let image = self.globally(&self.read(written)?)?;
        let lower = image.to_ascii_lowercase();
        let stages = &self.recipe.stages;
        let earlier = stages.iter().position(|stage| stage.name.as_ref() == Some(&lower));
        match (image.as_str(), earlier) {
            (_, Some(index)) => Ok(Base::Stage(index)),
            ("", None) => Err(Problem::NoImage { written: written.to_owned() }),
            ("scratch", None) => Ok(Base::Scratch),
            (_, None) => Ok(Base::Image(image)),
        }
    }

    fn check_platform(&self, written: &str) -> Result<(), Problem> {
        let (wanted, here) = (self.globally(&self.read(written)?)?, Platform::here());
        let mut parts = wanted.splitn(3, '/').map(str::to_owned);
        let named = Platform {
            os: parts.next().unwrap_or_default(),
            architecture: parts.next().unwrap_or_default(),
            variant: parts.next(),
        };
        match named.fits(&here) {
            Some(_) => Ok(()),
            None => Err(Problem::Platform { wanted, here: here.to_string() }),
        }
    }

    fn stage_name(&self, name: &str) -> Result<String, Problem> {
        let lower = name.to_ascii_lowercase();
        let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if !lower.starts_with(|c: char| c.is_ascii_alphabetic()) || !lower.chars().all(fine) {
            return Err(Problem::StageName { name: name.to_owned() });
        }
        match stage_named(&self.recipe.stages, &lower) {
            Some(_) => Err(Problem::StageTwice { name: lower }),
            None => Ok(lower),
        }
    }

    /// `A=b C="d e"`, or the old form `A b c`, which is one pair.
    fn pairs(&self, instruction: &'static str, rest: &str) -> Result<Vec<(Text, Text)>, Problem> {
        let needs = Problem::Needs { instruction, needs: "NAME=value" };
        let found = words(rest, self.escape);
        let Some(first) = found.first() else { return Err(needs) };
        if !first.contains('=') {
            let value = rest[first.len()..].trim();
            return if value.is_empty() {
                Err(needs)
            } else {
                Ok(vec![(self.read(first)?, self.read(value)?)])
            };
        }
        let pair = |word: &&str| match word.split_once('=') {
            Some((name, value)) if !name.is_empty() => Ok((self.read(name)?, self.read(value)?)),
            _ => Err(Problem::Value { value: (*word).to_owned(), wanted: "NAME=value" }),
        };
        found.iter().map(pair).collect()
    }

    fn arguments(&self, rest: &str) -> Result<Vec<(String, Option<Text>)>, Problem> {
        let found = words(rest, self.escape);
        if found.is_empty() {
            return Err(Problem::Needs { instruction: "ARG", needs: "NAME or NAME=default" });
        }
        let argument = |word: &&str| {
            let (name, default) = match word.split_once('=') {
                Some((name, default)) => (name, Some(self.read(default)?)),
                None => (*word, None),
            };
            let fine = |c: char| c.is_ascii_alphanumeric() || c == '_';
            if !name.is_empty() && name.chars().all(fine) {
                Ok((name.to_owned(), default))
            } else {
                let wanted = "the name of an argument: letters, digits and _";
                Err(Problem::Value { value: name.to_owned(), wanted })
            }
        };
        found.iter().map(argument).collect()
    }

    fn ports(&self, rest: &str) -> Result<Vec<Text>, Problem> {
        let found = words(rest, self.escape);
        if found.is_empty() {
            Err(Problem::Needs { instruction: "EXPOSE", needs: "a port, as in 80 or 53/udp" })
        } else {
            found.into_iter().map(|word| self.read(word)).collect()
        }
    }
}

fn unknown(instruction: &str) -> Problem {
    Problem::Unknown { instruction: instruction.to_owned(), supported: SUPPORTED.join(", ") }
}

fn no_flag(instruction: &'static str, flag: &str) -> Problem {
    Problem::DoesNotTake { instruction, what: format!("--{flag} here") }
}

/// Takes `--name=value` and `--name` off the front.
fn flagged(mut rest: &str) -> Flagged<'_> {
    let mut flags = Vec::new();
    while let Some(after) = rest.strip_prefix("--") {
        let end = after.find(char::is_whitespace).unwrap_or(after.len());
        let (flag, more) = after.split_at(end);
        if flag.is_empty() {
            break;
        }
        flags.push(flag.split_once('=').map_or((flag, None), |(name, value)| (name, Some(value))));
        rest = more.trim_start();
    }
    Flagged { flags, rest }
}

/// A JSON list of strings is the exec form; everything else, including an invalid list, is for a shell.
fn command(rest: &str) -> Command {
    match list(rest) {
        Some(argv) => Command::Exec(argv),
        None => Command::Shell(rest.to_owned()),
    }
}

fn list(rest: &str) -> Option<Vec<String>> {
    rest.starts_with('[').then(|| serde_json::from_str(rest).ok()).flatten()
}

fn shell(rest: &str) -> Result<Vec<String>, Problem> {
    let needs = "a list, as in SHELL [\"/bin/bash\", \"-c\"]";
    let needs = Problem::Needs { instruction: "SHELL", needs };
    list(rest).filter(|argv| !argv.is_empty()).ok_or(needs)
}
