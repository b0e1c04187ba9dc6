//! The codebase of a new sandbox.

use serde_json::{Map, Value, json};

use sandkeep_core::CodebaseRef;
use sandkeep_core::rules::RulesDraft;

#[derive(Debug, Default, clap::Args)]
pub struct CodebaseArgs {
    /// Mount this codebase; commands run there
    #[arg(long, value_name = "NAME|ID")]
    codebase: Option<CodebaseRef>,
    /// Where the codebase is mounted [default: /workspace]
    #[arg(long, value_name = "PATH", requires = "codebase")]
    mount: Option<String>,
    /// What the sandbox may do with it: full-access, read-only, or a JSON file with rules [default: full-access]
    #[arg(long, value_name = "PRESET|FILE", requires = "codebase", value_parser = rules)]
    rules: Option<RulesDraft>,
}

impl CodebaseArgs {
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

/// Rules as an option: the name of a preset, or a file with the JSON of the API.
pub fn rules(text: &str) -> Result<RulesDraft, String> {
    let unknown = match text.parse::<sandkeep_core::rules::RulePreset>() {
        Ok(preset) => return Ok(preset.into()),
        Err(unknown) => unknown,
    };
    match std::fs::read_to_string(text) {
        Ok(json) => serde_json::from_str(&json).map_err(|error| format!("{text}: {error}")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(format!("{unknown}, and no such file"))
        }
        Err(error) => Err(format!("{text}: {error}")),
    }
}
