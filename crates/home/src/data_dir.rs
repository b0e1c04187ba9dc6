//! The data directory, as held by the one daemon that uses it.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::file;
use super::secret::Secret;
use super::{Home, INSTANCE, LOCK, QUARANTINE, SANDBOXES};
use sandkeep_core::SandboxId;

/// The random id of a data directory: it distinguishes this instance's sandboxes from another's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance(String);

impl Instance {
    const LEN: usize = 16;

    fn random() -> Self {
        // The random part of a sandbox id, without its prefix.
        let id = SandboxId::random();
        let random = &id.as_str()[SandboxId::PREFIX.len()..];
        Self(random[..Self::LEN].to_owned())
    }

    fn parse(text: &str) -> Option<Self> {
        let text = text.trim_end();
        let valid = text.len() == Self::LEN
            && text.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'2'..=b'7'));
        valid.then(|| Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// `None` if there is no instance yet.
    pub(super) fn read(data: &Path) -> io::Result<Option<Self>> {
        let text = match fs::read_to_string(data.join(INSTANCE)) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let malformed = || io::Error::other("the file `instance` does not hold an instance id");
        Self::parse(&text).map(Some).ok_or_else(malformed)
    }
}

/// Why a data directory cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// Another daemon uses it.
    #[error("another sandkeep{} uses {path}", pid.map(|p| format!(" (pid {p})")).unwrap_or_default())]
    InUse { path: String, pid: Option<u32> },

    #[error("cannot use the data directory {path}: {source}")]
    Unusable {
        path: String,
        #[source]
        source: io::Error,
    },
}

/// A data directory, checked and locked. Dropping it releases the lock.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    instance: Instance,
    secret: Secret,
    boot_id: String,
    /// Holds the lock, and contains our pid.
    lock: File,
}

impl Drop for DataDir {
    /// The pid must not be mistaken for that of a running daemon.
    fn drop(&mut self) {
        if let Err(error) = self.lock.set_len(0) {
            tracing::debug!(%error, "the lock keeps our pid");
        }
    }
}

impl DataDir {
    /// Creates the directory if necessary, checks that only we have access, and locks it.
    pub fn open(path: &Path) -> Result<Self, DataDirError> {
        let unusable = |source| DataDirError::Unusable { path: path.display().to_string(), source };
        make_private(path).map_err(unusable)?;
        // Only an absolute path stays valid when the working directory changes.
        let path = fs::canonicalize(path).map_err(unusable)?;
        let lock = lock(&path)?;
        let instance = Instance::read(&path)
            .and_then(|known| known.map_or_else(|| new_instance(&path), Ok))
            .map_err(unusable)?;
        let secret = Secret::of(&path).map_err(unusable)?;
        for name in [SANDBOXES, QUARANTINE] {
            make_private(&path.join(name)).map_err(unusable)?;
        }
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").map_err(unusable)?;
        Ok(Self { path, instance, secret, boot_id: boot_id.trim_end().to_owned(), lock })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn instance(&self) -> &Instance {
        &self.instance
    }

    /// The key for this instance's signatures.
    pub fn secret(&self) -> &Secret {
        &self.secret
    }

    /// The host's boot id.
    pub fn boot_id(&self) -> &str {
        &self.boot_id
    }

    /// The directory of the homes.
    pub fn sandboxes(&self) -> PathBuf {
        self.path.join(SANDBOXES)
    }

    pub fn home(&self, id: &SandboxId) -> Home {
        Home::new(&self.path, id.clone(), self.instance.as_str().to_owned())
    }

    /// The ids of all homes. Other names are not ours and left alone.
    pub fn homes(&self) -> io::Result<Vec<SandboxId>> {
        let mut ids = Vec::new();
        for entry in fs::read_dir(self.sandboxes())? {
            let name = entry?.file_name();
            ids.extend(name.to_str().and_then(|name| name.parse().ok()));
        }
        Ok(ids)
    }

    /// Moves a home aside for manual inspection, and returns its new path.
    pub fn quarantine(&self, home: &Home) -> io::Result<PathBuf> {
        let name = home.path().file_name().expect("a home is named after its sandbox");
        let aside = self.path.join(QUARANTINE);
        let mut target = aside.join(name);
        let mut again = 1;
        while target.symlink_metadata().is_ok() {
            again += 1;
            target = aside.join(format!("{}-{again}", name.display()));
        }
        fs::rename(home.path(), &target)?;
        Ok(target)
    }
}

#[cfg(any(test, feature = "in-tests"))]
impl DataDir {
    /// Simulates a reboot of the host.
    pub fn pretend_boot(&mut self, boot_id: &str) {
        self.boot_id = boot_id.to_owned();
    }
}

fn new_instance(path: &Path) -> io::Result<Instance> {
    let instance = Instance::random();
    file::replace(path, INSTANCE, instance.as_str().as_bytes())?;
    file::sync(&path.join(INSTANCE))?;
    file::sync(path)?;
    Ok(instance)
}

/// Creates a directory that only we can enter, or checks that an existing one is ours. One that others could write to
/// may contain planted files, so it is refused and not repaired.
pub(super) fn make_private(path: &Path) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    let found = fs::metadata(path)?;
    let refuse = |problem: String| Err(io::Error::new(io::ErrorKind::PermissionDenied, problem));
    if !found.is_dir() {
        return refuse("it is not a directory".to_owned());
    }
    let us = rustix::process::geteuid().as_raw();
    if found.uid() != us {
        return refuse(format!("it belongs to uid {}, not to ours, {us}", found.uid()));
    }
    let mode = found.mode() & 0o7777;
    if mode & 0o022 != 0 {
        return refuse(format!("others may write to it (mode {mode:o}); chmod it to 700"));
    }
    if mode & 0o077 != 0 {
        fs::set_permissions(path, Permissions::from_mode(0o700))?;
    }
    Ok(())
}

fn lock(data: &Path) -> Result<File, DataDirError> {
    let path = data.display().to_string();
    let unusable = |source| DataDirError::Unusable { path: path.clone(), source };
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(data.join(LOCK))
        .map_err(unusable)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => {
            let pid = read_pid(&mut file);
            return Err(DataDirError::InUse { path, pid });
        }
        Err(errno) => return Err(unusable(errno.into())),
    }
    // The pid is for people; only the lock counts, so the pid need not be durable.
    let write = |file: &mut File| {
        file.set_len(0)?;
        writeln!(file, "{}", std::process::id())
    };
    write(&mut file).map_err(unusable)?;
    Ok(file)
}

fn read_pid(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    text.trim_end().parse().ok()
}

/// The pid of the daemon that holds the lock, if any.
pub(super) fn locked_by(data: &Path) -> io::Result<Option<u32>> {
    let mut file = match File::open(data.join(LOCK)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    // A shared lock, so that two read-only processes do not mistake each other for a daemon.
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(None),
        Err(Errno::WOULDBLOCK) => Ok(read_pid(&mut file)),
        Err(errno) => Err(errno.into()),
    }
}
