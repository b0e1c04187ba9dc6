//! `sandkeep network`: what a sandbox may reach, what it reached, and what it asks for.

use std::collections::BTreeMap;

use clap::Subcommand;
use serde_json::{Value, json};

use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::network_args::changed_secret;
use crate::cli::{Format, print};
use sandkeep_client::Client;
use sandkeep_core::SandboxId;
use sandkeep_core::api::{GatewayState, Handling, ReadNetworkLog, SandboxNetwork};
use sandkeep_core::network::{
    Choice, Decision, DecisionKind, Entry, InvalidEntry, Network, NetworkPatch, NetworkVerdict,
    Policy,
};

/// Show and change what a sandbox may reach
#[derive(Debug, clap::Args)]
pub struct NetworkCommandArgs {
    #[command(subcommand)]
    command: NetworkCommand,
}

#[derive(Debug, Subcommand)]
enum NetworkCommand {
    /// Show the policy, what its entries mean, and what was used
    Show(ShowArgs),
    /// Allow destinations; open connections are kept
    Allow(EntriesArgs),
    /// Deny destinations, or refuse a request by its number; open connections to them end
    Deny(DenyArgs),
    /// Replace the whole policy
    Set(SetArgs),
    /// Add, change and remove secrets; placeholders of changed ones stay
    Secret(SecretArgs),
    /// Show what was decided about connections, requests and look-ups
    Log(LogArgs),
    /// List what waits for your decision
    Requests(ShowArgs),
    /// Allow a request that waits
    Approve(ApproveArgs),
    /// Print the smallest policy that covers what was used
    Suggest(SuggestArgs),
    /// List the presets that policies can name
    Presets(PresetsArgs),
}

#[derive(Debug, clap::Args)]
struct ShowArgs {
    /// Id or name of the sandbox
    id: String,
    #[command(flatten)]
    format: Format,
}

#[derive(Debug, clap::Args)]
struct EntriesArgs {
    /// Id or name of the sandbox
    id: String,
    /// A preset, host, *.host, host:port, or a CIDR range
    #[arg(required = true, value_name = "ENTRY")]
    entries: Vec<Entry>,
}

#[derive(Debug, clap::Args)]
struct DenyArgs {
    /// Id or name of the sandbox
    id: String,
    /// A host, *.host, host:port, or a CIDR range; or the number of a request
    #[arg(required = true, value_name = "ENTRY|REQUEST", value_parser = denied)]
    what: Vec<Denied>,
}

/// What is denied: no entry is a number.
#[derive(Clone, Debug)]
enum Denied {
    Entry(Box<Entry>),
    Request(u64),
}

fn denied(text: &str) -> Result<Denied, InvalidEntry> {
    match text.parse() {
        Ok(number) => Ok(Denied::Request(number)),
        Err(_) => text.parse().map(|entry| Denied::Entry(Box::new(entry))),
    }
}

#[derive(Debug, clap::Args)]
struct SetArgs {
    /// Id or name of the sandbox
    id: String,
    /// none, open, or a policy as JSON, as `network suggest` prints it
    #[arg(value_name = "POLICY", value_parser = crate::config::read_network)]
    policy: Network,
}

#[derive(Debug, clap::Args)]
struct SecretArgs {
    /// Id or name of the sandbox
    id: String,
    /// Secret with the value of this terminal's variable NAME; without hosts an existing one keeps its own
    #[arg(value_name = "NAME[@HOST[,HOST]]", required_unless_present = "remove")]
    secrets: Vec<String>,
    /// Secret to remove; repeatable
    #[arg(long, value_name = "NAME")]
    remove: Vec<String>,
}

#[derive(Debug, clap::Args)]
struct LogArgs {
    /// Id or name of the sandbox
    id: String,
    /// Wait for new decisions
    #[arg(long, short)]
    follow: bool,
    /// Only what was refused
    #[arg(long)]
    refused: bool,
    /// Number of decisions, the newest ones
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: usize,
    #[command(flatten)]
    format: Format,
}

#[derive(Debug, clap::Args)]
struct ApproveArgs {
    /// Id or name of the sandbox
    id: String,
    /// The number of the request
    request: u64,
    /// Also add it to the policy of this sandbox
    #[arg(long)]
    always: bool,
}

