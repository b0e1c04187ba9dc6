//! `sandkeep codebase`: named trees that are mounted in sandboxes.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use serde_json::{Value, json};

use crate::cli::apply::{self, HomeArgs};
use crate::cli::codebase_args::rules;
use crate::cli::cp::{self, Archiving};
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::tool_config::GuardArgs;
use crate::cli::{Format, print, spinner};
use sandkeep_client::Client;
use sandkeep_core::api::{
    CheckRules, CheckedPath, Codebase, CodebaseState, ReplaceRules, Revoke, SandboxRules,
};
use sandkeep_core::rules::RulesDraft;
use sandkeep_core::{CodebaseName, CodebaseRef};

/// Manage codebases: named trees that are mounted in sandboxes
///
/// `sandkeep create --codebase NAME` mounts one at /workspace. What is written there is in the codebase at once.
#[derive(Debug, clap::Args)]
pub struct CodebaseArgs {
    #[command(subcommand)]
    command: CodebaseCommand,
}

#[derive(Debug, Subcommand)]
enum CodebaseCommand {
    /// Create a codebase and print its id
    Create(CreateArgs),
    /// List codebases
    Ls(LsArgs),
    /// Show one codebase, and how much is in it
    Show(ShowArgs),
    /// Delete codebases with all their files; refused while sandboxes have them
    Rm(RmArgs),
    /// Copy files and directories into or out of a codebase
    ///
    /// Either SRC or DST is in a codebase: NAME:PATH, where NAME is its name or id. `-` is stdin or stdout.
    Cp(CpArgs),
    /// List the files of a codebase
    LsFiles(LsFilesArgs),
    /// Write a codebase, or a directory in it, to stdout as a tar archive; with --unpack, read one from stdin
    Tar(TarArgs),
    /// Show what has changed in a codebase since it was created from a directory or an archive
    Diff(DiffArgs),
    /// Apply what has changed in a codebase since it was created to a local directory
    ///
    /// Three-way, as `sandkeep apply` does for a sandbox: a file that changed on both sides is a conflict and stays as it
    /// is in the directory; the exit code is then 8.
    Apply(ApplyArgs),
    /// Say what rules allow for paths, and which rule decides
    Check(CheckArgs),
    /// Show or replace the rules of a sandbox's codebase
    Rules(RulesArgs),
}

#[derive(Debug, clap::Args)]
struct DiffArgs {
    /// Name or id
    #[arg(value_name = "CODEBASE")]
    codebase: CodebaseRef,
    #[command(flatten)]
    format: Format,
}

#[derive(Debug, clap::Args)]
struct ApplyArgs {
    /// Name or id
    #[arg(value_name = "CODEBASE")]
    codebase: CodebaseRef,
    #[command(flatten)]
    home: HomeArgs,
}

#[derive(Debug, clap::Args)]
struct CreateArgs {
    /// Name; only one codebase of an owner has it
    name: CodebaseName,
    /// Copy this directory of the daemon's host into it; the original is never changed
    #[arg(long, value_name = "DIR", group = "content")]
    dir: Option<PathBuf>,
    /// Unpack this tar (plain, gzip or zstd) into it
    #[arg(long, value_name = "FILE", group = "content")]
    tar: Option<PathBuf>,
    /// Project of the codebase [default: that of the key, or default]
    #[arg(long, value_name = "NAME")]
    project: Option<String>,
    /// Size limit, in MiB; needs btrfs or zfs storage
    #[arg(long, value_name = "MIB")]
    disk_mb: Option<u64>,
    #[command(flatten)]
    format: Format,
}

#[derive(Debug, clap::Args)]
struct LsArgs {
    #[command(flatten)]
    format: Format,
}

#[derive(Debug, clap::Args)]
struct ShowArgs {
    /// Name or id
    #[arg(value_name = "CODEBASE")]
    codebase: CodebaseRef,
    #[command(flatten)]
    format: Format,
}

#[derive(Debug, clap::Args)]
struct RmArgs {
    /// Names or ids
    #[arg(required = true, value_name = "CODEBASE")]
    codebases: Vec<CodebaseRef>,
}

#[derive(Debug, clap::Args)]
struct CpArgs {
    /// Source: PATH, NAME:PATH, or -
    #[arg(value_name = "SRC")]
    source: OsString,
    /// Destination: PATH, NAME:PATH, or -
    #[arg(value_name = "DST")]
    target: OsString,
    #[command(flatten)]
    guard: GuardArgs,
}

