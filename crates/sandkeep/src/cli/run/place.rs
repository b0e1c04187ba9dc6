//! The temporary data directory of a `run`, and the leftovers of killed runs.
//!
//! A run locks its directory for as long as it lives, so an unlocked one has no owner. The only exception is the moment
//! between creating a directory and locking it: there a run holds a shared lock on the parent, and a sweeper takes an
//! exclusive one while it claims leftovers.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use tokio::time::Instant;

use crate::cli::assemble;
use crate::config::{Settings, Surroundings};
use sandkeep_broker::error::Error;
use sandkeep_core::{SandboxId, limits};
use sandkeep_home::{DataDir, Instance};
use sandkeep_sys::{cgroup, mount};

const PREFIX: &str = "sandkeep-run.";
/// How much of a random id is used in a directory's name; an existing name is an error, not a risk.
const NAME_LEN: usize = 10;

/// Creates and locks a new directory.
pub fn make(parent: &Path) -> Result<DataDir, Error> {
    let random = SandboxId::random();
    let name = &random.as_str()[SandboxId::PREFIX.len()..][..NAME_LEN];
    let path = parent.join(format!("{PREFIX}{name}"));
    let unusable = |source| Error::DataDir { path: path.display().to_string(), source };
    // Without this lock, which another user could hold forever, the worst case is that a sweeper takes the directory
    // first; then locking it fails with an error.
    let _claimless = parent_lock(parent, FlockOperation::NonBlockingLockShared);
    DirBuilder::new().mode(0o700).create(&path).map_err(unusable)?;
    Ok(DataDir::open(&path)?)
}

fn parent_lock(parent: &Path, how: FlockOperation) -> Option<File> {
    let dir = File::open(parent).ok()?;
    flock(&dir, how).ok().map(|()| dir)
}

/// Ends and removes the leftovers of this user's killed runs. Only settings that contain paths matter here.
pub async fn sweep(parent: &Path, settings: &Settings) {
    clear_all(claim(parent), settings).await;
}

/// The same once nobody holds `dead`, the directory of a run that is dying: the kernel may tell its launcher of its
/// end before it lets go of its locks.
pub async fn sweep_after(dead: &Path, parent: &Path, settings: &Settings) {
    clear_all(claim_with(dead, parent).await, settings).await;
}

/// The leftovers with this one among them, unless somebody else takes it, or its run is not over in time.
async fn claim_with(dead: &Path, parent: &Path) -> Vec<DataDir> {
    let deadline = Instant::now() + limits::RUN_DIES_WITHIN;
    let mut claimed = Vec::new();
    loop {
        claimed.extend(claim(parent));
        let is_there = claimed.iter().any(|data: &DataDir| data.path() == dead);
        if is_there || !dead.exists() || Instant::now() >= deadline {
            return claimed;
        }
        tokio::time::sleep(limits::RUN_DIES_POLL).await;
    }
}

async fn clear_all(leftovers: Vec<DataDir>, settings: &Settings) {
    for data in leftovers {
        let path = data.path().to_owned();
        match clear(data, settings).await {
            Ok(()) => tracing::info!("removed {}, left by a killed run", path.display()),
            Err(e) => tracing::warn!("cannot clear {}, left by a killed run: {e}", path.display()),
        }
    }
}

/// The leftovers, now locked by us.
fn claim(parent: &Path) -> Vec<DataDir> {
    let leftovers = leftovers(parent);
    if leftovers.is_empty() {
        return Vec::new();
    }
    let Some(_exclusive) = parent_lock(parent, FlockOperation::NonBlockingLockExclusive) else {
        return Vec::new();
    };
    leftovers
        .iter()
        .filter(|path| path.is_dir())
        .filter_map(|path| DataDir::open(path).ok())
        .collect()
}

/// Directories of our kind. In a world-writable /tmp a directory must have our own uid, and a symbolic link is never
/// accepted.
fn leftovers(parent: &Path) -> Vec<PathBuf> {
    let uid = rustix::process::geteuid().as_raw();
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX))
        .filter(|entry| {
            let found = entry.path().symlink_metadata();
            found.is_ok_and(|found| found.is_dir() && found.uid() == uid)
        })
        .map(|entry| entry.path())
        .collect()
}

