//! `sandkeep keys`: manages API keys.
//!
//! Works on the data directory itself, whether or not a daemon is running: a user who can write there owns it anyway,
//! and must be able to create a key when none is left. For others, it works through the API.

mod ring;

use std::path::{Path, PathBuf};

use clap::Subcommand;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use jiff::Timestamp;
use serde_json::json;

use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::{Format, Global, argument, print, with_one_thread};
use crate::config::{self, ConfigFile, Flags, Surroundings};
use sandkeep_audit::{Actor, AuditLog, Request};
use sandkeep_broker::error::Error;
use sandkeep_client::{Client, Items};
use sandkeep_core::{
    InvalidKeyId, KeyId, Scope,
    api::{KeyDraft, KeyInfo, NewKey},
};

/// Create, list and revoke API keys
///
/// After the first key, every request needs one, permanently. Works on the data directory, also while the
/// daemon runs, and takes effect at once. With --url or SANDKEEP_URL, and without --data-dir, it uses the API
/// and needs an admin key in SANDKEEP_API_KEY.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: KeysCommand,
}

#[derive(Debug, Subcommand)]
enum KeysCommand {
    /// Create a key and print it; it is shown only once
    Create(Box<CreateArgs>),
    /// List the keys
    Ls(LsArgs),
    /// Revoke keys; they are refused from the next request on
    Revoke(RevokeArgs),
}

#[derive(Debug, clap::Args)]
struct CreateArgs {
    /// Organization that the key belongs to
    #[arg(long, value_name = "NAME")]
    organization: String,
    #[arg(long, value_name = "NAME")]
    user: String,
    /// Restrict the key to one project
    #[arg(long, value_name = "NAME")]
    project: Option<String>,
    /// Scope of the key; repeatable [default: read, write]
    #[arg(long = "scope", value_name = "SCOPE", value_delimiter = ',', value_parser = scope())]
    scopes: Vec<Scope>,
    /// Expiry: a duration (30d, 12h) or a time (2030-01-31T12:00:00Z)
    #[arg(long, value_name = "WHEN", value_parser = argument::expiry)]
    expires: Option<Timestamp>,
    /// Description of the key
    #[arg(long, value_name = "TEXT")]
    name: Option<String>,
    #[command(flatten)]
    place: DataLocation,
    #[command(flatten)]
    format: Format,
}

#[derive(Debug, clap::Args)]
struct LsArgs {
    #[command(flatten)]
    place: DataLocation,
    #[command(flatten)]
    format: Format,
}

#[derive(Debug, clap::Args)]
struct RevokeArgs {
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
    #[command(flatten)]
    place: DataLocation,
}

/// The location of the keys.
#[derive(Debug, clap::Args)]
pub(super) struct DataLocation {
    /// Data directory [default: as for serve]
    #[arg(long, env = "SANDKEEP_DATA_DIR", hide_env_values = true, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    #[command(flatten)]
    file: ConfigFile,
}

fn scope() -> impl TypedValueParser<Value = Scope> {
    let named = Scope::ALL.map(|scope| {
        PossibleValue::new(scope.as_str()).help(match scope {
            Scope::Read => "look at own sandboxes",
            Scope::Write => "make, use and destroy own sandboxes",
            Scope::Organization => "the same for all users of the organization",
            Scope::Admin => "everything, for everybody",
        })
    });
    PossibleValuesParser::new(named).map(|name| {
        let named = Scope::ALL.into_iter().find(|scope| scope.as_str() == name);
        named.expect("one of the names that are possible")
    })
}

pub fn run(args: Args, global: &Global, around: &Surroundings) -> Result<Exit, Failure> {
    with_one_thread(async {
        match args.command {
            KeysCommand::Create(args) => create(*args, global, around).await,
            KeysCommand::Ls(args) => list(args, global, around).await,
            KeysCommand::Revoke(args) => revoke(args, global, around).await,
        }
    })
}

/// What the keys are reached through.
pub(super) enum Way {
    Directory(PathBuf),
    Api(Client),
}

