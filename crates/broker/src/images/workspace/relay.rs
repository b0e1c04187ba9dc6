//! Connects git, in a sandbox without a network, to the one host that its URL names.
//!
//! ```text
//!  git ──▶ entrance ─┬─ exit ◀── dial ── here ──▶ host:port of the URL, at the admitted addresses
//!        (loopback)  └─ toolbox          CONNECT host:port, then bytes
//! ```
//!
//! To git this is a proxy: it sends CONNECT for its target, and speaks TLS with the server, which it verifies itself.
//! Only ciphertext passes here: both sides must start with a TLS handshake for the host of the URL, so the relay cannot
//! tunnel other protocols. Every other target is refused, so the sandbox gets only TLS to the host that its creator has
//! named.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio::time::timeout;
use toolbox::{Operation, Relaying};

use crate::error::Error;
use crate::inside::{
    toolbox as runs,
    toolbox::{ToolboxRequest, ToolboxRun},
};
use crate::shared::Shared;
use sandkeep_core::{Spec, limits};
use sandkeep_guestlink::{ByteStream, Guest};
use sandkeep_outgoing::{CheckedUrl, hello};

/// Why a connection from inside was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It asked for another target.
    Elsewhere {
        place: String,
    },
    Unreachable {
        problem: String,
    },
    TooMuch,
    /// It sent something other than TLS for the host of the URL.
    NotTls {
        who: Speaker,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaker {
    Inside,
    Server,
}

pub struct Relay {
    guest: Arc<dyn Guest>,
    ports: Relaying,
    run: ToolboxRun,
    to: CheckedUrl,
    left_bytes: AtomicU64,
    trouble: Mutex<Option<Trouble>>,
}

/// The state of a connection when it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// It was never used.
    Unused,
    Used,
}

impl Relay {
    /// Opens the relay. It forwards nothing before [`serve`](Self::serve) is called.
    pub async fn open(
        shared: &Arc<Shared>,
        guest: &Arc<dyn Guest>,
        spec: &Spec,
        to: CheckedUrl,
    ) -> Result<Self, Error> {
        let request = ToolboxRequest::long(Operation::Relay {});
        let mut run = runs::begin_in_new(shared, guest, spec, request).await?;
        // Its request stays open until the clone ends.
        let ports = run.answer_while::<Relaying, Error>(std::future::pending()).await?;
        let left_bytes = AtomicU64::new(limits::RELAY_MAX_BYTES);
        let guest = Arc::clone(guest);
        Ok(Self { guest, ports, run, to, left_bytes, trouble: Mutex::default() })
    }

