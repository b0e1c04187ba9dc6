//! Reports the daemon's progress to systemd: `sd_notify(3)`, one datagram to a Unix socket. Without `NOTIFY_SOCKET`
//! nothing is sent. A failure to report never stops a daemon.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The supervisor's socket, if there is one.
pub struct Supervisor {
    socket: Option<(UnixDatagram, SocketAddr)>,
}

/// The progress of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Starting,
    /// The API answers.
    Ready,
    Stopping,
}

impl Supervisor {
    pub const VARIABLE: &str = "NOTIFY_SOCKET";

    pub fn at(address: Option<&OsStr>) -> Self {
        let socket = address.and_then(|address| match open(address) {
            Ok(socket) => Some(socket),
            Err(e) => {
                tracing::warn!("{} cannot be used: {e}", Self::VARIABLE);
                None
            }
        });
        Self { socket }
    }

    /// Reports the stage, and one line for `systemctl status`.
    pub fn tell(&self, stage: Stage, status: &str) {
        let Some((socket, address)) = &self.socket else { return };
        let assignment = match stage {
            Stage::Starting => "",
            Stage::Ready => "READY=1\n",
            Stage::Stopping => "STOPPING=1\n",
        };
        let message = format!("{assignment}STATUS={}\n", status.replace('\n', " "));
        if let Err(e) = socket.send_to_addr(message.as_bytes(), address) {
            tracing::warn!("the service manager could not be told that it is {stage:?}: {e}");
        }
    }
}

/// A name that starts with `@` is in the abstract namespace.
fn open(address: &OsStr) -> io::Result<(UnixDatagram, SocketAddr)> {
    let bytes = address.as_bytes();
    let address = match bytes.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None if bytes.starts_with(b"/") => SocketAddr::from_pathname(address)?,
        None => {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no path and no @name"));
        }
    };
    let socket = UnixDatagram::unbound()?;
    // A service manager that does not read must not block the daemon.
    socket.set_nonblocking(true)?;
    Ok((socket, address))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 256];
        let length = socket.recv(&mut buffer).expect("something was sent");
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }

    #[test]
    fn both_forms_of_address_are_told() {
        let directory = tempfile::tempdir().expect("a temp dir");
        let path = directory.path().join("notify");
        let by_path = UnixDatagram::bind(&path).expect("it is ours");
        Supervisor::at(Some(path.as_os_str())).tell(Stage::Ready, "well\nand good");
        assert_eq!(received(&by_path), "READY=1\nSTATUS=well and good\n");

        let name = format!("sandkeep-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("a short name");
        let abstract_one = UnixDatagram::bind_addr(&address).expect("nobody else has it");
        Supervisor::at(Some(OsStr::new(&format!("@{name}")))).tell(Stage::Stopping, "bye");
        assert_eq!(received(&abstract_one), "STOPPING=1\nSTATUS=bye\n");
    }

    #[test]
    fn nobody_to_tell_is_no_trouble() {
        for address in [None, Some("relative"), Some("/nowhere/at/all"), Some("vsock:2:1234")] {
            Supervisor::at(address.map(OsStr::new)).tell(Stage::Ready, "well");
        }
    }
}
