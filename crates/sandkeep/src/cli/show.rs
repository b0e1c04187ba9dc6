//! `sandkeep show`.

use serde::Serialize;
use serde_json::{Value, json};

use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::ls::condition;
use crate::cli::{Format, print};
use sandkeep_client::Client;
use sandkeep_core::{api::Sandbox, limits::MIB};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Sandbox name, id or unique prefix of an id
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
    let sandbox = client.read::<Sandbox>(shown)?;
    let mut fields = vec![
        ("id", sandbox.id.to_string()),
        ("name", sandbox.name.to_string()),
        ("state", condition(&sandbox)),
        ("runtime", sandbox.runtime.clone()),
        ("template", sandbox.template.clone()),
        ("profile", words(&sandbox.profile)),
        ("workspace", words(&sandbox.source)),
        ("codebase", words(&sandbox.codebase)),
        ("privilege", words(sandbox.privilege)),
        ("resources", words(&sandbox.resources)),
        ("owner", words(&sandbox.owner)),
        ("slot", words(&sandbox.slot)),
        ("labels", words(&sandbox.labels)),
        ("created", sandbox.created_at.to_string()),
        ("expires", words(sandbox.expires_at)),
        ("timeout", seconds(sandbox.timeout_secs)),
        ("idle timeout", seconds(sandbox.idle_timeout_secs)),
        ("on timeout", words(sandbox.on_timeout)),
        ("turns", words(sandbox.turn_count)),
        ("snapshots", words(sandbox.snapshot_count)),
        ("space used", mebibytes(sandbox.space_used)),
    ];
    fields.retain(|(_, value)| !value.is_empty());
    fields.iter().try_for_each(|(name, value)| print::line(&format!("{name:<12} {value}")))?;
    Ok(Exit::Ok)
}

fn seconds(seconds: Option<u64>) -> String {
    seconds.map(|seconds| format!("{seconds} s")).unwrap_or_default()
}

pub fn mebibytes(bytes: impl Into<Option<u64>>) -> String {
    let bytes: Option<u64> = bytes.into();
    bytes.map(|bytes| format!("{:.1} MiB", bytes as f64 / MIB as f64)).unwrap_or_default()
}

/// A value on one line, for people.
pub fn words(value: impl Serialize) -> String {
    match json!(value) {
        Value::Null => String::new(),
        Value::String(text) => text,
        Value::Object(map) => {
            let pairs: Vec<String> =
                map.iter().map(|(name, value)| format!("{name}={}", words(value))).collect();
            pairs.join(" ")
        }
        other => other.to_string(),
    }
}
