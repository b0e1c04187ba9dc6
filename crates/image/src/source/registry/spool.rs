//! Blobs on disk during a pull: a directory with a file per owner and digest.
//!
//! ```text
//! <owner>-<digest>.partial   the first bytes of a blob; only their number is known
//! <owner>-<digest>           a complete blob that matched its name when it was stored
//! ```
//!
//! Invariant: only bytes that match the requested digest are returned, and only to the owner whose pull fetched them,
//! because a digest is no secret, and naming one does not prove access to its content. A partial file is hashed from
//! its beginning when it is resumed, a complete one when it is found, so a crash or a torn write only costs a download.
//! Each file has one user at a time.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::SystemTime;

use tokio::sync::{Mutex as Turn, OwnedMutexGuard};
use tokio::task::spawn_blocking;

use sandkeep_core::{
    Owner,
    ledger::Reservation,
    limits::{REGISTRY_CHUNK_BYTES, REGISTRY_SPOOL_KEPT},
};
use sandkeep_tree::digest::{Digest, Hasher, Mismatch};

const PARTIAL: &str = "partial";

/// The directory; one per daemon.
#[derive(Debug)]
pub struct Spool {
    directory: PathBuf,
    turns: Mutex<HashMap<String, Weak<Turn<()>>>>,
    /// Reserved space of files that wait for another pull.
    waiting: Mutex<HashMap<String, Reservation>>,
}

/// The state of a blob.
pub enum BlobState {
    Whole(File),
    Part(Box<Part>),
}

/// An unfinished blob, and the exclusive right to continue it.
pub struct Part {
    file: File,
    path: PathBuf,
    hasher: Hasher,
    length_bytes: u64,
    expected: Digest,
    expected_bytes: u64,
    origin: Origin,
    turn: OwnedMutexGuard<()>,
}

/// Whether all bytes of a part were fetched in this pull.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    Fresh,
    /// Some were resumed.
    TakenUp,
}

impl Spool {
    /// Opens a directory, creating it if necessary, and removes expired files.
    pub fn open(directory: &Path) -> io::Result<Self> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        for entry in std::fs::read_dir(directory)? {
            let entry = entry?;
            let age = SystemTime::now().duration_since(entry.metadata()?.modified()?);
            if age.is_ok_and(|age| age > REGISTRY_SPOOL_KEPT) {
                std::fs::remove_file(entry.path())?;
            }
        }
        let directory = directory.to_owned();
        Ok(Self { directory, turns: Mutex::default(), waiting: Mutex::default() })
    }

    /// The name of an owner's complete blob.
    pub fn file_name(owner: &Owner, digest: &Digest) -> String {
        let mut hasher = Hasher::new();
        for part in [&owner.organization, &owner.user, &owner.project] {
            // With its length, so that no two owners' names are the same.
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        format!("{}-{}", hasher.finish().hex(), digest.hex())
    }

    /// Waits for exclusive access to the blob, and returns its state.
    pub async fn claim(
        &self,
        owner: &Owner,
        digest: Digest,
        size_bytes: u64,
    ) -> io::Result<BlobState> {
        let name = Self::file_name(owner, &digest);
        let path = self.directory.join(&name);
        let turn = self.turn(name.clone()).lock_owned().await;
        // The pull that works on it counts it.
        self.waiting().remove(&name);
        let look = move || match whole(&path, digest, size_bytes)? {
            Some(file) => Ok(BlobState::Whole(file)),
            None => Part::take_up(&path, digest, size_bytes, turn)
                .map(|part| BlobState::Part(Box::new(part))),
        };
        spawn_blocking(look).await?
    }

    /// Keeps a blob for another pull. It still counts for its owner, out of `space`.
    pub fn leave(&self, owner: &Owner, digest: &Digest, space: &Reservation) {
        let name = Self::file_name(owner, digest);
        let whole = self.directory.join(&name);
        let found = [whole.with_extension(PARTIAL), whole].into_iter();
        let bytes: u64 = found.filter_map(|path| path.metadata().ok()).map(|file| file.len()).sum();
        if bytes > 0 {
            self.waiting().insert(name, space.split(bytes));
        }
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<String, Reservation>> {
        // No code panics while it holds the lock.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes a complete blob that is no longer needed. Open descriptors stay valid.
    pub fn discard(&self, owner: &Owner, digest: &Digest) -> io::Result<()> {
        let name = Self::file_name(owner, digest);
        self.waiting().remove(&name);
        gone(std::fs::remove_file(self.directory.join(name)))
    }

    fn turn(&self, name: String) -> Arc<Turn<()>> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.retain(|_, turn| turn.strong_count() > 0);
        if let Some(turn) = turns.get(&name).and_then(Weak::upgrade) {
            return turn;
        }
        let turn = Arc::new(Turn::new(()));
        turns.insert(name, Arc::downgrade(&turn));
        turn
    }
}

fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// The complete blob, if it exists and still matches its name; otherwise it is removed.
fn whole(path: &Path, digest: Digest, size_bytes: u64) -> io::Result<Option<File>> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    if file.metadata()?.len() == size_bytes && hashed(&mut file)?.finish() == digest {
        file.rewind()?;
        return Ok(Some(file));
    }
    gone(std::fs::remove_file(path))?;
    Ok(None)
}

