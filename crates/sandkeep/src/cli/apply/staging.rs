//! Changes a directory as a whole: all new files are first written to a private directory inside it; then the steps are
//! recorded; then they are done by renames. If a step fails, the earlier ones are undone. If the program or the machine
//! dies, the next run finds the record and undoes them. When the record is removed, the change is final.
//!
//! No link is followed and nothing outside of the directory is touched, even if it is changed concurrently.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};

use rustix::fs::{
    AtFlags, FileType, FlockOperation, Mode, OFlags, chmodat, fchmod, flock, linkat, mkdirat,
    openat, renameat, statat, symlinkat, syncfs, unlinkat,
};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::ApplyError;
use sandkeep_tree::apply::{Act, Step};
use sandkeep_tree::{TreePath, beneath, untrusted};

/// The private directory.
pub const PLACE: &str = ".sandkeep-apply";
const JOURNAL: &str = "journal";
/// How a file of our own is opened to be read.
const NEW_READ: OFlags = OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Whether an earlier run was interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupted {
    Nothing,
    /// And was undone.
    CutOff,
}

pub struct Staging {
    dir: OwnedFd,
    place: OwnedFd,
}

/// A step, as recorded before it is taken.
#[derive(Debug, Serialize, Deserialize)]
struct Noted {
    path: Vec<u8>,
    undo: Undo,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Undo {
    /// Put the old entry back, or remove the new one.
    Restore,
    /// Put the old entry back.
    PutBack,
    RemoveDirectory,
    Mode(u32),
}

impl Staging {
    /// Starts changing a directory, after undoing an earlier run that was interrupted.
    pub fn begin(dir: OwnedFd) -> Result<(Self, Interrupted), ApplyError> {
        match mkdirat(&dir, PLACE, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let place = beneath::open_dir(&dir, PLACE.as_bytes())?;
        match flock(&place, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(ApplyError::UnderWay),
            Err(error) => return Err(error.into()),
        }
        let staging = Self { dir, place };
        let found = match staging.notes()? {
            None => Interrupted::Nothing,
            Some(notes) => {
                staging.undo(&notes)?;
                unlinkat(&staging.place, JOURNAL, AtFlags::empty())?;
                Interrupted::CutOff
            }
        };
        untrusted::empty(&staging.place)?;
        Ok((staging, found))
    }

    /// A new file for a step.
    pub fn file(&self, step: usize, mode: u32) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = openat(&self.place, new_name(step), flags, Mode::RUSR | Mode::WUSR)?;
        fchmod(&file, Mode::from_raw_mode(mode))?;
        Ok(file.into())
    }

    pub fn link(&self, step: usize, target: &[u8]) -> io::Result<()> {
        Ok(symlinkat(target, &self.place, new_name(step))?)
    }

    /// What was written for a step; `None` if it is larger than this.
    pub fn content(&self, step: usize, max: u64) -> io::Result<Option<Vec<u8>>> {
        let file = File::from(openat(&self.place, new_name(step), NEW_READ, Mode::empty())?);
        if file.metadata()?.len() > max {
            return Ok(None);
        }
        let mut content = Vec::new();
        file.take(max).read_to_end(&mut content)?;
        Ok(Some(content))
    }

    /// Writes something else for a step.
    pub fn rewrite(&self, step: usize, content: &[u8]) -> io::Result<()> {
        let name = new_name(step);
        let mode = statat(&self.place, &name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode & 0o7777;
        unlinkat(&self.place, &name, AtFlags::empty())?;
        self.file(step, mode)?.write_all(content)
    }

    /// A step has another number from now on, which no other one has.
    pub fn renumber(&self, from: usize, to: usize) -> io::Result<()> {
        if from == to {
            return Ok(());
        }
        // Not every step has a file.
        Ok(unless_gone(renameat(&self.place, new_name(from), &self.place, new_name(to)))?)
    }

    /// Takes all steps, or none.
    pub fn commit(self, steps: &[Step]) -> Result<(), ApplyError> {
        let notes = match self.prepare(steps) {
            Ok(notes) => notes,
            Err(error) => {
                self.clear();
                return Err(error.into());
            }
        };
        for (number, step) in steps.iter().enumerate() {
            if let Err(source) = self.take(number, step) {
                self.undo(&notes)?;
                unlinkat(&self.place, JOURNAL, AtFlags::empty())?;
                let path = step.path.shown();
                self.clear();
                return Err(ApplyError::Step { path, source });
            }
        }
        unlinkat(&self.place, JOURNAL, AtFlags::empty())?;
        syncfs(&self.place)?;
        self.clear();
        Ok(())
    }

    /// Records how each step is undone. All new files are on disk before they replace anything.
    fn prepare(&self, steps: &[Step]) -> io::Result<Vec<Noted>> {
        let notes: Vec<Noted> =
            steps.iter().map(|step| self.note(step)).collect::<Result<_, _>>()?;
        syncfs(&self.place)?;
        self.write_down(&notes)?;
        Ok(notes)
    }

    /// Nothing was done, or everything: the rest is garbage, and the next run removes what is left of it.
    pub fn clear(self) {
        let _ = untrusted::empty(&self.place);
        let _ = unlinkat(&self.dir, PLACE, AtFlags::REMOVEDIR);
    }

    fn note(&self, step: &Step) -> io::Result<Noted> {
        refuse_own(&step.path)?;
        let undo = match &step.act {
            Act::Remove | Act::RemoveDirectory => Undo::PutBack,
            Act::MakeDirectory { .. } => Undo::RemoveDirectory,
            Act::Write { .. } | Act::Link { .. } => Undo::Restore,
            Act::Mode { .. } => {
                let mode = self.parent(&step.path).and_then(|(parent, name)| {
                    Ok(statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode & 0o7777)
                });
                match mode {
                    Ok(mode) => Undo::Mode(mode),
                    // An earlier step creates it, and undoing that removes it.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => Undo::Mode(0o700),
                    Err(error) => return Err(error),
                }
            }
        };
        Ok(Noted { path: step.path.bytes().to_vec(), undo })
    }

    fn write_down(&self, notes: &[Noted]) -> io::Result<()> {
        let bytes = serde_json::to_vec(notes).map_err(io::Error::other)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let draft = "journal.new";
        let mut file = File::from(openat(&self.place, draft, flags, Mode::RUSR | Mode::WUSR)?);
        file.write_all(&bytes)?;
        file.sync_all()?;
        renameat(&self.place, draft, &self.place, JOURNAL)?;
        Ok(rustix::fs::fsync(&self.place)?)
    }

    fn notes(&self) -> Result<Option<Vec<Noted>>, ApplyError> {
        let file = match beneath::open(&self.place, JOURNAL.as_bytes(), OFlags::RDONLY) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let mut bytes = Vec::new();
        File::from(file).read_to_end(&mut bytes)?;
        let notes = serde_json::from_slice(&bytes);
        notes.map(Some).map_err(|_| ApplyError::Journal)
    }

    fn take(&self, number: usize, step: &Step) -> io::Result<()> {
        let (parent, name) = self.parent(&step.path)?;
        match &step.act {
            Act::Remove | Act::RemoveDirectory => {
                renameat(&parent, name, &self.place, old_name(number))?;
            }
            Act::MakeDirectory { mode } => {
                mkdirat(&parent, name, Mode::RWXU)?;
                fchmod(beneath::open_dir(&parent, name)?, Mode::from_raw_mode(*mode))?;
            }
            Act::Write { .. } | Act::Link { .. } => {
                // By a hard link, so that one file or the other always exists.
                match linkat(&parent, name, &self.place, old_name(number), AtFlags::empty()) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(error) => return Err(error.into()),
                }
                renameat(&self.place, new_name(number), &parent, name)?;
            }
            Act::Mode { mode } => set_mode(&parent, name, *mode)?,
        }
        Ok(())
    }

