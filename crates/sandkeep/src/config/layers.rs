//! Merges the layers.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::file::{self, ConfigText, Line};
use super::problem::{ConfigError, Problem, nearest};
use super::profile;
use super::settings::Settings;
use super::table::{self, Alias, AliasMeaning, PROFILE, Row, Setting, Shape};
use super::value::Invalid;
use super::{Flags, Surroundings, words};
use sandkeep_broker::Profile;

/// The origin of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    Default,
    File { path: PathBuf, line: usize },
    Env { variable: String },
    Flag { flag: String },
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "file {}:{line}", path.display()),
            Self::Env { variable } => write!(f, "env {variable}"),
            Self::Flag { .. } => f.write_str("flag"),
        }
    }
}

/// Settings, and information about them for people.
#[derive(Debug)]
pub struct Loaded {
    pub settings: Settings,
    /// The file that was read.
    pub file: Option<PathBuf>,
    pub entries: Vec<Entry>,
    /// Problems that do not prevent the start.
    pub warnings: Vec<String>,
}

impl Loaded {
    /// The origin of this setting's value.
    pub fn source(&self, key: &str) -> Source {
        let entry = self.entries.iter().find(|entry| entry.key == key);
        entry.map_or(Source::Default, |entry| entry.source.clone())
    }
}

/// The effective value of one setting.
#[derive(Debug)]
pub struct Entry {
    pub key: String,
    /// Without secrets.
    pub value: Value,
    pub source: Source,
}

impl Entry {
    /// The value on one line; `-` if unset.
    pub fn in_words(&self) -> String {
        words::in_words(&self.value)
    }
}

/// Shown in place of a secret.
const HIDDEN: &str = "***";

/// Our variables that are not settings of the daemon.
const OTHER_VARIABLES: &[&str] = &[
    "SANDKEEP_CONFIG",
    "SANDKEEP_URL",
    "SANDKEEP_API_KEY",
    "SANDKEEP_CA_FILE",
    "SANDKEEP_FAILPOINT",
    "SANDKEEP_REGENERATE",
];

/// Reads all layers. All problems are reported at once.
pub fn load(
    named: Option<&Path>,
    flags: &Flags,
    around: &Surroundings,
) -> Result<Loaded, ConfigError> {
    let file = file::read(named, around)?;
    let mut merge = Merge::new(around);
    if let Some(file) = &file {
        merge.file(file);
    }
    merge.environment(around);
    merge.flags(flags);
    merge.finish(file.map(|file| file.path))
}

/// The log filter of a command that is not a daemon. It reads no file, so that an invalid file does not affect clients.
pub fn client_log(flag: Option<String>, around: &Surroundings) -> Result<String, ConfigError> {
    const VARIABLE: &str = "SANDKEEP_LOG";
    if let Some(flag) = flag {
        return Ok(flag);
    }
    let Some(value) = around.var(VARIABLE) else { return Ok("warn".to_owned()) };
    utf8(value).and_then(super::value::log).map_err(|invalid| {
        let source = Source::Env { variable: VARIABLE.to_owned() };
        ConfigError::Invalid(vec![Problem::value(source, "log", &invalid)])
    })
}

struct Merge {
    settings: Settings,
    sources: BTreeMap<String, Source>,
    problems: Vec<Problem>,
    warnings: Vec<String>,
}

impl Merge {
    fn new(around: &Surroundings) -> Self {
        Self {
            settings: Settings::defaults(around),
            sources: BTreeMap::new(),
            problems: Vec::new(),
            warnings: Vec::new(),
        }
    }

    fn file(&mut self, file: &ConfigText) {
        for line in &file.lines {
            let source = Source::File { path: file.path.clone(), line: line.number };
            match line.key.as_slice() {
                [first, name, rest @ ..] if first == "profiles" => {
                    self.profile(name, rest, line, source);
                }
                key => self.file_setting(&key.join("."), line, source),
            }
        }
    }

    fn file_setting(&mut self, key: &str, line: &Line, source: Source) {
        let Some(row) = table::rows().find(|row| row.key == key) else {
            // An empty table sets nothing.
            let is_table = table::rows().any(|row| row.key.starts_with(&format!("{key}.")));
            if line.value.shape.is_some() || !(is_table || key == "profiles") {
                let known = table::rows().map(|row| row.key).chain(["profiles"]);
                self.problems.push(Problem::unknown(source, key, known));
            }
            return;
        };
        let done = text_of(line, row.shape).and_then(|text| (row.set)(&mut self.settings, text));
        self.note(row.key, done, source);
    }

    fn profile(&mut self, name: &str, rest: &[String], line: &Line, source: Source) {
        let key =
            format!("profiles.{name}{}{}", if rest.is_empty() { "" } else { "." }, rest.join("."));
        if let Err(invalid) = profile::check_name(name) {
            return self.note(&key, Err(invalid), source);
        }
        let profile = self.settings.profiles.entry(name.to_owned()).or_default();
        let done = match rest {
            [] if line.value.shape.is_none() => return,
            [] => Err(Invalid::new("expected a table of settings")),
            [map, variable] if map == "env" || map == "labels" => {
                let map = if map == "env" { &mut profile.env } else { &mut profile.labels };
                text_of(line, Shape::Text).map(|text| {
                    map.insert(variable.clone(), text.to_owned());
                })
            }
            _ => match PROFILE.iter().find(|row| row.key == rest.join(".")) {
                Some(row) => text_of(line, row.shape).and_then(|text| (row.set)(profile, text)),
                None => {
                    let known = PROFILE.iter().map(|row| row.key).chain(["env", "labels"]);
                    let mut problem = Problem::unknown(source, &rest.join("."), known);
                    problem.key = Some(key);
                    return self.problems.push(problem);
                }
            },
        };
        self.note(&key, done, source);
    }