#[derive(Debug, clap::Args)]
struct SuggestArgs {
    /// Id or name of the sandbox
    id: String,
}

#[derive(Debug, clap::Args)]
struct PresetsArgs {
    #[command(flatten)]
    format: Format,
}

pub async fn run(args: NetworkCommandArgs, client: &Client) -> Result<Exit, Failure> {
    match args.command {
        NetworkCommand::Show(args) => {
            let network = client.network(&client.resolve(&args.id).await?).await?;
            if args.format.json { print::json(&json!(network))? } else { show(&network)? }
        }
        NetworkCommand::Allow(args) => {
            let id = client.resolve(&args.id).await?;
            let patch = NetworkPatch { add_allow: args.entries, ..NetworkPatch::default() };
            client.amend_network(&id, &patch).await?;
        }
        NetworkCommand::Deny(args) => deny(args, client).await?,
        NetworkCommand::Set(args) => {
            let id = client.resolve(&args.id).await?;
            let patch = NetworkPatch { policy: Some(args.policy), ..NetworkPatch::default() };
            client.amend_network(&id, &patch).await?;
        }
        NetworkCommand::Secret(args) => secret(args, client).await?,
        NetworkCommand::Log(args) => log(args, client).await?,
        NetworkCommand::Requests(args) => {
            let asked = client.network_requests(&client.resolve(&args.id).await?).await?;
            if args.format.json {
                print::json(&json!({ "items": asked }))?;
                return Ok(Exit::Ok);
            }
            let rows = asked.into_iter().map(|asked| {
                let to = format!("{}:{}", asked.host, asked.port);
                let until = format!("{:.0}", asked.expires_at);
                [asked.id.to_string(), to, until, asked.why.unwrap_or_default()]
            });
            print::table(["REQUEST", "TO", "UNTIL", "REASON"], rows)?;
        }
        NetworkCommand::Approve(args) => {
            let id = client.resolve(&args.id).await?;
            let choice = if args.always { Choice::Always } else { Choice::Once };
            client.decide_network_request(&id, args.request, choice).await?;
        }
        NetworkCommand::Suggest(args) => {
            let policy: Policy = client.suggest_network(&client.resolve(&args.id).await?).await?;
            print::json(&json!(policy))?;
        }
        NetworkCommand::Presets(args) => {
            let presets = client.network_presets().await?;
            if args.format.json {
                print::json(&json!(presets))?;
                return Ok(Exit::Ok);
            }
            let rows = presets.presets.into_iter().map(|(name, entries)| [name, entries.join(" ")]);
            print::table(["PRESET", "ENTRIES"], rows)?;
        }
    }
    Ok(Exit::Ok)
}

async fn deny(args: DenyArgs, client: &Client) -> Result<(), Failure> {
    let id = client.resolve(&args.id).await?;
    let mut entries = Vec::new();
    for what in args.what {
        match what {
            Denied::Entry(entry) => entries.push(*entry),
            Denied::Request(request) => {
                client.decide_network_request(&id, request, Choice::Refuse).await?;
            }
        }
    }
    if !entries.is_empty() {
        let patch = NetworkPatch { add_deny: entries, ..NetworkPatch::default() };
        client.amend_network(&id, &patch).await?;
    }
    Ok(())
}

async fn secret(args: SecretArgs, client: &Client) -> Result<(), Failure> {
    let id = client.resolve(&args.id).await?;
    let mut secrets = BTreeMap::new();
    for text in &args.secrets {
        let (name, patch) = changed_secret(text)?;
        if secrets.insert(name.clone(), patch).is_some() {
            let problem = format!("secret {name} is given twice");
            return Err(Failure::Usage { problem });
        }
    }
    let remove_secrets = args.remove.into_iter().collect();
    let patch = NetworkPatch { secrets, remove_secrets, ..NetworkPatch::default() };
    client.amend_network(&id, &patch).await?;
    Ok(())
}

