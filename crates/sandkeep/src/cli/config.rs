//! `sandkeep config`: the effective settings of a daemon, and their origins.

use serde_json::{Value, json};

use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::{Format, print, serve};
use crate::config::{Entry, Loaded, Surroundings};

/// Show every setting, its value and its origin
///
/// Reads what `serve` would read: defaults, configuration file, SANDKEEP_* variables and flags, each overriding
/// the previous. Invalid settings are reported with their location, and the exit code is 2.
#[derive(Debug, clap::Args)]
pub struct ConfigArgs {
    #[command(flatten)]
    format: Format,
    #[command(flatten)]
    serve: serve::Args,
}

pub fn run(args: ConfigArgs, log: Option<String>, around: &Surroundings) -> Result<Exit, Failure> {
    let loaded = args.serve.load(log, around)?;
    loaded.warnings.iter().for_each(|warning| print::note(warning));
    if args.format.json {
        print::json(&as_json(&loaded))?
    } else {
        print_table(&loaded)?
    }
    Ok(Exit::Ok)
}

fn as_json(loaded: &Loaded) -> Value {
    let setting = |entry: &Entry| json!({ "key": entry.key, "value": entry.value, "source": entry.source.to_string() });
    let settings: Vec<Value> = loaded.entries.iter().map(setting).collect();
    json!({ "file": loaded.file, "settings": settings })
}

fn print_table(loaded: &Loaded) -> Result<(), Failure> {
    let rows = loaded
        .entries
        .iter()
        .map(|entry| [entry.key.clone(), entry.in_words(), entry.source.to_string()]);
    print::table(["SETTING", "VALUE", "FROM"], rows)
}
