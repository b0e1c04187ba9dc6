//! Throughput: bytes of a command's output compared with a plain pipe, and requests through the port proxy compared
//! with the same server on the host. Alternating, in one run.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use serde::Serialize;
use serde_json::json;

use super::http::Connection;
use sandkeep_core::limits::{BENCH_ANSWER, BENCH_RATE_SAMPLES, BENCH_STREAM_BYTES, BENCH_WRK_SECS};

const SERVER: &str = include_str!("server.py");
/// The port of the server in the sandbox.
const PORT: u16 = 8000;

/// A figure, and that of the reference.
#[derive(Debug, Serialize)]
pub struct Rate {
    pub name: &'static str,
    pub meaning: &'static str,
    pub unit: &'static str,
    #[serde(flatten)]
    pub taken: Taken,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Taken {
    Measured { value: f64, yardstick: f64, times: f64 },
    NotMeasured { reason: String },
}

/// Takes all of them, in a running sandbox.
pub fn all(address: SocketAddr, sandbox: &str) -> Vec<Rate> {
    let place = Fixture { address, sandbox };
    vec![
        Rate {
            name: "stream",
            meaning: "a command's output, followed; x a plain pipe",
            unit: "MB/s",
            taken: in_turn(|| place.streamed(), piped),
        },
        Rate {
            name: "proxy",
            meaning: "wrk through a port; x straight to the server",
            unit: "req/s",
            taken: place.proxied().unwrap_or_else(not_measured),
        },
    ]
}

pub fn not_measured(error: io::Error) -> Taken {
    Taken::NotMeasured { reason: error.to_string() }
}

/// The medians of both, one sample of each at a time.
pub fn in_turn(
    mut ours: impl FnMut() -> io::Result<f64>,
    mut theirs: impl FnMut() -> io::Result<f64>,
) -> Taken {
    let mut samples = || -> io::Result<Vec<(f64, f64)>> {
        (0..BENCH_RATE_SAMPLES).map(|_| Ok((theirs()?, ours()?))).collect()
    };
    match samples() {
        Ok(samples) => {
            let (theirs, ours): (Vec<f64>, Vec<f64>) = samples.into_iter().unzip();
            let (value, yardstick) = (median(ours), median(theirs));
            Taken::Measured { value, yardstick, times: value / yardstick }
        }
        Err(error) => not_measured(error),
    }
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

pub fn megabytes_a_second(bytes: u64, began: Instant) -> f64 {
    bytes as f64 / 1e6 / began.elapsed().as_secs_f64()
}

/// The output of both: text that no encoding makes longer.
fn speech() -> [String; 3] {
    let bytes = BENCH_STREAM_BYTES;
    let script =
        format!("yes 'all work and no play makes for a dull stream of bytes' | head -c {bytes}");
    ["/bin/sh".to_owned(), "-c".to_owned(), script]
}

fn piped() -> io::Result<f64> {
    let [program, arguments @ ..] = speech();
    let began = Instant::now();
    let mut child = Command::new(program).args(arguments).stdout(Stdio::piped()).spawn()?;
    let mut stdout = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    let bytes = io::copy(&mut stdout, &mut Counter)?;
    child.wait()?;
    Ok(megabytes_a_second(bytes, began))
}

/// Reads in large blocks, as a fast reader does.
struct Counter;

impl Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Fixture<'a> {
    address: SocketAddr,
    sandbox: &'a str,
}

impl Fixture<'_> {
    fn call(&self, method: &str, rest: &str, body: &str) -> io::Result<serde_json::Value> {
        let target = format!("/api/v1/sandboxes/{}/{rest}", self.sandbox);
        let answer = Connection::open(self.address)?.request(method, &target, body)?;
        match answer.status {
            200..300 if answer.body.is_empty() => Ok(serde_json::Value::Null),
            200..300 => Ok(serde_json::from_slice(&answer.body)?),
            status => Err(io::Error::other(format!("{method} {target} is answered with {status}"))),
        }
    }