    /// The proxy URL for git.
    pub fn proxy(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports.entrance)
    }

    /// The first problem that occurred.
    pub fn trouble(&self) -> Option<Trouble> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note(&self, trouble: Trouble) {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(trouble);
    }

    /// Forwards connections for as long as it is polled. One spare connection is always open.
    pub async fn serve(&self) {
        let (begun, mut beginnings) = mpsc::channel(limits::RELAY_CONNECTIONS_AT_ONCE_MAX);
        let mut connections = FuturesUnordered::new();
        let mut left = limits::RELAY_CONNECTIONS_MAX;
        let mut waiting = false;
        loop {
            let room = connections.len() < limits::RELAY_CONNECTIONS_AT_ONCE_MAX && left > 0;
            if !waiting && room {
                waiting = true;
                left -= 1;
                connections.push(self.connection(begun.clone()));
            }
            tokio::select! {
                Some(()) = beginnings.recv() => waiting = false,
                Some(ended) = connections.next() => match ended {
                    Ended::Unused => waiting = false,
                    Ended::Used => {}
                },
            }
        }
    }

    /// One connection from inside, from opening to its end.
    async fn connection(&self, begun: mpsc::Sender<()>) -> Ended {
        let Ok(mut inside) = self.guest.dial(self.ports.exit).await else { return Ended::Unused };
        let mut head = Vec::new();
        match inside.read_buf(&mut head).await {
            Ok(read) if read > 0 => {}
            Ok(_) | Err(_) => return Ended::Unused,
        }
        // The channel has room for all concurrent connections.
        let _ = begun.send(()).await;
        // Both ends see a connection that breaks off.
        let _ = self.carry(&mut inside, head).await;
        let _ = inside.shutdown().await;
        Ended::Used
    }

    async fn carry(&self, inside: &mut Box<dyn ByteStream>, head: Vec<u8>) -> io::Result<()> {
        let asked = timeout(limits::RELAY_HEAD, rest_of_head(inside, head)).await??;
        let (place, early) = match asked {
            Some((place, early)) if self.is_ours(&place) => (place, early),
            other => {
                let place = other.map_or_else(|| "something else".to_owned(), |(place, _)| place);
                self.note(Trouble::Elsewhere { place });
                return inside.write_all(b"HTTP/1.1 403 Forbidden\r\n\r\n").await;
            }
        };
        let mut outside = match self.to.connect().await {
            Ok(outside) => outside,
            Err(error) => {
                self.note(Trouble::Unreachable { problem: format!("{place}: {error}") });
                return inside.write_all(b"HTTP/1.1 502 Bad Gateway\r\n\r\n").await;
            }
        };
        inside.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await?;
        let host = self.to.url().host_str().unwrap_or_default();
        let hello = timeout(limits::RELAY_HEAD, hello::from_client(inside, early, host)).await??;
        let Some(hello) = hello else { return self.refuse(Speaker::Inside) };
        outside.write_all(&hello).await?;
        let answer = timeout(limits::RELAY_HEAD, hello::from_server(&mut outside)).await??;
        let Some(answer) = answer else { return self.refuse(Speaker::Server) };
        inside.write_all(&answer).await?;
        let (from_inside, to_inside) = tokio::io::split(inside);
        let (from_outside, to_outside) = outside.split();
        tokio::try_join!(
            self.one_way(from_inside, to_outside),
            self.one_way(from_outside, to_inside)
        )?;
        Ok(())
    }

    fn refuse(&self, who: Speaker) -> io::Result<()> {
        self.note(Trouble::NotTls { who });
        Ok(())
    }

    /// Whether the target is that of the URL.
    fn is_ours(&self, place: &str) -> bool {
        let url = self.to.url();
        let host = url.host_str().unwrap_or_default();
        let port = url.port_or_known_default().unwrap_or_default();
        place.eq_ignore_ascii_case(&format!("{host}:{port}"))
    }

    async fn one_way(
        &self,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
    ) -> io::Result<()> {
        let mut chunk = vec![0; limits::RELAY_CHUNK_BYTES];
        loop {
            let read = from.read(&mut chunk).await?;
            if read == 0 {
                return to.shutdown().await;
            }
            let take = |left: u64| left.checked_sub(read as u64);
            if self.left_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_err() {
                self.note(Trouble::TooMuch);
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            to.write_all(&chunk[..read]).await?;
        }
    }

    /// Closes the relay, and waits until nothing of it is left inside.
    pub async fn close(mut self) {
        let input = self.run.input();
        let both = async { tokio::join!(input.end(), self.run.data()) };
        // A program that does not end by itself is killed when this is dropped.
        let _ = timeout(limits::TOOLBOX_END, both).await;
    }
}

/// Reads a request up to its empty line. Returns the target of a CONNECT, and the bytes after it.
async fn rest_of_head(
    inside: &mut (impl AsyncRead + Unpin),
    mut head: Vec<u8>,
) -> io::Result<Option<(String, Vec<u8>)>> {
    const END: &[u8] = b"\r\n\r\n";
    let end = loop {
        if let Some(at) = head.windows(END.len()).position(|window| window == END) {
            break at + END.len();
        }
        if head.len() > limits::RELAY_HEAD_MAX_BYTES || inside.read_buf(&mut head).await? == 0 {
            return Ok(None);
        }
    };
    let early = head.split_off(end);
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.split(' ');
    match (words.next(), words.next()) {
        (Some("CONNECT"), Some(place)) => Ok(Some((place.to_owned(), early))),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_a_whole_connect_says_where_it_wants_to() {
        let connect = b"CONNECT host:443 HTTP/1.1\r\nHost: host:443\r\n\r\nearly";
        for cut in [0, 1, 20, connect.len()] {
            let (head, rest) = connect.split_at(cut);
            let asked = rest_of_head(&mut &rest[..], head.to_vec()).await.expect("all is there");
            assert_eq!(asked, Some(("host:443".to_owned(), b"early".to_vec())), "{cut}");
        }
        for other in
            [&b"GET http://host/ HTTP/1.1\r\n\r\n"[..], b"CONNECT host:443 HTTP/1.1\r\n", b""]
        {
            assert_eq!(rest_of_head(&mut &other[..], Vec::new()).await.expect("read"), None);
        }
        let long = vec![b'x'; 4 * limits::RELAY_HEAD_MAX_BYTES];
        assert_eq!(rest_of_head(&mut &long[..], Vec::new()).await.expect("read"), None);
    }
}
