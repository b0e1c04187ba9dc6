//! Limits of codebases.

use std::time::Duration;

/// How many codebases one user may have, and how many there may be.
pub const CODEBASES_PER_USER_MAX: usize = 1000;
pub const CODEBASES_MAX: usize = 20_000;
/// Length of the path that a codebase is mounted at.
pub const MOUNT_PATH_MAX_BYTES: usize = 1024;
/// How many file operations on codebases may run at once; one organization has at most half of them.
pub const CODEBASE_WORK_AT_ONCE_MAX: usize = 64;
/// Resources of one such operation: file descriptors, and bytes of address space.
pub const CODEBASE_WORK_DESCRIPTORS: u64 = 256;
pub const CODEBASE_WORK_MEMORY_BYTES: u64 = 1024 * 1024 * 1024;
/// Pieces in which its output is read.
pub const CODEBASE_WORK_PIECE_BYTES: usize = 64 * 1024;
/// How long counting the files of a codebase may take.
pub const CODEBASE_COUNT: Duration = Duration::from_secs(60);
/// How many writable directories of a read-only codebase are mounts of their own.
pub const CODEBASE_MOUNTS_MAX: usize = 8;
