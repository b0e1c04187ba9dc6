//! `sandkeep stats`: the resource usage of sandboxes, as counted by their daemon.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::Instant;

use futures_util::{StreamExt, stream};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::show::mebibytes;
use crate::cli::{Format, print, screen};
use sandkeep_client::{Client, Error};
use sandkeep_core::api::Sandbox;
use sandkeep_core::limits::{CLI_SANDBOXES_AT_ONCE, MIB};
use sandkeep_core::{SandboxId, SandboxName};

/// Show resource usage: CPU time, memory, processes, disk
///
/// With an ID, every figure of that sandbox. Without one, a table of all running sandboxes; in a terminal it is
/// refreshed every two seconds until Ctrl-C.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Sandbox name, id or unique prefix of an id [default: all running sandboxes]
    id: Option<String>,
    /// Print the table once
    #[arg(long, conflicts_with = "id")]
    no_stream: bool,
    #[command(flatten)]
    format: Format,
}

pub async fn run(args: Args, client: &Client) -> Result<Exit, Failure> {
    match (&args.id, args.format.json) {
        (Some(text), _) => one(text, args.format, client).await,
        (None, true) => {
            let items: Vec<Value> =
                all(client).await?.into_iter().map(|(_, stats)| stats).collect();
            print::json(&json!({ "items": items }))?;
            Ok(Exit::Ok)
        }
        (None, false) => table(args.no_stream || !std::io::stdout().is_terminal(), client).await,
    }
}

async fn one(text: &str, format: Format, client: &Client) -> Result<Exit, Failure> {
    let id = client.resolve(text).await?;
    let stats = client.get(&format!("/api/v1/sandboxes/{id}/stats")).await?;
    if format.json {
        print::json(&stats)?
    } else {
        print::table(["WHAT", "USED"], rows("", &stats).into_iter())?
    }
    Ok(Exit::Ok)
}

/// Of all running sandboxes. One that ends meanwhile is left out.
async fn all(client: &Client) -> Result<Vec<(SandboxName, Value)>, Failure> {
    let running = client.sandboxes(&[("state", "running".to_owned())]).await?;
    let asked = stream::iter(running).map(|Sandbox { id, name, .. }| async move {
        let answer = client.get::<Value>(&format!("/api/v1/sandboxes/{id}/stats")).await;
        (name, answer)
    });
    let answers: Vec<_> = asked.buffered(CLI_SANDBOXES_AT_ONCE).collect().await;
    let mut found = Vec::with_capacity(answers.len());
    for (name, answer) in answers {
        match answer {
            Ok(stats) => found.push((name, stats)),
            Err(Error::Refused(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(found)
}

/// The part of an answer that the table has.
#[derive(Debug, Deserialize)]
struct Figures {
    id: SandboxId,
    cpu: Option<Cpu>,
    memory: Option<Memory>,
    pids: Option<Pids>,
    disk: Option<Disk>,
}

#[derive(Debug, Deserialize)]
struct Cpu {
    usage_secs: f64,
}

#[derive(Debug, Deserialize)]
struct Memory {
    used_bytes: u64,
    limit_bytes: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct Pids {
    current: u64,
}

#[derive(Debug, Deserialize)]
struct Disk {
    used_bytes: u64,
}

/// When the CPU time of each sandbox was last read, and how much it was.
type Before = BTreeMap<SandboxId, (Instant, f64)>;

async fn table(once: bool, client: &Client) -> Result<Exit, Failure> {
    let mut before = Before::new();
    loop {
        let mut now = Before::new();
        let mut rows = Vec::new();
        for (name, stats) in all(client).await? {
            let figures: Figures = client.read(stats)?;
            let used = figures.cpu.as_ref().map(|cpu| (Instant::now(), cpu.usage_secs));
            let share = used.zip(before.get(&figures.id)).map(|(now, then)| percent(*then, now));
            now.extend(used.map(|used| (figures.id.clone(), used)));
            rows.push(cells(&name, share, &figures));
        }
        before = now;
        let header = ["NAME", "ID", "CPU %", "CPU TIME", "MEMORY", "PIDS", "DISK"];
        let lines = print::lines(header, rows.into_iter());
        if once {
            lines.iter().try_for_each(|line| print::line(line))?;
            return Ok(Exit::Ok);
        }
        screen::show(lines)?;
        screen::pause().await;
    }
}

/// Of one processor.
fn percent((then, before): (Instant, f64), (now, used): (Instant, f64)) -> f64 {
    let secs = now.duration_since(then).as_secs_f64();
    if secs > 0.0 { 100.0 * (used - before).max(0.0) / secs } else { 0.0 }
}

fn cells(name: &SandboxName, share: Option<f64>, figures: &Figures) -> Vec<String> {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let memory = figures.memory.as_ref().map(|memory| {
        let used = mebibytes(memory.used_bytes);
        memory.limit_bytes.map_or(used.clone(), |limit| format!("{used} / {}", mebibytes(limit)))
    });
    vec![
        name.to_string(),
        figures.id.to_string(),
        or_dash(share.map(|share| format!("{share:.1}"))),
        or_dash(figures.cpu.as_ref().map(|cpu| format!("{:.1} s", cpu.usage_secs))),
        or_dash(memory),
        or_dash(figures.pids.as_ref().map(|pids| pids.current.to_string())),
        or_dash(figures.disk.as_ref().map(|disk| mebibytes(disk.used_bytes))),
    ]
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
