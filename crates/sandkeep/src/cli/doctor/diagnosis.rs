//! The doctor's findings, and their presentation.

use serde::Serialize;
use serde_json::json;

use super::DoctorArgs;
use crate::cli::failure::Failure;
use crate::cli::serve::messaging;
use crate::cli::{Format, print};
use crate::config::{Settings, Surroundings};
use crate::doctor::{self, Check, Presence, TestBroker};
use sandkeep_broker::RuntimeView;
use sandkeep_core::with_causes;
use sandkeep_home::{Battery, Verdict};
use sandkeep_runtime::Usable;
use sandkeep_storage::StorageCapabilities;

/// Everything, as printed by `--json`.
#[derive(Debug, Serialize)]
pub struct Diagnosis {
    kernel: String,
    checks: Vec<Check>,
    storage: StorageFound,
    runtimes: Vec<RuntimeFound>,
}

#[derive(Debug, Serialize)]
struct StorageFound {
    name: &'static str,
    capabilities: StorageCapabilities,
    /// Why a better one is not used.
    #[serde(skip_serializing_if = "Option::is_none")]
    warning: Option<String>,
}

#[derive(Debug, Serialize)]
struct RuntimeFound {
    name: &'static str,
    installed: Presence,
    usable: bool,
    /// Why it is not usable.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// How to install it.
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    battery: Option<Battery>,
    /// Why the tests gave no verdict.
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<String>,
}

pub async fn make(
    args: &DoctorArgs,
    settings: &Settings,
    ward: &TestBroker,
    warning: Option<String>,
    around: &Surroundings,
) -> Result<Diagnosis, Failure> {
    let known = ward.broker.runtimes();
    if let Some(name) = args.runtime.as_deref().filter(|n| known.iter().all(|k| k.name != *n)) {
        let names: Vec<&str> = known.iter().map(|runtime| runtime.name).collect();
        let problem = format!("unknown runtime {name:?}; available: {}", names.join(", "));
        return Err(Failure::Usage { problem });
    }
    let asked = |view: &RuntimeView| args.runtime.as_deref().is_none_or(|name| name == view.name);
    let mut runtimes = Vec::new();
    for view in known.into_iter().filter(asked) {
        let mut found = RuntimeFound::of(&view, around);
        if found.usable && view.abilities.runtime.isolation && !args.no_battery {
            found.try_it(ward, &view, settings).await;
        }
        runtimes.push(found);
    }
    let (name, capabilities) = (ward.storage.name(), ward.storage.capabilities());
    let storage = StorageFound { name, capabilities, warning };
    let mut checks = doctor::checks();
    checks.extend(messaging::check(settings).await);
    Ok(Diagnosis { kernel: doctor::kernel(), checks, storage, runtimes })
}

impl RuntimeFound {
    fn of(view: &RuntimeView, around: &Surroundings) -> Self {
        let path = around.var("PATH").cloned().unwrap_or_default();
        let (installed, remedy) = doctor::presence(view.name, &path);
        let (usable, reason) = match &view.usable {
            Usable::Yes => (true, None),
            Usable::No { reason } => (false, Some(reason.clone())),
        };
        let (battery, failure) = (None, None);
        Self { name: view.name, installed, usable, reason, remedy, battery, failure }
    }

    /// Runs the tests, and stores the results for the daemon.
    async fn try_it(&mut self, ward: &TestBroker, view: &RuntimeView, settings: &Settings) {
        match doctor::examine(ward, view).await {
            Ok(battery) => {
                if let Err(error) = battery.write(&settings.data_dir, self.name) {
                    let dir = settings.data_dir.display();
                    self.failure = Some(format!("cannot store the result in {dir}: {error}"));
                }
                self.battery = Some(battery);
            }
            Err(error) => self.failure = Some(with_causes(&error)),
        }
    }

    fn is_fine(&self) -> bool {
        let leaks = self.battery.as_ref().is_some_and(|b| b.verdict == Verdict::Leaked);
        !leaks && self.failure.is_none()
    }
}

impl Diagnosis {
    /// Nothing leaks, nothing is undecided, and something can be used.
    pub fn is_fine(&self) -> bool {
        self.runtimes.iter().all(RuntimeFound::is_fine)
            && self.runtimes.iter().any(|runtime| runtime.usable)
    }

    pub fn print(&self, format: Format) -> Result<(), Failure> {
        if format.json {
            return print::json(&json!(self));
        }
        let checks = self.checks.iter().map(|check| {
            let here = if check.ok { "yes" } else { "no" };
            [check.what.to_owned(), here.to_owned(), check.found.clone()]
        });
        print::table(["FEATURE", "HERE", "FOUND"], checks)?;
        print::line("")?;
        print::line(&self.storage.line())?;
        print::line("")?;
        let runtimes = self.runtimes.iter().map(RuntimeFound::row);
        print::table(["RUNTIME", "INSTALLED", "USABLE", "BATTERY"], runtimes)?;
        self.print_attempts()
    }

    /// One row per attempt, one column per tested runtime; then the reasons of leaks.
    fn print_attempts(&self) -> Result<(), Failure> {
        let tried: Vec<(&str, &Battery)> =
            self.runtimes.iter().filter_map(|r| Some((r.name, r.battery.as_ref()?))).collect();
        let Some((_, first)) = tried.first() else { return Ok(()) };
        print::line("")?;
        let header = std::iter::once("ATTEMPT").chain(tried.iter().map(|(name, _)| *name));
        let rows = first.attempts.iter().enumerate().map(|(at, attempt)| {
            let verdicts = tried.iter().map(|(_, battery)| {
                battery.attempts.get(at).map_or("", |attempt| attempt.verdict.name())
            });
            std::iter::once(attempt.name.as_str()).chain(verdicts).map(str::to_owned).collect()
        });
        print::wide_table(header, rows)?;
        for (name, battery) in &tried {
            let leaked = battery.attempts.iter().filter(|a| a.verdict == Verdict::Leaked);
            for attempt in leaked {
                print::line(&format!("{name} leaks by {}: {}", attempt.name, attempt.detail))?;
            }
        }
        Ok(())
    }
}

impl StorageFound {
    fn line(&self) -> String {
        let quota =
            if self.capabilities.disk_quota { "with disk quotas" } else { "without disk quotas" };
        match &self.warning {
            Some(warning) => format!("storage {}, {quota}: {warning}", self.name),
            None => format!("storage {}, {quota}", self.name),
        }
    }
}

impl RuntimeFound {
    fn row(&self) -> [String; 4] {
        let usable = match (&self.reason, self.remedy) {
            (None, _) => "yes".to_owned(),
            (Some(reason), None) => format!("no: {reason}"),
            (Some(reason), Some(remedy)) => format!("no: {reason}; {remedy}"),
        };
        let battery = match (&self.failure, &self.battery) {
            (Some(failure), _) => format!("failed: {failure}"),
            (None, Some(battery)) => summary(battery),
            (None, None) => "not run".to_owned(),
        };
        [self.name.to_owned(), self.installed.name().to_owned(), usable, battery]
    }
}

fn summary(battery: &Battery) -> String {
    let Battery { verdict, held, leaked, not_applicable, duration_ms, .. } = battery;
    let seconds = std::time::Duration::from_millis(*duration_ms).as_secs_f64();
    format!(
        "{}: {held} held, {leaked} leaked, {not_applicable} not applicable in {seconds:.1} s",
        verdict.name()
    )
}
