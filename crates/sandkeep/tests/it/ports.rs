//! Servers inside are reachable from outside: by a host name, by a path, by a raw socket, by a signed URL. None of the
//! sandboxes here has a network.

mod hosts;
pub mod keyed;
mod lasting;
mod passes;
mod paths;
mod raw;

use serde_json::{Value, json};

use crate::support::{Daemon, Patience, Raw, Reply, until};

const APP: &str = include_str!("ports/app.py");
pub const PORT: u16 = 8000;

/// A sandbox with the server of these tests in it.
pub struct Site<'a> {
    pub daemon: &'a Daemon,
    pub id: String,
}

impl<'a> Site<'a> {
    pub fn open(daemon: &'a Daemon) -> Self {
        Self::open_with(daemon, &json!({}))
    }

    /// The same in a sandbox of this kind.
    pub fn open_with(daemon: &'a Daemon, spec: &Value) -> Self {
        let site = Self { daemon, id: daemon.create_with(spec) };
        site.serve(PORT);
        site
    }

    /// Starts another server on this port.
    fn serve(&self, port: u16) {
        let command =
            format!("cat > app.py; setsid python3 app.py {port} > log 2>&1 < /dev/null &");
        self.daemon.exec(&self.id, &json!({ "command": command, "stdin": APP })).ok();
        until("the server inside listens", Patience::Long, || {
            self.get(port, "/", "").status == 200
        });
    }

    pub fn host(&self, port: u16) -> String {
        format!("{port}-{}.localhost:{}", self.id, self.daemon.address().port())
    }

    /// The path of the port on the API.
    pub fn path(&self, rest: &str) -> String {
        format!("/api/v1/sandboxes/{}/ports/{PORT}{rest}", self.id)
    }

    /// A request by the port's host name, with more lines in its head.
    pub fn get(&self, port: u16, target: &str, lines: &str) -> Reply {
        self.ask("GET", &self.host(port), target, lines)
    }

    fn ask(&self, method: &str, host: &str, target: &str, lines: &str) -> Reply {
        let mut raw = Raw::open(self.daemon.address());
        raw.send(format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n{lines}\r\n").as_bytes());
        raw.reply(method)
    }

    /// A request to the API itself.
    fn api(&self, method: &str, target: &str, lines: &str) -> Reply {
        self.ask(method, &self.daemon.address().to_string(), target, lines)
    }
}

/// What the server inside saw of a request.
fn seen(reply: &Reply, name: &str) -> Vec<String> {
    assert_eq!(reply.status, 200, "{}", reply.text());
    let said = reply.json();
    let headers = said["headers"].as_array().expect("headers").iter();
    let named = headers.filter(|pair| pair[0] == name);
    named.map(|pair| pair[1].as_str().expect("a value").to_owned()).collect()
}