#[derive(Debug, clap::Args)]
struct LsFilesArgs {
    /// Name or id
    #[arg(value_name = "CODEBASE")]
    codebase: CodebaseRef,
    /// Directory [default: the root]
    #[arg(value_name = "PATH")]
    path: Option<String>,
    /// How many levels to list
    #[arg(long, default_value_t = 1, value_name = "N")]
    depth: u64,
    #[command(flatten)]
    format: Format,
}

#[derive(Debug, clap::Args)]
struct TarArgs {
    /// Name or id
    #[arg(value_name = "CODEBASE")]
    codebase: CodebaseRef,
    /// Directory [default: the root]
    #[arg(value_name = "PATH")]
    path: Option<String>,
    /// Unpack a plain tar from stdin into the directory
    #[arg(long)]
    unpack: bool,
}

#[derive(Debug, clap::Args)]
struct CheckArgs {
    /// Sandbox (judged by its own rules, unless --rules is given), or codebase with --rules
    #[arg(value_name = "ID")]
    id: String,
    /// Paths relative to the root of the codebase
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<String>,
    /// Judge by these rules: a preset, or a JSON file
    #[arg(long, value_name = "PRESET|FILE", value_parser = rules)]
    rules: Option<RulesDraft>,
    #[command(flatten)]
    format: Format,
}

#[derive(Debug, clap::Args)]
struct RulesArgs {
    /// Sandbox
    #[arg(value_name = "ID")]
    id: String,
    /// The new rules: a preset, or a JSON file
    #[arg(long, value_name = "PRESET|FILE", value_parser = rules)]
    set: Option<RulesDraft>,
    /// End the processes that have files open which the new rules forbid
    #[arg(long, requires = "set")]
    kill: bool,
    #[command(flatten)]
    format: Format,
}

pub async fn run(args: CodebaseArgs, client: &Client) -> Result<Exit, Failure> {
    match args.command {
        CodebaseCommand::Create(args) => create(args, client).await?,
        CodebaseCommand::Ls(args) => list(args, client).await?,
        CodebaseCommand::Show(args) => show(args, client).await?,
        CodebaseCommand::Rm(args) => {
            for codebase in &args.codebases {
                client.delete_codebase(codebase).await?;
            }
        }
        CodebaseCommand::Cp(args) => {
            let CpArgs { source, target, guard } = args;
            return cp::with_codebase(source, target, guard, client).await;
        }
        CodebaseCommand::LsFiles(args) => list_files(args, client).await?,
        CodebaseCommand::Tar(args) => return tar(args, client).await,
        CodebaseCommand::Diff(args) => diff(args, client).await?,
        CodebaseCommand::Apply(args) => {
            let bundle = client.codebase_bundle(&args.codebase).await?;
            return Ok(apply::of_response(bundle, args.home).await?.0);
        }
        CodebaseCommand::Check(args) => check(args, client).await?,
        CodebaseCommand::Rules(args) => show_rules(args, client).await?,
    }
    Ok(Exit::Ok)
}

async fn create(args: CreateArgs, client: &Client) -> Result<(), Failure> {
    let CreateArgs { name, dir, tar, project, disk_mb, format } = args;
    let mut body = json!({ "name": name });
    if let Some(dir) = dir {
        let found = std::fs::canonicalize(&dir);
        let found = found.map_err(|error| unreadable("--dir", &dir, &error))?;
        body["source"] = json!({ "dir": found });
    }
    if let Some(tar) = tar {
        let file = tokio::fs::File::open(&tar).await;
        let file = file.map_err(|error| unreadable("--tar", &tar, &error))?;
        let upload: Value = client.post_archive("/api/v1/uploads", file.into()).await?;
        body["source"] = json!({ "upload": upload["id"] });
    }
    for (field, value) in
        [("project", project.map(Value::from)), ("disk_mb", disk_mb.map(Value::from))]
    {
        if let Some(value) = value {
            body[field] = value;
        }
    }
    let made = spinner::during("creating", client.create_codebase(&body)).await?;
    if format.json { print::json(&json!(made)) } else { print::line(made.id.as_str()) }
}

fn unreadable(option: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure::Usage { problem: format!("{option} {}: {error}", path.display()) }
}

async fn list(args: LsArgs, client: &Client) -> Result<(), Failure> {
    let codebases = client.codebases().await?;
    if args.format.json {
        return print::json(&json!({ "items": codebases }));
    }
    let header = ["ID", "NAME", "STATE", "PROJECT", "SANDBOXES", "CREATED"];
    print::table(header, codebases.into_iter().map(row))
}

fn state(codebase: &Codebase) -> &'static str {
    match codebase.state {
        CodebaseState::Creating => "creating",
        CodebaseState::Ready => "ready",
        CodebaseState::Deleting => "deleting",
    }
}

