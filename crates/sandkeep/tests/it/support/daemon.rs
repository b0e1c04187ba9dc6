//! A separate daemon: a real process on a free port with a temporary data directory. When it is dropped, all its
//! sandboxes are destroyed, it is stopped, and nothing of it may be left.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use sandkeep_bench::announced;
use sandkeep_bench::http::Connection;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::cli::binary;
use super::{Patience, assert_nothing_left, doctor, until, until_some};

const STARTS_WITHIN: Duration = Duration::from_secs(60);
const ANSWERS_WITHIN: Duration = Duration::from_secs(120);

/// The settings of a daemon.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
}

impl Setup {
    pub fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }
}

pub struct Daemon {
    data: TempDir,
    process: Option<Process>,
    /// What its requests are made with, once it needs that.
    key: Option<String>,
}

/// One life of the daemon.
struct Process {
    child: Child,
    address: SocketAddr,
    said: Arc<Mutex<String>>,
}

impl Daemon {
    pub fn start() -> Self {
        Self::start_with(&Setup::default())
    }

    pub fn start_with(setup: &Setup) -> Self {
        let data = tempfile::Builder::new().prefix("sandkeep-it-").tempdir().expect("a temp dir");
        let mut daemon = Self { data, process: None, key: None };
        daemon.start_again(setup);
        daemon
    }

    /// Starts a daemon on the data directory that the former one left.
    pub fn start_again(&mut self, setup: &Setup) {
        assert!(self.process.is_none(), "the former daemon still runs");
        self.process = Some(Process::start(&self.data_dir(), setup).expect("the daemon starts"));
        until("the daemon is healthy", Patience::Short, || {
            self.try_request("GET", "/healthz", &Value::Null).is_ok_and(|(status, _)| status == 200)
        });
    }

    pub fn data_dir(&self) -> PathBuf {
        // The tests look for it in tables of the kernel, which know no symbolic links.
        self.data.path().canonicalize().expect("the temp dir exists")
    }

    pub fn home(&self, id: &str) -> PathBuf {
        self.data_dir().join("sandboxes").join(id)
    }

    /// The name of this data directory's own cgroups.
    pub fn instance(&self) -> String {
        let text = std::fs::read_to_string(self.data_dir().join("instance")).expect("an instance");
        text.trim().to_owned()
    }

    fn process(&self) -> &Process {
        self.process.as_ref().expect("the daemon runs")
    }

