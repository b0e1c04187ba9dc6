//! `sandkeep template`: manages templates.

mod build;
mod importing;

use std::io::BufRead;
use std::path::PathBuf;

use clap::Subcommand;
use serde_json::{Value, json};

use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::ls::OrderArgs;
use crate::cli::show::{mebibytes, words};
use crate::cli::{Format, print};
use sandkeep_client::{Client, Items};
use sandkeep_core::network::Network;
use sandkeep_core::{SnapshotName, TemplateName, api::Template};

/// Import, build, list and remove templates
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: TemplateCommand,
}

#[derive(Debug, Subcommand)]
enum TemplateCommand {
    Import(ImportArgs),
    Pull(PullArgs),
    Build(build::BuildArgs),
    From(FromArgs),
    /// List templates
    Ls(LsArgs),
    /// Show a template
    Show(OneArgs),
    /// Remove templates that no sandbox uses
    Rm(RmArgs),
}

/// Create a template from an archive or a directory
///
/// An archive is a tar of a root filesystem, an OCI layout or the output of `docker save`, plain or compressed with
/// gzip or zstd; it is uploaded. A directory is an OCI layout or a root filesystem; the daemon reads it itself, so
/// it must be on the daemon's machine.
#[derive(Debug, clap::Args)]
struct ImportArgs {
    /// File or directory, or - for stdin
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// Name of the template, such as python:3.12 [default: the file name without extensions]
    #[arg(long, value_name = "NAME")]
    name: Option<TemplateName>,
    #[command(flatten)]
    network: TemplateNetwork,
    #[command(flatten)]
    place: TemplateOwner,
    #[command(flatten)]
    format: Format,
}

/// Create a template from an image in a registry
///
/// The daemon pulls the image, with its own credentials for the registry or with those given here.
#[derive(Debug, clap::Args)]
struct PullArgs {
    /// Image name, such as python:3.12 or ghcr.io/acme/tools@sha256:…
    #[arg(value_name = "IMAGE")]
    image: String,
    /// Name of the template [default: the image's name]
    #[arg(long, value_name = "NAME")]
    name: Option<TemplateName>,
    /// User name for the registry; the password is read from stdin
    #[arg(long, value_name = "USER")]
    username: Option<String>,
    #[command(flatten)]
    network: TemplateNetwork,
    #[command(flatten)]
    place: TemplateOwner,
    #[command(flatten)]
    format: Format,
}

/// Create a template from a sandbox or one of its snapshots
///
/// A running sandbox is frozen for a moment.
#[derive(Debug, clap::Args)]
struct FromArgs {
    /// Sandbox name, id or unique prefix of an id, with @NAME for one of its snapshots
    #[arg(value_name = "ID[@SNAPSHOT]")]
    id: String,
    /// Snapshot name or id
    #[arg(long, value_name = "SNAPSHOT")]
    snapshot: Option<SnapshotName>,
    /// Name of the template
    #[arg(long, value_name = "NAME")]
    name: TemplateName,
    #[command(flatten)]
    network: TemplateNetwork,
    #[command(flatten)]
    place: TemplateOwner,
    #[command(flatten)]
    format: Format,
}

/// The owner of a new template.
#[derive(Debug, clap::Args)]
struct TemplateOwner {
    /// Make the template visible to everyone; needs the scope `admin`
    #[arg(long)]
    shared: bool,
    /// Project of the template [default: that of the key, or default]
    #[arg(long, value_name = "NAME")]
    project: Option<String>,
}

/// The network of sandboxes from a new template.
#[derive(Debug, Default, clap::Args)]
struct TemplateNetwork {
    /// Network of its sandboxes that name none: none, open, presets and hosts with commas between, or JSON
    #[arg(long, value_name = "POLICY", value_parser = crate::config::read_network)]
    default_network: Option<Network>,
}

/// A network as the API takes it in a query.
fn as_query(network: &Network) -> String {
    match json!(network) {
        Value::String(word) => word,
        policy => policy.to_string(),
    }
}

#[derive(Debug, clap::Args)]
struct LsArgs {
    #[command(flatten)]
    order: OrderArgs,
    #[command(flatten)]
    format: Format,
}

#[derive(Debug, clap::Args)]
struct OneArgs {
    name: TemplateName,
    /// Project of the template [default: that of the key, or default]
    #[arg(long, value_name = "NAME")]
    project: Option<String>,
    #[command(flatten)]
    format: Format,
}

#[derive(Debug, clap::Args)]
struct RmArgs {
    #[arg(required = true, value_name = "NAME")]
    names: Vec<TemplateName>,
    /// Project of the templates [default: that of the key, or default]
    #[arg(long, value_name = "NAME")]
    project: Option<String>,
}

pub async fn run(args: Args, client: &Client) -> Result<Exit, Failure> {
    match args.command {
        TemplateCommand::Import(args) => importing::import(args, client).await,
        TemplateCommand::Pull(args) => pull(args, client).await,
        TemplateCommand::Build(args) => build::run(args, client).await,
        TemplateCommand::From(args) => from(args, client).await,
        TemplateCommand::Ls(args) => ls(args, client).await,
        TemplateCommand::Show(args) => show(args, client).await,
        TemplateCommand::Rm(args) => rm(args, client).await,
    }
}

