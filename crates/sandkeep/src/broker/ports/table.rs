//! Which ports something inside listens on, as the sandbox's own kernel tables say. It is a view, not a
//! promise: a server may come or go at any time.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::error::Error;
use crate::guest::{ExecEvent, ExecRequest, Guest, GuestError, Stdin};
use crate::limits;
use crate::sandbox::{ExecId, Port, Privilege};

/// `TCP_LISTEN` in those tables.
const LISTENING: &str = "0A";

/// Asks a process inside, because only there are those tables the sandbox's own.
pub(super) async fn open_ports(guest: &Arc<dyn Guest>) -> Result<BTreeSet<Port>, Error> {
    let argv = ["/bin/cat", "/proc/net/tcp", "/proc/net/tcp6"].map(str::to_owned);
    let request = ExecRequest {
        id: ExecId::random(),
        argv: argv.to_vec(),
        env: Vec::new(),
        cwd: Some("/".to_owned()),
        // By number: the sandbox of an image may have no such name.
        user: "1000".to_owned(),
        stdin: Stdin::Null,
        terminal: None,
        timeout: Some(limits::GUEST_ANSWER),
        privilege: Privilege::None,
    };
    let mut execution = guest.exec(request).await?;
    let mut said = Vec::new();
    let read = async {
        while let Some(event) = execution.next().await {
            match event {
                // All of it is taken, so that the command can end; only so much is kept.
                ExecEvent::Output { data, .. } => {
                    let room = limits::PORT_TABLE_MAX_BYTES.saturating_sub(said.len());
                    said.extend_from_slice(&data[..data.len().min(room)]);
                }
                ExecEvent::Started => {}
                ExecEvent::Ended(_) => break,
            }
        }
    };
    let after = limits::GUEST_ANSWER;
    tokio::time::timeout(after, read).await.map_err(|_| GuestError::TimedOut { after })?;
    Ok(listening(&String::from_utf8_lossy(&said)))
}

/// The ports of the lines that say `LISTEN`. What does not look like such a line is skipped: whoever
/// is inside could have written it.
fn listening(table: &str) -> BTreeSet<Port> {
    let port = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let (local, state) = (words.nth(1)?, words.nth(1)?);
        let (_, port) = local.rsplit_once(':')?;
        let port = u16::from_str_radix(port, 16).ok()?;
        if state == LISTENING { Port::new(port) } else { None }
    };
    table.lines().filter_map(port).collect()
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
        let ports: Vec<u16> = listening(table).into_iter().map(Port::get).collect();
        assert_eq!(ports, [80, 8080]);
    }
}