async fn clear(data: DataDir, settings: &Settings) -> Result<(), Error> {
    let place = TempDataDir::of(&data);
    // No sandboxes are created there any more, so no policy matters.
    let settings = Settings {
        docker_host: settings.docker_host.clone(),
        podman_host: settings.podman_host.clone(),
        ..Settings::defaults(&Surroundings::of_this_process())
    };
    let assembled = assemble::clearer(&settings, data).await?;
    assembled.broker.remove_orphans().await?;
    assemble::clear(&assembled.broker).await?;
    place.remove()
}

/// What to remove when the broker is gone.
pub struct TempDataDir {
    path: PathBuf,
    instance: Instance,
}

impl TempDataDir {
    pub fn of(data: &DataDir) -> Self {
        Self { path: data.path().to_owned(), instance: data.instance().clone() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The last step. The directory is the only record of what its run created, so it is kept as long as any of that
    /// exists, and the next run tries again.
    pub fn remove(&self) -> Result<(), Error> {
        self.clear_host().and_then(|()| fs::remove_dir_all(&self.path)).map_err(|source| {
            let path = self.path.display().to_string();
            Error::DataDir { path, source }
        })
    }

    /// Fails if parts of the run are left outside of its directory. A run that was killed before it recorded its
    /// sandbox leaves cgroups that no broker knows.
    fn clear_host(&self) -> io::Result<()> {
        // A mount in it may be a part of the host, and removing the directory would delete that part.
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        if let Some(mount) = mount_beneath(&mounts, &self.path) {
            let problem = format!("something is still mounted on {}", mount.display());
            return Err(io::Error::other(problem));
        }
        if let Some((pid, _)) = cgroup::guests(self.instance.as_str())?.first() {
            return Err(io::Error::other(format!("its guest still runs as process {pid}")));
        }
        match cgroup::remove_empty(self.instance.as_str())?.first() {
            Some(group) => {
                let problem = format!("there are still processes in {}", group.display());
                Err(io::Error::other(problem))
            }
            None => Ok(()),
        }
    }
}

/// The first mount point in a mountinfo table that is `path` or below it.
fn mount_beneath(table: &str, path: &Path) -> Option<PathBuf> {
    let mut points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(mount::unescape);
    points.find(|point| point.starts_with(path))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_live_run_is_never_claimed_and_a_dead_one_always() {
        let parent = tempfile::tempdir().expect("a temporary directory");
        let live = make(parent.path()).expect("a place");
        let dead = make(parent.path()).expect("a second place").path().to_owned();
        let claimed: Vec<_> = claim(parent.path()).iter().map(|d| d.path().to_owned()).collect();
        assert_eq!(claimed, [fs::canonicalize(&dead).expect("it is still there")]);
        drop(live);
    }

    #[tokio::test]
    async fn a_directory_whose_run_still_dies_is_claimed_once_it_is_free() {
        let parent = tempfile::tempdir().expect("a temporary directory");
        let dying = make(parent.path()).expect("a place");
        let dead = dying.path().to_owned();
        let claimed = claim_with(&dead, parent.path());
        tokio::pin!(claimed);
        assert!(futures_util::poll!(&mut claimed).is_pending(), "it is locked");
        drop(dying);
        let paths: Vec<_> = claimed.await.iter().map(|data| data.path().to_owned()).collect();
        assert_eq!(paths, [dead.as_path()]);
    }

    #[test]
    fn a_place_with_a_mount_in_it_is_not_removed() {
        let table =
            "1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 8:1 /usr /tmp/a\\040b/x ro - ext4 d rw\n";
        assert_eq!(mount_beneath(table, Path::new("/tmp/a b")), Some("/tmp/a b/x".into()));
        assert_eq!(mount_beneath(table, Path::new("/tmp/a")), None);
        assert_eq!(mount_beneath(table, Path::new("/tmp/c")), None);
    }

    #[test]
    fn links_and_other_names_are_left_alone() {
        let parent = tempfile::tempdir().expect("a temporary directory");
        let other = parent.path().join("other");
        fs::create_dir(&other).expect("a directory");
        symlink(&other, parent.path().join("sandkeep-run.link")).expect("a link");
        assert!(claim(parent.path()).is_empty());
    }
}
