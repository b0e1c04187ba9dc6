//! `sandkeep bench`: the speed of this product on this machine, compared with alternatives.
//!
//! All measurements are taken in one run, one sample of each per round in turn, because a figure from another minute is
//! not comparable. Durability and isolation stay enabled.

mod daemon;
mod egress;
mod engine;
pub mod http;
mod place;
mod rates;
mod report;
mod runtimes;
mod small_root;
mod storages;
mod tools;
mod trees;
mod yardsticks;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use daemon::OwnDaemon;
use http::Connection;
use place::BenchDir;
use report::{Measure, Regime, Report, Samples};
use runtimes::Contender;
use sandkeep_core::limits::{BENCH_PAUSE, BENCH_ROUNDS_MAX, BENCH_SLOW_EVERY, BENCH_WARMUP_ROUNDS};
use sandkeep_storage::StorageChoice;
use storages::StorageArgs;
use tools::ToolArgs;
use yardsticks::Yardsticks;

pub use daemon::announced;

#[derive(Debug, clap::Args)]
pub struct BenchArgs {
    /// Number of measured rounds, after a few warm-up rounds
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=BENCH_ROUNDS_MAX))]
    rounds: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Pause 20 ms before every operation
    #[arg(long)]
    paced: bool,
    /// Skip throughput: streams and proxied requests
    #[arg(long)]
    no_rates: bool,
    #[command(flatten)]
    tools: ToolArgs,
    #[command(flatten)]
    storages: StorageArgs,
    /// Measure a running daemon, such as 127.0.0.1:4500, instead of starting one
    #[arg(long, value_name = "ADDRESS")]
    address: Option<SocketAddr>,
}

/// Why a benchmark stops.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    #[error("cannot {what}")]
    Io {
        what: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("the daemon refused to {what}: {status} {body}")]
    Refused { what: &'static str, status: u16, body: String },
    #[error("interrupted")]
    Interrupted,
}

fn cannot(what: &'static str) -> impl FnOnce(io::Error) -> BenchError {
    move |source| BenchError::Io { what, source }
}

/// Runs the benchmark and returns its report. An interrupt ends it after the current round, so that nothing is left
/// behind.
pub async fn run(args: BenchArgs) -> Result<String, BenchError> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&interrupted);
    let watcher = tokio::spawn(async move {
        if asked_to_end().await.is_ok() {
            flag.store(true, Ordering::Relaxed);
        }
    });
    let outcome = tokio::task::spawn_blocking(move || measure(&args, &interrupted)).await;
    watcher.abort();
    match outcome {
        Ok(outcome) => outcome,
        Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
    }
}

async fn asked_to_end() -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted,
        _ = terminate.recv() => Ok(()),
    }
}

fn measure(args: &BenchArgs, interrupted: &AtomicBool) -> Result<String, BenchError> {
    let _place = BenchDir::make().map_err(cannot("make a directory"))?;
    let own = match args.address {
        Some(_) => None,
        None => {
            let own = OwnDaemon::start_on(&StorageChoice::Auto, args.tools.mebibytes());
            Some(own.map_err(cannot("start a daemon"))?)
        }
    };
    let address = args.address.or(own.as_ref().map(|own| own.address)).expect("one of the two is");
    let regime = if args.paced { Regime::Paced } else { Regime::BackToBack };
    let mut bench = Bench::new(address, regime)?;
    let outcome = bench.rounds(args.rounds as usize, interrupted);
    let rates = match (&outcome, args.no_rates) {
        (Ok(()), false) => {
            let mut rates = rates::all(address, &bench.running);
            // A daemon that runs already does not know the host that is reached.
            rates.extend(own.iter().flat_map(|own| egress::all(own.address)));
            rates
        }
        (Err(_), _) | (_, true) => Vec::new(),
    };
    let tools = match &outcome {
        Ok(()) => tools::all(&args.tools, address, &bench.running),
        Err(_) => Vec::new(),
    };
    bench.finish()?;
    outcome?;
    let storages = match &own {
        Some(_) => storages::all(&args.storages, interrupted)?,
        None => Vec::new(),
    };
    let report = bench.report(args.rounds as usize);
    let report = report.with_rates(rates).with_tools(tools).with_storages(&storages);
    if args.json {
        Ok(serde_json::to_string_pretty(&report).expect("a report is always JSON"))
    } else {
        Ok(report.to_string())
    }
}

/// The part of a sandbox's JSON that the benchmark needs.
#[derive(Deserialize)]
struct Created {
    id: String,
}

/// What a round measures: operations that take a good part of a second are in one of ten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    Quick,
    All,
}

struct Bench {
    connection: Connection,
    yardsticks: Yardsticks,
    regime: Regime,
    /// The sandbox that runs all the time.
    running: String,
    samples: Vec<Samples>,
    runtimes: Vec<Contender>,
    created: u64,
}

