//! `sandkeep doctor`: what this machine offers, whether its runtimes isolate, and whether anything was left behind.

mod diagnosis;

use std::path::{Path, PathBuf};

use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::run::place::{self, TempDataDir};
use crate::cli::{Format, assemble, print};
use crate::config::{self, ConfigFile, Flags, Settings, Surroundings};
use crate::doctor::{self, Leaks};
use diagnosis::Diagnosis;

/// Check this machine and the isolation of its runtimes
///
/// Shows which features and runtimes work here, then makes about sixty escape attempts in throwaway sandboxes of each
/// runtime. The results are stored in the data directory: the daemon does not offer a runtime that leaks until a later
/// run finds that it holds. Exits with 1 if a runtime leaks or none is usable. Needs no daemon and does not disturb one.
///
/// With --leaks, lists every mount, cgroup, namespace, process, volume, dataset, loop device, socket and row of a data
/// directory with its owner, and exits with 1 if anything has no owner.
#[derive(Debug, clap::Args)]
pub struct DoctorArgs {
    /// List all resources and find those without an owner
    #[arg(long)]
    leaks: bool,

    /// Check only this runtime
    #[arg(long, value_name = "NAME", conflicts_with = "leaks")]
    runtime: Option<String>,

    /// Skip the escape attempts
    #[arg(long, conflicts_with = "leaks")]
    no_battery: bool,

    /// Data directory to check, or to store results in [default: as for serve]
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
    if args.leaks {
        leaks(&args, &settings, around)
    } else {
        examine(&args, &settings, around).await
    }
}

fn leaks(args: &DoctorArgs, settings: &Settings, around: &Surroundings) -> Result<Exit, Failure> {
    let looked_at = settings.data_dir.display();
    if let (Some(url), None) = (around.var("SANDKEEP_URL"), &args.data_dir) {
        print::note(&format!(
            "this looks at {looked_at} on this machine; if the daemon at {} has another data directory, name it \
             with --data-dir",
            url.to_string_lossy()
        ));
    }
    let leaks = doctor::leaks(&settings.data_dir).map_err(|e| Failure::Tool(Box::new(e)))?;
    if args.format.json {
        print::json(&json!(leaks))?
    } else {
        print_leaks(&leaks, &settings.data_dir)?
    }
    Ok(if leaks.clean { Exit::Ok } else { Exit::RequestFailed })
}

fn print_leaks(leaks: &Leaks, data_dir: &Path) -> Result<(), Failure> {
    let rows = leaks.found.iter().map(|found| {
        let owner = found.owner.clone().unwrap_or_else(|| "NOBODY".to_owned());
        [found.kind.name().to_owned(), found.name.clone(), owner, found.detail.clone()]
    });
    if !leaks.found.is_empty() {
        print::table(["KIND", "NAME", "OWNER", "DETAIL"], rows)?;
    }
    let unowned = leaks.found.iter().filter(|found| found.owner.is_none()).count();
    print::line(&match unowned {
        0 => format!(
            "clean: {} resources of {}, each with an owner",
            leaks.found.len(),
            data_dir.display()
        ),
        _ => format!(
            "{unowned} of {} resources of {} have no owner",
            leaks.found.len(),
            data_dir.display()
        ),
    })
}

/// In a data directory of its own, so that a daemon may run at the same time; only the results are written to the
/// daemon's.
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
    let place = TempDataDir::of(&data);
    let result = match assemble::ward(settings, data).await {
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
        print::note(&format!("{path} could not be removed; the next run tries again: {error}"));
    }
    let diagnosis: Diagnosis = result?;
    diagnosis.print(args.format)?;
    Ok(if diagnosis.is_fine() { Exit::Ok } else { Exit::RequestFailed })
}
