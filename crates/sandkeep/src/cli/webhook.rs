//! `sandkeep webhook`: where events are delivered.

use std::path::PathBuf;

use clap::Subcommand;
use serde_json::json;

use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::{Format, print};
use sandkeep_client::Client;
use sandkeep_core::WebhookId;
use sandkeep_core::api::{CreateWebhook, Webhook, WebhookState};
use sandkeep_core::event::{EventSeq, KindPattern, Kinds};

/// Deliver events to a URL
#[derive(Debug, clap::Args)]
pub struct WebhookArgs {
    #[command(subcommand)]
    command: WebhookCommand,
}

#[derive(Debug, Subcommand)]
enum WebhookCommand {
    /// Register a webhook; prints its secret, which is shown only once
    Add(AddArgs),
    /// List webhooks
    Ls(LsArgs),
    /// Send a test message
    Test(IdArgs),
    /// Enable a disabled webhook; it continues where it stopped
    Enable(IdArgs),
    /// Deliver events again
    Replay(ReplayArgs),
    /// Delete webhooks
    Rm(RmArgs),
}

#[derive(Debug, clap::Args)]
struct AddArgs {
    /// https, or http on this machine
    #[arg(value_name = "URL")]
    receiver: String,
    /// Only this kind, such as exec.ended, or sandbox.* for all with that prefix; repeatable
    #[arg(long = "kind", value_name = "KIND", value_delimiter = ',')]
    kinds: Vec<KindPattern>,
    /// Only events of this project
    #[arg(long, value_name = "NAME")]
    project: Option<String>,
    /// File with the secret (whsec_…) [default: the daemon makes one]
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    #[command(flatten)]
    format: Format,
}

#[derive(Debug, clap::Args)]
struct LsArgs {
    #[command(flatten)]
    format: Format,
}

#[derive(Debug, clap::Args)]
struct IdArgs {
    id: WebhookId,
}

#[derive(Debug, clap::Args)]
struct ReplayArgs {
    id: WebhookId,
    /// Deliver the events after this number
    #[arg(long, value_name = "SEQ")]
    after: EventSeq,
}

#[derive(Debug, clap::Args)]
struct RmArgs {
    #[arg(required = true, value_name = "ID")]
    ids: Vec<WebhookId>,
}

pub async fn run(args: WebhookArgs, client: &Client) -> Result<Exit, Failure> {
    match args.command {
        WebhookCommand::Add(args) => add(args, client).await?,
        WebhookCommand::Ls(args) => list(args, client).await?,
        WebhookCommand::Test(args) => {
            let answer = client.test_webhook(&args.id).await?;
            let Some(error) = answer.error else { return Ok(Exit::Ok) };
            print::note(&format!("the test message was not delivered: {error}"));
            return Ok(Exit::RequestFailed);
        }
        WebhookCommand::Enable(args) => drop(client.enable_webhook(&args.id).await?),
        WebhookCommand::Replay(args) => drop(client.replay_webhook(&args.id, args.after).await?),
        WebhookCommand::Rm(args) => {
            for id in &args.ids {
                client.delete_webhook(id).await?;
            }
        }
    }
    Ok(Exit::Ok)
}

async fn add(args: AddArgs, client: &Client) -> Result<(), Failure> {
    let AddArgs { receiver, kinds, project, secret_file, format } = args;
    let secret = match secret_file {
        Some(file) => {
            let text =
                std::fs::read_to_string(file).map_err(Failure::system("read --secret-file"))?;
            Some(text.trim().to_owned())
        }
        None => None,
    };
    let draft = CreateWebhook { url: receiver, kinds: Kinds(kinds), secret, project };
    let made = client.create_webhook(&draft).await?;
    if format.json {
        return print::json(&json!(made));
    }
    print::line(made.webhook.id.as_str())?;
    print::note(&format!("secret: {}; store it, it is not shown again", made.secret));
    Ok(())
}

async fn list(args: LsArgs, client: &Client) -> Result<(), Failure> {
    let webhooks = client.webhooks().await?;
    if args.format.json {
        return print::json(&json!({ "items": webhooks }));
    }
    let header = ["ID", "STATE", "KINDS", "ACKNOWLEDGED", "URL", "LAST ERROR"];
    print::table(header, webhooks.into_iter().map(row))
}

fn row(webhook: Webhook) -> [String; 6] {
    let kinds: Vec<&str> = webhook.kinds.0.iter().map(KindPattern::as_str).collect();
    let state = match webhook.state {
        WebhookState::Enabled if webhook.failures > 0 => {
            format!("enabled, {} failures", webhook.failures)
        }
        WebhookState::Enabled => "enabled".to_owned(),
        WebhookState::Disabled => "disabled".to_owned(),
    };
    [
        webhook.id.to_string(),
        state,
        if kinds.is_empty() { "*".to_owned() } else { kinds.join(",") },
        webhook.acknowledged.to_string(),
        webhook.url,
        webhook.reason.or(webhook.last_error).unwrap_or_default(),
    ]
}
