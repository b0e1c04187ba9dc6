//! The results of the isolation tests of each runtime: `<data>/batteries/<runtime>.json`, 0600, durable.
//!
//! `doctor` writes it and a daemon reads it, each at any time: a file is replaced atomically, and the daemon reads it
//! again when it has changed. There is no other communication between the two.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{data_dir, file};

const BATTERIES: &str = "batteries";

/// Result of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// A required resource does not exist.
    NotApplicable,
    Held,
    /// It succeeded, or could not be judged.
    Leaked,
}

impl Verdict {
    pub fn name(self) -> &'static str {
        match self {
            Self::NotApplicable => "not applicable",
            Self::Held => "held",
            Self::Leaked => "leaked",
        }
    }
}

/// One attempt to escape, or to exceed a limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = BatteryAttempt)]
pub struct Attempted {
    #[schema(example = "host-file")]
    pub name: String,
    pub verdict: Verdict,
    /// Details of the attempt and the kernel's answer.
    pub detail: String,
}

/// Last result of `sandkeep doctor` for a runtime.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Battery {
    /// `leaked` if any attempt leaked; the runtime is then not offered.
    pub verdict: Verdict,
    /// RFC 3339.
    #[schema(value_type = String, format = DateTime)]
    pub ran_at: Timestamp,
    pub duration_ms: u64,
    /// The version of Sandkeep that ran it.
    pub sandkeep: String,
    /// The host's kernel.
    pub kernel: String,
    pub held: usize,
    pub leaked: usize,
    pub not_applicable: usize,
    pub attempts: Vec<Attempted>,
}

impl Battery {
    /// The combined result of the attempts. One leak is enough.
    pub fn of(attempts: Vec<Attempted>, kernel: String, ran_at: Timestamp, took: Duration) -> Self {
        let count = |of| attempts.iter().filter(|attempt| attempt.verdict == of).count();
        let leaked = count(Verdict::Leaked);
        Self {
            verdict: if leaked == 0 { Verdict::Held } else { Verdict::Leaked },
            ran_at,
            duration_ms: sandkeep_core::millis(took),
            sandkeep: env!("CARGO_PKG_VERSION").to_owned(),
            kernel,
            held: count(Verdict::Held),
            leaked,
            not_applicable: count(Verdict::NotApplicable),
            attempts,
        }
    }

    /// The names of the attempts that leaked.
    pub fn leaks(&self) -> impl Iterator<Item = &str> {
        let leaked = self.attempts.iter().filter(|attempt| attempt.verdict == Verdict::Leaked);
        leaked.map(|attempt| attempt.name.as_str())
    }

    /// The file with a runtime's result.
    fn path(data: &Path, runtime: &str) -> PathBuf {
        data.join(BATTERIES).join(format!("{runtime}.json"))
    }

    /// Writes the result for the daemon of this data directory, durably. Creates the directory if no daemon has done so
    /// yet.
    pub fn write(&self, data: &Path, runtime: &str) -> io::Result<()> {
        data_dir::make_private(data)?;
        let dir = data.join(BATTERIES);
        data_dir::make_private(&dir)?;
        // Two doctors would write the same temporary file.
        let alone = File::open(&dir)?;
        flock(&alone, FlockOperation::LockExclusive)?;
        let path = Self::path(data, runtime);
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        file::replace(&dir, &name, &serde_json::to_vec_pretty(self)?)?;
        file::sync(&path)?;
        file::sync(&dir)?;
        file::sync(data)
    }

    /// `None` if the tests never ran.
    pub fn read(data: &Path, runtime: &str) -> io::Result<Option<Self>> {
        match fs::read(Self::path(data, runtime)) {
            Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Changes whenever the result does.
    pub fn stamp(data: &Path, runtime: &str) -> Option<BatteryStamp> {
        let found = fs::metadata(Self::path(data, runtime)).ok()?;
        Some(BatteryStamp { inode: found.ino(), changed: found.modified().ok()? })
    }
}

/// Identifies a result without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatteryStamp {
    inode: u64,
    changed: SystemTime,
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn battery(verdict: Verdict) -> Battery {
        let held =
            Attempted { name: "clock".into(), verdict: Verdict::Held, detail: "EPERM".into() };
        let other = Attempted { name: "mount".into(), verdict, detail: "as it was".into() };
        let took = Duration::from_millis(7);
        Battery::of(vec![held, other], "1.2.3".to_owned(), Timestamp::UNIX_EPOCH, took)
    }

    #[test]
    fn one_leak_is_enough() {
        let of = |verdict| {
            let Battery { verdict, held, leaked, not_applicable, .. } = battery(verdict);
            (verdict, held, leaked, not_applicable)
        };
        assert_eq!(of(Verdict::Held), (Verdict::Held, 2, 0, 0));
        assert_eq!(of(Verdict::NotApplicable), (Verdict::Held, 1, 0, 1));
        assert_eq!(of(Verdict::Leaked), (Verdict::Leaked, 1, 1, 0));
        assert_eq!(battery(Verdict::Leaked).leaks().collect::<Vec<_>>(), ["mount"]);
    }

    #[test]
    fn a_result_is_read_as_it_was_written_and_a_new_one_is_seen() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let data = dir.path().join("data");
        assert_eq!(Battery::read(&data, "native").expect("no file is no error"), None);
        assert_eq!(Battery::stamp(&data, "native"), None);
        battery(Verdict::Leaked).write(&data, "native").expect("a writable directory");
        let first = Battery::stamp(&data, "native");
        battery(Verdict::Held).write(&data, "native").expect("a writable directory");
        assert_ne!(Battery::stamp(&data, "native"), first);
        let read = Battery::read(&data, "native").expect("it is readable");
        assert_eq!(read, Some(battery(Verdict::Held)));
        let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode();
        assert_eq!(mode(&Battery::path(&data, "native")) & 0o777, 0o600);
        assert_eq!(mode(&data) & 0o777, 0o700);
        assert_eq!(Battery::read(&data, "other").expect("no file is no error"), None);
    }

    #[test]
    fn a_result_that_says_nothing_is_an_error_and_no_absence() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        battery(Verdict::Held).write(dir.path(), "native").expect("a writable directory");
        fs::write(Battery::path(dir.path(), "native"), "{").expect("it is ours");
        assert!(Battery::read(dir.path(), "native").is_err());
    }
}
