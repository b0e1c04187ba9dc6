//! The root of a volume, as whoever mounts it needs to know it.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, Stat, Uid, chmodat, chownat, major, minor, mkdirat,
    openat, statat,
};
use rustix::io::Errno;
use rustix::path::Arg;

use sandkeep_sys::namespace::SHARED_ID_BASE;

/// How the ids that files have inside lie on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ids {
    /// As they are inside: whoever mounts the files maps them to the sandbox's own range.
    Plain,
    /// Where the filesystem cannot be id-mapped: as ids of the one range that all its sandboxes share.
    Shifted,
}

impl Ids {
    /// What the host calls whom a sandbox calls `id`.
    pub fn on_disk(self, id: u32) -> u32 {
        match self {
            Self::Plain => id,
            Self::Shifted => SHARED_ID_BASE + id,
        }
    }

    /// Gives what was made beneath a directory to root inside.
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

/// The kinds of [`Root`]. A storage says which it makes, a runtime which it can take.
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
    /// A directory that is the root as it is.
    Dir(PathBuf),
    /// The same where ids cannot be mapped: they lie there [shifted](Ids::Shifted).
    Shifted(PathBuf),
    /// A directory above others, to be mounted as an overlay from inside the sandbox's user namespace
    /// with the option `userxattr`.
    Overlay {
        /// What is below, the lowest first; never empty. They lie in one directory.
        lowers: Vec<PathBuf>,
        /// What the sandbox changes. It and `work` lie in one directory that is the volume's alone.
        upper: PathBuf,
        work: PathBuf,
    },
}

/// Directories of the root, with their modes, that are there when a sandbox is started, whatever it was
/// made from: some runtime mounts something on each of them. Nothing else is taken for granted.
pub const MOUNT_POINTS: [(&str, u32); 3] = [("dev", 0o755), ("proc", 0o755), ("tmp", 0o1777)];

/// A directory of the host that every sandbox of a template sees, read-only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bind {
    pub source: PathBuf,
    /// Relative to the sandbox's root; it exists there.
    pub target: PathBuf,
}

/// The attribute of a directory that hides what is below it. It is one that a user may set, because
/// overlays are mounted from inside the sandbox's user namespace.
pub const OPAQUE: &str = "user.overlay.opaque";
/// What the attributes begin with that overlays keep for themselves.
pub const OVERLAY_ATTRIBUTES: &str = "user.overlay.";

/// What a name in a root means to the host, before anything is mounted.
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

    /// The directory that is the volume's own: what is written there is seen inside and nowhere else.
    pub fn own_dir(&self) -> &Path {
        match self {
            Self::Dir(path) | Self::Shifted(path) => path,
            Self::Overlay { upper, .. } => upper,
        }
    }

    /// Makes a directory in the root of a volume that is not in use, unless a layer has it: then that
    /// one stays as it is. Something else of that name is an error, for it cannot be mounted on.
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
        // A name that a layer takes away: the volume has it again.
        remove_whiteout(&own, name)?;
        mkdirat(&own, name, Mode::RWXU)?;
        self.ids().give_to_root(&own, name)?;
        // Not by mkdir's mode, which the umask narrows.
        Ok(chmodat(&own, name, Mode::from_raw_mode(mode), AtFlags::empty())?)
    }

    /// What is seen under a name in the root directory itself.
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
