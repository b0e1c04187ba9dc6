//! The files of the log: named after the number of their first record, beside the lock and the head.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::chain::{Hash, Header};
use sandkeep_home::{make_directory, names};

const SUFFIX: &str = ".log";
const LOCK: &str = "lock";
const HEAD: &str = "head";

/// The directory of a log.
#[derive(Clone, Debug)]
pub struct Files {
    dir: PathBuf,
}

/// The newest record, as it was last noted beside the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noted {
    pub seq: u64,
    pub hash: Hash,
}

/// Held while somebody appends or looks which files there are.
pub struct Locked<'a> {
    file: &'a File,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // The kernel gives it back at the latest when the file is closed.
        let _ = flock(self.file, FlockOperation::Unlock);
    }
}

impl Files {
    pub fn of(data: &Path) -> Self {
        Self { dir: data.join(crate::AUDIT) }
    }

    pub fn make(&self) -> io::Result<()> {
        make_directory(&self.dir)
    }

    pub fn exist(&self) -> bool {
        self.dir.is_dir()
    }

    pub fn path(&self, first: u64) -> PathBuf {
        self.dir.join(format!("{first:020}{SUFFIX}"))
    }

    /// The first records of all files, in order. Files with other names are ignored.
    pub fn list(&self) -> io::Result<Vec<u64>> {
        let number = |name: &String| {
            let digits = name.strip_suffix(SUFFIX)?;
            digits.parse().ok().filter(|first| format!("{first:020}") == *digits)
        };
        let mut all: Vec<u64> = names(&self.dir)?.iter().filter_map(number).collect();
        all.sort_unstable();
        Ok(all)
    }

    /// Begins a file. A failed attempt leaves none.
    pub fn begin(&self, header: Header) -> io::Result<(File, u64)> {
        let path = self.path(header.first);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let file = options.open(&path)?;
        let line = header.encode();
        if let Err(error) = file.write_all_at(line.as_bytes(), 0) {
            let _ = fs::remove_file(&path);
            return Err(error);
        }
        Ok((file, line.len() as u64))
    }

    /// Removes files whose header a crash cut off: they never had a record. Returns the others.
    pub fn list_begun(&self) -> io::Result<Vec<u64>> {
        let mut all = self.list()?;
        while let Some(first) = all.last() {
            let whole = Header { first: *first, before: Hash::GENESIS }.encode().len() as u64;
            if fs::metadata(self.path(*first))?.len() >= whole {
                break;
            }
            fs::remove_file(self.path(*first))?;
            all.pop();
        }
        Ok(all)
    }

    pub fn open(&self, first: u64) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).open(self.path(first))
    }

    pub fn open_lock(&self) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        options.open(self.dir.join(LOCK))
    }

    pub fn open_head(&self) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        options.open(self.dir.join(HEAD))
    }

    /// `None` if nothing was noted yet, or nothing that can be read.
    pub fn noted(&self) -> io::Result<Option<Noted>> {
        match fs::read(self.dir.join(HEAD)) {
            Ok(bytes) => Ok(parse_head(&bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// For one who appends.
pub fn lock(file: &File) -> io::Result<Locked<'_>> {
    flock(file, FlockOperation::LockExclusive)?;
    Ok(Locked { file })
}

/// For one who reads.
pub fn lock_shared(file: &File) -> io::Result<Locked<'_>> {
    flock(file, FlockOperation::LockShared)?;
    Ok(Locked { file })
}

/// Always of the same length, so that one write replaces the former.
pub fn encode_head(Noted { seq, hash }: Noted) -> String {
    format!("{seq:020} {hash}\n")
}

fn parse_head(bytes: &[u8]) -> Option<Noted> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (seq, hash) = text.strip_suffix('\n')?.split_once(' ')?;
    Some(Noted { seq: seq.parse().ok()?, hash: hash.parse().ok()? })
}
