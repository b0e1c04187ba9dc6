//! Remote repositories: real ones, behind TLS on loopback, cloned by a sandbox that has no network.

use std::io::{BufRead, BufReader, Lines, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Project, SANDBOXES, no_git, on, real_runtimes};
use crate::registry::server::Tls;
use crate::skip_if;
use crate::support::{Daemon, Patience, Setup, until, until_some};

const SERVER: &str = include_str!("git_server.py");

fn obstacle() -> Option<&'static str> {
    let python = std::path::Path::new("/usr/bin/python3").exists();
    no_git().or((!python).then_some("there is no python3"))
}

/// A server of one repository, which ends with the test.
pub struct GitServer {
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    tls: Tls,
    port: u16,
    project: Project,
    _place: TempDir,
}

impl GitServer {
    pub fn start() -> Self {
        let place = tempfile::Builder::new().prefix("skgit-").tempdir().expect("a directory");
        let (project, tls) = (Project::new(), Tls::make(place.path()));
        project.commit();
        let root = place.path().join("served");
        std::fs::create_dir(&root).expect("a directory");
        let bare = root.join("repo.git");
        project.git(&["clone", "--quiet", "--bare", ".", bare.to_str().expect("text")]);
        let script = place.path().join("server.py");
        std::fs::write(&script, SERVER).expect("a file");
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "/usr/bin/python3"])
            .arg(&script)
            .arg(&root)
            .args([&tls.certificate, &tls.key])
            .env("HOME", place.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 runs");
        let stdin = child.stdin.take().expect("it is piped");
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let said = lines.next().expect("it says where it listens").expect("text");
        let port = said.strip_prefix("port ").and_then(|port| port.parse().ok()).expect("a port");
        Self { child, stdin, lines, tls, port, project, _place: place }
    }

    pub fn url(&self, path: &str) -> String {
        format!("https://127.0.0.1:{}/{path}", self.port)
    }

    fn ca(&self) -> &str {
        self.tls.ca.to_str().expect("text")
    }

    /// What a daemon needs to be told to get there.
    pub fn known(&self, setup: Setup) -> Setup {
        let allowed = format!("127.0.0.1:{}", self.port);
        setup
            .argument("--outgoing-allow")
            .argument(&allowed)
            .argument("--registry-ca")
            .argument(self.ca())
    }

    /// Waits until somebody waits to be released.
    fn somebody_waits(&mut self) {
        let waits = self.lines.any(|line| line.expect("text") == "waits");
        assert!(waits, "it has ended");
    }

    fn release(&mut self) {
        self.stdin.write_all(b"go\n").expect("it reads");
    }
}

impl Drop for GitServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spec(url: &str) -> Value {
    json!({ "source": { "git": url, "path": "app" } })
}

fn refused(daemon: &Daemon, status: u16, code: &str, url: &str) -> String {
    let problem = daemon.expect(status, "POST", SANDBOXES, &spec(url));
    assert_eq!(problem["code"], code, "{url}: {problem:#}\n{}", daemon.said());
    assert!(daemon.ids().is_empty(), "{url} left a sandbox");
    problem["detail"].as_str().expect("a detail").to_owned()
}

#[test]
fn a_repository_elsewhere_is_cloned_by_a_sandbox_without_a_network() {
    skip_if!(obstacle());
    let server = GitServer::start();
    let first = server.project.git(&["rev-parse", "v1"]);
    for storage in ["btrfs", "local"] {
        let daemon = Daemon::start_with(&server.known(on(storage)));
        let look = "cd ~/app && cat notes && git rev-parse --abbrev-ref HEAD && git status --short && \
                    git remote get-url origin && ls -A ~ && stat -c %U .git notes && \
                    git config --list --local | grep -c -e proxy -e ssl";
        for (path, notes, head) in [
            ("repo.git".to_owned(), "of the host", "main"),
            ("renamed".to_owned(), "of the host", "main"),
            ("repo.git#feature".to_owned(), "of the feature", "feature"),
            ("repo.git#v1".to_owned(), "of the host", "HEAD"),
            (format!("repo.git#{first}"), "of the host", "HEAD"),
        ] {
            let url = server.url(&path);
            let id = daemon.create_with(&spec(&url));
            let origin = url.split('#').next().expect("a URL");
            let expected = format!("{notes}\n{head}\n{origin}\napp\nuser\nuser\n0\n");
            assert_eq!(daemon.sh(&id, look).stdout_text(), expected, "{storage} {path}");
            let ports = format!("{SANDBOXES}/{id}/ports");
            until("the way out is gone", Patience::Short, || {
                daemon.expect(200, "GET", &ports, &Value::Null)["items"] == json!([])
            });
            assert_ne!(daemon.sh(&id, "cd ~/app && git fetch").exit_code, Some(0));
            daemon.destroy(&id);
        }
        daemon.assert_no_leaks();
    }
}

