//! `sandkeep rm`.

use std::collections::BTreeSet;
use std::io::{BufRead, IsTerminal, Write};

use serde_json::json;

use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::filter::Filter;
use crate::cli::{Format, print, spinner};
use sandkeep_client::Client;
use sandkeep_core::SandboxId;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Sandbox names, ids or unique prefixes of ids
    #[arg(required_unless_present = "all")]
    ids: Vec<String>,
    /// Destroy all your sandboxes, or those that match the filters below
    #[arg(long, conflicts_with = "ids")]
    all: bool,
    /// Do not ask for confirmation
    #[arg(long, short = 'y')]
    yes: bool,
    #[command(flatten)]
    pub filter: Filter,
    #[command(flatten)]
    format: Format,
}

pub async fn run(args: Args, client: &Client) -> Result<Exit, Failure> {
    let ids: BTreeSet<String> = match args.all {
        true => {
            let found = client.sandboxes(&args.filter.query()).await?;
            found.into_iter().map(|sandbox| String::from(sandbox.id)).collect()
        }
        false if args.filter.is_empty() => args.ids.into_iter().collect(),
        false => {
            let problem = "--label, --state and --project go with --all, not with ids".to_owned();
            return Err(Failure::Usage { problem });
        }
    };
    if args.all && !args.yes && !ids.is_empty() {
        confirm(&ids)?;
    }
    destroy_all(&ids, client, args.format).await
}

/// Destroys all that it can; one failure does not affect the others.
async fn destroy_all(
    ids: &BTreeSet<String>,
    client: &Client,
    format: Format,
) -> Result<Exit, Failure> {
    let mut destroyed = Vec::new();
    for text in ids {
        match spinner::during("destroying", destroy(client, text)).await {
            Ok(id) => destroyed.push(id),
            Err(failure) if ids.len() == 1 => return Err(failure),
            Err(failure) => print::note(&failure.line()),
        }
    }
    match format.json {
        true => print::json(&json!({ "destroyed": destroyed }))?,
        false => destroyed.iter().try_for_each(|id| print::line(id.as_str()))?,
    }
    match ids.len() - destroyed.len() {
        0 => Ok(Exit::Ok),
        failed => Err(Failure::Some { failed, all: ids.len() }),
    }
}

async fn destroy(client: &Client, text: &str) -> Result<SandboxId, Failure> {
    let id = client.resolve(text).await?;
    client.delete(&format!("/api/v1/sandboxes/{id}")).await?;
    Ok(id)
}

/// Asks for confirmation on the terminal. A script must confirm by an option.
fn confirm(ids: &BTreeSet<String>) -> Result<(), Failure> {
    let stdin = std::io::stdin();
    let what = match ids.len() {
        1 => "1 sandbox and all it holds".to_owned(),
        count => format!("{count} sandboxes and all they hold"),
    };
    if !stdin.is_terminal() {
        let problem = format!("this would destroy {what}, and nobody can be asked; say -y");
        return Err(Failure::Usage { problem });
    }
    let mut stderr = std::io::stderr().lock();
    let asked = write!(stderr, "destroy {what}? [y/N] ").and_then(|()| stderr.flush());
    asked.map_err(Failure::system("ask"))?;
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer).map_err(Failure::system("read the answer"))?;
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Failure::Declined),
    }
}
