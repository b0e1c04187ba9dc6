//! `sandkeep doctor`: what this machine offers ([`checks`]), which runtimes are usable on it ([`presence`]), and
//! whether they isolate (`battery`). And `doctor --leaks`: everything on this machine that belongs to a data directory,
//! with its sandbox. Anything without an owner is a leak.
//!
//! The leak search is read-only: it takes no lock and changes nothing, so it can run concurrently with the daemon.
//! Because the daemon keeps working meanwhile, anything without an owner is checked again before it is reported.

mod battery;
mod cgroups;
mod checks;
mod disk;
mod mounts;
mod pool;
mod presence;
mod processes;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use sandkeep_broker::RecordedCodebase;
use sandkeep_core::SandboxId;
use sandkeep_home::{self, Phase, Survey, names};
use sandkeep_store::StoreError;
use sandkeep_sys::cgroup;

pub use battery::{ALLOWED, BatteryError, TestBroker, examine, kernel};
pub use checks::{Check, checks};
pub use presence::{Presence, presence};

/// How often suspected leaks are checked again, and the interval: a destroy in progress takes a moment between its
/// steps.
const LOOKS_MAX: usize = 10;
const BETWEEN_LOOKS: std::time::Duration = sandkeep_core::limits::DOCTOR_LOOK_AGAIN;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Row,
    Home,
    Journal,
    Volume,
    Dataset,
    Snapshot,
    Mount,
    LoopDevice,
    Cgroup,
    Process,
    Namespace,
    Socket,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Row => "row",
            Self::Home => "home",
            Self::Journal => "journal",
            Self::Volume => "volume",
            Self::Dataset => "dataset",
            Self::Snapshot => "snapshot",
            Self::Mount => "mount",
            Self::LoopDevice => "loop_device",
            Self::Cgroup => "cgroup",
            Self::Process => "process",
            Self::Namespace => "namespace",
            Self::Socket => "socket",
        }
    }
}

/// One resource of this data directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct LeakedResource {
    pub kind: Kind,
    pub name: String,
    /// The sandbox, the codebase, or `instance` for shared resources. `None`: no owner.
    pub owner: Option<String>,
    pub detail: String,
}

#[derive(Debug, Serialize)]
pub struct Leaks {
    pub clean: bool,
    pub counts: BTreeMap<Kind, usize>,
    pub found: Vec<LeakedResource>,
}

#[derive(Debug, thiserror::Error)]
pub enum DoctorError {
    #[error("cannot look at {what}: {source}")]
    Io {
        what: String,
        #[source]
        source: io::Error,
    },
    #[error("cannot read the registry: {0}")]
    Registry(#[from] StoreError),
}

/// The owner of everything that the sandboxes share.
const INSTANCE: &str = "instance";

/// Finds everything that belongs to the data directory; nothing if that does not exist.
pub fn leaks(data: &Path) -> Result<Leaks, DoctorError> {
    // Mount tables and loop devices show the resolved path.
    let data = match std::fs::canonicalize(data) {
        Ok(data) => data,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Leaks::new(Vec::new())),
        Err(error) => return Err(during("the data directory")(error)),
    };
    let trash = disk::trash(&data)?;
    let mut looks = 1;
    loop {
        let mut found = look(&data)?;
        found.extend(disk::trash_found(&data, &trash)?);
        if looks == LOOKS_MAX || found.iter().all(|found| found.owner.is_some()) {
            return Ok(Leaks::new(found));
        }
        looks += 1;
        std::thread::sleep(BETWEEN_LOOKS);
    }
}

impl Leaks {
    fn new(mut found: Vec<LeakedResource>) -> Self {
        found.sort();
        let mut counts = BTreeMap::new();
        for found in &found {
            *counts.entry(found.kind).or_insert(0) += 1;
        }
        Self { clean: found.iter().all(|found| found.owner.is_some()), counts, found }
    }
}

/// One scan of the machine. `data` is a resolved path.
fn look(data: &Path) -> Result<Vec<LeakedResource>, DoctorError> {
    let survey = sandkeep_home::survey(data).map_err(during("the homes"))?;
    let (rows, codebases) = (disk::rows(data)?, disk::codebases(data)?);
    let owners = Owners::new(&survey, &rows, &codebases, &disk::build_caches(data)?);
    let mut found = disk::found(data, &survey, &rows, &owners)?;
    found.extend(codebases.iter().map(disk::row_of_codebase));
    found.extend(pool::found(data, &survey, &owners)?);
    found.extend(mounts::found(data, &owners).map_err(during("the mounts"))?);
    if let Some(instance) = &survey.instance {
        let groups =
            cgroups::of_instance(instance.as_str()).map_err(during("the control groups"))?;
        found.extend(cgroups::found(&groups, &owners));
        let mut pids = processes::in_groups(&groups);
        pids.extend(cgroup::guests(instance.as_str()).map_err(during("the guests"))?);
        found.extend(processes::found(&pids, &owners));
        found.extend(
            processes::launchers(instance.as_str(), survey.daemon_pid)
                .map_err(during("the processes"))?,
        );
    }
    Ok(found)
}

fn during(what: &str) -> impl FnOnce(io::Error) -> DoctorError {
    let what = what.to_owned();
    move |source| DoctorError::Io { what, source }
}

/// Who may own something: the sandboxes with a row, those that would be adopted, and codebases, by the names of their
/// volumes.
struct Owners(BTreeMap<SandboxId, String>);

impl Owners {
    fn new(
        survey: &Survey,
        rows: &[SandboxId],
        codebases: &[RecordedCodebase],
        caches: &[SandboxId],
    ) -> Self {
        let adopted = survey.homes.iter().filter(|home| matches!(home.phase, Ok(Phase::Ready)));
        let sandboxes =
            adopted.map(|home| &home.id).chain(rows).map(|id| (id.clone(), id.to_string()));
        let codebases = codebases.iter().map(|row| (row.id.volume(), row.id.to_string()));
        let caches = caches.iter().map(|volume| (volume.clone(), "a cache of builds".to_owned()));
        Self(sandboxes.chain(codebases).chain(caches).collect())
    }

    /// The owner of a resource whose name contains a sandbox id.
    fn of(&self, name: &str) -> Option<String> {
        self.0.get(&name.parse::<SandboxId>().ok()?).cloned()
    }
}

/// A cgroup of a sandbox in one hierarchy.
struct Group {
    path: PathBuf,
    sandbox: String,
}
