//! Bounds of what the benchmark measures of files, tools and storages.

use std::time::Duration;

/// Calls of which one sample is the middle.
pub const BENCH_TOOL_CALLS: usize = 20;
pub const BENCH_TRANSFER_MB_MAX: u64 = 16 * 1024;
pub const BENCH_GREP_FILES_MAX: u64 = 10_000_000;

/// How long the benchmark waits where a gigabyte may have to be copied.
pub const BENCH_STORAGE_ANSWER: Duration = Duration::from_secs(15 * 60);
/// How often each operation of a storage may be timed.
pub const BENCH_STORAGE_ROUNDS_MAX: u64 = 1_000;
/// How many forks are made at once.
pub const BENCH_FORKS: u64 = 100;
