//! `sandkeep runtimes`.

use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::{Format, print};
use sandkeep_client::{Client, Runtime, Runtimes};

/// With the columns before it, a line fits 100 characters.
const REASON_SHOWN_CHARS: usize = 64;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Also show the capabilities, and reasons in full
    #[arg(long, conflicts_with = "json")]
    wide: bool,
    #[command(flatten)]
    format: Format,
}

pub async fn run(args: Args, client: &Client) -> Result<Exit, Failure> {
    let answer = client.get("/api/v1/runtimes").await?;
    if args.format.json {
        print::json(&answer)?;
        return Ok(Exit::Ok);
    }
    let Runtimes { runtimes } = client.read(answer)?;
    if args.wide {
        let rows = runtimes.iter().map(|runtime| {
            let [name, usable, battery, reason] = row(runtime);
            [name, usable, battery, capabilities(runtime), reason]
        });
        print::table(["NAME", "USABLE", "BATTERY", "CAPABILITIES", "REASON"], rows)?;
    } else {
        let rows = runtimes.iter().map(|runtime| {
            let [name, usable, battery, reason] = row(runtime);
            [name, usable, battery, shortened(reason)]
        });
        print::table(["NAME", "USABLE", "BATTERY", "REASON"], rows)?;
    }
    Ok(Exit::Ok)
}

fn row(runtime: &Runtime) -> [String; 4] {
    let mark = if runtime.default { " (default)" } else { "" };
    let usable = if runtime.usable { "yes" } else { "no" };
    let battery = runtime.battery.as_ref().map_or("not run".to_owned(), |b| b.verdict.clone());
    let reason = runtime.reason.clone().unwrap_or_default();
    [format!("{}{mark}", runtime.name), usable.to_owned(), battery, reason]
}

fn capabilities(runtime: &Runtime) -> String {
    // Some are listed twice, once in the spelling of other clients.
    let ours = |name: &str| name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    let names: Vec<&str> = runtime.can().filter(|name| ours(name)).collect();
    names.join(" ")
}

fn shortened(reason: String) -> String {
    match reason.char_indices().nth(REASON_SHOWN_CHARS) {
        Some((cut, _)) => format!("{}…", &reason[..cut]),
        None => reason,
    }
}
