//! Every runtime of the daemon compared with the bare tool that it uses: the same steps as for the default one, in the
//! same rounds, and the memory of an idle sandbox.

use std::io;
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::report::{Measure, RuntimeSamples};
use super::{Bench, BenchError, cannot, rest};
use sandkeep_core::limits::BENCH_IDLE_SANDBOXES;

/// A runtime in the daemon's list.
#[derive(Deserialize)]
struct Listed {
    name: String,
    usable: bool,
    capabilities: Capabilities,
}

#[derive(Deserialize)]
struct Capabilities {
    isolation: bool,
}

#[derive(Deserialize)]
struct Listing {
    runtimes: Vec<Listed>,
}

/// The bare tool's run and exec that a runtime is compared with.
fn bare(runtime: &str) -> (Option<Measure>, Option<Measure>) {
    match runtime {
        "native" => (Some(Measure::Bwrap), Some(Measure::Spawn)),
        "bwrap" => (Some(Measure::Bwrap), None),
        "crun" => (Some(Measure::CrunRun), None),
        "runc" => (Some(Measure::RuncRun), None),
        "gvisor" => (Some(Measure::RunscRun), None),
        "docker" => (Some(Measure::DockerRun), Some(Measure::DockerExec)),
        "podman" => (Some(Measure::PodmanRun), Some(Measure::PodmanExec)),
        _ => (None, None),
    }
}

impl Bench {
    /// Those that isolate and are usable here.
    pub(super) fn find_runtimes(&mut self) -> Result<(), BenchError> {
        let answer = self.call("list its runtimes", "GET", "/api/v1/runtimes", "")?;
        let listing: Listing = serde_json::from_slice(&answer)
            .map_err(io::Error::from)
            .map_err(cannot("understand the list of runtimes"))?;
        let usable = listing.runtimes.into_iter().filter(|r| r.usable && r.capabilities.isolation);
        for Listed { name, .. } in usable {
            let running = self.create_with(Some(&name))?;
            let (run, exec) = bare(&name);
            self.runtimes
                .push(Contender { samples: RuntimeSamples::new(name, run, exec), running });
        }
        Ok(())
    }

    pub(super) fn round_of_runtimes(&mut self) -> Result<(), BenchError> {
        for index in 0..self.runtimes.len() {
            let name = self.runtimes[index].samples.runtime.clone();
            let running = self.runtimes[index].running.clone();
            let (cold, id) = self.timed(|bench| {
                let id = bench.create_with(Some(&name))?;
                bench.exec(&id).map(|()| id)
            })?;
            let (exec, ()) = self.timed(|bench| bench.exec(&running))?;
            let (destroy, ()) = self.timed(|bench| bench.destroy(&id))?;
            let samples = &mut self.runtimes[index].samples;
            samples.cold.push(cold);
            samples.exec.push(exec);
            samples.destroy.push(destroy);
        }
        Ok(())
    }

    fn timed<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, BenchError>,
    ) -> Result<(Duration, T), BenchError> {
        rest(self.regime);
        let began = Instant::now();
        let done = work(self)?;
        Ok((began.elapsed(), done))
    }

    /// The decrease of the machine's available memory by a number of idle sandboxes, including the tool's helpers and
    /// the kernel's part.
    pub(super) fn weigh_idle(&mut self) -> Result<(), BenchError> {
        for index in 0..self.runtimes.len() {
            let name = self.runtimes[index].samples.runtime.clone();
            let before = available_kib()?;
            let mut ids = Vec::new();
            for _ in 0..BENCH_IDLE_SANDBOXES {
                ids.push(self.create_with(Some(&name))?);
            }
            for id in &ids {
                self.exec(id)?;
            }
            let used = before - available_kib()?;
            self.runtimes[index].samples.idle_kib = Some(used / f64::from(BENCH_IDLE_SANDBOXES));
            for id in &ids {
                self.destroy(id)?;
            }
        }
        Ok(())
    }

    pub(super) fn finish_runtimes(&mut self) -> Result<(), BenchError> {
        let running: Vec<String> = self.runtimes.iter().map(|r| r.running.clone()).collect();
        running.iter().try_for_each(|id| self.destroy(id))
    }
}

/// A runtime, and its running sandbox.
pub(super) struct Contender {
    pub samples: RuntimeSamples,
    running: String,
}

fn available_kib() -> Result<f64, BenchError> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").map_err(cannot("read the memory"))?;
    let field = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let number = field.and_then(|field| field.trim().trim_end_matches(" kB").parse().ok());
    number.ok_or_else(|| cannot("read the memory")(io::ErrorKind::InvalidData.into()))
}
