//! A blocking HTTP/1.1 client on one kept-alive connection, as small as the protocol allows, so that it measures the
//! product and not a client library. It trusts the server, which is our own daemon.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use sandkeep_core::limits::{BENCH_ANSWER, BENCH_IDLE};

/// One connection; requests go over it one after the other.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    address: SocketAddr,
    received: Vec<u8>,
    /// The time of the last answer.
    used: Instant,
    /// Additional header lines of every request.
    headers: String,
}

/// A complete answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    pub body: Vec<u8>,
}

/// How the length of a body is determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    Length(usize),
    Chunked,
}

impl Connection {
    pub fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(BENCH_ANSWER))?;
        let (received, used) = (Vec::new(), Instant::now());
        Ok(Self { stream, address, received, used, headers: String::new() })
    }

    /// The same connection, with one more header on each request.
    pub fn with_header(mut self, name: &str, value: &str) -> Self {
        self.headers += &format!("{name}: {value}\r\n");
        self
    }

    /// The same connection, with a longer timeout.
    pub fn with_patience(self, answer: Duration) -> io::Result<Self> {
        self.stream.set_read_timeout(Some(answer))?;
        Ok(self)
    }

    /// Another connection to the same daemon, with the same timeout.
    pub fn again(&self) -> io::Result<Self> {
        let again = Self::open(self.address)?;
        again.stream.set_read_timeout(self.stream.read_timeout()?)?;
        Ok(Self { headers: self.headers.clone(), ..again })
    }

    /// Sends a request and waits for the whole answer. `body` is JSON, or empty for none.
    pub fn request(&mut self, method: &str, target: &str, body: &str) -> io::Result<Response> {
        self.request_accepting(method, target, "application/json", body)
    }

    /// The same, for other answer formats.
    pub fn request_accepting(
        &mut self,
        method: &str,
        target: &str,
        accept: &str,
        body: &str,
    ) -> io::Result<Response> {
        self.renew_if_idle()?;
        self.send(method, target, accept, body)?;
        let (status, framing) = self.read_head()?;
        let body = match framing {
            Framing::Length(length) => self.take(length)?,
            Framing::Chunked => {
                let mut body = Vec::new();
                while let Some(chunk) = self.read_chunk()? {
                    body.extend_from_slice(&chunk);
                }
                body
            }
        };
        self.used = Instant::now();
        Ok(Response { status, body })
    }

    /// A daemon closes idle connections, possibly at the very moment of the next request. So a connection that was idle
    /// for some time is not reused.
    fn renew_if_idle(&mut self) -> io::Result<()> {
        if self.used.elapsed() >= BENCH_IDLE {
            *self = self.again()?;
        }
        Ok(())
    }

    /// Sends a request and returns the lines of its answer as they arrive.
    pub fn stream(mut self, method: &str, target: &str, body: &str) -> io::Result<(u16, Lines)> {
        self.send(method, target, "application/x-ndjson", body)?;
        let (status, framing) = self.read_head()?;
        Ok((status, Lines { connection: self, framing: Some(framing), pending: Vec::new() }))
    }

    fn send(&mut self, method: &str, target: &str, accept: &str, body: &str) -> io::Result<()> {
        let request = format!(
            "{method} {target} HTTP/1.1\r\nhost: {}\r\naccept: {accept}\r\n\
             content-type: application/json\r\n{}content-length: {}\r\n\r\n{body}",
            self.address,
            self.headers,
            body.len()
        );
        self.stream.write_all(request.as_bytes())
    }

    fn read_head(&mut self) -> io::Result<(u16, Framing)> {
        let end = loop {
            if let Some(at) = self.received.windows(4).position(|w| w == b"\r\n\r\n") {
                break at;
            }
            self.fill()?;
        };
        let head = self.take(end + 4)?;
        parse_head(&String::from_utf8_lossy(&head)).ok_or_else(|| broken("the head of the answer"))
    }

    /// The next chunk of a chunked body; `None` after the last one.
    fn read_chunk(&mut self) -> io::Result<Option<Vec<u8>>> {
        let end = loop {
            if let Some(at) = self.received.windows(2).position(|w| w == b"\r\n") {
                break at;
            }
            self.fill()?;
        };
        let line = self.take(end + 2)?;
        let digits = String::from_utf8_lossy(&line[..end]).into_owned();
        let size = usize::from_str_radix(digits.split(';').next().unwrap_or("").trim(), 16)
            .map_err(|_| broken("the size of a chunk"))?;
        let mut chunk = self.take(size + 2)?;
        chunk.truncate(size);
        Ok((size > 0).then_some(chunk))
    }

    /// The next `length` bytes.
    fn take(&mut self, length: usize) -> io::Result<Vec<u8>> {
        while self.received.len() < length {
            self.fill()?;
        }
        let rest = self.received.split_off(length);
        Ok(std::mem::replace(&mut self.received, rest))
    }

    fn fill(&mut self) -> io::Result<()> {
        let mut buffer = [0u8; 16 * 1024];
        match self.stream.read(&mut buffer)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            count => {
                self.received.extend_from_slice(&buffer[..count]);
                Ok(())
            }
        }
    }
}

fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{what} is not HTTP"))
}

fn parse_head(head: &str) -> Option<(u16, Framing)> {
    let mut lines = head.split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let mut framing = Framing::Length(0);
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        if name.eq_ignore_ascii_case("content-length") {
            framing = Framing::Length(value.trim().parse().ok()?);
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            framing = Framing::Chunked;
        }
    }
    Some((status, framing))
}

/// The lines of a streamed answer, as they arrive, without their line ends.
#[derive(Debug)]
pub struct Lines {
    connection: Connection,
    /// `None` after the end of the body.
    framing: Option<Framing>,
    pending: Vec<u8>,
}

impl Lines {
    fn next_line(&mut self) -> io::Result<Option<String>> {
        loop {
            if let Some(at) = self.pending.iter().position(|byte| *byte == b'\n') {
                let rest = self.pending.split_off(at + 1);
                let mut line = std::mem::replace(&mut self.pending, rest);
                line.pop();
                return Ok(Some(String::from_utf8_lossy(&line).into_owned()));
            }
            match self.framing {
                Some(Framing::Chunked) => match self.connection.read_chunk()? {
                    Some(chunk) => self.pending.extend_from_slice(&chunk),
                    None => self.framing = None,
                },
                Some(Framing::Length(length)) => {
                    self.pending = self.connection.take(length)?;
                    self.pending.push(b'\n');
                    self.framing = None;
                }
                None => return Ok(None),
            }
        }
    }
}

impl Iterator for Lines {
    type Item = io::Result<String>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_line().transpose()
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// A server that answers each connection with fixed bytes once it has read something.
    fn answering(answer: &'static [u8]) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("one client");
            let mut seen = [0u8; 4096];
            let _ = stream.read(&mut seen).expect("a request");
            stream.write_all(answer).expect("the client reads");
        });
        address
    }

    #[test]
    fn an_answer_with_a_length_is_read_whole() {
        let address = answering(b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok");
        let mut connection = Connection::open(address).expect("it listens");
        let response = connection.request("POST", "/", "{}").expect("an answer");
        assert_eq!(response, Response { status: 201, body: b"ok".to_vec() });
    }

    #[test]
    fn chunks_become_lines_wherever_they_are_cut() {
        let address = answering(
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\na\nb\r\n2\r\nc\n\r\n0\r\n\r\n",
        );
        let connection = Connection::open(address).expect("it listens");
        let (status, lines) = connection.stream("POST", "/", "{}").expect("an answer");
        let lines: Vec<String> = lines.map(|line| line.expect("a line")).collect();
        assert_eq!((status, lines), (200, vec!["a".to_owned(), "bc".to_owned()]));
    }

    #[test]
    fn what_was_idle_for_long_is_not_used_again() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let server = std::thread::spawn(move || {
            // The first one is closed at once; only the second is answered.
            drop(listener.accept().expect("a client"));
            let (mut stream, _) = listener.accept().expect("the same client");
            let mut seen = [0u8; 4096];
            let _ = stream.read(&mut seen).expect("a request");
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").expect("it reads");
        });
        let mut connection = Connection::open(address).expect("it listens");
        connection.used = Instant::now().checked_sub(BENCH_IDLE).expect("the machine runs as long");
        let response = connection.request("GET", "/", "").expect("an answer");
        assert_eq!(response.status, 200);
        server.join().expect("no panic");
    }

    #[test]
    fn an_answer_that_breaks_off_is_an_error() {
        let address = answering(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok");
        let mut connection = Connection::open(address).expect("it listens");
        assert!(connection.request("GET", "/", "").is_err());
    }
}
