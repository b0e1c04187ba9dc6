//! The isolation tests: attempts to escape from temporary sandboxes of a runtime, and to exceed their limits.
//!
//! ```text
//!   bait       what a leak would find: a file, sockets, a process of the host with unique words
//!   subject    a temporary sandbox, and commands in it
//!   tally      the findings of all users combined: one verdict for each attempt
//!   way_out    a temporary sandbox that may reach one name, and attempts to reach others
//!   bombs      the attempts that are judged from outside
//! ```
//!
//! The attempts themselves are the program `sandkeep-probe`, which is copied into the sandbox and run there as every
//! possible user: the default user, root, and root of a privileged sandbox. An attempt that was not made, or not
//! judged, counts as a leak: a missing result proves nothing.

mod bait;
mod bombs;
mod subject;
mod tally;
mod way_out;

#[cfg(test)]
mod tests;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use probe::Attempt;

use bait::Bait;
use bombs::Small;
use sandkeep_broker::{Broker, RuntimeView, error::Error};
use sandkeep_core::Privilege;
use sandkeep_home::{Battery, Verdict};
use sandkeep_runtime::RuntimeError;
use sandkeep_storage::Storage;
use subject::{TestSandbox, Who};
use tally::Tally;
pub use way_out::ALLOWED;

/// Why there is no verdict at all.
#[derive(Debug, thiserror::Error)]
pub enum BatteryError {
    #[error("cannot prepare the escape attempts: {0}")]
    Bait(#[source] std::io::Error),
    #[error("a throwaway sandbox could not be used: {0}")]
    Sandbox(#[from] Error),
    #[error("cannot copy the escape attempts into a sandbox: {0}")]
    Probe(String),
}

/// Where temporary sandboxes are created.
pub struct TestBroker {
    pub broker: Broker,
    pub storage: Arc<dyn Storage>,
    /// Directories that sandboxes of the template share with the host, as paths inside.
    pub shared: Vec<String>,
    /// The same, as paths on the host.
    pub sources: Vec<PathBuf>,
}

/// Runs all isolation tests on one runtime, and leaves nothing behind.
pub async fn examine(ward: &TestBroker, runtime: &RuntimeView) -> Result<Battery, BatteryError> {
    let (ran_at, began) = (Timestamp::now(), Instant::now());
    let mut tally = Tally::default();
    let before: Vec<_> = ward.sources.iter().map(|source| changes(source)).collect();
    from_inside(ward, runtime.name, &mut tally).await?;
    for (source, before) in ward.sources.iter().zip(before) {
        let after = changes(source);
        // Another process that adds a file there changes both.
        if before.content == after.content && before.attributes != after.attributes {
            let detail = format!("the mode or owner of {} was changed", source.display());
            tally.note(Attempt::SharedWrite, Verdict::Leaked, detail);
        }
    }
    way_out::examine(ward, runtime.name, &mut tally).await?;
    let small = Small::for_runtime(runtime);
    for (attempt, verdict, detail) in bombs::detonate(ward, runtime.name, &small).await? {
        tally.note(attempt, verdict, detail);
    }
    Ok(Battery::of(tally.attempts(), kernel(), ran_at, began.elapsed()))
}

/// When a directory last changed; never, if it does not exist.
#[derive(Default)]
struct Changes {
    content: (i64, i64),
    attributes: (i64, i64),
}

fn changes(dir: &Path) -> Changes {
    let Ok(metadata) = std::fs::metadata(dir) else { return Changes::default() };
    Changes {
        content: (metadata.mtime(), metadata.mtime_nsec()),
        attributes: (metadata.ctime(), metadata.ctime_nsec()),
    }
}

/// Release and version of the host's kernel, for comparison with the probe's.
pub fn kernel() -> String {
    let names = rustix::system::uname();
    format!("{} {}", names.release().to_string_lossy(), names.version().to_string_lossy())
}

/// All attempts that are judged by the process that makes them.
async fn from_inside(
    ward: &TestBroker,
    runtime: &str,
    tally: &mut Tally,
) -> Result<(), BatteryError> {
    let create = |privilege| TestSandbox::create(ward, runtime, privilege, None, None);
    let (victim, plain, privileged) =
        tokio::join!(create(Privilege::None), create(Privilege::None), create(Privilege::Root));
    let privileged = match privileged {
        // Without privileges, nothing can misuse them.
        Err(
            Error::Runtime(RuntimeError::Unsupported { .. })
            | Error::InvalidField { field: "privilege", .. },
        ) => Ok(None),
        privileged => privileged.map(Some),
    };
    let mut result = match (&victim, &plain, &privileged) {
        (Ok(victim), Ok(plain), Ok(privileged)) => {
            try_all(ward, victim, plain, privileged.as_ref(), tally).await
        }
        (Err(_), ..) | (_, Err(_), _) | (.., Err(_)) => Ok(()),
    };
    // All are destroyed even if one fails; the first failure is reported.
    for subject in [victim.map(Some), plain.map(Some), privileged] {
        let ended = match subject {
            Ok(Some(subject)) => subject.destroy().await,
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        result = result.and(ended.map_err(BatteryError::from));
    }
    result
}

async fn try_all(
    ward: &TestBroker,
    victim: &TestSandbox<'_>,
    plain: &TestSandbox<'_>,
    privileged: Option<&TestSandbox<'_>>,
    tally: &mut Tally,
) -> Result<(), BatteryError> {
    let mut bait = Bait::lay(ward.shared.clone()).await.map_err(BatteryError::Bait)?;
    bait.hide_in(victim).await?;
    let setuid = plain.bring_probe().await?;
    // In a privileged sandbox, or as root, a set-user-ID program proves nothing.
    let mut inside = vec![(plain, Who::User, setuid), (plain, Who::Root, None)];
    if let Some(privileged) = privileged {
        privileged.bring_probe().await?;
        inside.push((privileged, Who::PrivilegedRoot, None));
    }
    for (subject, who, setuid) in inside {
        let said = subject.probe(who, &bait.arguments(setuid)).await?;
        tally.take(who, &said);
        if let Some((attempt, what)) = bait.harm() {
            tally.note(attempt, Verdict::Leaked, format!("{}: {what}", who.name()));
        }
    }
    Ok(())
}
