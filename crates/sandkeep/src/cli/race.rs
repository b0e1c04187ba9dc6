//! `sandkeep race`: forks of a sandbox each try something, a judge gives each a number, and the files of the best are
//! kept.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::json;
use tokio::signal::unix::{self, SignalKind};

use crate::cli::argument::{duration, pair};
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::screen::Lines;
use crate::cli::{Format, print};
use sandkeep_client::{Client, Error};
use sandkeep_core::api::{RaceEvent, RaceResult, RaceSandbox, Racer};
use sandkeep_core::{SandboxId, SnapshotName};

/// Try several things in forks of a sandbox, and keep the best
///
/// Each racer is a fork. CMD runs in each (SANDKEEP_RACER is its number, from 1), then the judge, which prints a number
/// on its last line: the highest wins. A command or judge that fails puts its racer out. The winner's files become the
/// sandbox's, as a turn; the turn before it holds what the sandbox was. The forks are removed, also on Ctrl-C.
#[derive(Debug, clap::Args)]
pub struct RaceArgs {
    /// Sandbox name, id or unique prefix of an id
    id: String,
    /// Number of racers [default: the number of --command or --patch]
    #[arg(long, short = 'n', value_name = "N")]
    count: Option<usize>,
    /// Command that prints a racer's score, run by sh -c
    #[arg(long, value_name = "CMD")]
    judge: String,
    /// A command for one racer, run by sh -c; repeat it for the others
    #[arg(long = "command", value_name = "CMD", conflicts_with = "argv")]
    commands: Vec<String>,
    /// A unified diff to apply in one racer first; repeat it for the others
    #[arg(long = "patch", value_name = "FILE")]
    patches: Vec<PathBuf>,
    /// Snapshot to start from: name, id or unique prefix of an id [default: the current files]
    #[arg(long, short = 's', value_name = "SNAPSHOT")]
    snapshot: Option<SnapshotName>,
    /// Working directory of commands and judge
    #[arg(long, value_name = "DIR")]
    cwd: Option<String>,
    /// Environment variable of commands and judge; repeatable
    #[arg(long = "env", short = 'e', value_name = "NAME=VALUE", value_parser = pair)]
    env: Vec<(String, String)>,
    /// Kill a racer's command after this time, such as 30s or 5m
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    timeout: Option<std::time::Duration>,
    /// Kill a judge after this time [default: 10m]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    judge_timeout: Option<std::time::Duration>,
    #[command(flatten)]
    format: Format,
    /// Command and arguments that every racer runs, after `--`
    #[arg(last = true, value_name = "CMD")]
    argv: Vec<String>,
}

pub async fn run(args: RaceArgs, client: &Client) -> Result<Exit, Failure> {
    let id = client.resolve(&args.id).await?;
    let format = args.format;
    let request = request(args, &id, client).await?;
    let mut interrupts =
        unix::signal(SignalKind::interrupt()).map_err(Failure::system("handle signals"))?;
    let result = tokio::select! {
        result = follow(&id, &request, client) => result?,
        _ = interrupts.recv() => {
            // The daemon sees that nobody waits.
            print::note("the race is given up; its forks are removed, and the sandbox is as it was");
            sandkeep_sys::signal::end_by(SignalKind::interrupt().as_raw_value())
        }
    };
    let kept = result.turn.is_some();
    if format.json {
        print::json(&json!(result))?
    } else {
        show(&id, &result)?
    }
    Ok(if kept { Exit::Ok } else { Exit::RequestFailed })
}

async fn request(args: RaceArgs, id: &SandboxId, client: &Client) -> Result<RaceSandbox, Failure> {
    let mut patches = Vec::new();
    for path in &args.patches {
        let text = std::fs::read_to_string(path).map_err(|error| Failure::Usage {
            problem: format!("--patch {}: {error}", path.display()),
        })?;
        patches.push(text);
    }
    let snapshot = match args.snapshot {
        Some(name) => Some(client.resolve_snapshot(id, &name).await?),
        None => None,
    };
    let some = |list: Vec<String>| (!list.is_empty()).then_some(list);
    Ok(RaceSandbox {
        count: args.count,
        command: None,
        argv: some(args.argv),
        commands: some(args.commands),
        patches: some(patches),
        judge: args.judge,
        env: Some(BTreeMap::from_iter(args.env)),
        cwd: args.cwd,
        timeout_ms: args.timeout.map(sandkeep_core::millis),
        judge_timeout_ms: args.judge_timeout.map(sandkeep_core::millis),
        snapshot,
    })
}

/// Shows the racers until the race has ended.
async fn follow(
    id: &SandboxId,
    request: &RaceSandbox,
    client: &Client,
) -> Result<RaceResult, Failure> {
    let mut events = client.race_events(id, request).await?;
    let (mut racers, mut screen) = (Vec::<Racer>::new(), Lines::default());
    loop {
        match events.next::<RaceEvent>().await? {
            RaceEvent::Started { racers: all } => racers = all,
            RaceEvent::Racer { racer } => {
                if let Some(place) = racers.get_mut(racer.racer.saturating_sub(1)) {
                    *place = racer;
                }
            }
            RaceEvent::Done { result } => {
                screen.show(&[])?;
                return Ok(result);
            }
            RaceEvent::Failed { problem } => return Err(Error::Refused(Box::new(problem)).into()),
        }
        screen.show(&table(&racers, None))?;
    }
}

fn table(racers: &[Racer], winner: Option<usize>) -> Vec<String> {
    let rows = racers.iter().map(|racer| {
        let score = racer.score.map_or("-".to_owned(), |score| score.to_string());
        let time = |ms: u64| format!("{:.1} s", ms as f64 / 1000.0);
        let note = match &racer.problem {
            _ if winner == Some(racer.racer) => "winner",
            Some(problem) => problem,
            None => "",
        };
        vec![
            racer.racer.to_string(),
            racer.state.as_str().to_owned(),
            score,
            racer.duration_ms.map_or("-".to_owned(), time),
            note.replace(char::is_control, " "),
        ]
    });
    print::lines(["RACER", "STATE", "SCORE", "TIME", "NOTE"], rows)
}

fn show(id: &SandboxId, result: &RaceResult) -> Result<(), Failure> {
    for line in table(&result.racers, result.winner) {
        print::line(&line)?;
    }
    if let Some(turn) = &result.turn {
        print::line(&format!(
            "{} holds the winner's files, which are the sandbox's now",
            turn.name
        ))?;
        if let Some(before) = &result.before {
            print::line(&format!("to undo it: sandkeep rollback {id} {}", before.name))?;
        }
        return Ok(());
    }
    // The racer's output is the best hint at the cause.
    for racer in result.racers.iter().filter(|racer| racer.problem.is_some()) {
        let said = if racer.judge_output.is_empty() { &racer.output } else { &racer.judge_output };
        for line in said.lines() {
            print::note(&format!("racer {}: {}", racer.racer, line.replace(char::is_control, " ")));
        }
    }
    let problem = result.problem.as_deref().unwrap_or("it is not known why");
    match (&result.kept, &result.before) {
        (Some(kept), _) => print::note(&format!(
            "the winner could not be kept: {problem}; its fork stays: sandkeep diff {kept}"
        )),
        (None, Some(before)) => print::note(&format!(
            "the sandbox has the winner's files, but not as a turn: {problem}; to undo it: sandkeep rollback {id} {}",
            before.name
        )),
        (None, None) => print::note(&format!("{problem}; the sandbox is as it was")),
    }
    Ok(())
}
