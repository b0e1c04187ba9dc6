//! A NATS server of one's own, and a client of it that waits.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use sandkeep_nats::async_nats::{Client, ConnectOptions, HeaderMap, Message, Request, Subscriber};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::support::{Daemon, Patience, Setup, until, until_some};

/// As long as anything may take that is waited for.
pub const WAIT: Duration = Duration::from_secs(120);

pub struct Server {
    child: Child,
    pub url: String,
}

/// Why there can be none here.
pub fn missing() -> Option<&'static str> {
    let found = Command::new("nats-server").arg("--version").output();
    found.is_err().then_some("nats-server is not installed")
}

impl Server {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    pub fn configured(config: &Path) -> Self {
        Self::start_with(&["-c", config.to_str().expect("a plain path")])
    }

    pub fn kill(&mut self) {
        self.child.kill().expect("it is our child");
        self.child.wait().expect("it is our child");
    }

    /// Starts it again where it was.
    pub fn start_again(&mut self) {
        let port = self.url.rsplit(':').next().expect("a port").to_owned();
        // Another process may have the port for a moment.
        let again = until_some("the port is free", Patience::Long, || Self::try_start(&port, &[]));
        let old = std::mem::replace(self, again);
        drop(old);
    }

    /// On a free port, which it says.
    fn start_with(arguments: &[&str]) -> Self {
        Self::try_start("-1", arguments).expect("it listens")
    }

    /// `None` if it ends at once.
    fn try_start(port: &str, arguments: &[&str]) -> Option<Self> {
        let mut child = Command::new("nats-server")
            .args(["-a", "127.0.0.1", "-p", port])
            .args(arguments)
            .stderr(Stdio::piped())
            .spawn()
            .expect("it runs");
        let said = BufReader::new(child.stderr.take().expect("it is piped"));
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            for line in said.lines().map_while(Result::ok) {
                if let Some((_, address)) = line.split_once("Listening for client connections on ")
                {
                    let _ = tell.send(address.trim().to_owned());
                }
            }
        });
        match told.recv_timeout(WAIT) {
            Ok(address) => Some(Self { child, url: format!("nats://{address}") }),
            Err(_) => {
                let _ = child.kill();
                let _ = child.wait();
                None
            }
        }
    }

    /// How a daemon is told of it.
    pub fn setup(&self, more: &[&str]) -> Setup {
        let setup = Setup::default().argument("--nats-url").argument(&self.url);
        more.iter().fold(setup, |setup, argument| setup.argument(argument))
    }

    /// A daemon that answers commands here.
    pub fn daemon(&self, more: &[&str]) -> Daemon {
        let daemon = Daemon::start_with(&self.setup(more));
        wait_for_answers(&daemon);
        daemon
    }
}

/// Until a daemon's subscriptions are with the server.
pub fn wait_for_answers(daemon: &Daemon) {
    until("it answers commands", Patience::Short, || {
        daemon.said().contains("answering commands over NATS")
    });
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client that waits for its answers.
pub struct Caller {
    runtime: Runtime,
    pub client: Client,
}

impl Caller {
    pub fn new(server: &Server) -> Self {
        Self::with(server, ConnectOptions::new())
    }

    pub fn with(server: &Server, options: ConnectOptions) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let client = runtime.block_on(options.connect(&server.url)).expect("it connects");
        Self { runtime, client }
    }

    /// Waits for something, but not for ever.
    pub fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        let bounded = async { tokio::time::timeout(WAIT, future).await };
        self.runtime.block_on(bounded).expect("it comes about in time")
    }

    pub fn request(&self, subject: &str, headers: &[(&str, &str)], payload: &[u8]) -> Message {
        let request = Request::new()
            .payload(payload.to_vec().into())
            .timeout(Some(WAIT))
            .headers(headers_of(headers));
        self.wait(self.client.send_request(subject.to_owned(), request)).expect("an answer")
    }

    /// Requests that are all under way at once.
    pub fn all(&self, subject: &str, payloads: &[Value]) -> Vec<Value> {
        let ask = |payload: &Value| {
            let request = Request::new().payload(payload.to_string().into()).timeout(Some(WAIT));
            let (client, subject) = (self.client.clone(), subject.to_owned());
            self.runtime.spawn(async move { client.send_request(subject, request).await })
        };
        let asked: Vec<_> = payloads.iter().map(ask).collect();
        let answers = asked.into_iter().map(|asked| {
            let answer = self.wait(asked).expect("no panic").expect("an answer");
            serde_json::from_slice(&answer.payload).expect("JSON")
        });
        answers.collect()
    }

    /// A subscription that the server knows of.
    pub fn subscribe(&self, subject: &str) -> Subscriber {
        let subscriber = self.wait(self.client.subscribe(subject.to_owned())).expect("it does");
        self.wait(self.client.flush()).expect("the server has it");
        subscriber
    }
}

pub fn headers_of(headers: &[(&str, &str)]) -> HeaderMap {
    let mut map = HeaderMap::new();
    headers.iter().for_each(|(name, value)| map.append(*name, *value));
    map
}

/// The value of a header, or nothing.
pub fn header(message: &Message, name: &str) -> String {
    let value = message.headers.as_ref().and_then(|headers| headers.get(name));
    value.map(|value| value.as_str().to_owned()).unwrap_or_default()
}

/// A message's JSON; nothing is null.
pub fn json_of(message: &Message) -> Value {
    if message.payload.is_empty() {
        Value::Null
    } else {
        serde_json::from_slice(&message.payload).unwrap_or_else(|e| {
            json!(format!("{e}: {}", String::from_utf8_lossy(&message.payload)))
        })
    }
}
