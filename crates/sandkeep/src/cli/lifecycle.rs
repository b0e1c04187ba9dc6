//! `sandkeep start`, `stop` and `resume`: verbs that take sandboxes and nothing else.

use serde_json::{Value, json};

use crate::cli::Format;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::several::{self, Chosen, Subjects};
use sandkeep_client::Client;
use sandkeep_core::{State, Verb};

/// Several sandboxes.
#[derive(Debug, clap::Args)]
pub struct SeveralArgs {
    #[command(flatten)]
    pub subjects: Subjects,
    #[command(flatten)]
    pub format: Format,
}

/// One sandbox.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Sandbox name, id or unique prefix of an id
    pub id: String,
    #[command(flatten)]
    format: Format,
}

pub async fn run(verb: Verb, args: SeveralArgs, client: &Client) -> Result<Exit, Failure> {
    let (doing, states): (_, &[State]) = match verb {
        Verb::Stop => ("stopping", &[State::Running, State::Paused]),
        Verb::Resume => ("resuming", &[State::Paused]),
        _ => ("starting", &[State::Stopped, State::Failed]),
    };
    let chosen = args.subjects.choose(states, client).await?;
    several::ask(&verb.to_string(), doing, chosen, &json!({}), args.format, client).await?;
    Ok(Exit::Ok)
}

/// Requests a verb for one sandbox and shows the sandbox afterwards.
pub async fn ask(
    verb: &str,
    doing: &'static str,
    args: Args,
    body: &Value,
    client: &Client,
) -> Result<Exit, Failure> {
    let chosen = Chosen::Named(vec![args.id]);
    several::ask(verb, doing, chosen, body, args.format, client).await?;
    Ok(Exit::Ok)
}
