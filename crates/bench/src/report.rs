//! The figures of a run: quantiles, ratios to the yardsticks, and the goals.

mod runtimes;
mod storages;

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::rates::{Rate, Taken};
use runtimes::RuntimeFigures;
use storages::StorageFigures;

pub use runtimes::RuntimeSamples;
pub use storages::{Operation, StorageSamples};

/// What is timed. Everything before `Cold` is a yardstick: an alternative.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    Spawn,
    Bwrap,
    CrunRun,
    RuncRun,
    RunscRun,
    DockerRun,
    DockerExec,
    PodmanRun,
    PodmanExec,
    Cold,
    Exec,
    Destroy,
}

impl Measure {
    fn name(self) -> &'static str {
        match self {
            Self::Spawn => "spawn",
            Self::Bwrap => "bwrap",
            Self::CrunRun => "crun run",
            Self::RuncRun => "runc run",
            Self::RunscRun => "runsc run",
            Self::DockerRun => "docker run",
            Self::DockerExec => "docker exec",
            Self::PodmanRun => "podman run",
            Self::PodmanExec => "podman exec",
            Self::Cold => "cold",
            Self::Exec => "exec",
            Self::Destroy => "destroy",
        }
    }

    fn meaning(self) -> &'static str {
        match self {
            Self::Spawn => "/bin/true by posix_spawn, waited for",
            Self::Bwrap => "the same in bwrap --unshare-all",
            Self::CrunRun | Self::RuncRun | Self::RunscRun => "the same in a new container",
            Self::DockerRun | Self::PodmanRun => "the same in a new container",
            Self::DockerExec | Self::PodmanExec => "the same in a running container",
            Self::Cold => "create, then /bin/true's answer, HTTP",
            Self::Exec => "/bin/true in a running sandbox, HTTP",
            Self::Destroy => "a sandbox without processes, HTTP",
        }
    }

    /// The design's goals: at most this multiple of a yardstick.
    fn goals(self) -> &'static [Goal] {
        match self {
            Self::Cold => &[Goal { yardstick: Measure::Bwrap, at_most: 0.5 }],
            Self::Exec => &[
                Goal { yardstick: Measure::Spawn, at_most: 1.3 },
                Goal { yardstick: Measure::DockerExec, at_most: 1.0 / 40.0 },
            ],
            Self::Destroy => &[Goal { yardstick: Measure::Spawn, at_most: 1.0 }],
            Self::Spawn
            | Self::Bwrap
            | Self::CrunRun
            | Self::RuncRun
            | Self::RunscRun
            | Self::DockerRun
            | Self::DockerExec
            | Self::PodmanRun
            | Self::PodmanExec => &[],
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Goal {
    yardstick: Measure,
    at_most: f64,
}

/// Whether operations follow each other at once or after a pause. Paths with many hops between processes are slower
/// after a pause, so a figure needs its regime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Regime {
    BackToBack,
    Paced,
}

/// All samples of one measure.
#[derive(Clone, Debug)]
pub struct Samples {
    pub measure: Measure,
    pub taken: Vec<Duration>,
}

/// A yardstick that is not available on this machine, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    pub measure: Measure,
    pub reason: String,
}

#[derive(Debug, Serialize)]
pub struct Report {
    regime: Regime,
    rounds: usize,
    measures: Vec<Figures>,
    runtimes: Vec<RuntimeFigures>,
    left_out: Vec<LeftOut>,
    rates: Vec<Rate>,
    tools: Vec<Rate>,
    storages: Vec<StorageFigures>,
}

#[derive(Debug, Serialize)]
struct Figures {
    measure: Measure,
    n: usize,
    p50_ms: f64,
    p99_ms: f64,
    times_spawn: Option<f64>,
    times_bwrap: Option<f64>,
    goals: Vec<Verdict>,
}

#[derive(Debug, Serialize)]
struct Verdict {
    #[serde(flatten)]
    goal: Goal,
    reached: f64,
    met: bool,
}

impl Report {
    pub fn new(
        regime: Regime,
        rounds: usize,
        samples: &[Samples],
        runtimes: &[&RuntimeSamples],
        left_out: Vec<LeftOut>,
    ) -> Self {
        let median = |measure: Measure| {
            let samples = samples.iter().find(|s| s.measure == measure)?;
            quantile_ms(&samples.taken, 0.5)
        };
        let measures = samples.iter().filter_map(|s| Figures::new(s, &median)).collect();
        let runtimes = runtimes.iter().filter_map(|s| RuntimeFigures::new(s, &median)).collect();
        Self {
            regime,
            rounds,
            measures,
            runtimes,
            left_out,
            rates: Vec::new(),
            tools: Vec::new(),
            storages: Vec::new(),
        }
    }

    pub fn with_rates(self, rates: Vec<Rate>) -> Self {
        Self { rates, ..self }
    }

    pub fn with_tools(self, tools: Vec<Rate>) -> Self {
        Self { tools, ..self }
    }