fn hashed(file: &mut File) -> io::Result<Hasher> {
    let mut hasher = Hasher::new();
    let mut chunk = vec![0; REGISTRY_CHUNK_BYTES];
    loop {
        match file.read(&mut chunk)? {
            0 => return Ok(hasher),
            read => hasher.update(&chunk[..read]),
        }
    }
}

impl Part {
    fn take_up(
        whole: &Path,
        expected: Digest,
        expected_bytes: u64,
        turn: OwnedMutexGuard<()>,
    ) -> io::Result<Self> {
        let path = whole.with_extension(PARTIAL);
        let mut options = OpenOptions::new();
        let mut file = options.read(true).write(true).create(true).mode(0o600).open(&path)?;
        let mut length_bytes = file.metadata()?.len();
        if length_bytes > expected_bytes {
            file.set_len(0)?;
            length_bytes = 0;
        }
        // Reading to the end also positions the file for appending.
        let hasher = hashed(&mut file)?;
        let origin = if length_bytes > 0 { Origin::TakenUp } else { Origin::Fresh };
        Ok(Self { file, path, hasher, length_bytes, expected, expected_bytes, origin, turn })
    }

    pub fn length_bytes(&self) -> u64 {
        self.length_bytes
    }

    pub fn is_complete(&self) -> bool {
        self.length_bytes == self.expected_bytes
    }

    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Discards its content.
    pub fn restart(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.hasher = Hasher::new();
        self.length_bytes = 0;
        self.origin = Origin::Fresh;
        Ok(())
    }

    /// Appends bytes. Blocks. Too many are a [`Mismatch`] within the error.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let length_bytes = self.length_bytes + bytes.len() as u64;
        if length_bytes > self.expected_bytes {
            let (expected, expected_bytes) = (self.expected, self.expected_bytes);
            self.restart()?;
            let found_bytes = length_bytes;
            return Err(Mismatch::Size { expected, expected_bytes, found_bytes }.into());
        }
        self.file.write_all(bytes)?;
        self.hasher.update(bytes);
        self.length_bytes = length_bytes;
        Ok(())
    }

    /// Gives a complete part its final name, if it matches; otherwise it starts over, empty.
    pub fn finish(mut self) -> io::Result<Result<File, (Mismatch, Self)>> {
        let (expected, found) = (self.expected, self.hasher.clone().finish());
        if found != expected {
            self.restart()?;
            return Ok(Err((Mismatch::Digest { expected, found }, self)));
        }
        std::fs::rename(&self.path, self.path.with_extension(""))?;
        self.file.rewind()?;
        let Self { file, turn, .. } = self;
        drop(turn);
        Ok(Ok(file))
    }

    /// Removes a part that no attempt can complete.
    pub fn discard(self) -> io::Result<()> {
        gone(std::fs::remove_file(&self.path))
    }
}
