//! The resolver of a sandbox. It answers every query by itself: no query ever leaves, so that DNS carries nothing out
//! and a name tells nobody anything before a connection to it is allowed.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::net::UdpSocket;
use tokio::time::timeout;

use sandkeep_core::limits::EGRESS_QUERY_MAX_BYTES;
use sandkeep_core::network::{DecisionKind, NetworkVerdict, host_name};
use sandkeep_sys::datagram;

use crate::dns::{self, Answer, Kind, Question};
use crate::sandbox::{Line, Sandbox};
use crate::stream::Stream;

/// Answers datagrams until the socket breaks.
pub(crate) async fn serve_datagrams(sandbox: Arc<Sandbox>, socket: OwnedFd) -> io::Result<()> {
    let socket = std::net::UdpSocket::from(socket);
    socket.set_nonblocking(true)?;
    let socket = UdpSocket::from_std(socket)?;
    let mut buffer = vec![0; EGRESS_QUERY_MAX_BYTES];
    loop {
        let received =
            socket.async_io(Interest::READABLE, || datagram::receive(&socket, &mut buffer)).await;
        let received = match received {
            Ok(received) => received,
            // An earlier answer did not arrive; the kernel tells it here.
            Err(error) if is_passing(&error) => continue,
            Err(error) => return Err(error),
        };
        let Some(asked) = received.to.filter(|_| !received.is_cut) else { continue };
        if let Some(answer) = answer(&sandbox, &buffer[..received.len]) {
            // Datagrams may be lost; the program asks again.
            let _ = datagram::send(&socket, &answer, received.from, asked);
        }
    }
}

fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{
        ConnectionRefused, ConnectionReset, HostUnreachable, Interrupted, InvalidData,
        NetworkUnreachable, PermissionDenied,
    };
    matches!(
        error.kind(),
        ConnectionRefused
            | ConnectionReset
            | HostUnreachable
            | Interrupted
            | InvalidData
            | NetworkUnreachable
            | PermissionDenied
    )
}

/// Answers queries on a connection until the program closes it.
pub(crate) async fn serve_stream(sandbox: &Arc<Sandbox>, mut stream: Stream) -> io::Result<()> {
    let wait = sandbox.times().handshake;
    loop {
        let query = timeout(wait, async {
            let len = usize::from(stream.read_u16().await?);
            if len > EGRESS_QUERY_MAX_BYTES {
                return Err(io::Error::from(io::ErrorKind::InvalidData));
            }
            let mut query = vec![0; len];
            stream.read_exact(&mut query).await?;
            Ok(query)
        });
        let query = match query.await {
            Ok(Ok(query)) => query,
            Ok(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Ok(Err(error)) => return Err(error),
            Err(_) => return Ok(()),
        };
        let Some(answer) = answer(sandbox, &query) else { return Ok(()) };
        let len = u16::try_from(answer.len()).map_err(|_| io::ErrorKind::InvalidData)?;
        stream.write_all(&[&len.to_be_bytes(), answer.as_slice()].concat()).await?;
    }
}

/// The answer to one query. `None` if it gets none: it is no query, or there are too many.
pub(crate) fn answer(sandbox: &Sandbox, query: &[u8]) -> Option<Vec<u8>> {
    if !sandbox.queries.take() {
        return None;
    }
    dns::answer(query, |question| {
        let answer = decide(sandbox, question);
        sandbox.count_query(answer == Answer::Refused);
        answer
    })
}

fn decide(sandbox: &Sandbox, question: &Question) -> Answer {
    let Some(name) = question.name.as_deref() else { return Answer::Refused };
    if question.kind == Kind::Ptr || name.ends_with(".arpa") {
        return reverse(sandbox, name);
    }
    if name == "localhost" || name.ends_with(".localhost") {
        return Answer::Addresses(vec![Ipv4Addr::LOCALHOST], vec![Ipv6Addr::LOCALHOST]);
    }
    // Records of services are below the name of their host: `_https._tcp.host`. There are none.
    let host = name.split('.').skip_while(|label| label.starts_with('_'));
    let host = host.collect::<Vec<_>>().join(".");
    let is_service = host.len() < name.len();
    // A name without a dot is nobody's: the policy cannot have it.
    let maps = |host: &str| host.contains('.') && sandbox.rules().maps(host);
    match host_name(&host).ok().filter(|host| maps(host)) {
        Some(_) if is_service => Answer::NotFound,
        Some(host) => match question.kind {
            Kind::A | Kind::Aaaa | Kind::Any => {
                let number = sandbox.names().number(&host);
                Answer::Addresses(vec![number.v4()], vec![number.v6()])
            }
            // Not even HTTPS records: a program that finds none does not encrypt the name that it connects to.
            Kind::Ptr | Kind::Other => Answer::Empty,
        },
        None => {
            let (kind, verdict) = (DecisionKind::Name, NetworkVerdict::Denied);
            let reason = "the policy allows no connection to this name; it was not looked up";
            let name = Some(name.to_owned());
            let line = Line { name, reason: Some(reason.to_owned()), ..Line::of(kind, verdict) };
            sandbox.record(line);
            Answer::Refused
        }
    }
}

/// The name of an address that stands for one. Others have no name here, which is not a refusal.
fn reverse(sandbox: &Sandbox, name: &str) -> Answer {
    let found = reverse_address(name).and_then(|address| sandbox.names().name(address));
    found.map_or(Answer::NotFound, |name| Answer::Name(name.as_ref().to_owned()))
}

fn reverse_address(name: &str) -> Option<IpAddr> {
    if let Some(digits) = name.strip_suffix(".in-addr.arpa") {
        let parts: Vec<u8> = digits.split('.').map(str::parse).collect::<Result<_, _>>().ok()?;
        let [d, c, b, a] = parts.try_into().ok()?;
        return Some(Ipv4Addr::new(a, b, c, d).into());
    }
    let digits: Vec<&str> = name.strip_suffix(".ip6.arpa")?.split('.').collect();
    if digits.len() != 32 || digits.iter().any(|digit| digit.len() != 1) {
        return None;
    }
    let text: String = digits.into_iter().rev().collect();
    u128::from_str_radix(&text, 16).ok().map(|bits| Ipv6Addr::from_bits(bits).into())
}

#[cfg(test)]
mod tests;
