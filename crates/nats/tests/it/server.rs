//! A nats-server of one's own, also for the tests of the daemon: on a port that the system chose, with its files in a directory that goes away.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{Patience, until_some};

/// How long it may take to start.
const STARTS_WITHIN: Duration = Duration::from_secs(60);

const PROGRAM: &str = "nats-server";

/// Why there is none.
pub fn missing() -> Option<&'static str> {
    let found = Command::new(PROGRAM).arg("--version").stdout(Stdio::null()).status();
    (!found.is_ok_and(|status| status.success())).then_some("nats-server is not installed")
}

pub struct Server {
    dir: tempfile::TempDir,
    child: Option<Child>,
    pub port: u16,
}

impl Server {
    pub fn start() -> Self {
        Self::with("")
    }

    /// With more configuration.
    pub fn with(configuration: &str) -> Self {
        let mut server = Self::prepared(configuration);
        server.run();
        server
    }

    /// One that does not run yet; it has a port all the same.
    pub fn prepared(configuration: &str) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let text = format!(
            "jetstream {{ store_dir: {:?}, max_file_store: 1GB }}\n{configuration}\n",
            dir.path().join("store")
        );
        fs::write(dir.path().join("server.conf"), text).expect("it can be written");
        let mut server = Self { dir, child: None, port: 0 };
        // It keeps the port that it gets at its first start.
        server.run();
        server.kill_9();
        server
    }

    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Starts it, again on the same port if it ran before.
    pub fn run(&mut self) {
        let began = Instant::now();
        while !self.try_run() {
            assert!(began.elapsed() < STARTS_WITHIN, "nats-server does not start: {}", self.said());
        }
    }

    fn try_run(&mut self) -> bool {
        assert!(self.child.is_none(), "it runs");
        let log = fs::File::create(self.dir.path().join("log")).expect("a log");
        let port = if self.port == 0 { "-1".to_owned() } else { self.port.to_string() };
        let mut child = Command::new(PROGRAM)
            .arg("-c")
            .arg(self.dir.path().join("server.conf"))
            .args(["-a", "127.0.0.1", "-p", &port, "--ports_file_dir"])
            .arg(self.dir.path())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("nats-server can be started");
        let ports = self.ports_file(child.id());
        let port =
            until_some("it listens or has ended", Patience::Long, || match child.try_wait() {
                Ok(Some(_)) => Some(None),
                Ok(None) | Err(_) => listening(&ports).map(Some),
            });
        let Some(port) = port else { return false };
        self.port = port;
        self.child = Some(child);
        true
    }

    fn ports_file(&self, pid: u32) -> PathBuf {
        self.dir.path().join(format!("nats-server_{pid}.ports"))
    }

    /// As a loss of power ends it, but for the disk.
    pub fn kill_9(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("it is our child");
            child.wait().expect("it is our child");
            let _ = fs::remove_file(self.ports_file(child.id()));
        }
    }

    pub fn said(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill_9();
    }
}

/// The port that it says it listens on, when it does.
fn listening(ports: &Path) -> Option<u16> {
    let ports: Value = serde_json::from_slice(&fs::read(ports).ok()?).ok()?;
    let url = ports["nats"][0].as_str()?;
    let port = url.rsplit(':').next()?.parse().ok()?;
    TcpStream::connect(("127.0.0.1", port)).ok().map(|_| port)
}
