//! What was decided about the connections of a sandbox, one line of JSON each, in its home. It survives the daemon and
//! goes with the sandbox.

use std::io;
use std::path::Path;

use super::rotating::Rotating;
use sandkeep_core::limits::NETWORK_LOG_FILE_MAX_BYTES;

const LOG: Rotating =
    Rotating { now: "network.log", before: "network.log.1", max_bytes: NETWORK_LOG_FILE_MAX_BYTES };

/// Appends a line. Does nothing if there is no home.
pub fn append(home: &Path, line: &[u8]) -> io::Result<()> {
    LOG.append(home, line)
}

/// All lines, oldest first.
pub fn read(home: &Path) -> io::Result<Vec<u8>> {
    LOG.read(home)
}
