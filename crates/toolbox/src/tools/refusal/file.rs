//! Refusals about a path.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::Said;
use crate::answer::{Failure, FailureKind};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum FileRefusal {
    /// `near` is a similar name in the same directory.
    NotFound {
        path: String,
        near: Option<String>,
    },
    IsDirectory {
        path: String,
    },
    NotDirectory {
        path: String,
    },
    /// A pipe, socket or device.
    NotRegular {
        path: String,
    },
    Binary {
        path: String,
    },
    TooLarge {
        path: String,
        bytes: u64,
    },
    BeyondEnd {
        path: String,
        offset: u64,
        lines: u64,
    },
    NotPermitted {
        path: String,
    },
    ReadOnly {
        path: String,
    },
    QuotaReached {
        path: String,
    },
    NameUnusable {
        path: String,
    },
    LinkLoop {
        path: String,
    },
    /// A system error that has no refusal of its own.
    Failed {
        path: String,
        problem: String,
    },
}

impl FileRefusal {
    /// The refusal for a system error about a path.
    pub fn of(path: &Path, error: &io::Error) -> Self {
        use io::ErrorKind as Kind;
        let looped = rustix::io::Errno::LOOP.raw_os_error();
        let path = path.display().to_string();
        match error.kind() {
            Kind::NotFound => Self::NotFound { path, near: None },
            Kind::IsADirectory => Self::IsDirectory { path },
            // Creating a directory returns this if something else has its name.
            Kind::NotADirectory | Kind::AlreadyExists => Self::NotDirectory { path },
            Kind::PermissionDenied => Self::NotPermitted { path },
            Kind::ReadOnlyFilesystem => Self::ReadOnly { path },
            Kind::StorageFull | Kind::QuotaExceeded => Self::QuotaReached { path },
            Kind::InvalidFilename | Kind::InvalidInput => Self::NameUnusable { path },
            _ if error.raw_os_error() == Some(looped) => Self::LinkLoop { path },
            _ => Self::Failed { path, problem: error.to_string() },
        }
    }

    /// The refusal for a failed file operation.
    pub fn failed(path: &Path, failure: Failure) -> Self {
        let path = path.display().to_string();
        match failure.kind {
            FailureKind::NotFound => Self::NotFound { path, near: None },
            FailureKind::IsADirectory => Self::IsDirectory { path },
            FailureKind::NotADirectory => Self::NotDirectory { path },
            FailureKind::NotPermitted => Self::NotPermitted { path },
            FailureKind::ReadOnly => Self::ReadOnly { path },
            FailureKind::NoSpace => Self::QuotaReached { path },
            FailureKind::NotRegular => Self::NotRegular { path },
            _ => Self::Failed { path, problem: failure.message },
        }
    }

    pub(super) fn said(&self) -> Said {
        match self {
            Self::NotFound { path, near } => {
                let rule =
                    "the path must exist; relative paths begin at the sandbox's working directory";
                let instead = match near {
                    Some(near) => format!("did you mean {near}? list files with ls or glob"),
                    None => {
                        "list files with ls or glob, or create the file with write_file".to_owned()
                    }
                };
                Said::new("not_found", format!("there is no {path}"), rule, &instead)
            }
            Self::IsDirectory { path } => Said::new(
                "is_directory",
                format!("{path} is a directory"),
                "this tool works on a file",
                "name a file in it; ls lists them",
            ),
            Self::NotDirectory { path } => Said::new(
                "not_directory",
                format!("{path} is not a directory, or a part of it is not"),
                "all parent parts of a path must be directories; for ls also the last part",
                "use its parent directory, or read it with read_file",
            ),
            Self::NotRegular { path } => Said::new(
                "not_regular",
                format!("{path} is a pipe, socket or device"),
                "only regular files are read and written",
                "use bash instead, if intended",
            ),
            Self::Binary { path } => Said::new(
                "binary",
                format!("{path} is a binary file"),
                "only text is shown and edited",
                "inspect it with bash: file, xxd, strings",
            ),
            Self::TooLarge { path, bytes } => Said::new(
                "too_large",
                format!("{path} has {bytes} bytes"),
                "files over 10 MB cannot be read or edited as a whole",
                "find the place with grep, or print a part with bash: sed -n '1000,1200p' FILE",
            ),
            Self::BeyondEnd { path, offset, lines } => Said::new(
                "beyond_end",
                format!("{path} has {lines} lines, so there is nothing at offset {offset}"),
                "offset is the number of the first line to read, from 1",
                &format!("use an offset from 1 to {lines}"),
            ),
            Self::NotPermitted { path } => Said::new(
                "not_permitted",
                format!("permission denied: {path}"),
                "tools run as the sandbox's user, with that user's rights",
                "work under your home directory, or change the permissions with bash if you own it",
            ),
            Self::ReadOnly { path } => Said::new(
                "read_only",
                format!("{path} is on a read-only filesystem"),
                "directories shared with the host (/usr, /etc) cannot be changed",
                "write under your home directory or /tmp",
            ),
            Self::QuotaReached { path } => Said::new(
                "quota_reached",
                format!("no space left to write {path}; it was not changed"),
                "the sandbox's disk quota, resources.disk_mb",
                "delete unneeded files (bash: du -sh * | sort -h), or use a sandbox with a larger disk",
            ),
            Self::NameUnusable { path } => Said::new(
                "name_unusable",
                format!("{path:?} is not a valid file name"),
                "a name has at most 255 bytes, a path 4095, and neither contains NUL",
                "use a shorter name",
            ),
            Self::LinkLoop { path } => Said::new(
                "link_loop",
                format!("{path} is a symbolic link loop"),
                "at most 40 links are followed",
                "remove the link with bash: rm PATH",
            ),
            Self::Failed { path, problem } => Said::new(
                "failed",
                format!("{path}: {problem}"),
                "the operating system refused the operation",
                "inspect it with ls, or with bash: stat PATH",
            ),
        }
    }

    pub(super) fn samples() -> Vec<Self> {
        let path = || "src/main.rs".to_owned();
        vec![
            Self::NotFound { path: path(), near: Some("src/mian.rs".to_owned()) },
            Self::IsDirectory { path: path() },
            Self::NotDirectory { path: path() },
            Self::NotRegular { path: path() },
            Self::Binary { path: path() },
            Self::TooLarge { path: path(), bytes: 20_000_000 },
            Self::BeyondEnd { path: path(), offset: 90, lines: 12 },
            Self::NotPermitted { path: path() },
            Self::ReadOnly { path: path() },
            Self::QuotaReached { path: path() },
            Self::NameUnusable { path: path() },
            Self::LinkLoop { path: path() },
            Self::Failed { path: path(), problem: "input/output error".to_owned() },
        ]
    }
}
