//! Limits of builds.

use std::time::Duration;

use super::MIB;

/// Pieces of a build's context that are queued for sending.
pub const UPLOAD_CHUNKS_MAX: usize = 8;
/// Timeout of one build step.
pub const BUILD_STEP_MAX: Duration = Duration::from_secs(60 * 60);
/// Queued events of a build.
pub const BUILD_EVENTS_MAX: usize = 64;
/// How much of a failed step's output is in the error.
pub const BUILD_TAIL_BYTES: usize = 2 * 1024;
/// Size of the build cache: steps, and the total size of their layers.
pub const BUILD_CACHE_MAX: usize = 1_000;
pub const BUILD_CACHE_MAX_BYTES: u64 = 16 * 1024 * MIB;
/// Limits of a build context: number of files, and total length of their names.
pub const CONTEXT_ENTRIES_MAX: usize = 500_000;
pub const CONTEXT_NAMES_MAX_BYTES: usize = 64 * 1024 * 1024;
/// Maximum size of a passwd or group file in an image.
pub const BUILD_USERS_MAX_BYTES: u64 = MIB;
/// Secrets of one build, and the size of each.
pub const BUILD_SECRETS_MAX: usize = 64;
pub const BUILD_SECRET_MAX_BYTES: u64 = 500 * 1024;
/// Mounts of one step.
pub const BUILD_MOUNTS_MAX: usize = 32;
/// Size of one cache. Where the storage has no quotas, one that grew beyond it is removed after the step.
pub const BUILD_CACHE_MOUNT_MAX_BYTES: u64 = 4 * 1024 * MIB;
/// Caches of one user, and the size of everybody's. The least recently used are removed first.
pub const BUILD_CACHE_MOUNTS_PER_USER_MAX: usize = 32;
pub const BUILD_CACHE_MOUNTS_MAX_BYTES: u64 = 16 * 1024 * MIB;
/// Refused destinations that a build names after a step.
pub const BUILD_REFUSED_TOLD_MAX: usize = 10;
