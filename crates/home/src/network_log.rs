//! What was decided about the connections of a sandbox, one line of JSON each, in its home, and how many bytes they
//! took of a limit. Both survive the daemon and go with the sandbox.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use super::rotating::Rotating;
use sandkeep_core::limits::NETWORK_LOG_FILE_MAX_BYTES;

const LOG: Rotating =
    Rotating { now: "network.log", before: "network.log.1", max_bytes: NETWORK_LOG_FILE_MAX_BYTES };

const USED: &str = "network.used";
const USED_NEW: &str = "network.used.new";

/// Appends a line. Does nothing if there is no home.
pub fn append(home: &Path, line: &[u8]) -> io::Result<()> {
    LOG.append(home, line)
}

/// All lines, oldest first.
pub fn read(home: &Path) -> io::Result<Vec<u8>> {
    LOG.read(home)
}

/// How many bytes the sandbox has used of its limit; 0 if that was never written.
pub fn used_bytes(home: &Path) -> io::Result<u64> {
    match fs::read_to_string(home.join(USED)) {
        Ok(text) => text.trim().parse().map_err(io::Error::other),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error),
    }
}

/// Replaces that number. Does nothing if there is no home.
pub fn keep_used_bytes(home: &Path, bytes: u64) -> io::Result<()> {
    let (new, now) = (home.join(USED_NEW), home.join(USED));
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let written = options
        .open(&new)
        .and_then(|mut file| file.write_all(bytes.to_string().as_bytes()))
        .and_then(|()| fs::rename(&new, &now));
    match written {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        written => written,
    }
}
