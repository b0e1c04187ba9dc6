//! Posing as the guest. Where no descriptor can be handed to the guest, it dials a socket of the host that everybody
//! inside can see. The host must take nobody else for the guest: whoever dials gets not one byte of what is asked of it.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use super::walk::{Kind, find};
use crate::finding::{Finding, held, leaked, not_applicable};
use crate::sys;

/// How long to wait for a request; the host makes some all the while.
const PATIENCE: Duration = Duration::from_secs(1);
/// As many as a guest keeps ready, and more.
const CONNECTIONS: usize = 8;

pub fn dial_back() -> Finding {
    let sockets = find(Path::new("/"), Kind::Socket, &["/proc", "/sys", "/usr"]);
    if sockets.is_empty() {
        return not_applicable("no socket is in sight: the guest was handed its own");
    }
    let mut connected = Vec::new();
    for path in &sockets {
        connected.extend((0..CONNECTIONS).map_while(|_| UnixStream::connect(path).ok()));
    }
    let (all, deadline) = (connected.len(), Instant::now() + PATIENCE);
    for mut stream in connected {
        let left = deadline.saturating_duration_since(Instant::now());
        if sys::readable_within(&stream, left) && stream.read(&mut [0; 64]).is_ok_and(|n| n > 0) {
            return leaked("the host spoke to somebody who only posed as the guest");
        }
    }
    held(format!("{} sockets in sight, {all} connections, not one byte", sockets.len()))
}
