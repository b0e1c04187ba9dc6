//! Connects to one of several addresses of a host: a slow one does not hold up the next (RFC 8305).

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use sandkeep_core::limits::EGRESS_DIAL_STAGGER;

/// Connects to the first of the addresses that answers, and to no other address. Both families are tried in turn,
/// beginning with that of the first address.
pub async fn dial(addresses: &[SocketAddr], within: Duration) -> io::Result<TcpStream> {
    match timeout(within, race(in_turn(addresses))).await {
        Ok(done) => done,
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

async fn race(addresses: Vec<SocketAddr>) -> io::Result<TcpStream> {
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "it has no address");
    let mut waiting = addresses.into_iter();
    let mut trying = FuturesUnordered::new();
    loop {
        let next = waiting.next();
        let is_last = next.is_none();
        if let Some(address) = next {
            trying.push(TcpStream::connect(address));
        }
        let stagger = async {
            if is_last { std::future::pending().await } else { sleep(EGRESS_DIAL_STAGGER).await }
        };
        tokio::select! {
            done = trying.next() => match done {
                Some(Ok(stream)) => return Ok(stream),
                Some(Err(error)) => failed = error,
                None => return Err(failed),
            },
            () = stagger => {}
        }
    }
}

fn in_turn(addresses: &[SocketAddr]) -> Vec<SocketAddr> {
    let first = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (same, other): (Vec<SocketAddr>, Vec<SocketAddr>) =
        addresses.iter().partition(|address| address.is_ipv6() == first);
    let (mut same, mut other) = (same.into_iter(), other.into_iter());
    let mut ordered = Vec::with_capacity(addresses.len());
    loop {
        let pair = (same.next(), other.next());
        ordered.extend(pair.0);
        ordered.extend(pair.1);
        if pair == (None, None) {
            return ordered;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn families_are_tried_in_turn() {
        let addresses = ["[2001:db8::1]:1", "[2001:db8::2]:1", "192.0.2.1:1", "[2001:db8::3]:1"]
            .map(|text| text.parse().expect("an address"));
        let order: Vec<_> = in_turn(&addresses).iter().map(ToString::to_string).collect();
        let expected = ["[2001:db8::1]:1", "192.0.2.1:1", "[2001:db8::2]:1", "[2001:db8::3]:1"];
        assert_eq!(order, expected);
    }

    #[tokio::test]
    async fn an_address_that_refuses_does_not_end_the_search() {
        let dead = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let refuses = dead.local_addr().expect("an address");
        drop(dead);
        let alive = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let answers = alive.local_addr().expect("an address");
        let second = Duration::from_secs(30);
        let found = dial(&[refuses, answers], second).await.expect("the second one");
        assert_eq!(found.peer_addr().expect("a peer"), answers);
        let error = dial(&[refuses, refuses], second).await.expect_err("nobody answers");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        let error = dial(&[], second).await.expect_err("nobody to ask");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
