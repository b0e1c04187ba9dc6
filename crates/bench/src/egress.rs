//! The way out of a sandbox: connections through its policy, compared with the same client and server without a sandbox.
//! Alternating, in one run. Nothing leaves the host's loopback.

use std::fs;
use std::io::{self, BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use super::http::Connection;
use super::place;
use super::rates::{Rate, Taken, in_turn, not_measured};
use sandkeep_core::limits::{BENCH_EGRESS_BYTES, BENCH_EGRESS_CONNECTIONS};

const PROGRAM: &str = include_str!("egress.py");
const HOST: &str = "bench.test";
const LOOPBACK: &str = "127.0.0.1";

const CONNECT: &str = "connect and 1 KiB through a policy; x no sandbox";
const STREAM: &str = "one connection through a policy; x no sandbox";

/// The settings of a daemon that knows the host of this benchmark.
pub fn settings() -> io::Result<[String; 2]> {
    let hosts: PathBuf = place::path().join("hosts");
    fs::write(&hosts, format!("{LOOPBACK} {HOST}\n"))?;
    Ok([
        format!("--egress-hosts={}", hosts.display()),
        format!("--egress-allow-ranges={LOOPBACK}/32"),
    ])
}

/// Takes all of them, with a sandbox of their own on a daemon with these settings.
pub fn all(address: SocketAddr) -> Vec<Rate> {
    let taken = measured(address);
    let [connect, stream] = taken.unwrap_or_else(|error| {
        let again = io::Error::other(error.to_string());
        [not_measured(error), not_measured(again)]
    });
    vec![
        Rate { name: "egress", meaning: CONNECT, unit: "ms", taken: connect },
        Rate { name: "egress_stream", meaning: STREAM, unit: "MB/s", taken: stream },
    ]
}

fn measured(address: SocketAddr) -> io::Result<[Taken; 2]> {
    let server = Server::start()?;
    let entry = format!("{HOST}:{}", server.port);
    let spec = json!({ "network": { "allow": [entry] } }).to_string();
    let created = call(address, "POST", "/api/v1/sandboxes", &spec)?;
    let id = created["id"].as_str().unwrap_or_default().to_owned();
    let port = server.port.to_string();
    let compare = |what: &str, count: u64| {
        let count = count.to_string();
        let words = |host| ["python3", "-c", PROGRAM, what, host, &port, &count].map(str::to_owned);
        in_turn(|| inside(address, &id, &words(HOST)), || outside(&words(LOOPBACK)))
    };
    let taken =
        [compare("connect", BENCH_EGRESS_CONNECTIONS), compare("stream", BENCH_EGRESS_BYTES)];
    call(address, "DELETE", &format!("/api/v1/sandboxes/{id}"), "")?;
    Ok(taken)
}

fn call(address: SocketAddr, method: &str, target: &str, body: &str) -> io::Result<Value> {
    let answer = Connection::open(address)?.request(method, target, body)?;
    match answer.status {
        200..300 if answer.body.is_empty() => Ok(Value::Null),
        200..300 => Ok(serde_json::from_slice(&answer.body)?),
        _ => Err(io::Error::other(String::from_utf8_lossy(&answer.body).into_owned())),
    }
}

fn inside(address: SocketAddr, id: &str, argv: &[String]) -> io::Result<f64> {
    let target = format!("/api/v1/sandboxes/{id}/execs");
    let ended = call(address, "POST", &target, &json!({ "argv": argv }).to_string())?;
    figure(ended["stdout"].as_str().unwrap_or_default())
        .ok_or_else(|| io::Error::other(format!("the client in the sandbox says {ended}")))
}

fn outside(argv: &[String]) -> io::Result<f64> {
    let [program, arguments @ ..] = argv else { return Err(io::ErrorKind::InvalidInput.into()) };
    let ran = Command::new(program).args(arguments).stdin(Stdio::null()).output()?;
    figure(&String::from_utf8_lossy(&ran.stdout))
        .ok_or_else(|| io::Error::other(String::from_utf8_lossy(&ran.stderr).into_owned()))
}

fn figure(said: &str) -> Option<f64> {
    said.trim().parse().ok()
}

/// The server on the host.
struct Server {
    process: Child,
    port: u16,
}

impl Server {
    fn start() -> io::Result<Self> {
        let mut command = Command::new("python3");
        command.args(["-c", PROGRAM, "serve"]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut server = Self { process: command.spawn()?, port: 0 };
        let mut line = String::new();
        if let Some(stdout) = server.process.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        let port = line.trim().parse();
        server.port = port.map_err(|_| io::Error::other("the server does not start"))?;
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