#[test]
fn what_cannot_be_cloned_is_told_apart_and_leaves_nothing() {
    skip_if!(obstacle());
    let server = GitServer::start();
    let daemon = Daemon::start_with(&server.known(Setup::default()));
    let url = |path: &str| server.url(path);
    refused(&daemon, 404, "repository_not_found", &url("none.git"));
    refused(&daemon, 403, "repository_private", &url("private"));
    let said = refused(&daemon, 404, "reference_not_found", &url("repo.git#nowhere"));
    assert!(said.contains("nowhere"), "{said}");
    let said = refused(&daemon, 400, "source_invalid", &url("moved"));
    assert!(said.contains("leads to 127.0.0.1:1"), "{said}");
    refused(&daemon, 400, "malformed_body", &format!("https://me:pw@127.0.0.1:{}/x", server.port));
    // What a sandbox's environment says of proxies and trust is for later, not for the clone.
    let mut misled = spec(&url("repo.git"));
    misled["env"] = json!({ "HTTPS_PROXY": "http://127.0.0.1:1", "no_proxy": "*" });
    let id = daemon.create_with(&misled);
    assert_eq!(daemon.sh(&id, "cat ~/app/notes; echo \"$no_proxy\"").ok(), "of the host\n*");
    daemon.destroy(&id);
    daemon.assert_no_leaks();
}

#[test]
fn nobody_is_called_who_is_not_admitted_or_not_trusted() {
    skip_if!(obstacle());
    let (server, other) = (GitServer::start(), GitServer::start());
    let url = server.url("repo.git");
    let daemon = Daemon::start();
    let said = refused(&daemon, 400, "source_invalid", &url);
    assert!(said.contains("outgoing_allow"), "{said}");
    let mistaken = Setup::default()
        .argument("--outgoing-allow")
        .argument("127.0.0.0/8")
        .argument("--registry-ca")
        .argument(other.ca());
    let daemon = Daemon::start_with(&mistaken);
    let said = refused(&daemon, 502, "source_unavailable", &url);
    assert!(said.contains("certificate"), "{said}");
    let insisting = json!({ "source": { "git": url }, "env": { "GIT_SSL_NO_VERIFY": "1" } });
    let problem = daemon.expect(502, "POST", SANDBOXES, &insisting);
    assert_eq!(problem["code"], "source_unavailable", "{problem:#}");
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = nobody.local_addr().expect("an address").port();
    drop(nobody);
    let closed = format!("https://127.0.0.1:{port}/x");
    let said = refused(&daemon, 502, "source_unavailable", &closed);
    assert!(said.contains("cannot reach"), "{said}");
    daemon.assert_no_leaks();
}

/// Asks for a sandbox and does not wait for the answer.
fn ask(daemon: &Daemon, spec: &Value) -> TcpStream {
    let (address, body) = (daemon.address(), spec.to_string());
    let mut connection = TcpStream::connect(address).expect("it listens");
    let head = format!(
        "POST {SANDBOXES} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    connection.write_all((head + &body).as_bytes()).expect("it reads");
    connection
}

#[test]
fn a_clone_goes_on_when_its_caller_leaves() {
    skip_if!(obstacle());
    let mut server = GitServer::start();
    let daemon = Daemon::start_with(&server.known(Setup::default()));
    let caller = ask(&daemon, &spec(&server.url("slow.git")));
    server.somebody_waits();
    drop(caller);
    server.release();
    let id = until_some("the sandbox runs", Patience::Long, || {
        daemon.ids().into_iter().find(|id| daemon.state(id) == "running")
    });
    assert_eq!(daemon.sh(&id, "cat ~/app/notes").ok(), "of the host");
    daemon.destroy(&id);
    daemon.assert_no_leaks();
}

#[test]
fn a_daemon_that_is_killed_in_the_middle_of_a_clone_leaves_nothing() {
    skip_if!(obstacle());
    let mut server = GitServer::start();
    let setup = server.known(Setup::default());
    let mut daemon = Daemon::start_with(&setup);
    let _caller = ask(&daemon, &spec(&server.url("slow.git")));
    server.somebody_waits();
    daemon.kill_9();
    daemon.start_again(&setup);
    until("what was half-made is gone", Patience::Long, || daemon.ids().is_empty());
    daemon.assert_no_leaks();
    server.release();
    let id = daemon.create_with(&spec(&server.url("repo.git")));
    assert_eq!(daemon.sh(&id, "cat ~/app/notes").ok(), "of the host");
}

#[test]
fn every_runtime_clones_from_elsewhere() {
    skip_if!(obstacle());
    let server = GitServer::start();
    let daemon = Daemon::start_with(&server.known(Setup::default()));
    for name in &real_runtimes(&daemon) {
        let mut spec = spec(&server.url("repo.git"));
        spec["runtime"] = json!(name);
        let id = daemon.create_with(&spec);
        assert_eq!(daemon.sh(&id, "cat ~/app/notes").ok(), "of the host", "{name}");
        daemon.destroy(&id);
    }
}
