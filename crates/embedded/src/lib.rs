//! The programs that run inside sandboxes, embedded in this binary by the build script. All are static ELF.

/// The guest itself. Runtimes put it into a sealed memory file, or into a container.
pub static GUEST: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/sandkeep-guest"));

/// The program for file operations inside. The guest receives it over its connection, and keeps it.
pub static TOOLBOX: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/sandkeep-toolbox"));

/// The isolation tests of `doctor`.
pub static PROBE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/sandkeep-probe"));
