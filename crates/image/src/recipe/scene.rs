//! Evaluates a stage's steps in order: expands variables, makes paths absolute, and updates the image's config.

use std::collections::BTreeMap;

use super::mounts::check_targets;
use super::problem::{Problem, RecipeError};
use super::text::Text;
use super::{
    Archives, Command, Copy, Copyable, Instruction, Origin, READY, Ready, Recipe, Run, RunMount,
    START, Step,
};
use crate::image::{ExposedPort, ImageConfig};
use sandkeep_core::limits::{
    ENV_ENTRY_MAX_BYTES, ENV_MAX, ENV_TOTAL_MAX_BYTES, RECIPE_EXPANDED_MAX_BYTES, RECIPE_PORTS_MAX,
};

const SHELL_DEFAULT: [&str; 2] = ["/bin/sh", "-c"];
/// Prefix of our own labels.
const OWN_LABELS: &str = "sandkeep.";

/// The state of a stage.
#[derive(Clone, Debug)]
pub struct Scene {
    config: ImageConfig,
    shell: Vec<String>,
    /// `ARG`s of this stage that have a value.
    arguments: BTreeMap<String, String>,
    given: BTreeMap<String, String>,
    globals: BTreeMap<String, String>,
    cmd: Cmd,
    start: Option<String>,
    ready: Option<Ready>,
}

/// Where `CMD` comes from: an `ENTRYPOINT` removes the base's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cmd {
    OfBase,
    OfStage,
}

/// The base of a stage, once it is known.
#[derive(Clone, Copy, Debug)]
pub enum Beginning<'a> {
    Scratch,
    Image(&'a ImageConfig),
    Stage(&'a Scene),
}

/// What to do for a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing: it only changes the config.
    Noted,
    Run(Running),
    Copy(Copied),
    Directory(Directory),
}

