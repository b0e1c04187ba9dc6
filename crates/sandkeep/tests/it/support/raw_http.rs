//! HTTP as bytes, for tests about the bytes: any method, any header, any order.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

const ANSWERS_WITHIN: Duration = Duration::from_secs(60);

/// A connection of one's own to say anything over.
pub struct Raw {
    pub stream: TcpStream,
    received: Vec<u8>,
}

#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Reply {
    /// The first header of this name.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    pub fn all(&self, name: &str) -> Vec<&str> {
        let all = self.headers.iter().filter(|(known, _)| known == name);
        all.map(|(_, value)| value.as_str()).collect()
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }
}

impl Raw {
    pub fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the daemon listens");
        stream.set_read_timeout(Some(ANSWERS_WITHIN)).expect("a socket has a timeout");
        Self { stream, received: Vec::new() }
    }

    pub fn send(&mut self, bytes: &[u8]) -> &mut Self {
        self.stream.write_all(bytes).expect("the daemon reads");
        self
    }

    /// The head of an answer; its body is still to be read. Interim answers are skipped.
    pub fn head(&mut self) -> Reply {
        loop {
            let end = loop {
                if let Some(at) = self.received.windows(4).position(|w| w == b"\r\n\r\n") {
                    break at;
                }
                self.fill().expect("a head");
            };
            let head = String::from_utf8_lossy(&self.take(end + 4)).into_owned();
            let mut lines = head.trim_end().split("\r\n");
            let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok());
            let status = status.unwrap_or_else(|| panic!("not HTTP: {head:?}"));
            if status == 100 {
                continue;
            }
            let pair = |line: &str| {
                let (name, value) = line.split_once(':').expect("a header");
                (name.to_ascii_lowercase(), value.trim().to_owned())
            };
            return Reply { status, headers: lines.map(pair).collect(), body: Vec::new() };
        }
    }

    /// The whole answer to a request with this method.
    pub fn reply(&mut self, method: &str) -> Reply {
        let mut reply = self.head();
        if method == "HEAD" || matches!(reply.status, 101 | 204 | 304) {
            return reply;
        }
        reply.body = match (reply.header("transfer-encoding"), reply.header("content-length")) {
            (Some(_), _) => {
                let mut body = Vec::new();
                while let Some(chunk) = self.chunk() {
                    body.extend(chunk);
                }
                body
            }
            (None, Some(length)) => {
                let length = length.parse().expect("a length");
                while self.received.len() < length {
                    self.fill().expect("the whole body");
                }
                self.take(length)
            }
            (None, None) => self.rest(),
        };
        reply
    }

    /// The next chunk of a chunked body.
    pub fn chunk(&mut self) -> Option<Vec<u8>> {
        let end = loop {
            if let Some(at) = self.received.windows(2).position(|w| w == b"\r\n") {
                break at;
            }
            self.fill().expect("a chunk");
        };
        let line = String::from_utf8(self.take(end + 2)).expect("a size");
        let size = usize::from_str_radix(line.trim(), 16).expect("a size");
        while self.received.len() < size + 2 {
            self.fill().expect("a whole chunk");
        }
        let mut chunk = self.take(size + 2);
        chunk.truncate(size);
        (size > 0).then_some(chunk)
    }

    /// So many bytes.
    pub fn exactly(&mut self, length: usize) -> Vec<u8> {
        while self.received.len() < length {
            self.fill().expect("more bytes");
        }
        self.take(length)
    }

    /// All that comes until the other side is done, or has cut the connection. It must not just keep silent.
    pub fn rest(&mut self) -> Vec<u8> {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        loop {
            match self.fill() {
                Ok(()) => {}
                Err(e) if matches!(e.kind(), BrokenPipe | ConnectionReset | UnexpectedEof) => {
                    return std::mem::take(&mut self.received);
                }
                Err(error) => panic!("the other side does not end it: {error}"),
            }
        }
    }

    fn take(&mut self, length: usize) -> Vec<u8> {
        let rest = self.received.split_off(length);
        std::mem::replace(&mut self.received, rest)
    }

    fn fill(&mut self) -> io::Result<()> {
        let mut buffer = [0; 64 * 1024];
        match self.stream.read(&mut buffer)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            count => {
                self.received.extend_from_slice(&buffer[..count]);
                Ok(())
            }
        }
    }
}
