//! Limits of the benchmark's measurements of files, tools and storages.

use std::time::Duration;

/// Connections and bytes through the way out of a sandbox, for one sample.
pub const BENCH_EGRESS_CONNECTIONS: u64 = 300;
pub const BENCH_EGRESS_BYTES: u64 = 256 * 1024 * 1024;
/// One sample is the median of this many calls.
pub const BENCH_TOOL_CALLS: usize = 20;
pub const BENCH_TRANSFER_MB_MAX: u64 = 16 * 1024;
pub const BENCH_GREP_FILES_MAX: u64 = 10_000_000;

/// How long the benchmark waits for operations that may copy a gigabyte.
pub const BENCH_STORAGE_ANSWER: Duration = Duration::from_secs(15 * 60);
/// Maximum number of rounds of each storage operation.
pub const BENCH_STORAGE_ROUNDS_MAX: u64 = 1_000;
/// How many forks are created at once.
pub const BENCH_FORKS: u64 = 100;
