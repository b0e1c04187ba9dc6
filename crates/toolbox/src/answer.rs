//! The toolbox's answers.

use std::fmt;
use std::io;
use std::path::Path;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::request::RawPath;

/// The ports that processes listen on, sorted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listening {
    pub ports: Vec<u16>,
}

/// The entry at a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// As requested, or below the requested path.
    pub path: RawPath,
    pub kind: EntryKind,
    /// Apparent size in bytes; a sparse file occupies less of the disk.
    pub size: u64,
    /// The twelve permission bits.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// When its content last changed, in milliseconds since 1970 (negative before).
    pub modified_ms: i64,
    /// Target of a symbolic link, whether or not it exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<RawPath>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    File,
    Directory,
    Symlink,
    Fifo,
    Socket,
    BlockDevice,
    CharDevice,
    /// A type unknown to this build.
    Other,
}

impl fmt::Display for EntryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::File => "a regular file",
            Self::Directory => "a directory",
            Self::Symlink => "a symbolic link",
            Self::Fifo => "a FIFO",
            Self::Socket => "a socket",
            Self::BlockDevice => "a block device",
            Self::CharDevice => "a character device",
            Self::Other => "no file of a known kind",
        })
    }
}

/// The head of a file's content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reading {
    /// This many bytes from this offset follow.
    Bytes { entry: Entry, start: u64, len: u64 },
    /// The requested range is empty.
    Unsatisfiable { entry: Entry },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    pub entry: Entry,
    /// Whether the file did not exist before.
    pub created: bool,
}

/// A page of a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    pub entries: Vec<Entry>,
    /// The last entry of this page, relative to the directory; missing on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<RawPath>,
    /// The first directories below that the user may not read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<RawPath>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watching {
    pub directories: u64,
}

/// A change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    pub kind: ChangeKind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<RawPath>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// Created, or moved here.
    Created,
    Modified,
    /// Its mode, owner or times.
    Attributes,
    /// Deleted, or moved away.
    Deleted,
    /// The watched directory itself was deleted or moved.
    Gone,
    /// Events were lost: read the directory again.
    Overflow,
}

/// The size of an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packing {
    pub entries: u64,
    /// Total size of the files' content.
    pub bytes: u64,
    /// Whether it contains a directory; otherwise a single file, under its name.
    pub directory: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unpacked {
    pub entries: u64,
    pub bytes: u64,
}

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub kind: FailureKind,
    /// In words, without the path; lower case, no full stop.
    pub message: String,
    /// The path concerned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<RawPath>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    NotFound,
    NotADirectory,
    IsADirectory,
    Exists,
    /// A directory that is not empty.
    NotEmpty,
    /// For lack of permission inside.
    NotPermitted,
    /// The file system is mounted read-only there.
    ReadOnly,
    /// The sandbox's disk is full, or its limit is reached.
    NoSpace,
    TooLarge,
    /// A FIFO, a socket or a device where only files and directories are read and written.
    NotRegular,
    /// It was changed meanwhile.
    Changed,
    /// An invalid request, or an invalid archive.
    Invalid,
    /// Not supported here.
    Unsupported,
    /// The data ended prematurely. Nothing was changed.
    BrokenOff,
    /// The text to find is missing, or occurs more than once.
    NoMatch,
    /// It took too long.
    TimedOut,
    /// Any other error of the kernel.
    Other,
}

impl Failure {
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), path: None }
    }

    pub fn at(self, path: impl AsRef<Path>) -> Self {
        Self { path: Some(path.as_ref().into()), ..self }
    }

    /// An error of the kernel about this path.
    pub fn from_io(error: &io::Error, path: Option<&Path>) -> Self {
        let errno = error.raw_os_error().map(Errno::from_raw_os_error);
        let kind = errno.map_or(FailureKind::Other, kind_of);
        let message = errno.and_then(words).map_or_else(|| error.to_string(), str::to_owned);
        Self { kind, message, path: path.map(RawPath::from) }
    }

    pub fn from_errno(errno: Errno, path: impl AsRef<Path>) -> Self {
        Self::from_io(&errno.into(), Some(path.as_ref()))
    }
}

fn kind_of(errno: Errno) -> FailureKind {
    match errno {
        Errno::NOENT => FailureKind::NotFound,
        Errno::NOTDIR => FailureKind::NotADirectory,
        Errno::ISDIR => FailureKind::IsADirectory,
        Errno::EXIST => FailureKind::Exists,
        Errno::NOTEMPTY => FailureKind::NotEmpty,
        Errno::ACCESS | Errno::PERM => FailureKind::NotPermitted,
        Errno::ROFS => FailureKind::ReadOnly,
        Errno::NOSPC | Errno::DQUOT => FailureKind::NoSpace,
        Errno::FBIG | Errno::MLINK => FailureKind::TooLarge,
        Errno::NXIO | Errno::NODEV => FailureKind::NotRegular,
        Errno::STALE => FailureKind::Changed,
        Errno::INVAL | Errno::NAMETOOLONG | Errno::LOOP => FailureKind::Invalid,
        Errno::OPNOTSUPP | Errno::NOSYS | Errno::XDEV => FailureKind::Unsupported,
        _ => FailureKind::Other,
    }
}

/// For errors whose standard message is too vague.
fn words(errno: Errno) -> Option<&'static str> {
    match errno {
        Errno::NOENT => Some("there is no such file or directory"),
        Errno::NOTDIR => Some("it is no directory, or something on the way to it is none"),
        Errno::ISDIR => Some("it is a directory"),
        Errno::EXIST => Some("it is there already"),
        Errno::NOTEMPTY => Some("the directory is not empty"),
        Errno::ACCESS | Errno::PERM => Some("the sandbox's user may not do that here"),
        Errno::ROFS => Some("it is on a filesystem that the sandbox can only read"),
        Errno::NOSPC | Errno::DQUOT => Some("the disk of the sandbox is full"),
        Errno::NAMETOOLONG => Some("a name has more than 255 bytes, or the path more than 4095"),
        Errno::LOOP => Some("it leads through too many symbolic links, or in a circle"),
        _ => None,
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.path {
            Some(path) => write!(f, "{:?}: {}", path.to_text_lossy(), self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for Failure {}