    /// `SANDKEEP_*` and, for settings without one, the variables of other programs.
    fn environment(&mut self, around: &Surroundings) {
        for row in table::rows() {
            let own = row.variable();
            if let Some(value) = around.var(&own) {
                let done = utf8(value).and_then(|text| (row.set)(&mut self.settings, text));
                self.note(row.key, done, Source::Env { variable: own });
                continue;
            }
            let alias =
                row.aliases.iter().find_map(|alias| Some((alias, around.var(alias.variable)?)));
            if let Some((alias, value)) = alias {
                let done = utf8(value).and_then(|text| self.alias(row, alias, text));
                match (alias.meaning, done) {
                    (AliasMeaning::Advice, Err(problem)) => {
                        self.warnings.push(format!("{} is not used: {problem}", alias.variable));
                    }
                    (_, done) => {
                        let variable = alias.variable.to_owned();
                        self.note(row.key, done, Source::Env { variable });
                    }
                }
            }
        }
        self.odd_variables(around);
    }

    fn alias(&mut self, row: &Setting, alias: &Alias, text: &str) -> Result<(), Invalid> {
        match alias.meaning {
            AliasMeaning::Value | AliasMeaning::Advice => (row.set)(&mut self.settings, text),
            AliasMeaning::Port => {
                let port = super::value::within(text, 0..=u64::from(u16::MAX))?;
                let port = u16::try_from(port).expect("it was checked to fit");
                self.settings.listen.set_port(port);
                Ok(())
            }
        }
    }

    /// A misspelt variable is reported as a warning only, because others may set variables with our prefix: Kubernetes
    /// does for a service of this name.
    fn odd_variables(&mut self, around: &Surroundings) {
        let known: Vec<String> = table::rows().map(Row::variable).collect();
        let known: Vec<&str> =
            known.iter().map(String::as_str).chain(OTHER_VARIABLES.iter().copied()).collect();
        let ours = around.env.keys().filter_map(|name| name.to_str());
        for name in ours.filter(|name| name.starts_with("SANDKEEP_") && !known.contains(name)) {
            if let Some(near) = nearest(name, known.iter().copied()) {
                self.warnings.push(format!("{name} is not read; did you mean {near}?"));
            }
        }
    }

    fn flags(&mut self, flags: &Flags) {
        for row in table::rows() {
            let Some(text) = flags.given.get(row.key) else { continue };
            let done = (row.set)(&mut self.settings, text);
            self.note(row.key, done, Source::Flag { flag: format!("--{}", row.flag()) });
        }
    }

    fn note(&mut self, key: &str, done: Result<(), Invalid>, source: Source) {
        match done {
            Ok(()) => {
                self.sources.insert(key.to_owned(), source);
            }
            Err(invalid) => self.problems.push(Problem::value(source, key, &invalid)),
        }
    }

    fn source(&self, key: &str) -> Source {
        self.sources.get(key).cloned().unwrap_or(Source::Default)
    }

    fn finish(mut self, file: Option<PathBuf>) -> Result<Loaded, ConfigError> {
        // Contradictions are reported only if every single value is valid.
        if self.problems.is_empty() {
            for (key, what) in self.settings.contradictions() {
                self.problems.push(Problem { source: self.source(&key), key: Some(key), what });
            }
        }
        if !self.problems.is_empty() {
            return Err(ConfigError::Invalid(self.problems));
        }
        let entries = self.entries();
        Ok(Loaded { settings: self.settings, file, entries, warnings: self.warnings })
    }

    fn entries(&self) -> Vec<Entry> {
        let entry = |key: String, value| Entry { source: self.source(&key), key, value };
        let settings =
            table::rows().map(|row| entry(row.key.to_owned(), (row.show)(&self.settings)));
        let profiles = self.settings.profiles.iter().flat_map(|(name, profile)| {
            shown(profile)
                .into_iter()
                .map(move |(key, value)| (format!("profiles.{name}.{key}"), value))
        });
        settings.chain(profiles.map(|(key, value)| entry(key, value))).collect()
    }
}

/// The values that a profile sets.
fn shown(profile: &Profile) -> Vec<(String, Value)> {
    let rows = PROFILE.iter().map(|row| (row.key.to_owned(), (row.show)(profile)));
    let labels =
        profile.labels.iter().map(|(name, value)| (format!("labels.{name}"), json!(value)));
    let env = profile.env.keys().map(|name| (format!("env.{name}"), json!(HIDDEN)));
    rows.filter(|(_, value)| !value.is_null()).chain(labels).chain(env).collect()
}

/// The text of a line whose value has the expected type.
fn text_of(line: &Line, expected: Shape) -> Result<&str, Invalid> {
    let value = &line.value;
    match (value.shape, expected) {
        (Some(shape), expected) if shape == expected => Ok(&value.text),
        (Some(Shape::Integer), Shape::Decimal) => Ok(&value.text),
        (shape, expected) => {
            let found = shape.map_or(value.text.as_str(), |shape| shape.in_words());
            Err(Invalid::new(format!("expected {}, not {found}", expected.in_words())))
        }
    }
}

fn utf8(value: &OsString) -> Result<&str, Invalid> {
    OsStr::to_str(value).ok_or_else(|| Invalid::new("its value is not UTF-8"))
}
