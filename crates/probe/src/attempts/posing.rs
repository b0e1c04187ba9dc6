//! Impersonating the guest. If the guest cannot be given descriptors, it dials a socket of the host that is visible to
//! every process inside. The host must not mistake another process for the guest: a dialing process must not receive a
//! single byte of the guest's requests.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use super::walk::{Kind, climb_out, find};
use crate::finding::{Finding, held, leaked, not_applicable};
use crate::sys;

/// How long to wait for a request; the host sends some all the time.
const PATIENCE: Duration = Duration::from_secs(1);
/// As many as a guest keeps ready, and more.
const CONNECTIONS: usize = 8;

pub fn dial_back() -> Finding {
    let (mut sockets, mut connected) = (0, Vec::new());
    // If the guest is in a chroot, the socket is in the outer root.
    for _ in ["its root", "the root around it"] {
        for path in find(Path::new("/"), Kind::Socket, &["/proc", "/sys", "/usr"]) {
            sockets += 1;
            connected.extend((0..CONNECTIONS).map_while(|_| UnixStream::connect(&path).ok()));
        }
        if climb_out().is_err() {
            break;
        }
    }
    if sockets == 0 {
        return not_applicable("no socket is in sight: the guest was handed its own");
    }
    let (all, deadline) = (connected.len(), Instant::now() + PATIENCE);
    for mut stream in connected {
        let left = deadline.saturating_duration_since(Instant::now());
        if sys::readable_within(&stream, left) && stream.read(&mut [0; 64]).is_ok_and(|n| n > 0) {
            return leaked("the host spoke to somebody who only posed as the guest");
        }
    }
    held(format!("{sockets} sockets in sight, {all} connections, not one byte"))
}
