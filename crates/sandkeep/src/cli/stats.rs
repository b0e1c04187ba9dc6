//! `sandkeep stats`: the resource usage of a sandbox, as counted by its daemon.

use serde_json::Value;

use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::{Format, print};
use sandkeep_client::Client;
use sandkeep_core::limits::MIB;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Sandbox name, id or unique prefix of an id
    id: String,
    #[command(flatten)]
    format: Format,
}

pub async fn run(args: Args, client: &Client) -> Result<Exit, Failure> {
    let id = client.resolve(&args.id).await?;
    let stats = client.get(&format!("/api/v1/sandboxes/{id}/stats")).await?;
    match args.format.json {
        true => print::json(&stats)?,
        false => print::table(["WHAT", "USED"], rows("", &stats).into_iter())?,
    }
    Ok(Exit::Ok)
}

/// Every figure with its unit, which is the suffix of its name.
fn rows(above: &str, value: &Value) -> Vec<[String; 2]> {
    let Some(fields) = value.as_object() else {
        let (name, figure) = figure(above, value);
        return vec![[name.replace('_', " "), figure]];
    };
    let nested =
        |name: &str| if above.is_empty() { name.to_owned() } else { format!("{above}_{name}") };
    let told = fields.iter().filter(|(_, value)| !value.is_null());
    told.flat_map(|(name, value)| rows(&nested(name), value)).collect()
}

fn figure<'a>(name: &'a str, value: &Value) -> (&'a str, String) {
    let plain = || match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let Some(number) = value.as_f64() else { return (name, plain()) };
    let scaled = |unit: &str, per: f64, of: &str| {
        Some((name.strip_suffix(unit)?, format!("{:.1} {of}", number / per)))
    };
    scaled("_bytes", MIB as f64, "MiB")
        .or_else(|| scaled("_micros", 1e6, "s"))
        .or_else(|| scaled("_ms", 1e3, "s"))
        .or_else(|| scaled("_secs", 1.0, "s"))
        .or_else(|| scaled("_mb", 1.0, "MiB"))
        .unwrap_or_else(|| (name, plain()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_figure_is_shown_with_its_unit() {
        let stats = json!({
            "cpu_micros": 1_500_000, "memory_bytes": 3 * MIB, "pids": 4,
            "disk": { "used_bytes": MIB / 2, "limit": null },
        });
        let mut shown: Vec<String> =
            rows("", &stats).iter().map(|[name, value]| format!("{name}: {value}")).collect();
        shown.sort();
        assert_eq!(shown, ["cpu: 1.5 s", "disk used: 0.5 MiB", "memory: 3.0 MiB", "pids: 4"]);
    }
}
