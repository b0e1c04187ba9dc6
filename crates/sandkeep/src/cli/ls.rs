//! `sandkeep ls`.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::filter::Filter;
use crate::cli::placeholders::{InvalidFormat, LineFormat};
use crate::cli::show::words;
use crate::cli::{print, screen};
use sandkeep_client::Client;
use sandkeep_core::api::{Order, Sandbox};

/// List sandboxes
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub filter: Filter,
    /// List at most this many
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
    #[command(flatten)]
    order: OrderArgs,
    #[command(flatten)]
    shape: ListFormat,
    /// Refresh the list every two seconds until Ctrl-C
    #[arg(long, short, conflicts_with_all = ["json", "line_format", "quiet"])]
    watch: bool,
}

/// What to print of each.
#[derive(Clone, Debug, clap::Args)]
#[group(multiple = false)]
struct ListFormat {
    /// Print only the ids
    #[arg(long, short)]
    quiet: bool,
    /// Print a line per sandbox, with the fields of --json, such as '{{.id}} {{.labels.team}}'
    #[arg(long = "format", value_name = "FORMAT", value_parser = line_format)]
    line_format: Option<LineFormat>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn line_format(text: &str) -> Result<LineFormat, InvalidFormat> {
    LineFormat::parse(text)
}

/// In which order to list.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct OrderArgs {
    /// The newest first instead of the oldest
    #[arg(long, short)]
    reverse: bool,
}

impl OrderArgs {
    pub fn query(self) -> Vec<(&'static str, String)> {
        if self.reverse {
            vec![("sort", Order::NewestFirst.as_str().to_owned())]
        } else {
            Vec::new()
        }
    }
}

pub async fn run(args: Args, client: &Client) -> Result<Exit, Failure> {
    let limit = args.limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let path = "/api/v1/sandboxes";
    let mut query = args.filter.query();
    query.extend(args.order.query());
    let ListFormat { quiet, line_format, json } = args.shape;
    if json {
        let items: Vec<Value> = client.list(path, &query, limit).await?;
        print::json(&json!({ "items": items }))?;
    } else if let Some(line_format) = line_format {
        known_fields_only(&line_format)?;
        let items: Vec<Value> = client.list(path, &query, limit).await?;
        items.iter().try_for_each(|item| print::line(&line_format.line(item)))?;
    } else if quiet {
        let sandboxes: Vec<Sandbox> = client.list(path, &query, limit).await?;
        sandboxes.iter().try_for_each(|sandbox| print::line(sandbox.id.as_str()))?;
    } else if args.watch {
        loop {
            let sandboxes: Vec<Sandbox> = client.list(path, &query, limit).await?;
            screen::show(table(&sandboxes))?;
            screen::pause().await;
        }
    } else {
        let sandboxes: Vec<Sandbox> = client.list(path, &query, limit).await?;
        table(&sandboxes).iter().try_for_each(|line| print::line(line))?;
    }
    Ok(Exit::Ok)
}

/// A misspelt field would otherwise print nothing.
fn known_fields_only(format: &LineFormat) -> Result<(), Failure> {
    let known = Sandbox::fields();
    match format.fields().find(|field| !known.iter().any(|name| name == field)) {
        None => Ok(()),
        Some(field) => {
            let problem = format!("--format: no field {field:?}; there are: {}", known.join(", "));
            Err(Failure::Usage { problem })
        }
    }
}

fn table(sandboxes: &[Sandbox]) -> Vec<String> {
    // Only admins see more than their own.
    let owners = sandboxes.iter().any(|sandbox| sandbox.owner != sandboxes[0].owner);
    let now = Timestamp::now();
    let mut header =
        vec!["NAME", "ID", "STATE", "AGE", "IDLE", "RUNTIME", "TEMPLATE", "SLOT", "LABELS"];
    if owners {
        header.push("OWNER");
    }
    let rows = sandboxes.iter().map(|sandbox| {
        let mut row = row(sandbox, now);
        if owners {
            row.push(words(&sandbox.owner));
        }
        row
    });
    print::lines(header, rows)
}

/// The state and the operation in progress.
fn state(sandbox: &Sandbox) -> String {
    let state = words(sandbox.state);
    match sandbox.operation {
        Some(operation) => format!("{state} ({} in progress)", words(operation)),
        None => state,
    }
}

/// The same and the reason.
pub fn condition(sandbox: &Sandbox) -> String {
    let state = state(sandbox);
    match &sandbox.reason {
        Some(reason) => format!("{state}: {reason}"),
        None => state,
    }
}

fn row(sandbox: &Sandbox, now: Timestamp) -> Vec<String> {
    let or_dash = |text: String| if text.is_empty() { "-".to_owned() } else { text };
    vec![
        sandbox.name.to_string(),
        sandbox.id.to_string(),
        state(sandbox),
        span(now, sandbox.created_at),
        span(now, sandbox.last_activity_at),
        sandbox.runtime.clone(),
        sandbox.template.clone(),
        or_dash(words(&sandbox.slot)),
        or_dash(words(&sandbox.labels)),
    ]
}

/// The time between, in its largest unit. Clocks may differ.
fn span(now: Timestamp, then: Timestamp) -> String {
    let secs = now.as_second().saturating_sub(then.as_second()).max(0);
    match secs {
        0..60 => format!("{secs}s"),
        60..3600 => format!("{}m", secs / 60),
        3600..86_400 => format!("{}h", secs / 3600),
        _ => format!("{}d", secs / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_told_in_its_largest_unit() {
        let at = |second| Timestamp::from_second(second).expect("a time");
        let spans = [(0, "0s"), (59, "59s"), (61, "1m"), (7199, "1h"), (200_000, "2d"), (-5, "0s")];
        for (secs, expected) in spans {
            assert_eq!(span(at(1_000_000 + secs), at(1_000_000)), expected);
        }
    }

    #[test]
    fn a_misspelt_field_is_refused_with_those_that_there_are() {
        let refused = known_fields_only(&LineFormat::parse("{{.idd}}").expect("a format"));
        let problem = refused.expect_err("it is no field").line();
        assert!(problem.contains("idd") && problem.contains("last_activity_at"), "{problem}");
        let all =
            LineFormat::parse("{{.id}} {{.slot}} {{.labels.a}} {{json .}}").expect("a format");
        known_fields_only(&all).expect("they are fields");
    }
}