impl DataLocation {
    pub fn way(self, global: &Global, around: &Surroundings) -> Result<Way, Failure> {
        if let Some(directory) = self.data_dir {
            return Ok(Way::Directory(directory));
        }
        if global.url.is_some() {
            return Ok(Way::Api(global.client(around)?));
        }
        let loaded = config::load(self.file.config.as_deref(), &Flags::default(), around)?;
        Ok(Way::Directory(loaded.settings.data_dir))
    }
}

async fn create(args: CreateArgs, global: &Global, around: &Surroundings) -> Result<Exit, Failure> {
    let CreateArgs { organization, user, project, scopes, expires, name, place, format } = args;
    let draft = KeyDraft { organization, user, project, scopes, name, expires_at: expires };
    let made: NewKey = match place.way(global, around)? {
        Way::Directory(directory) => {
            let made = ring::open_or_make(&directory)?.create(draft).await?;
            audited(&directory, "create_key", &made.info.id);
            made
        }
        Way::Api(client) => client.post("/api/v1/keys", &draft).await?,
    };
    if format.json {
        print::json(&json!(made))?;
        return Ok(Exit::Ok);
    }
    print::line(&made.key)?;
    print::note(&format!("{}: store the key, it is not shown again", made.info.id));
    Ok(Exit::Ok)
}

async fn list(args: LsArgs, global: &Global, around: &Surroundings) -> Result<Exit, Failure> {
    let keys: Vec<KeyInfo> = match args.place.way(global, around)? {
        Way::Directory(directory) => match ring::open(&directory)? {
            Some(ring) => ring.list().await?,
            None => Vec::new(),
        },
        Way::Api(client) => client.get::<Items<KeyInfo>>("/api/v1/keys").await?.items,
    };
    if args.format.json {
        print::json(&json!({ "items": keys }))?;
        return Ok(Exit::Ok);
    }
    let header = ["ID", "ORGANIZATION", "USER", "PROJECT", "SCOPES", "CREATED", "EXPIRES", "NAME"];
    print::table(header, keys.into_iter().map(row))?;
    Ok(Exit::Ok)
}

fn row(key: KeyInfo) -> [String; 8] {
    let scopes: Vec<&str> = key.scopes.iter().map(|scope| scope.as_str()).collect();
    let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    [
        key.id.to_string(),
        key.organization,
        key.user,
        or_none(key.project),
        scopes.join(","),
        format!("{:.0}", key.created_at),
        or_none(key.expires_at.map(|end| format!("{end:.0}"))),
        or_none(key.name),
    ]
}

async fn revoke(args: RevokeArgs, global: &Global, around: &Surroundings) -> Result<Exit, Failure> {
    match args.place.way(global, around)? {
        Way::Directory(directory) => revoke_in(&directory, &args.ids).await?,
        Way::Api(client) => {
            for id in args.ids {
                client.delete(&format!("/api/v1/keys/{id}")).await?;
            }
        }
    }
    Ok(Exit::Ok)
}

/// Writes down what was done beside the daemon. A key must be revocable on a full disk too, so this can only warn.
fn audited(directory: &Path, operation: &str, key: &KeyId) {
    let record = Request {
        door: "cli".to_owned(),
        operation: operation.to_owned(),
        actor: Some(Actor::local()),
        resource: Some(key.to_string()),
        ..Request::default()
    };
    if let Err(error) = AuditLog::beside(directory).record(record) {
        print::note(&format!("warning: {error}"));
    }
}

async fn revoke_in(directory: &Path, ids: &[String]) -> Result<(), Failure> {
    let ring = ring::open(directory)?;
    for text in ids {
        let usage = |e: InvalidKeyId| Failure::Usage { problem: e.to_string() };
        let id = text.parse().map_err(usage)?;
        match &ring {
            Some(ring) => {
                ring.revoke(&id).await?;
                audited(directory, "revoke_key", &id);
            }
            None => return Err(Error::KeyNotFound { id }.into()),
        }
    }
    Ok(())
}
