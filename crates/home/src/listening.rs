//! Which sockets of the host forward to which ports of a sandbox, so that the next daemon opens the same ones. It is
//! not a record of anything that must be cleaned up: if the file is lost or torn, the sockets only have to be requested
//! again.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr};

use serde::{Deserialize, Serialize};

use super::{Home, file};
use sandkeep_core::Port;

const LISTENING: &str = "listening.json";

/// A socket of the host, by its address and port, and the sandbox port that it forwards to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listening {
    pub port: Port,
    #[serde(default = "loopback")]
    pub host: IpAddr,
    pub host_port: u16,
    #[serde(default)]
    pub until_open: UntilOpen,
}

fn loopback() -> IpAddr {
    IpAddr::V4(Ipv4Addr::LOCALHOST)
}

/// What becomes of a connection while nothing in the sandbox listens on the port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UntilOpen {
    #[default]
    Close,
    /// It waits until the port is open. The socket closes with the process that is to open it.
    Hold,
}

impl Home {
    pub fn write_listening(&self, all: &[Listening]) -> io::Result<()> {
        if all.is_empty() {
            match fs::remove_file(self.path().join(LISTENING)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                Ok(()) | Err(_) => Ok(()),
            }
        } else {
            file::replace(self.path(), LISTENING, &serde_json::to_vec(all)?)
        }
    }

    pub fn read_listening(&self) -> io::Result<Vec<Listening>> {
        match fs::read(self.path().join(LISTENING)) {
            Ok(text) => Ok(serde_json::from_slice(&text)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}
