//! The guest itself, embedded in this binary by the build script.

/// A static ELF program. Runtimes put it into a sealed memory file, or into a container.
pub static BYTES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/sandkeep-guest"));