fn row(codebase: Codebase) -> [String; 6] {
    [
        codebase.id.to_string(),
        codebase.name.to_string(),
        state(&codebase).to_owned(),
        codebase.owner.project.clone(),
        codebase.sandboxes.len().to_string(),
        codebase.created_at.to_string(),
    ]
}

async fn show(args: ShowArgs, client: &Client) -> Result<(), Failure> {
    let codebase = client.codebase(&args.codebase).await?;
    let size = client.codebase_size(&args.codebase).await?;
    if args.format.json {
        let mut shown = json!(codebase);
        shown["size"] = json!(size);
        return print::json(&shown);
    }
    let sandboxes: Vec<&str> = codebase.sandboxes.iter().map(|id| id.as_str()).collect();
    let mut fields = vec![
        ("id", codebase.id.to_string()),
        ("name", codebase.name.to_string()),
        ("state", state(&codebase).to_owned()),
        ("project", codebase.owner.project.clone()),
        ("entries", size.entries.to_string()),
        ("bytes", size.bytes.to_string()),
        ("disk limit", codebase.disk_mb.map(|mb| format!("{mb} MiB")).unwrap_or_default()),
        ("sandboxes", sandboxes.join(" ")),
        ("created", codebase.created_at.to_string()),
    ];
    fields.retain(|(_, value)| !value.is_empty());
    fields.iter().try_for_each(|(name, value)| print::line(&format!("{name:<12} {value}")))
}

async fn list_files(args: LsFilesArgs, client: &Client) -> Result<(), Failure> {
    let path = args.path.unwrap_or_else(|| ".".to_owned());
    let query = [("path", path), ("depth", args.depth.to_string())];
    let target = format!("{}/list", client.codebase_files(&args.codebase));
    let files = client.list::<Value>(&target, &query, None).await?;
    if args.format.json {
        return print::json(&json!({ "items": files }));
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let row = |file: Value| {
        [text(&file["mode"]), file["size"].to_string(), text(&file["kind"]), text(&file["path"])]
    };
    print::table(["MODE", "SIZE", "KIND", "PATH"], files.into_iter().map(row))
}

async fn tar(args: TarArgs, client: &Client) -> Result<Exit, Failure> {
    let path = args.path.unwrap_or_else(|| ".".to_owned());
    let what = if args.unpack { Archiving::FromStdin } else { Archiving::ToStdout };
    cp::archive(&args.codebase, path.into(), what, client).await
}

async fn diff(args: DiffArgs, client: &Client) -> Result<(), Failure> {
    let diff: Value = client.codebase_diff(&args.codebase).await?;
    if args.format.json {
        return print::json(&diff);
    }
    crate::cli::diff::of_codebase(diff, client).map(drop)
}

async fn check(args: CheckArgs, client: &Client) -> Result<(), Failure> {
    let CheckArgs { id, paths, rules, format } = args;
    let with_rules = rules.is_some();
    let request = CheckRules { paths, rules };
    // Rules that are given hold for a codebase that no sandbox has, too.
    let codebase = match id.parse::<CodebaseRef>() {
        Ok(codebase) if with_rules && client.codebase(&codebase).await.is_ok() => Some(codebase),
        Ok(_) | Err(_) => None,
    };
    let items = match codebase {
        Some(codebase) => client.check_codebase(&codebase, &request).await?.items,
        None => client.check_rules(&client.resolve(&id).await?, &request).await?.items,
    };
    if format.json {
        return print::json(&json!({ "items": items }));
    }
    let row = |CheckedPath { path, permission, rule }: CheckedPath| {
        [path, permission, rule.unwrap_or_else(|| "no rule matches".to_owned())]
    };
    print::table(["PATH", "PERMISSION", "DECIDED BY"], items.into_iter().map(row))
}

async fn show_rules(args: RulesArgs, client: &Client) -> Result<(), Failure> {
    let RulesArgs { id, set, kill, format } = args;
    let id = client.resolve(&id).await?;
    let kept = match set {
        Some(rules) => {
            let revoke = kill.then_some(Revoke::Kill);
            client.replace_rules(&id, &ReplaceRules { rules, revoke }).await?
        }
        None => client.rules(&id).await?,
    };
    if format.json {
        return print::json(&json!(kept));
    }
    let SandboxRules { rules, served, effect, killed } = &kept;
    let mut fields = vec![
        ("rules", json!(rules).to_string()),
        ("served", word(served)),
        ("effect", word(effect)),
    ];
    fields.extend(killed.map(|killed| ("killed", killed.to_string())));
    fields.iter().try_for_each(|(name, value)| print::line(&format!("{name:<12} {value}")))
}

/// A value as JSON has it.
fn word(value: &impl serde::Serialize) -> String {
    json!(value).as_str().unwrap_or_default().to_owned()
}
