//! A read-only scan of a data directory without locking: for `doctor`, beside a running daemon.

use std::fs;
use std::io;
use std::path::Path;

use super::data_dir::locked_by;
use super::{Home, HomeState, Instance, Phase, QUARANTINE, SANDBOXES, Unreadable};
use sandkeep_core::SandboxId;

/// The content of a data directory.
#[derive(Debug)]
pub struct Survey {
    /// `None`: no daemon ever used it.
    pub instance: Option<Instance>,
    /// The daemon that uses it now.
    pub daemon_pid: Option<u32>,
    pub homes: Vec<SurveyedHome>,
    /// Names among the homes that are not sandbox ids.
    pub strange: Vec<String>,
    /// Homes moved aside because they could not be read.
    pub quarantined: Vec<String>,
}

#[derive(Debug)]
pub struct SurveyedHome {
    pub id: SandboxId,
    pub phase: Result<Phase, Unreadable>,
}

/// Scans the data directory `data`. The daemon keeps working meanwhile, so a home may be gone again when the caller
/// looks for its resources: check twice before calling anything a leak.
pub fn survey(data: &Path) -> io::Result<Survey> {
    let instance = Instance::read(data)?;
    let sandboxes = data.join(SANDBOXES);
    let mut homes = Vec::new();
    let mut strange = Vec::new();
    for name in names(&sandboxes)? {
        let Ok(id) = name.parse::<SandboxId>() else {
            strange.push(name);
            continue;
        };
        let whose = instance.as_ref().map(Instance::as_str).unwrap_or_default();
        match Home::new(data, id.clone(), whose.to_owned()).read() {
            HomeState::Missing => {}
            HomeState::Empty => homes.push(SurveyedHome { id, phase: Ok(Phase::Creating) }),
            HomeState::Known(meta) => homes.push(SurveyedHome { id, phase: Ok(meta.phase) }),
            HomeState::Unreadable(why) => {
                homes.push(SurveyedHome { id, phase: Err(why) });
            }
        }
    }
    let quarantined = names(&data.join(QUARANTINE))?;
    Ok(Survey { instance, daemon_pid: locked_by(data)?, homes, strange, quarantined })
}

/// The names in a directory, sorted; none if it does not exist.
pub fn names(dir: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut names = Vec::new();
    for entry in entries {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}
