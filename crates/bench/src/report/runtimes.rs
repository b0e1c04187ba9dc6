//! The second table: every runtime compared with the bare tool that it uses.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::{Measure, quantile_ms};

/// An exec through our guest in a container is at least this many times faster than the engine's own.
const ENGINE_EXEC_AT_MOST: f64 = 0.1;

/// All samples of one runtime.
#[derive(Clone, Debug)]
pub struct RuntimeSamples {
    pub runtime: String,
    pub cold: Vec<Duration>,
    pub exec: Vec<Duration>,
    pub destroy: Vec<Duration>,
    pub idle_kib: Option<f64>,
    /// The measure of running a command once with the bare tool.
    run_with: Option<Measure>,
    /// The measure of running one in a running container.
    exec_with: Option<Measure>,
}

impl RuntimeSamples {
    pub fn new(runtime: String, run_with: Option<Measure>, exec_with: Option<Measure>) -> Self {
        let (cold, exec, destroy) = (Vec::new(), Vec::new(), Vec::new());
        Self { runtime, cold, exec, destroy, idle_kib: None, run_with, exec_with }
    }

    pub fn clear(&mut self) {
        for samples in [&mut self.cold, &mut self.exec, &mut self.destroy] {
            samples.clear();
        }
    }
}

#[derive(Debug, Serialize)]
pub struct RuntimeFigures {
    runtime: String,
    n: usize,
    cold: Quantiles,
    exec: Quantiles,
    destroy: Quantiles,
    idle_kib: Option<f64>,
    /// Cold, compared with the bare tool's run.
    run: Option<Against>,
    /// Exec, compared with the bare tool's.
    in_running: Option<Against>,
}

#[derive(Debug, Serialize)]
struct Quantiles {
    p50_ms: f64,
    p99_ms: f64,
}

#[derive(Debug, Serialize)]
struct Against {
    yardstick: Measure,
    times: f64,
}

impl RuntimeFigures {
    /// `None` if nothing was measured.
    pub fn new(samples: &RuntimeSamples, median: &impl Fn(Measure) -> Option<f64>) -> Option<Self> {
        let quantiles = |taken: &[Duration]| {
            Some(Quantiles { p50_ms: quantile_ms(taken, 0.5)?, p99_ms: quantile_ms(taken, 0.99)? })
        };
        let (cold, exec) = (quantiles(&samples.cold)?, quantiles(&samples.exec)?);
        let against = |yardstick: Option<Measure>, ours: &Quantiles| {
            let yardstick = yardstick?;
            Some(Against { yardstick, times: ours.p50_ms / median(yardstick)? })
        };
        Some(Self {
            runtime: samples.runtime.clone(),
            n: samples.cold.len(),
            run: against(samples.run_with, &cold),
            in_running: against(samples.exec_with, &exec),
            destroy: quantiles(&samples.destroy)?,
            idle_kib: samples.idle_kib,
            cold,
            exec,
        })
    }

    pub fn head(f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n{:<12} {:>4} {:>9} {:>9} {:>10} {:>9}  p50 against the bare tool",
            "runtime", "n", "cold ms", "exec ms", "destroy ms", "idle KiB"
        )
    }
}

impl fmt::Display for RuntimeFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let idle = self.idle_kib.map_or_else(|| "-".to_owned(), |kib| format!("{kib:.0}"));
        write!(
            f,
            "{:<12} {:>4} {:>9.3} {:>9.3} {:>10.3} {:>9}",
            self.runtime, self.n, self.cold.p50_ms, self.exec.p50_ms, self.destroy.p50_ms, idle
        )?;
        if let Some(Against { yardstick, times }) = &self.run {
            write!(f, "  cold {times:.3} x {}", yardstick.name())?;
        }
        if let Some(Against { yardstick, times }) = &self.in_running {
            write!(f, "  exec {times:.3} x {}", yardstick.name())?;
            if matches!(yardstick, Measure::DockerExec | Measure::PodmanExec) {
                let met = if *times <= ENGINE_EXEC_AT_MOST { "met" } else { "not met" };
                write!(f, " (goal <= {ENGINE_EXEC_AT_MOST}: {met})")?;
            }
        }
        Ok(())
    }
}
