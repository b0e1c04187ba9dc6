//! The ports that processes listen on, from the kernel's tables inside the sandbox: only there are they the sandbox's
//! own.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _};

use crate::answer::{Failure, Listening};

/// Both exist wherever there is TCP; a kernel without IPv6 has one.
const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];
/// How much of each table is read, because processes inside can make them long.
const TABLE_MAX_BYTES: u64 = 16 * 1024 * 1024;

/// `TCP_LISTEN` in those tables.
const LISTENING: &str = "0A";

pub fn listening() -> Result<Listening, Failure> {
    let mut ports = BTreeSet::new();
    for table in TABLES {
        let mut text = String::new();
        let read = File::open(table)
            .and_then(|file| file.take(TABLE_MAX_BYTES).read_to_string(&mut text).map(drop));
        match read {
            Ok(()) => ports.extend(text.lines().filter_map(listener)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(Failure::from_io(&error, Some(table.as_ref()))),
        }
    }
    Ok(Listening { ports: ports.into_iter().collect() })
}

/// The port of a `LISTEN` line; `None` for any other line.
fn listener(line: &str) -> Option<u16> {
    let mut words = line.split_ascii_whitespace();
    let (local, state) = (words.nth(1)?, words.nth(1)?);
    let (_, port) = local.rsplit_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    (state == LISTENING).then_some(port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listening_sockets_are_open_ports() {
        let table = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000
   1: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000  1000
   2: 0100007F:C350 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1000
  sl  local_address                         remote_address                        st
   0: 00000000000000000000000000000000:0050 00000000000000000000000000000000:0000 0A 0
   x: nonsense 0A 0A 0A
";
        let ports: Vec<u16> = table.lines().filter_map(listener).collect();
        assert_eq!(ports, [8080, 80]);
    }

    #[test]
    fn a_socket_of_ones_own_is_found() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = socket.local_addr().expect("an address").port();
        assert!(listening().expect("tables").ports.contains(&port));
    }
}
