//! `sandkeep rm`.

use std::io::{BufRead, IsTerminal, Write};

use serde_json::json;

use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::several::{self, Chosen, Subjects};
use crate::cli::{Format, print};
use sandkeep_client::Client;
use sandkeep_core::SandboxId;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub subjects: Subjects,
    /// Do not ask for confirmation
    #[arg(long, short = 'y')]
    yes: bool,
    #[command(flatten)]
    format: Format,
}

pub async fn run(args: Args, client: &Client) -> Result<Exit, Failure> {
    let chosen = args.subjects.choose(&[], client).await?;
    if let Chosen::Found(ids) = &chosen
        && !args.yes
        && !ids.is_empty()
    {
        confirm(ids.len())?;
    }
    // One failure does not affect the others.
    let destroy = |text: String| async move { destroy(client, &text).await };
    let (destroyed, failed) = several::each(&chosen, "destroying", destroy).await?;
    if args.format.json {
        print::json(&json!({ "destroyed": destroyed }))?
    } else {
        destroyed.iter().try_for_each(|id| print::line(id.as_str()))?
    }
    match failed {
        0 => Ok(Exit::Ok),
        failed => Err(Failure::Some { failed, all: chosen.texts().len() }),
    }
}

async fn destroy(client: &Client, text: &str) -> Result<SandboxId, Failure> {
    let id = client.resolve(text).await?;
    client.delete(&format!("/api/v1/sandboxes/{id}")).await?;
    Ok(id)
}

/// Asks for confirmation on the terminal. A script must confirm by an option.
fn confirm(count: usize) -> Result<(), Failure> {
    let stdin = std::io::stdin();
    let what = match count {
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