fn show(network: &SandboxNetwork) -> Result<(), Failure> {
    let policy = match &network.policy {
        Network::None => "none".to_owned(),
        policy => json!(policy).to_string(),
    };
    print::line(&format!("policy       {policy}"))?;
    let gateway = match (network.gateway, &network.reason) {
        (GatewayState::Closed, _) => "closed".to_owned(),
        (GatewayState::Open, _) => "open".to_owned(),
        (GatewayState::Failed, reason) => {
            format!("failed: {}", reason.as_deref().unwrap_or_default())
        }
    };
    print::line(&format!("gateway      {gateway}"))?;
    let usage = network.usage;
    print::line(&format!(
        "connections  {} open, {} in all, {} refused; {} B sent, {} B received",
        usage.open, usage.connections, usage.refused, usage.bytes_up, usage.bytes_down
    ))?;
    for (name, secret) in &network.secrets {
        let hosts: Vec<String> = secret.hosts.iter().map(ToString::to_string).collect();
        print::line(&format!("secret       {name} for {}", hosts.join(", ")))?;
    }
    if network.entries.is_empty() {
        return Ok(());
    }
    let rows = network.entries.iter().map(|entry| {
        let ports: Vec<String> = entry.ports.iter().map(ToString::to_string).collect();
        let handling = match entry.handling {
            Handling::Plain => "passed on",
            Handling::Terminated => "requests are read",
        };
        [
            entry.entry.clone(),
            entry.preset.clone().unwrap_or_default(),
            if ports.is_empty() { "all".to_owned() } else { ports.join(",") },
            handling.to_owned(),
            if entry.fronting_unseen { "possible, not seen" } else { "" }.to_owned(),
        ]
    });
    print::table(["ALLOWED", "PRESET", "PORTS", "HANDLING", "FRONTING"], rows)
}

async fn log(args: LogArgs, client: &Client) -> Result<(), Failure> {
    let id = client.resolve(&args.id).await?;
    let request = ReadNetworkLog { limit: Some(args.limit), refused: args.refused, follow: false };
    if args.follow {
        return follow(&id, &request, args.format, client).await;
    }
    let items = client.network_log(&id, &request).await?;
    if args.format.json {
        items.iter().try_for_each(|item| print::line(&json!(item).to_string()))
    } else {
        print::table(HEADER, items.iter().map(row))
    }
}

const HEADER: [&str; 5] = ["WHEN", "VERDICT", "WHAT", "TO", "DETAILS"];

async fn follow(
    id: &SandboxId,
    request: &ReadNetworkLog,
    format: Format,
    client: &Client,
) -> Result<(), Failure> {
    let mut lines = client.follow_network_log(id, request).await?;
    loop {
        let line: Value = lines.next().await?;
        if format.json {
            print::line(&line.to_string())?;
            continue;
        }
        match serde_json::from_value::<Decision>(line.clone()) {
            Ok(decision) => print::line(&row(&decision).join("  "))?,
            Err(_) => print::note(&format!("{} decisions were missed", line["missed"])),
        }
    }
}

fn row(decision: &Decision) -> [String; 5] {
    let verdict = match decision.verdict {
        NetworkVerdict::Allowed => "allowed",
        NetworkVerdict::Denied => "denied",
        NetworkVerdict::Audited => "audited",
        NetworkVerdict::Failed => "failed",
    };
    let what = match decision.kind {
        DecisionKind::Name => "look-up",
        DecisionKind::Connection => "connection",
        DecisionKind::Closed => "end",
        DecisionKind::Request => "request",
    };
    let address = decision.address.map(|address| address.to_string());
    let host = decision.name.clone().or(address).unwrap_or_default();
    let to = decision.port.map_or(host.clone(), |port| format!("{host}:{port}"));
    let request = decision
        .method
        .as_ref()
        .map(|method| format!("{method} {}", decision.path.as_deref().unwrap_or_default()));
    let bytes = decision.bytes_up.zip(decision.bytes_down);
    let bytes = bytes.map(|(up, down)| format!("{up} B sent, {down} B received"));
    let parts = [request, bytes, decision.reason.clone().or_else(|| decision.rule.clone())];
    let details: Vec<String> = parts.into_iter().flatten().collect();
    let when = format!("{:.0}", decision.at);
    [when, verdict.to_owned(), what.to_owned(), to, details.join("  ")]
}