impl Bench {
    fn new(address: SocketAddr, regime: Regime) -> Result<Self, BenchError> {
        let mut bench = Self {
            connection: Connection::open(address).map_err(cannot("connect to the daemon"))?,
            yardsticks: Yardsticks::find(),
            regime,
            running: String::new(),
            samples: Vec::new(),
            runtimes: Vec::new(),
            created: 0,
        };
        bench.running = bench.create()?;
        bench.find_runtimes()?;
        Ok(bench)
    }

    fn rounds(&mut self, rounds: usize, interrupted: &AtomicBool) -> Result<(), BenchError> {
        for round in 0..BENCH_WARMUP_ROUNDS + rounds {
            if round == BENCH_WARMUP_ROUNDS {
                self.samples.clear();
                self.runtimes.iter_mut().for_each(|runtime| runtime.samples.clear());
            }
            if interrupted.load(Ordering::Relaxed) {
                return Err(BenchError::Interrupted);
            }
            // The first counted round includes the slow operations.
            let pace = if round.abs_diff(BENCH_WARMUP_ROUNDS).is_multiple_of(BENCH_SLOW_EVERY) {
                Pace::All
            } else {
                Pace::Quick
            };
            self.round(pace)?;
        }
        self.weigh_idle()
    }

    fn round(&mut self, pace: Pace) -> Result<(), BenchError> {
        for index in 0..self.yardsticks.usable.len() {
            let yardstick = &self.yardsticks.usable[index];
            if yardstick.slow && pace == Pace::Quick {
                continue;
            }
            rest(self.regime);
            let measure = yardstick.measure;
            let taken = yardstick.sample().map_err(cannot("run a yardstick"))?;
            self.record(measure, taken);
        }

        rest(self.regime);
        let began = Instant::now();
        let id = self.create()?;
        self.exec(&id)?;
        self.record(Measure::Cold, began.elapsed());

        rest(self.regime);
        let began = Instant::now();
        self.exec(&self.running.clone())?;
        self.record(Measure::Exec, began.elapsed());

        rest(self.regime);
        let began = Instant::now();
        self.destroy(&id)?;
        self.record(Measure::Destroy, began.elapsed());
        match pace {
            Pace::All => self.round_of_runtimes(),
            Pace::Quick => Ok(()),
        }
    }

    fn record(&mut self, measure: Measure, taken: Duration) {
        match self.samples.iter_mut().find(|samples| samples.measure == measure) {
            Some(samples) => samples.taken.push(taken),
            None => self.samples.push(Samples { measure, taken: vec![taken] }),
        }
    }

    fn create(&mut self) -> Result<String, BenchError> {
        self.create_with(None)
    }

    /// Every sandbox gets a new label, because a store may skip writing an unchanged row.
    fn create_with(&mut self, runtime: Option<&str>) -> Result<String, BenchError> {
        self.created += 1;
        let labels = json!({ "bench": self.created.to_string() });
        let body = json!({ "labels": labels, "runtime": runtime }).to_string();
        let answer = self.call("create a sandbox", "POST", "/api/v1/sandboxes", &body)?;
        let created: Created = serde_json::from_slice(&answer)
            .map_err(io::Error::from)
            .map_err(cannot("understand the answer to create"))?;
        Ok(created.id)
    }

    fn exec(&mut self, id: &str) -> Result<(), BenchError> {
        let target = format!("/api/v1/sandboxes/{id}/execs");
        self.call("run a command", "POST", &target, r#"{"argv":["/bin/true"]}"#).map(drop)
    }

    fn destroy(&mut self, id: &str) -> Result<(), BenchError> {
        let target = format!("/api/v1/sandboxes/{id}");
        self.call("destroy a sandbox", "DELETE", &target, "").map(drop)
    }

    fn call(
        &mut self,
        what: &'static str,
        method: &str,
        target: &str,
        body: &str,
    ) -> Result<Vec<u8>, BenchError> {
        call(&mut self.connection, what, method, target, body)
    }

    fn report(&self, rounds: usize) -> Report {
        let runtimes: Vec<_> = self.runtimes.iter().map(|runtime| &runtime.samples).collect();
        let left_out = self.yardsticks.left_out.clone();
        Report::new(self.regime, rounds, &self.samples, &runtimes, left_out)
    }

    fn finish(&mut self) -> Result<(), BenchError> {
        self.finish_runtimes()?;
        self.destroy(&self.running.clone())
    }
}

/// A request that must succeed.
fn call(
    connection: &mut Connection,
    what: &'static str,
    method: &str,
    target: &str,
    body: &str,
) -> Result<Vec<u8>, BenchError> {
    let answer = connection.request(method, target, body).map_err(cannot(what))?;
    match answer.status {
        200..300 => Ok(answer.body),
        status => {
            let body = String::from_utf8_lossy(&answer.body).into_owned();
            Err(BenchError::Refused { what, status, body })
        }
    }
}

fn rest(regime: Regime) {
    match regime {
        Regime::BackToBack => {}
        Regime::Paced => std::thread::sleep(BENCH_PAUSE),
    }
}