    pub fn address(&self) -> SocketAddr {
        self.process().address
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address())
    }

    pub fn pid(&self) -> u32 {
        self.process().child.id()
    }

    /// Everything this life of the daemon printed so far.
    pub fn said(&self) -> String {
        self.process().said.lock().expect("no reader panicked").clone()
    }

    /// As a power cut would end it.
    pub fn kill_9(&mut self) {
        let mut process = self.process.take().expect("the daemon runs");
        process.child.kill().expect("it is our child");
        process.child.wait().expect("it is our child");
    }

    /// SIGTERM, and its end.
    pub fn stop(&mut self) -> ExitStatus {
        kill_process(Pid::from_child(&self.process().child), Signal::TERM).expect("it runs");
        self.wait_for_end()
    }

    /// SIGTERM, its end, and all that it printed until then.
    pub fn stop_and_hear(&mut self) -> (ExitStatus, String) {
        let said = Arc::clone(&self.process().said);
        let status = self.stop();
        until("all that it printed is read", Patience::Short, || Arc::strong_count(&said) == 1);
        let said = said.lock().expect("no reader panicked").clone();
        (status, said)
    }

    /// Waits for the daemon to end by itself.
    pub fn wait_for_end(&mut self) -> ExitStatus {
        let mut process = self.process.take().expect("the daemon runs");
        until_some("the daemon has ended", Patience::Long, || {
            process.child.try_wait().expect("it is our child")
        })
    }

    /// From now on it is asked with this key.
    pub fn use_key(&mut self, key: &str) {
        self.key = Some(key.to_owned());
    }

    /// A connection whose requests have the daemon's key, if it was given one.
    pub fn connection(&self) -> io::Result<Connection> {
        connection(self.address(), self.key.as_deref())
    }

    /// One request on a connection of its own. `Value::Null` is no body.
    pub fn try_request(
        &self,
        method: &str,
        target: &str,
        body: &Value,
    ) -> io::Result<(u16, Value)> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let answer = self.connection()?.request(method, target, &body)?;
        let value = if answer.body.is_empty() {
            Value::Null
        } else {
            serde_json::from_slice(&answer.body)?
        };
        Ok((answer.status, value))
    }

    /// The same with headers of one's own.
    pub fn request_with(
        &self,
        headers: &[(&str, &str)],
        method: &str,
        target: &str,
        body: &Value,
    ) -> io::Result<(u16, Value)> {
        self.request_head(headers, method, target, body).map(|(status, _, value)| (status, value))
    }

    /// The same, and the head of the answer in lower case.
    pub fn request_head(
        &self,
        headers: &[(&str, &str)],
        method: &str,
        target: &str,
        body: &Value,
    ) -> io::Result<(u16, String, Value)> {
        let address = self.address();
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let headers: String =
            headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let request = format!(
            "{method} {target} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{headers}\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(ANSWERS_WITHIN))?;
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let broken = || io::Error::other(format!("no answer: {answer:?}"));
        let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(broken)?;
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        let value = if body.is_empty() { Value::Null } else { serde_json::from_str(body)? };
        Ok((status.ok_or_else(broken)?, head.to_ascii_lowercase(), value))
    }

    pub fn request(&self, method: &str, target: &str, body: &Value) -> (u16, Value) {
        self.try_request(method, target, body)
            .unwrap_or_else(|error| panic!("{method} {target}: {error}\n{}", self.said()))
    }

    /// A request that must succeed with this status.
    pub fn expect(&self, status: u16, method: &str, target: &str, body: &Value) -> Value {
        let (answered, value) = self.request(method, target, body);
        assert_eq!(answered, status, "{method} {target} {body}: {value:#}\n{}", self.said());
        value
    }

    pub fn create(&self) -> String {
        self.create_with(&json!({}))
    }

    pub fn create_with(&self, spec: &Value) -> String {
        let view = self.expect(201, "POST", "/api/v1/sandboxes", spec);
        view["id"].as_str().expect("an id").to_owned()
    }

    pub fn get(&self, id: &str) -> Value {
        self.expect(200, "GET", &format!("/api/v1/sandboxes/{id}"), &Value::Null)
    }

    pub fn state(&self, id: &str) -> String {
        self.get(id)["state"].as_str().expect("a state").to_owned()
    }

    pub fn ids(&self) -> Vec<String> {
        let listing = self.expect(200, "GET", "/api/v1/sandboxes?limit=1000", &Value::Null);
        let items = listing["items"].as_array().expect("items");
        items.iter().map(|view| view["id"].as_str().expect("an id").to_owned()).collect()
    }

    /// `start` or `stop`.
    pub fn verb(&self, id: &str, verb: &str) -> Value {
        self.expect(200, "POST", &format!("/api/v1/sandboxes/{id}/{verb}"), &Value::Null)
    }

    pub fn destroy(&self, id: &str) {
        self.expect(204, "DELETE", &format!("/api/v1/sandboxes/{id}"), &Value::Null);
    }

    /// Everything present has an owner; may be called with or without sandboxes, while the daemon runs.
    pub fn assert_no_leaks(&self) {
        let (clean, said) = doctor(&self.data_dir());
        assert!(clean, "doctor found leaks: {said:#}\n{}", self.said());
    }

    /// Destroys all sandboxes, stops the daemon and looks for what is left.
    fn finish(&mut self) {
        if self.process.is_none() {
            self.start_again(&Setup::default());
        }
        for id in self.ids() {
            self.destroy(&id);
        }
        let codebases = self.expect(200, "GET", "/api/v1/codebases", &Value::Null);
        for codebase in codebases["items"].as_array().expect("items") {
            let id = codebase["id"].as_str().expect("an id");
            self.expect(204, "DELETE", &format!("/api/v1/codebases/{id}"), &Value::Null);
        }
        self.assert_no_leaks();
        let said = self.said();
        let status = self.stop();
        assert!(status.success(), "the daemon ended with {status}\n{said}");
        assert_nothing_left(&self.data_dir());
    }

    /// After a failed test: the same, as far as it goes, without any further complaint.
    fn give_up(&mut self) {
        if let Some(process) = &self.process {
            eprintln!("the daemon said:\n{}", self.said());
            let alive = Connection::open(process.address).is_ok();
            if !alive {
                self.process = None;
            }
        }
        if self.process.is_none() {
            self.process = Process::start(&self.data_dir(), &Setup::default()).ok();
        }
        let Some(mut process) = self.process.take() else { return };
        process.destroy_all(self.key.as_deref());
        let _ = kill_process(Pid::from_child(&process.child), Signal::TERM);
        let _ = process.child.wait();
        unmount_beneath(&self.data_dir());
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking() { self.give_up() } else { self.finish() }
    }
}

