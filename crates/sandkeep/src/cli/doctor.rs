//! `sandkeep doctor`: what this machine offers, whether its runtimes isolate, and whether anything was left lying about.

mod diagnosis;

use std::path::PathBuf;

use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::run::place::{self, Place};
use crate::cli::{Format, assemble, print};
use crate::config::{self, ConfigFile, Flags, Settings, Surroundings};
use crate::doctor::{self, Leaks};
use diagnosis::Diagnosis;

/// Look for what is wrong on this machine
///
/// Plain: what Sandkeep can use here, which runtimes work, and then, in throwaway sandboxes of each of them, some sixty
/// attempts to get out or to take more than their share. What they came to is kept in the data directory, where the daemon
/// finds it: a runtime that leaks is not offered until a later run finds that it holds. Ends with 1 if one leaks, or none
/// can be used. No daemon is needed, and one that runs is not disturbed.
///
/// With --leaks: every mount, control group, namespace, process, volume, dataset, loop device, socket and row that belongs to a data
/// directory, and to which sandbox; it ends with 1 if anything belongs to none.
#[derive(Debug, clap::Args)]
pub struct DoctorArgs {
    /// Look for what belongs to no sandbox
    #[arg(long)]
    leaks: bool,

    /// Only this runtime
    #[arg(long, value_name = "NAME", conflicts_with = "leaks")]
    runtime: Option<String>,

    /// Do not try to get out of anything
    #[arg(long, conflicts_with = "leaks")]
    no_battery: bool,

    /// The data directory to look at, or to leave results in [default: as for serve]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,

    #[command(flatten)]
    file: ConfigFile,

    #[command(flatten)]
    format: Format,
}

pub async fn run(args: DoctorArgs, around: &Surroundings) -> Result<Exit, Failure> {
    let mut settings =
        config::load(args.file.config.as_deref(), &Flags::default(), around)?.settings;
    if let Some(data_dir) = &args.data_dir {
        settings.data_dir.clone_from(data_dir);
    }
    match args.leaks {
        true => leaks(&args, &settings),
        false => examine(&args, &settings, around).await,
    }
}

fn leaks(args: &DoctorArgs, settings: &Settings) -> Result<Exit, Failure> {
    let leaks = doctor::leaks(&settings.data_dir).map_err(|e| Failure::Tool(Box::new(e)))?;
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

/// In a data directory of its own, so that a daemon may run beside it; only the results go to the daemon's.
async fn examine(
    args: &DoctorArgs,
    settings: &Settings,
    around: &Surroundings,
) -> Result<Exit, Failure> {
    let mut interrupt =
        signal(SignalKind::interrupt()).map_err(Failure::system("handle signals"))?;
    let parent = std::env::temp_dir();
    place::sweep(&parent, settings).await;
    let data = place::make(&parent)?;
    let place = Place::of(&data);
    let result = match assemble::ward(settings, data, &parent).await {
        Ok((ward, warning)) => {
            let diagnosed = tokio::select! {
                diagnosed = diagnosis::make(args, settings, &ward, warning, around) => diagnosed,
                _ = interrupt.recv() => Err(Failure::Interrupted),
            };
            let cleared = assemble::clear(&ward.broker).await;
            diagnosed.and_then(|diagnosis| cleared.map(|()| diagnosis).map_err(Failure::from))
        }
        Err(error) => Err(error.into()),
    };
    if let Err(error) = place.remove() {
        let path = place.path().display();
        print::note(&format!("{path} is kept, and the next run tries to clear it: {error}"));
    }
    let diagnosis: Diagnosis = result?;
    diagnosis.print(args.format)?;
    Ok(if diagnosis.is_fine() { Exit::Ok } else { Exit::RequestFailed })
}