    /// Undoes the completed steps, last first. Idempotent.
    fn undo(&self, notes: &[Noted]) -> Result<(), ApplyError> {
        for (number, noted) in notes.iter().enumerate().rev() {
            let path = TreePath::clean(&noted.path)?;
            self.undo_one(number, noted.undo, &path)
                .map_err(|source| ApplyError::Undo { path: path.shown(), source })?;
        }
        Ok(())
    }

    fn undo_one(&self, number: usize, undo: Undo, path: &TreePath) -> io::Result<()> {
        let (parent, name) = match self.parent(path) {
            Ok(found) => found,
            // Its directory was never created, or is undone already; in its place there may be the entry that it
            // replaces.
            Err(error) if is_no_directory(&error) => return Ok(()),
            Err(error) => return Err(error),
        };
        let has = |name: &str| statat(&self.place, name, AtFlags::SYMLINK_NOFOLLOW).is_ok();
        match undo {
            Undo::Restore | Undo::PutBack if has(&old_name(number)) => {
                renameat(&self.place, old_name(number), &parent, name)?;
            }
            Undo::Restore if !has(&new_name(number)) => {
                unless_gone(unlinkat(&parent, name, AtFlags::empty()))?
            }
            // The step was not taken.
            Undo::Restore | Undo::PutBack => {}
            Undo::RemoveDirectory => match unlinkat(&parent, name, AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::NOTEMPTY | Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            },
            Undo::Mode(mode) => match set_mode(&parent, name, mode) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                done => done?,
            },
        }
        Ok(())
    }

    /// The parent directory of an entry, and its name there.
    fn parent<'a>(&self, path: &'a TreePath) -> io::Result<(OwnedFd, &'a [u8])> {
        refuse_own(path)?;
        let (parent, name) = path.split().ok_or(io::ErrorKind::InvalidInput)?;
        Ok((beneath::open_dir(self.dir.as_fd(), parent.bytes())?, name))
    }
}

/// Refuses paths in the private directory.
fn refuse_own(path: &TreePath) -> io::Result<()> {
    if path.is_beneath(&place_path()) {
        Err(io::Error::new(io::ErrorKind::InvalidInput, "this name is sandkeep's own"))
    } else {
        Ok(())
    }
}

fn is_no_directory(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP))
}

fn place_path() -> TreePath {
    TreePath::clean(PLACE.as_bytes()).expect("it is a plain name")
}

fn unless_gone(done: rustix::io::Result<()>) -> rustix::io::Result<()> {
    match done {
        Err(Errno::NOENT) => Ok(()),
        done => done,
    }
}

/// Does not follow a link in its place.
fn set_mode(parent: &OwnedFd, name: &[u8], mode: u32) -> io::Result<()> {
    let stat = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Symlink => Err(Errno::LOOP.into()),
        _ => Ok(chmodat(parent, name, Mode::from_raw_mode(mode), AtFlags::empty())?),
    }
}

fn new_name(step: usize) -> String {
    format!("new-{step}")
}

fn old_name(step: usize) -> String {
    format!("old-{step}")
}

#[cfg(test)]
impl Staging {
    /// Like [`Staging::commit`], but dies before a step.
    pub fn die_at(self, steps: &[Step], number: usize) {
        let notes: Vec<_> = steps.iter().map(|step| self.note(step).expect("a note")).collect();
        self.write_down(&notes).expect("it is written down");
        for (at, step) in steps.iter().enumerate().take(number) {
            self.take(at, step).expect("it can be done");
        }
    }
}
