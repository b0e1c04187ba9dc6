//! Bounds of what the benchmark measures of files and tools.

/// Calls of which one sample is the middle.
pub const BENCH_TOOL_CALLS: usize = 20;
pub const BENCH_TRANSFER_MB_MAX: u64 = 16 * 1024;
pub const BENCH_GREP_FILES_MAX: u64 = 10_000_000;
