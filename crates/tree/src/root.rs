//! The root of a volume, as needed for mounting it.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, Stat, Uid, chmodat, chownat, fchmod, fchown, major,
    minor, mkdirat, openat, statat,
};
use rustix::io::Errno;
use rustix::path::Arg;

use sandkeep_sys::namespace::SHARED_ID_BASE;

/// How the ids of files inside are stored on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ids {
    /// As they are inside: mounting maps them to the sandbox's own range.
    Plain,
    /// If the file system cannot be id-mapped: as ids of the one range that all its sandboxes share.
    Shifted,
}

impl Ids {
    /// The host's id for the sandbox's `id`.
    pub fn on_disk(self, id: u32) -> u32 {
        match self {
            Self::Plain => id,
            Self::Shifted => SHARED_ID_BASE + id,
        }
    }

    /// Makes root inside the owner of a new entry.
    pub fn give_to_root(self, parent: impl AsFd, name: impl Arg) -> rustix::io::Result<()> {
        match self {
            Self::Plain => Ok(()),
            Self::Shifted => {
                let (uid, gid) = (self.on_disk(0), self.on_disk(0));
                let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
                chownat(parent, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
            }
        }
    }
}

/// The kinds of [`Root`]. A storage declares which it produces, a runtime which it accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RootKind {
    Dir,
    Shifted,
    Overlay,
}

impl fmt::Display for RootKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dir => "a directory",
            Self::Shifted => "a directory that cannot be id-mapped",
            Self::Overlay => "an overlay",
        })
    }
}

/// The root of a volume, for the launcher to mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Root {
    /// A directory that is the root itself.
    Dir(PathBuf),
    /// The same if ids cannot be mapped: they are stored [shifted](Ids::Shifted).
    Shifted(PathBuf),
    /// A directory on top of others, to be mounted as an overlay from inside the sandbox's user namespace with the
    /// option `userxattr`.
    Overlay {
        /// The lower directories, lowest first; never empty. All in one parent directory.
        lowers: Vec<PathBuf>,
        /// The sandbox's changes. It and `work` are in one directory of the volume alone.
        upper: PathBuf,
        work: PathBuf,
    },
}

/// Directories of the root, with their modes, that exist in every sandbox at its start: some runtime mounts something
/// on each of them. Nothing else is guaranteed.
pub const MOUNT_POINTS: [(&str, u32); 3] = [("dev", 0o755), ("proc", 0o755), ("tmp", 0o1777)];

/// A directory of the host that is visible in every sandbox of a template, read-only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bind {
    pub source: PathBuf,
    /// Relative to the sandbox's root; it exists there.
    pub target: PathBuf,
}

/// Gives an open file to a user of the sandbox. A non-root daemon has only one id, which owns everything that it makes.
pub fn give_to(file: impl AsFd, ids: Ids, uid: u32, gid: u32) -> rustix::io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let (uid, gid) = (Uid::from_raw(ids.on_disk(uid)), Gid::from_raw(ids.on_disk(gid)));
    fchown(file, Some(uid), Some(gid))
}

/// The attribute of a directory that hides everything below it. Users may set it, because overlays are mounted from
/// inside the sandbox's user namespace.
pub const OPAQUE: &str = "user.overlay.opaque";
/// Prefix of the attributes reserved for overlays.
pub const OVERLAY_ATTRIBUTES: &str = "user.overlay.";

/// A name in a root as the host sees it, before anything is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Nothing,
    Directory,
    /// A file, a link or the like.
    Other,
}

impl Root {
    /// A root that is one directory.
    pub fn dir(path: PathBuf, ids: Ids) -> Self {
        match ids {
            Ids::Plain => Self::Dir(path),
            Ids::Shifted => Self::Shifted(path),
        }
    }

    pub fn kind(&self) -> RootKind {
        match self {
            Self::Dir(_) => RootKind::Dir,
            Self::Shifted(_) => RootKind::Shifted,
            Self::Overlay { .. } => RootKind::Overlay,
        }
    }

    pub fn ids(&self) -> Ids {
        match self {
            Self::Dir(_) | Self::Overlay { .. } => Ids::Plain,
            Self::Shifted(_) => Ids::Shifted,
        }
    }

    /// Makes a directory at the top of the volume, with this owner as the sandbox sees it.
    pub fn make_top_dir(&self, name: &str, uid: u32, gid: u32, mode: u32) -> io::Result<()> {
        let path = self.own_dir().join(name);
        mkdirat(CWD, &path, Mode::RWXU)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = openat(CWD, &path, flags, Mode::empty())?;
        give_to(&made, self.ids(), uid, gid)?;
        Ok(fchmod(&made, Mode::from_raw_mode(mode))?)
    }

    /// The volume's own directory: data written there is visible inside and nowhere else.
    pub fn own_dir(&self) -> &Path {
        match self {
            Self::Dir(path) | Self::Shifted(path) => path,
            Self::Overlay { upper, .. } => upper,
        }
    }

    /// Creates a directory in the root of an unused volume, unless a layer has it: then that one stays as it is.
    /// Anything else with that name is an error, because it cannot be a mount point.
    pub fn make_directory(&self, name: &str, mode: u32) -> io::Result<()> {
        match self.look(OsStr::new(name))? {
            Seen::Directory => return Ok(()),
            Seen::Nothing => {}
            Seen::Other => {
                let why = format!("/{name} is there and is no directory");
                return Err(io::Error::new(io::ErrorKind::NotADirectory, why));
            }
        }
        let own = open_dir(self.own_dir())?;
        // A layer hides the name: the volume shows it again.
        remove_whiteout(&own, name)?;
        mkdirat(&own, name, Mode::RWXU)?;
        self.ids().give_to_root(&own, name)?;
        // Not by mkdir's mode, which the umask restricts.
        Ok(chmodat(&own, name, Mode::from_raw_mode(mode), AtFlags::empty())?)
    }

    /// The visible entry of a name in the root directory itself.
    fn look(&self, name: &OsStr) -> io::Result<Seen> {
        let lowers: &[PathBuf] = match self {
            Self::Dir(_) | Self::Shifted(_) => &[],
            Self::Overlay { lowers, .. } => lowers,
        };
        for dir in std::iter::once(self.own_dir()).chain(lowers.iter().rev().map(PathBuf::as_path))
        {
            match statat(open_dir(dir)?, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) if is_whiteout(&stat) => return Ok(Seen::Nothing),
                Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                    return Ok(Seen::Directory);
                }
                Ok(_) => return Ok(Seen::Other),
                Err(Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Seen::Nothing)
    }
}

fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(CWD, path, flags, Mode::empty())?)
}

fn remove_whiteout(own: &OwnedFd, name: &str) -> io::Result<()> {
    match statat(own, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) if is_whiteout(&stat) => Ok(rustix::fs::unlinkat(own, name, AtFlags::empty())?),
        Ok(_) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The mark by which an overlay hides a name.
pub fn is_whiteout(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
        && major(stat.st_rdev) == 0
        && minor(stat.st_rdev) == 0
}

#[cfg(test)]
mod tests;