async fn pull(args: PullArgs, client: &Client) -> Result<Exit, Failure> {
    let name = match args.name {
        Some(name) => name,
        None => args.image.parse().map_err(|_| Failure::Usage {
            problem: format!("{:?} does not tell a name; say --name", args.image),
        })?,
    };
    let mut source = json!({ "registry": args.image });
    if let Some(username) = args.username {
        let password = password()?;
        source["credentials"] = json!({ "username": username, "password": password });
    }
    importing::ask(client, &name, (&args.place, &args.network), source, args.format).await
}

/// The first line of stdin. Not a flag, because other users can read the command line.
fn password() -> Result<String, Failure> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).map_err(Failure::system("read the password"))?;
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}

async fn from(args: FromArgs, client: &Client) -> Result<Exit, Failure> {
    let (id, at) = match args.id.split_once('@') {
        Some((id, snapshot)) => (id, Some(snapshot)),
        None => (args.id.as_str(), None),
    };
    let snapshot = match (at, args.snapshot) {
        (Some(_), Some(_)) => {
            let problem = "name the snapshot once: ID@SNAPSHOT or --snapshot".to_owned();
            return Err(Failure::Usage { problem });
        }
        (Some(name), None) => Some(
            name.parse::<SnapshotName>()
                .map_err(|invalid| Failure::Usage { problem: format!("{name:?}: {invalid}") })?,
        ),
        (None, given) => given,
    };
    let mut source = json!({ "sandbox": client.resolve(id).await? });
    if let Some(snapshot) = snapshot {
        source["snapshot"] = json!(snapshot);
    }
    importing::ask(client, &args.name, (&args.place, &args.network), source, args.format).await
}

async fn ls(args: LsArgs, client: &Client) -> Result<Exit, Failure> {
    let listed = client.get_query("/api/v1/templates", &args.order.query()).await?;
    if args.format.json {
        print::json(&listed)?;
        return Ok(Exit::Ok);
    }
    let Items { items, .. } = client.read(listed)?;
    let row = |item: Template| {
        let shared = if item.shared { "shared" } else { "own" };
        let digest = item.digest.unwrap_or_default();
        let digest = digest.strip_prefix("sha256:").unwrap_or("-");
        let digest: String = digest.chars().take(12).collect();
        [item.name, digest, mebibytes(item.bytes), shared.to_owned(), item.source]
    };
    print::table(["NAME", "DIGEST", "SIZE", "WHOSE", "SOURCE"], items.into_iter().map(row))?;
    Ok(Exit::Ok)
}

async fn show(args: OneArgs, client: &Client) -> Result<Exit, Failure> {
    let query = project(args.project.as_deref());
    let shown = client.get_query(&path_of(&args.name), &query).await?;
    if args.format.json {
        print::json(&shown)?;
        return Ok(Exit::Ok);
    }
    let shown: Template = client.read(shown)?;
    let mut fields = vec![
        ("name", shown.name),
        ("digest", words(&shown.digest)),
        ("source", shown.source),
        ("over", words(&shown.over)),
        ("layers", shown.layers.len().to_string()),
        ("size", mebibytes(shown.bytes)),
        ("created", words(shown.created_at)),
        ("owner", words(&shown.owner)),
        ("network", shown.network.as_ref().map(as_query).unwrap_or_default()),
    ];
    let start = ("start", words(&shown.start));
    if let Some(config) = &shown.config {
        fields.extend([
            ("user", words(&config.user)),
            ("workdir", words(&config.workdir)),
            ("entrypoint", words(&config.entrypoint)),
            ("cmd", words(&config.cmd)),
            start,
            ("ports", words(&config.exposed_ports)),
            ("env", words(&config.env)),
            ("labels", words(&config.labels)),
        ]);
    } else {
        fields.push(start);
    }
    fields.retain(|(_, value)| !value.is_empty() && value != "[]");
    fields.iter().try_for_each(|(name, value)| print::line(&format!("{name:<10} {value}")))?;
    Ok(Exit::Ok)
}

async fn rm(args: RmArgs, client: &Client) -> Result<Exit, Failure> {
    let query = project(args.project.as_deref());
    let mut failed = 0;
    for name in &args.names {
        match client.delete_query(&path_of(name), &query).await {
            Ok(()) => print::line(name.as_str())?,
            Err(error) if args.names.len() == 1 => return Err(error.into()),
            Err(error) => {
                print::note(&Failure::from(error).line());
                failed += 1;
            }
        }
    }
    match failed {
        0 => Ok(Exit::Ok),
        failed => Err(Failure::Some { failed, all: args.names.len() }),
    }
}

fn project(project: Option<&str>) -> Vec<(&str, &str)> {
    project.map(|project| ("project", project)).into_iter().collect()
}

/// The name as one path segment, whatever it contains.
fn path_of(name: &TemplateName) -> String {
    format!("/api/v1/templates/{}", name.as_str().replace('/', "%2F"))
}
