//! Whether the results of the isolation tests allow a runtime to be offered. `doctor` writes its results to the data
//! directory. They are checked whenever a runtime is requested, and read again when they have changed.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use sandkeep_home::{Battery, BatteryStamp, Verdict};
use sandkeep_runtime::Usable;

pub(crate) struct Batteries {
    data: PathBuf,
    seen: Mutex<HashMap<String, Seen>>,
}

/// The last result, and the file that it was read from.
#[derive(Clone)]
struct Seen {
    stamp: BatteryStamp,
    /// `Err` if the file is unreadable.
    result: Result<Arc<Battery>, Arc<std::io::Error>>,
}

impl Batteries {
    pub fn in_data_dir(data: &Path) -> Self {
        Self { data: data.to_owned(), seen: Mutex::default() }
    }

    /// The last result of a runtime's tests, if they ever ran.
    pub fn last(&self, runtime: &str) -> Option<Arc<Battery>> {
        self.look(runtime)?.result.ok()
    }

    /// A runtime without results is offered; one that leaked, or whose result is unreadable, is not.
    pub fn verdict(&self, runtime: &str) -> Usable {
        match self.look(runtime).map(|seen| seen.result) {
            None => Usable::Yes,
            Some(Ok(battery)) if battery.verdict != Verdict::Leaked => Usable::Yes,
            Some(Ok(battery)) => {
                let leaks = battery.leaks().collect::<Vec<_>>().join(", ");
                let reason =
                    format!("its escape battery found leaks: {leaks}; run sandkeep doctor");
                Usable::No { reason }
            }
            Some(Err(error)) => {
                let reason = format!(
                    "the result of its escape battery cannot be read ({error}); run sandkeep doctor"
                );
                Usable::No { reason }
            }
        }
    }

    fn look(&self, runtime: &str) -> Option<Seen> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(stamp) = Battery::stamp(&self.data, runtime) else {
            seen.remove(runtime);
            return None;
        };
        match seen.get(runtime) {
            Some(last) if last.stamp == stamp => Some(last.clone()),
            Some(_) | None => {
                let result = Battery::read(&self.data, runtime).transpose()?;
                let result = result.map(Arc::new).map_err(Arc::new);
                let new = Seen { stamp, result };
                seen.insert(runtime.to_owned(), new.clone());
                Some(new)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;

    use super::*;
    use sandkeep_home::Attempted;

    fn leave(data: &Path, verdict: Verdict) {
        let attempts = ["mount", "host-file"].map(|name| Attempted {
            name: name.to_owned(),
            verdict,
            detail: "as it was".to_owned(),
        });
        let (kernel, then) = ("1.2.3".to_owned(), Timestamp::UNIX_EPOCH);
        let battery = Battery::of(attempts.to_vec(), kernel, then, Duration::ZERO);
        battery.write(data, "native").expect("a writable directory");
    }

    fn reason(batteries: &Batteries) -> String {
        match batteries.verdict("native") {
            Usable::Yes => String::new(),
            Usable::No { reason } => reason,
        }
    }

    #[test]
    fn what_leaks_is_not_offered_until_it_holds_again() {
        let data = tempfile::tempdir().expect("a temporary directory");
        let batteries = Batteries::in_data_dir(data.path());
        assert_eq!((reason(&batteries).as_str(), batteries.last("native")), ("", None));
        leave(data.path(), Verdict::Leaked);
        let said = reason(&batteries);
        assert!(said.contains("mount, host-file") && said.contains("sandkeep doctor"), "{said}");
        assert_eq!(batteries.verdict("another"), Usable::Yes);
        assert_eq!(batteries.last("native").map(|last| last.leaked), Some(2));
        leave(data.path(), Verdict::Held);
        assert_eq!(reason(&batteries), "");
        assert_eq!(batteries.last("native").map(|last| last.leaked), Some(0));
    }

    #[test]
    fn a_result_that_cannot_be_read_is_no_proof() {
        let data = tempfile::tempdir().expect("a temporary directory");
        let batteries = Batteries::in_data_dir(data.path());
        leave(data.path(), Verdict::Held);
        let file = data.path().join("batteries/native.json");
        std::fs::write(&file, "{").expect("it is ours");
        assert!(reason(&batteries).contains("cannot be read"));
        std::fs::remove_file(file).expect("it is ours");
        assert_eq!(reason(&batteries), "");
    }
}