fn connection(address: SocketAddr, key: Option<&str>) -> io::Result<Connection> {
    let connection = Connection::open(address)?;
    Ok(match key {
        Some(key) => connection.with_header("x-api-key", key),
        None => connection,
    })
}

impl Process {
    fn start(data_dir: &Path, setup: &Setup) -> io::Result<Self> {
        let mut child = binary()
            .args(["serve", "--data-dir"])
            .arg(data_dir)
            .env("SANDKEEP_LISTEN", "127.0.0.1:0")
            .args(&setup.arguments)
            .env("SANDKEEP_STORAGE_SIZE_MB", "512")
            .envs(setup.environment.iter().map(|(name, value)| (name, value)))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let said = Arc::new(Mutex::new(String::new()));
        let (found, address) = mpsc::channel();
        let stdout = child.stdout.take().expect("it is piped");
        let stderr = child.stderr.take().expect("it is piped");
        collect(stdout, Arc::clone(&said), Some(found));
        collect(stderr, Arc::clone(&said), None);
        match address.recv_timeout(STARTS_WITHIN) {
            Ok(address) => Ok(Self { child, address, said }),
            Err(_) => {
                child.kill()?;
                let status = child.wait()?;
                let said = said.lock().expect("no reader panicked");
                Err(io::Error::other(format!("no address was announced ({status}):\n{said}")))
            }
        }
    }

    fn destroy_all(&mut self, key: Option<&str>) {
        let Ok(mut connection) = connection(self.address, key) else { return };
        let Ok(answer) = connection.request("GET", "/api/v1/sandboxes", "") else { return };
        let listing: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        for view in listing["items"].as_array().into_iter().flatten() {
            let target = format!("/api/v1/sandboxes/{}", view["id"].as_str().unwrap_or_default());
            if connection.request("DELETE", &target, "").is_err() {
                return;
            }
        }
    }
}

/// Keeps what a daemon prints, and passes the first address in it on.
fn collect(
    stream: impl Read + Send + 'static,
    said: Arc<Mutex<String>>,
    mut found: Option<mpsc::Sender<SocketAddr>>,
) {
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            let mut said = said.lock().expect("no reader panicked");
            said.push_str(&line);
            said.push('\n');
            if let Some(address) = announced(&line)
                && let Some(found) = found.take()
            {
                // Nobody waits any more if the daemon was given up.
                let _ = found.send(address);
            }
        }
    });
}

/// So that a failed test leaves a machine on which the next one can pass.
fn unmount_beneath(dir: &Path) {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = table.lines().rev().filter_map(|line| line.split(' ').nth(4));
    for point in points.filter(|point| Path::new(point).starts_with(dir)) {
        let _ = rustix::mount::unmount(point, rustix::mount::UnmountFlags::DETACH);
    }
}