/// A directory that must exist from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directory {
    /// Absolute.
    pub path: String,
    /// Its owner if it has to be created, as in [`Copied::owner`].
    pub owner: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    pub argv: Vec<String>,
    /// The whole environment; `PATH` only if one was set.
    pub env: Vec<(String, String)>,
    /// Absolute.
    pub workdir: String,
    pub user: Option<String>,
    pub stdin: Option<String>,
    /// With absolute targets, none within another.
    pub mounts: Vec<RunMount<String>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copied {
    pub from: Origin,
    pub sources: Vec<CopiedFrom>,
    /// Absolute; a directory if it ends with a slash or is an existing one.
    pub to: String,
    /// `user`, `uid:gid` and so on, with the image's own names; default: root.
    pub owner: Option<String>,
    pub mode: Option<u32>,
    pub archives: Archives,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopiedFrom {
    /// A path or a [`Pattern`](super::Pattern), relative, without dots; empty for everything.
    Path(String),
    Inline {
        name: String,
        content: String,
    },
}

impl Scene {
    pub fn begin(recipe: &Recipe, beginning: Beginning<'_>) -> Self {
        let (config, shell) = match beginning {
            Beginning::Scratch => (ImageConfig::default(), None),
            Beginning::Image(config) => (config.clone(), None),
            Beginning::Stage(scene) => (scene.config.clone(), Some(scene.shell.clone())),
        };
        Self {
            config,
            shell: shell.unwrap_or_else(|| SHELL_DEFAULT.map(str::to_owned).to_vec()),
            arguments: BTreeMap::new(),
            given: recipe.given.clone(),
            globals: recipe.globals.clone(),
            cmd: Cmd::OfBase,
            start: None,
            ready: None,
        }
    }

    /// The config of the image so far.
    pub fn config(&self) -> &ImageConfig {
        &self.config
    }

    /// The start command of the template, for the shell.
    pub fn start(&self) -> Option<&str> {
        self.start.as_deref()
    }

    pub fn ready(&self) -> Option<&Ready> {
        self.ready.as_ref()
    }

    /// Evaluates the next step of the stage.
    pub fn take(&mut self, step: &Step) -> Result<Effect, RecipeError> {
        self.effect(&step.instruction).map_err(RecipeError::at(step.line))
    }

    fn effect(&mut self, instruction: &Instruction) -> Result<Effect, Problem> {
        match instruction {
            Instruction::Run(run) => return self.running(run).map(Effect::Run),
            Instruction::Copy(copy) => return self.copied(copy).map(Effect::Copy),
            Instruction::Workdir(text) => {
                let path = self.absolute(&self.expand(text)?);
                self.config.working_dir = Some(path.clone());
                let owner = self.config.user.clone();
                return Ok(Effect::Directory(Directory { path, owner }));
            }
            Instruction::Env(pairs) => self.set_env(pairs)?,
            Instruction::Label(pairs) => self.set_labels(pairs)?,
            Instruction::Arg(arguments) => self.declare(arguments)?,
            Instruction::User(text) => self.config.user = Some(self.user(text)?),
            Instruction::Expose(texts) => self.expose(texts)?,
            Instruction::Cmd(command) => {
                self.config.cmd = self.argv(command);
                self.cmd = Cmd::OfStage;
            }
            Instruction::Entrypoint(command) => {
                self.config.entrypoint = self.argv(command);
                if self.cmd == Cmd::OfBase {
                    self.config.cmd.clear();
                }
            }
            Instruction::Shell(argv) => self.shell.clone_from(argv),
            Instruction::Ignored(_) => {}
        }
        Ok(Effect::Noted)
    }

    /// `ENV` takes precedence over `ARG`.
    fn look_up(&self, name: &str) -> Option<&str> {
        let env = self.config.env.iter().rev().find(|(own, _)| own == name);
        let value = env.map(|(_, value)| value).or_else(|| self.arguments.get(name));
        value.map(String::as_str)
    }

    fn expand(&self, text: &Text) -> Result<String, Problem> {
        text.expand(&|name| self.look_up(name))
    }

    /// Expands all texts of one instruction, with a common limit on the result.
    fn expand_all<'a>(
        &self,
        texts: impl IntoIterator<Item = &'a Text>,
    ) -> Result<Vec<String>, Problem> {
        let mut total_bytes = 0;
        let each = |text: &Text| {
            let expanded = self.expand(text)?;
            total_bytes += expanded.len();
            within(total_bytes, RECIPE_EXPANDED_MAX_BYTES)?;
            Ok(expanded)
        };
        texts.into_iter().map(each).collect()
    }

    /// All of them are expanded with the variables from before the first.
    fn expand_pairs(&self, pairs: &[(Text, Text)]) -> Result<Vec<(String, String)>, Problem> {
        let names = self.expand_all(pairs.iter().map(|(name, _)| name))?;
        let values = self.expand_all(pairs.iter().map(|(_, value)| value))?;
        Ok(names.into_iter().zip(values).collect())
    }

    fn set_env(&mut self, pairs: &[(Text, Text)]) -> Result<(), Problem> {
        for (name, value) in self.expand_pairs(pairs)? {
            if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                let wanted = "the name of a variable that can have this value";
                return Err(Problem::Value { value: name, wanted });
            }
            within(name.len() + value.len(), ENV_ENTRY_MAX_BYTES)?;
            let env = &mut self.config.env;
            match env.iter().position(|(own, _)| *own == name) {
                Some(index) => env[index].1 = value,
                None => env.push((name, value)),
            }
            within(env.len(), ENV_MAX)?;
        }
        let env = self.config.env.iter().map(|(name, value)| (name, value));
        within(bytes_of(env), ENV_TOTAL_MAX_BYTES)
    }

    fn set_labels(&mut self, pairs: &[(Text, Text)]) -> Result<(), Problem> {
        let pairs = self.expand_pairs(pairs)?;
        for (name, value) in &pairs {
            match (name.as_str(), value.trim()) {
                (START, "") => {
                    return Err(Problem::Needs { instruction: START, needs: "a command" });
                }
                (START, command) => self.start = Some(command.to_owned()),
                (READY, how) => self.ready = Some(Ready::read(how)?),
                (name, _) if name.starts_with(OWN_LABELS) => {
                    let wanted = "sandkeep.start or sandkeep.ready";
                    return Err(Problem::Value { value: name.to_owned(), wanted });
                }
                _ => {}
            }
        }
        self.config.labels.extend(pairs);
        within(bytes_of(self.config.labels.iter()), RECIPE_EXPANDED_MAX_BYTES)
    }

    fn declare(&mut self, arguments: &[(String, Option<Text>)]) -> Result<(), Problem> {
        for (name, default) in arguments {
            let value = match (self.given.get(name), default) {
                (Some(given), _) => Some(given.clone()),
                (None, Some(default)) => Some(self.expand(default)?),
                (None, None) => self.globals.get(name).cloned(),
            };
            if let Some(value) = value {
                within(name.len() + value.len(), ENV_ENTRY_MAX_BYTES)?;
                self.arguments.insert(name.clone(), value);
            }
            within(self.arguments.len(), ENV_MAX)?;
        }
        Ok(())
    }

    fn user(&self, text: &Text) -> Result<String, Problem> {
        let user = self.expand(text)?;
        if user.is_empty() || user.contains(char::is_whitespace) {
            Err(Problem::Value { value: user, wanted: "a user, as in 1000 or name:group" })
        } else {
            Ok(user)
        }
    }

    fn expose(&mut self, texts: &[Text]) -> Result<(), Problem> {
        let mut exposed = Vec::new();
        for text in self.expand_all(texts)? {
            for word in text.split_whitespace() {
                let ports = ports(word).ok_or_else(|| Problem::Value {
                    value: word.to_owned(),
                    wanted: "a port, as in 80, 53/udp or 8000-8010",
                })?;
                exposed.extend(ports);
                if exposed.len() > RECIPE_PORTS_MAX {
                    return Err(Problem::TooManyPorts);
                }
            }
        }
        let ports = &mut self.config.exposed_ports;
        ports.append(&mut exposed);
        ports.sort_unstable();
        ports.dedup();
        Ok(())
    }

    fn argv(&self, command: &Command) -> Vec<String> {
        match command {
            Command::Exec(argv) => argv.clone(),
            Command::Shell(text) => self.shell.iter().chain([text]).cloned().collect(),
        }
    }

    fn workdir(&self) -> String {
        self.config.working_dir.clone().unwrap_or_else(|| "/".to_owned())
    }

    fn absolute(&self, path: &str) -> String {
        if path.starts_with('/') {
            whole(path)
        } else {
            whole(&format!("{}/{path}", self.workdir()))
        }
    }

    fn running(&self, run: &Run) -> Result<Running, Problem> {
        let Run { command, stdin, mounts } = run;
        let mounts: Vec<_> =
            mounts.iter().map(|mount| self.mounted(mount)).collect::<Result<_, _>>()?;
        check_targets(&mounts)?;
        let hidden = |name: &String| self.config.env.iter().any(|(own, _)| own == name);
        let arguments = self.arguments.iter().filter(|(name, _)| !hidden(name));
        let arguments = arguments.map(|(name, value)| (name.clone(), value.clone()));
        Ok(Running {
            argv: self.argv(command),
            env: arguments.chain(self.config.env.iter().cloned()).collect(),
            workdir: self.workdir(),
            user: self.config.user.clone(),
            stdin: stdin.clone(),
            mounts,
        })
    }

    /// A mount with its variables expanded and its target absolute.
    fn mounted(&self, mount: &RunMount<Text>) -> Result<RunMount<String>, Problem> {
        let expanded = mount.map(&|text| self.expand(text))?;
        expanded.located(&|path| self.absolute(path))
    }

    fn copied(&self, copy: &Copy) -> Result<Copied, Problem> {
        let texts = copy.sources.iter().map(|source| match source {
            Copyable::Path(text) | Copyable::Inline { content: text, .. } => text,
        });
        let source = |(source, text): (&Copyable, String)| match source {
            Copyable::Path(_) => {
                let path = whole(&format!("/{text}"));
                CopiedFrom::Path(path.trim_matches('/').to_owned())
            }
            Copyable::Inline { name, .. } => {
                CopiedFrom::Inline { name: name.clone(), content: text }
            }
        };
        let texts = self.expand_all(texts)?;
        let sources: Vec<_> = copy.sources.iter().zip(texts).map(source).collect();
        let written = self.expand(&copy.to)?;
        let directory = written.ends_with('/') || written.rsplit('/').next() == Some(".");
        let mut to = self.absolute(&written);
        if directory && !to.ends_with('/') {
            to.push('/');
        }
        if sources.len() > 1 && !directory {
            let wanted = "a directory for several sources: it must end with /";
            return Err(Problem::Value { value: written, wanted });
        }
        let owner = copy.owner.as_ref().map(|owner| self.user(owner)).transpose()?;
        let mode = copy.mode.as_ref().map(|mode| self.mode(mode)).transpose()?;
        let (from, archives) = (copy.from.clone(), copy.archives);
        Ok(Copied { from, sources, to, owner, mode, archives })
    }

    fn mode(&self, text: &Text) -> Result<u32, Problem> {
        let written = self.expand(text)?;
        match u32::from_str_radix(&written, 8) {
            Ok(mode) if mode <= 0o7777 && !written.starts_with('+') => Ok(mode),
            _ => Err(Problem::Value { value: written, wanted: "a mode, as in 755 or 0644" }),
        }
    }
}

fn within(found: usize, most: usize) -> Result<(), Problem> {
    if found > most { Err(Problem::TooLong) } else { Ok(()) }
}

fn bytes_of<'a>(pairs: impl Iterator<Item = (&'a String, &'a String)>) -> usize {
    pairs.map(|(name, value)| name.len() + value.len()).sum()
}

/// An absolute path without dots and double slashes. `..` of the root is the root.
pub(super) fn whole(path: &str) -> String {
    let mut names: Vec<&str> = Vec::new();
    for name in path.split('/') {
        match name {
            "" | "." => {}
            ".." => {
                names.pop();
            }
            name => names.push(name),
        }
    }
    format!("/{}", names.join("/"))
}

/// `80`, `80/udp`, `8000-8010/tcp`.
fn ports(word: &str) -> Option<Vec<ExposedPort>> {
    let (numbers, protocol) = word.split_once('/').unwrap_or((word, "tcp"));
    let (first, last) = numbers.split_once('-').unwrap_or((numbers, numbers));
    let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
    if first == 0 || first > last || usize::from(last - first) >= RECIPE_PORTS_MAX {
        return None;
    }
    (first..=last).map(|port| format!("{port}/{protocol}").parse().ok()).collect()
}
