//! The codebase of a new sandbox.

use serde_json::{Map, Value, json};

use sandkeep_core::rules::{RulePreset, RulesDraft, UnknownPreset};

#[derive(Debug, Default, clap::Args)]
pub struct CodebaseArgs {
    /// Mount this codebase; commands run there. For `run` without a daemon: a local directory, of which the command gets
    /// a copy; afterwards its changes are shown, and applied or discarded
    #[arg(long, value_name = "NAME|ID|DIR")]
    codebase: Option<String>,
    /// Where the codebase is mounted [default: /workspace]
    #[arg(long, value_name = "PATH", requires = "codebase")]
    mount: Option<String>,
    /// What the sandbox may do with it: full-access, read-only, or a JSON file with rules [default: full-access]
    #[arg(long, value_name = "PRESET|FILE", requires = "codebase", value_parser = rules)]
    rules: Option<RulesDraft>,
}

impl CodebaseArgs {
    /// Takes the codebase's name out of the fields.
    pub fn take(&mut self) -> Option<String> {
        self.codebase.take()
    }

    /// The fields for the daemon.
    pub fn into_fields(self) -> Map<String, Value> {
        let fields = [
            ("codebase", self.codebase.map(|codebase| json!(codebase))),
            ("mount", self.mount.map(Value::from)),
            ("rules", self.rules.map(|rules| json!(rules))),
        ];
        fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum NotRules {
    #[error("{0}, and no such file")]
    Unknown(UnknownPreset),
    #[error("cannot read it: {0}")]
    Unreadable(std::io::Error),
    #[error("it has no rules: {0}")]
    Malformed(serde_json::Error),
}

/// Rules as an option: the name of a preset, or a file with the JSON of the API.
pub fn rules(text: &str) -> Result<RulesDraft, NotRules> {
    let unknown = match text.parse::<RulePreset>() {
        Ok(preset) => return Ok(preset.into()),
        Err(unknown) => unknown,
    };
    match std::fs::read_to_string(text) {
        Ok(json) => serde_json::from_str(&json).map_err(NotRules::Malformed),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(NotRules::Unknown(unknown))
        }
        Err(error) => Err(NotRules::Unreadable(error)),
    }
}