    /// A command's output as bytes, read while it is written.
    fn streamed(&self) -> io::Result<f64> {
        let began = Instant::now();
        let begun =
            self.call("POST", "execs?wait=false", &json!({ "argv": speech() }).to_string())?;
        let exec = begun["exec_id"].as_str().unwrap_or_default();
        let target = format!(
            "/api/v1/sandboxes/{}/execs/{exec}/output?stream=stdout&follow=true",
            self.sandbox
        );
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(BENCH_ANSWER))?;
        write!(
            stream,
            "GET {target} HTTP/1.1\r\nHost: {}\r\nAccept: application/octet-stream\r\nConnection: close\r\n\r\n",
            self.address
        )?;
        let mut buffer = vec![0; 256 * 1024];
        let mut bytes = 0;
        loop {
            match stream.read(&mut buffer)? {
                0 => break,
                count => bytes += count as u64,
            }
        }
        if bytes >= BENCH_STREAM_BYTES {
            Ok(megabytes_a_second(BENCH_STREAM_BYTES, began))
        } else {
            Err(io::Error::other(format!("only {bytes} bytes came")))
        }
    }

    fn proxied(&self) -> io::Result<Taken> {
        wrk(&["-v"]).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => io::Error::other("wrk is not installed"),
            _ => error,
        })?;
        let host = HostServer::start()?;
        let body = json!({
            "argv": ["python3", "-c", SERVER, PORT.to_string()],
            "port": PORT,
            "ready": { "tcp": true },
        });
        let process = self.call("POST", "processes", &body.to_string())?;
        let straight = format!("http://127.0.0.1:{}/", host.port);
        let ours = format!("http://{}/", self.address);
        let header = format!("Host: {PORT}-{}.localhost:{}", self.sandbox, self.address.port());
        let taken = in_turn(|| requests(&["-H", &header, &ours]), || requests(&[&straight]));
        let id = process["id"].as_str().unwrap_or_default();
        self.call("DELETE", &format!("processes/{id}"), "")?;
        Ok(taken)
    }
}

/// The same server on the host.
struct HostServer {
    process: Child,
    port: u16,
}

impl HostServer {
    fn start() -> io::Result<Self> {
        let mut process = Command::new("python3")
            .args(["-c", SERVER, "0"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        if let Some(stdout) = process.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        let port = line.trim().parse().map_err(|_| io::Error::other("the server does not start"));
        match port {
            Ok(port) => Ok(Self { process, port }),
            Err(error) => {
                process.wait()?;
                Err(error)
            }
        }
    }
}

impl Drop for HostServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn wrk(arguments: &[&str]) -> io::Result<String> {
    let output = Command::new("wrk").args(arguments).stdin(Stdio::null()).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Requests per second, measured by wrk.
fn requests(arguments: &[&str]) -> io::Result<f64> {
    let time = format!("-d{BENCH_WRK_SECS}s");
    let said = wrk(&[&["-t1", "-c8", &time], arguments].concat())?;
    parse_wrk(&said).ok_or_else(|| io::Error::other(format!("wrk says no rate: {said}")))
}

/// `None` unless everything succeeded.
fn parse_wrk(said: &str) -> Option<f64> {
    if said.contains("Non-2xx") || said.contains("Socket errors") {
        return None;
    }
    let line = said.lines().find_map(|line| line.trim().strip_prefix("Requests/sec:"))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_of_refusals_is_none() {
        let said = "  123 requests in 2.00s, 1MB read\nRequests/sec:   61.50\nTransfer/sec: 1KB\n";
        assert_eq!(parse_wrk(said), Some(61.5));
        assert_eq!(parse_wrk(&format!("  Non-2xx or 3xx responses: 123\n{said}")), None);
        assert_eq!(parse_wrk("nothing"), None);
    }

    #[test]
    fn a_middle_sample_stands_for_all() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
    }
}
