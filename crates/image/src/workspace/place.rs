//! The place of a workspace in a volume. Parent directories that only the template has are copied into the volume with
//! their attributes; missing ones are created.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, Stat, Uid, fchmod, fchown, fgetxattr, fstat,
    mkdirat, openat, statat,
};
use rustix::io::Errno;

use super::{FileOwner, WorkspaceError};
use sandkeep_core::HOME;
use sandkeep_tree::{Ids, OPAQUE, Root, is_whiteout, untrusted};

/// An empty directory in an unused volume.
pub struct WorkspaceDir {
    directory: OwnedFd,
    ids: Ids,
}

impl WorkspaceDir {
    /// Creates the directories of `path`, a normalized path in [`HOME`].
    pub fn make(root: &Root, path: &str, owner: FileOwner) -> Result<Self, WorkspaceError> {
        let failed = |source: io::Error| WorkspaceError::Write { path: path.to_owned(), source };
        let mut level = Level::top(root).map_err(failed)?;
        let mut shown = String::new();
        for part in path.split('/').filter(|part| !part.is_empty()) {
            shown.push('/');
            shown.push_str(part);
            let name = CString::new(part).map_err(|error| failed(error.into()))?;
            // Directories that only root could create stay root's.
            let new = (shown.starts_with(HOME)).then_some(owner);
            level = match level.enter(&name, new).map_err(failed)? {
                Entered::Directory(below) => below,
                Entered::Other => return Err(WorkspaceError::InTheWay { path: shown }),
            };
        }
        if level.is_empty().map_err(failed)? {
            Ok(Self { directory: level.own, ids: level.ids })
        } else {
            Err(WorkspaceError::Occupied { path: path.to_owned() })
        }
    }

    /// How ids are stored on its disk.
    pub fn ids(&self) -> Ids {
        self.ids
    }
}

impl AsFd for WorkspaceDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

/// One directory as a sandbox sees it.
struct Level {
    /// In the volume's own part.
    own: OwnedFd,
    /// In the visible layers below, topmost first.
    below: Vec<OwnedFd>,
    ids: Ids,
}

enum Entered {
    Directory(Level),
    /// A file, a link or the like.
    Other,
}

/// What one layer has under a name.
enum LayerEntry {
    Nothing,
    /// It hides the name in the layers below.
    Hidden,
    Directory(OwnedFd),
    Other,
}

impl Level {
    fn top(root: &Root) -> io::Result<Self> {
        let open = |path| openat(CWD, path, FLAGS, Mode::empty());
        let below = match root {
            Root::Dir(_) | Root::Shifted(_) => Vec::new(),
            Root::Overlay { lowers, .. } => {
                lowers.iter().rev().map(open).collect::<Result<_, _>>()?
            }
        };
        let mut top = Self { own: open(&root.own_dir().to_owned())?, below, ids: root.ids() };
        top.end_at_opaque()?;
        Ok(top)
    }

    fn enter(&self, name: &CString, new: Option<FileOwner>) -> io::Result<Entered> {
        let mut below = Vec::new();
        let own = match look(&self.own, name)? {
            LayerEntry::Directory(own) => Some(own),
            // The volume is unused, so nothing in it can have been removed.
            LayerEntry::Other | LayerEntry::Hidden => return Ok(Entered::Other),
            LayerEntry::Nothing => None,
        };
        for layer in &self.below {
            match look(layer, name)? {
                LayerEntry::Nothing => {}
                LayerEntry::Directory(found) => below.push(found),
                LayerEntry::Hidden => break,
                // It hides everything below it, or is itself visible.
                LayerEntry::Other if own.is_some() || !below.is_empty() => break,
                LayerEntry::Other => return Ok(Entered::Other),
            }
        }
        let own = match (own, below.first()) {
            (Some(own), _) => own,
            (None, Some(template)) => take_over(&self.own, name, &fstat(template)?)?,
            (None, None) => make(&self.own, name, self.ids, new)?,
        };
        let mut level = Self { own, below, ids: self.ids };
        level.end_at_opaque()?;
        Ok(Entered::Directory(level))
    }

    /// A directory may hide everything below it.
    fn end_at_opaque(&mut self) -> io::Result<()> {
        if is_opaque(&self.own)? {
            self.below.clear();
        }
        for place in 0..self.below.len() {
            if is_opaque(&self.below[place])? {
                self.below.truncate(place + 1);
                return Ok(());
            }
        }
        Ok(())
    }

    /// Names that layers hide from each other still count as content.
    fn is_empty(&self) -> io::Result<bool> {
        for directory in std::iter::once(&self.own).chain(&self.below) {
            if !untrusted::entries(directory)?.is_empty() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

const FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

fn look(directory: &OwnedFd, name: &CString) -> io::Result<LayerEntry> {
    let stat = match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(LayerEntry::Nothing),
        Err(error) => return Err(error.into()),
    };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => {
            Ok(LayerEntry::Directory(openat(directory, name, FLAGS, Mode::empty())?))
        }
        _ if is_whiteout(&stat) => Ok(LayerEntry::Hidden),
        _ => Ok(LayerEntry::Other),
    }
}

fn is_opaque(directory: &OwnedFd) -> io::Result<bool> {
    let mut value = [0; 1];
    match fgetxattr(directory, OPAQUE, &mut value) {
        Ok(size) => Ok(value[..size] == *b"y"),
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::RANGE) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// A directory with the template's attributes.
fn take_over(parent: &OwnedFd, name: &CString, found: &Stat) -> io::Result<OwnedFd> {
    let owner = FileOwner { uid: found.st_uid, gid: found.st_gid };
    make_with(parent, name, owner, found.st_mode & 0o7777)
}

/// A directory that belongs to this owner inside, or to root.
fn make(
    parent: &OwnedFd,
    name: &CString,
    ids: Ids,
    owner: Option<FileOwner>,
) -> io::Result<OwnedFd> {
    let FileOwner { uid, gid } = owner.unwrap_or(FileOwner { uid: 0, gid: 0 });
    let owner = FileOwner { uid: ids.on_disk(uid), gid: ids.on_disk(gid) };
    make_with(parent, name, owner, 0o755)
}

fn make_with(parent: &OwnedFd, name: &CString, owner: FileOwner, mode: u32) -> io::Result<OwnedFd> {
    mkdirat(parent, name, Mode::RWXU)?;
    let made = openat(parent, name, FLAGS, Mode::empty())?;
    // A non-root daemon has only one id, which owns everything that it creates.
    if rustix::process::geteuid().is_root() {
        fchown(&made, Some(Uid::from_raw(owner.uid)), Some(Gid::from_raw(owner.gid)))?;
    }
    // Not by mkdir's mode, which the umask restricts; and after changing the owner, which clears bits.
    fchmod(&made, Mode::from_raw_mode(mode))?;
    Ok(made)
}
