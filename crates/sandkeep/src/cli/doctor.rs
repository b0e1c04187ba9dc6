//! `sandkeep doctor`: what this machine offers, and whether anything was left lying about.

use std::path::PathBuf;

use serde_json::json;

use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::{Format, print};
use crate::config::{self, ConfigFile, Flags, Surroundings};
use crate::doctor::{self, Leaks};

/// Look for what is wrong on this machine
///
/// Plain: what Sandkeep needs and whether it is here. With --leaks: every mount, control group,
/// namespace, process, volume, loop device, socket and row that belongs to a data directory, and to
/// which sandbox; it ends with 1 if anything belongs to none.
#[derive(Debug, clap::Args)]
pub struct DoctorArgs {
    /// Look for what belongs to no sandbox
    #[arg(long)]
    leaks: bool,

    /// The data directory to look at [default: as for serve]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,

    #[command(flatten)]
    file: ConfigFile,

    #[command(flatten)]
    format: Format,
}

pub fn run(args: DoctorArgs, around: &Surroundings) -> Result<Exit, Failure> {
    match args.leaks {
        true => leaks(args, around),
        false => checks(args.format),
    }
}

fn leaks(args: DoctorArgs, around: &Surroundings) -> Result<Exit, Failure> {
    let data = match args.data_dir {
        Some(data) => data,
        None => {
            let file = args.file.config.as_deref();
            config::load(file, &Flags::default(), around)?.settings.data_dir
        }
    };
    let leaks = doctor::leaks(&data).map_err(|e| Failure::Tool(Box::new(e)))?;
    match args.format.json {
        true => print::json(&json!(leaks))?,
        false => print_leaks(&leaks)?,
    }
    Ok(if leaks.clean { Exit::Ok } else { Exit::RequestFailed })
}

fn print_leaks(leaks: &Leaks) -> Result<(), Failure> {
    let rows = leaks.found.iter().map(|found| {
        let owner = found.owner.clone().unwrap_or_else(|| "NOBODY".to_owned());
        [found.kind.name().to_owned(), found.name.clone(), owner, found.detail.clone()]
    });
    if !leaks.found.is_empty() {
        print::table(["KIND", "NAME", "OWNER", "DETAIL"], rows)?;
    }
    let unowned = leaks.found.iter().filter(|found| found.owner.is_none()).count();
    print::line(&match unowned {
        0 => format!("clean: {} things, each with an owner", leaks.found.len()),
        _ => format!("{unowned} of {} things belong to nobody", leaks.found.len()),
    })
}

fn checks(format: Format) -> Result<Exit, Failure> {
    let checks = doctor::checks();
    let rows = checks.iter().map(|check| {
        let verdict = if check.ok { "yes" } else { "no" };
        [check.what.to_owned(), verdict.to_owned(), check.found.clone()]
    });
    match format.json {
        true => print::json(&json!({ "checks": checks }))?,
        false => print::table(["NEEDED", "HERE", "FOUND"], rows)?,
    }
    let fine = checks.iter().all(|check| check.ok || !check.required);
    Ok(if fine { Exit::Ok } else { Exit::RequestFailed })
}
