//! `sandkeep show`.

use serde_json::Value;

use crate::cli::client::Client;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::{Format, print};
use sandkeep_core::limits::MIB;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The sandbox's id, or the beginning of it
    id: String,
    #[command(flatten)]
    format: Format,
}

pub async fn run(args: Args, client: &Client) -> Result<Exit, Failure> {
    let id = client.resolve(&args.id).await?;
    let shown = client.get(&format!("/api/v1/sandboxes/{id}")).await?;
    if args.format.json {
        print::json(&shown)?;
        return Ok(Exit::Ok);
    }
    let sandbox = client.sandbox(&shown)?;
    let mut fields = vec![
        ("id", sandbox.id.to_string()),
        ("state", sandbox.condition()),
        ("runtime", sandbox.runtime),
        ("template", sandbox.template),
        ("profile", words(&shown["profile"])),
        ("workspace", words(&shown["source"])),
        ("privilege", words(&shown["privilege"])),
        ("limits", words(&shown["resources"])),
        ("owner", words(&shown["owner"])),
        ("slot", words(&shown["slot"])),
        ("labels", words(&shown["labels"])),
        ("created", sandbox.created_at),
        ("expires", words(&shown["expires_at"])),
        ("timeout", seconds(&shown["timeout_secs"])),
        ("idle", seconds(&shown["idle_timeout_secs"])),
        ("at the end", words(&shown["on_timeout"])),
        ("turns", words(&shown["turn_count"])),
        ("snapshots", words(&shown["snapshot_count"])),
        ("space used", mebibytes(&shown["space_used"])),
    ];
    fields.retain(|(_, value)| !value.is_empty());
    fields.iter().try_for_each(|(name, value)| print::line(&format!("{name:<10} {value}")))?;
    Ok(Exit::Ok)
}

fn seconds(value: &Value) -> String {
    value.as_u64().map(|seconds| format!("{seconds} s")).unwrap_or_default()
}

pub fn mebibytes(bytes: &Value) -> String {
    bytes.as_f64().map(|bytes| format!("{:.1} MiB", bytes / MIB as f64)).unwrap_or_default()
}

/// A JSON value as a person would write it on one line.
pub fn words(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Object(map) => {
            let pairs: Vec<String> =
                map.iter().map(|(name, value)| format!("{name}={}", words(value))).collect();
            pairs.join(" ")
        }
        other => other.to_string(),
    }
}
