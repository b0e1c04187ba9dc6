//! The memory of TCP: one counter for the whole host, whatever network namespaces there are. Past its maximum nobody's
//! connections work.
//!
//! The kernel charges a connection to a control group only when it is accepted. Bytes sent into one that nobody has
//! accepted count to no sandbox, so the daemon has to look at who holds how much.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::Path;

/// How much memory TCP uses, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpMemory {
    pub used_pages: u64,
    pub max_pages: u64,
}

impl TcpMemory {
    pub fn now() -> io::Result<Self> {
        let used = fs::read_to_string("/proc/net/sockstat")?;
        let bounds = fs::read_to_string("/proc/sys/net/ipv4/tcp_mem")?;
        Self::read(&used, &bounds).ok_or_else(|| io::Error::other("sockstat has another form"))
    }

    fn read(used: &str, bounds: &str) -> Option<Self> {
        let line = used.lines().find_map(|line| line.strip_prefix("TCP: "))?;
        let mut words = line.split_whitespace().skip_while(|word| *word != "mem");
        let used_pages = words.nth(1)?.parse().ok()?;
        let max_pages = bounds.split_whitespace().nth(2)?.parse().ok()?;
        Some(Self { used_pages, max_pages })
    }
}

/// The bytes that wait in the TCP connections of each sandbox of an instance, by its control groups.
pub fn queued_bytes(instance: &str) -> io::Result<HashMap<String, u64>> {
    let (mut queued, mut seen) = (HashMap::new(), HashSet::new());
    for entry in fs::read_dir("/proc")? {
        let process = entry?.path();
        // An entry that cannot be read has ended, or is no process.
        let Ok(groups) = fs::read_to_string(process.join("cgroup")) else { continue };
        let Some(sandbox) = sandbox_in(&groups, instance) else { continue };
        let Ok(network) = fs::read_link(process.join("ns/net")) else { continue };
        // A sandbox may have several: gVisor's gofer is not in the one that its sentry uses.
        if seen.insert(network) {
            *queued.entry(sandbox.to_owned()).or_insert(0) += of_process(&process);
        }
    }
    Ok(queued)
}

/// The sandbox that a process with these groups belongs to.
fn sandbox_in<'a>(groups: &'a str, instance: &str) -> Option<&'a str> {
    groups.lines().find_map(|line| {
        let mut parts = line.split('/').skip_while(|part| *part != instance);
        parts.nth(1).filter(|sandbox| !sandbox.is_empty())
    })
}

/// In all connections of the network namespace that a process is in.
fn of_process(process: &Path) -> u64 {
    let tables = ["net/tcp", "net/tcp6"].map(|table| fs::read_to_string(process.join(table)));
    tables.iter().flatten().flat_map(|table| table.lines()).filter_map(queues).sum()
}

/// Both queues of a line of /proc/net/tcp.
fn queues(line: &str) -> Option<u64> {
    let (sent, received) = line.split_whitespace().nth(4)?.split_once(':')?;
    let number = |digits| u64::from_str_radix(digits, 16).ok();
    Some(number(sent)? + number(received)?)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn the_kernels_tables_are_read() {
        let used =
            "sockets: used 46\nTCP: inuse 5 orphan 0 tw 102 alloc 7 mem 67\nUDP: inuse 0 mem 9\n";
        let memory = TcpMemory::read(used, "287901\t383870\t575802\n");
        assert_eq!(memory, Some(TcpMemory { used_pages: 67, max_pages: 575_802 }));
        assert!(TcpMemory::now().expect("the host's").max_pages > 0);
        let groups = "4:memory:/sandkeep/abc/sbx/work/l0\n0::/\n";
        assert_eq!(sandbox_in(groups, "abc"), Some("sbx"));
        assert_eq!(sandbox_in(groups, "ab"), None);
        let head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt";
        let line = "   0: 0100007F:A3B1 00000000:0000 0A 00000010:00000001 00:00000000 00000000";
        assert_eq!((queues(head), queues(line)), (None, Some(17)));
    }

    #[test]
    fn what_waits_in_a_connection_that_nobody_accepted_is_seen() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut client = TcpStream::connect(listener.local_addr().expect("bound")).expect("queued");
        client.write_all(&[7; 50_000]).expect("it is taken");
        assert!(of_process(Path::new("/proc/self")) >= 50_000);
    }
}
