//! Limits of what is mounted in a step of a build.

use super::MIB;

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