    pub fn with_storages(self, samples: &[StorageSamples]) -> Self {
        Self { storages: StorageFigures::all(samples), ..self }
    }
}

impl Figures {
    /// `None` if nothing was measured.
    fn new(samples: &Samples, median: &impl Fn(Measure) -> Option<f64>) -> Option<Self> {
        let (p50_ms, p99_ms) =
            (quantile_ms(&samples.taken, 0.5)?, quantile_ms(&samples.taken, 0.99)?);
        let times = |yardstick| median(yardstick).map(|base: f64| p50_ms / base);
        let verdict = |goal: &Goal| {
            let reached = times(goal.yardstick)?;
            Some(Verdict { goal: *goal, reached, met: reached <= goal.at_most })
        };
        Some(Self {
            measure: samples.measure,
            n: samples.taken.len(),
            p50_ms,
            p99_ms,
            times_spawn: times(Measure::Spawn),
            times_bwrap: times(Measure::Bwrap),
            goals: samples.measure.goals().iter().filter_map(verdict).collect(),
        })
    }
}

/// With as many digits as are significant.
fn figure(value: f64) -> String {
    if value < 100.0 { format!("{value:.2}") } else { format!("{value:.0}") }
}

/// The nearest-rank quantile, in milliseconds.
fn quantile_ms(taken: &[Duration], quantile: f64) -> Option<f64> {
    let mut sorted = taken.to_vec();
    sorted.sort_unstable();
    let rank = (quantile * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.checked_sub(1)?).map(|d| d.as_secs_f64() * 1_000.0)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let regime = match self.regime {
            Regime::BackToBack => "back to back",
            Regime::Paced => "paced, a pause before every operation",
        };
        writeln!(f, "{} interleaved rounds, {regime}\n", self.rounds)?;
        writeln!(
            f,
            "{:<12} {:<38} {:>5} {:>9} {:>9} {:>8} {:>8}  goal",
            "", "", "n", "p50 ms", "p99 ms", "x spawn", "x bwrap"
        )?;
        for figures in &self.measures {
            writeln!(f, "{figures}")?;
        }
        for left_out in &self.left_out {
            writeln!(f, "{:<12} not measured: {}", left_out.measure.name(), left_out.reason)?;
        }
        for Rate { name, meaning, unit, taken } in self.rates.iter().chain(&self.tools) {
            match taken {
                Taken::Measured { value, yardstick, times } => writeln!(
                    f,
                    "{name:<12} {meaning:<46} {:>9} of {} {unit}: {times:.2}",
                    figure(*value),
                    figure(*yardstick),
                )?,
                Taken::NotMeasured { reason } => writeln!(f, "{name:<12} not measured: {reason}")?,
            }
        }
        RuntimeFigures::head(f)?;
        self.runtimes.iter().try_for_each(|runtime| writeln!(f, "{runtime}"))?;
        if !self.storages.is_empty() {
            StorageFigures::head(f)?;
        }
        self.storages.iter().try_for_each(|storage| write!(f, "{storage}"))
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let times = |t: Option<f64>| t.map_or_else(|| "-".to_owned(), |t| format!("{t:.2}"));
        write!(
            f,
            "{:<12} {:<38} {:>5} {:>9.3} {:>9.3} {:>8} {:>8}",
            self.measure.name(),
            self.measure.meaning(),
            self.n,
            self.p50_ms,
            self.p99_ms,
            times(self.times_spawn),
            times(self.times_bwrap),
        )?;
        for verdict in &self.goals {
            let met = if verdict.met { "met" } else { "not met" };
            let yardstick = verdict.goal.yardstick.name();
            let (most, reached) = (verdict.goal.at_most, verdict.reached);
            write!(f, "  <= {most:.3} x {yardstick}: {met} ({reached:.3})")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(measure: Measure, millis: &[u64]) -> Samples {
        Samples { measure, taken: millis.iter().copied().map(Duration::from_millis).collect() }
    }

    #[test]
    fn quantiles_are_samples_that_were_taken() {
        let taken = samples(Measure::Spawn, &(1..=100).rev().collect::<Vec<_>>()).taken;
        assert_eq!(quantile_ms(&taken, 0.5), Some(50.0));
        assert_eq!(quantile_ms(&taken, 0.99), Some(99.0));
        assert_eq!(quantile_ms(&[], 0.5), None);
    }

    #[test]
    fn a_goal_is_judged_only_against_a_yardstick_that_was_measured() {
        let all = [samples(Measure::Spawn, &[10]), samples(Measure::Exec, &[14])];
        let report = Report::new(Regime::BackToBack, 1, &all, &[], Vec::new());
        let goals = &report.measures[1].goals;
        assert_eq!(goals.len(), 1, "docker was not measured: {goals:?}");
        assert!(!goals[0].met && (goals[0].reached - 1.4).abs() < 1e-9);
    }
}
