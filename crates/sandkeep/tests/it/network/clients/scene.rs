//! Servers with the names of public ones in a network namespace of the test's own, and two sandboxes that may reach them:
//! one whose TLS passes unread, one whose requests are read. Nothing is configured in either.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use sandkeep_sys::namespace;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::network::upstream::Authority;
use crate::support::{Daemon, Setup, top};

/// Where the web servers and the ssh server are. Others are on addresses of their own, because they have port 443 too.
const HOSTS: &str = "\
127.0.1.1 pypi.org files.pythonhosted.org registry.npmjs.org index.crates.io static.crates.io proxy.golang.org
127.0.1.1 deb.debian.org github.com web.test plain.test marker.test
127.0.1.2 ws.test
127.0.1.3 grpc.test
";

/// Presets of the product, as a user names them; the last one is why the sandbox has the daemon's certificates, among
/// which is the test's authority.
const PASSED: &str = r#"["python", "node", "rust", "go", "debian", "git", "web.test", "plain.test", "ws.test", "grpc.test",
    { "host": "marker.test", "access": "read-only" }]"#;

/// Names of the certificate, and the hosts whose requests are read.
const NAMES: [&str; 11] = [
    "pypi.org",
    "files.pythonhosted.org",
    "registry.npmjs.org",
    "index.crates.io",
    "static.crates.io",
    "proxy.golang.org",
    "deb.debian.org",
    "github.com",
    "web.test",
    "ws.test",
    "grpc.test",
];

/// What `./test` installs, and why a test cannot run without it.
pub fn missing() -> Option<&'static str> {
    let (clients, web) = (top().join("target/network-clients/installed.txt"), web());
    match (clients.exists(), web.exists()) {
        (false, _) => Some("the clients from PyPI are not installed; ./test does it"),
        (_, false) => Some("the web server is not built; ./test does it with Go"),
        _ => None,
    }
}

fn web() -> PathBuf {
    top().join("target/network-web/web")
}

pub struct Scene {
    pub daemon: Daemon,
    /// How its connections pass, and a sandbox.
    pub sandboxes: [(&'static str, String); 2],
    _servers: [Server; 2],
    _dir: TempDir,
}

/// A server, which ends with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Server {
    /// Waits until it says that it listens.
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let mut said = String::new();
        let stdout = child.stdout.take().expect("it is piped");
        let server = Self(child);
        BufReader::new(stdout).read_line(&mut said).expect("output");
        assert_eq!(said, "ready\n", "{command:?}");
        server
    }
}

impl Scene {
    /// `fill` puts what the clients of the test are into a directory, which becomes the sandboxes' workspace.
    pub fn new(fill: impl FnOnce(&Path)) -> Self {
        // The servers, the daemon and this thread's connections to it.
        let proc = File::open("/proc").expect("/proc");
        namespace::enter_network(proc.as_fd()).expect("root can have a network of its own");
        let dir = tempfile::tempdir().expect("a directory");
        let path = |name: &str| dir.path().join(name);
        let authority = Authority::new();
        let (certificate, key) = authority.certificate(&NAMES);
        std::fs::write(path("certificate.pem"), certificate).expect("written");
        std::fs::write(path("key.pem"), key).expect("written");
        std::fs::write(path("ca.pem"), authority.pem()).expect("written");
        std::fs::write(path("hosts"), HOSTS).expect("written");
        let programs = top().join("tests/network-clients");
        let made = Command::new("python3")
            .arg(programs.join("registries.py"))
            .arg(path("tree"))
            .status()
            .expect("python3 runs");
        assert!(made.success(), "the registries are made");
        let files = [path("certificate.pem"), path("key.pem"), path("tree")];
        let servers = [
            Server::start(Command::new(web()).args(["serve", "127.0.1.1"]).args(&files)),
            Server::start(
                Command::new(top().join("target/network-clients/bin/python3"))
                    .arg(programs.join("servers.py"))
                    .args(&files),
            ),
        ];
        let setup = Setup::default()
            .argument(&format!("--egress-hosts={}", path("hosts").display()))
            .argument(&format!("--egress-ca={}", path("ca.pem").display()))
            .argument("--egress-allow-ranges=127.0.1.0/24");
        let daemon = Daemon::start_with(&setup);
        std::fs::create_dir(path("kit")).expect("a directory");
        fill(&path("kit"));
        std::fs::copy(web(), path("kit/web")).expect("copied");
        let read = NAMES.iter().map(|name| json!({ "host": name, "access": "full" }));
        let read: Vec<Value> = read.chain([json!("plain.test"), json!("github.com:22")]).collect();
        let passed: Value = serde_json::from_str(PASSED).expect("JSON");
        let create = |allow: Value| {
            let network = json!({ "allow": allow });
            daemon.create_with(&json!({
                "network": network, "source": { "dir": path("kit") }, "resources": { "disk_mb": 1500 },
            }))
        };
        let sandboxes = [("passed on", create(passed)), ("read", create(json!(read)))];
        Self { daemon, sandboxes, _servers: servers, _dir: dir }
    }

    /// Runs each command in both sandboxes, and says of all that fail what they said.
    pub fn check(&self, checks: &[(&str, &str)]) {
        let mut failed = Vec::new();
        for (command, expected) in checks {
            for (how, id) in &self.sandboxes {
                let command =
                    format!("export PYTHONPATH=$PWD/site PYTHONDONTWRITEBYTECODE=1 && {command}");
                let body = json!({ "command": command, "timeout_ms": 120_000 });
                let began = std::time::Instant::now();
                let ended = self.daemon.exec(id, &body);
                let said = format!("{}{}", ended.stdout_text(), ended.stderr_text());
                eprintln!("{how}: {command}: {:?} after {:?}", ended.exit_code, began.elapsed());
                if ended.exit_code != Some(0) || !said.contains(expected) {
                    let log = self.daemon.network_log(id);
                    let last: Vec<&Value> = log.iter().rev().take(5).collect();
                    failed.push(format!("{how}: {command}\n{said}\n{last:?}"));
                }
            }
        }
        assert!(failed.is_empty(), "{}", failed.join("\n\n"));
    }
}

/// The Python packages.
pub fn bring_packages(kit: &Path) {
    let home = top().join("target/network-clients");
    let mut versions = std::fs::read_dir(home.join("lib")).expect("a directory");
    let version = versions.next().expect("a version").expect("a directory").path();
    // Without what neither a client nor pip needs.
    let script = "tar -c -C \"$0\" --exclude=asyncssh --exclude=__pycache__ site-packages | tar -x";
    let mut copy = Command::new("sh");
    let copied = copy.args(["-c", script]).arg(version).current_dir(kit).status().expect("sh runs");
    assert!(copied.success(), "the packages are copied");
    std::fs::rename(kit.join("site-packages"), kit.join("site")).expect("renamed");
}

/// One of our programs.
pub fn bring(kit: &Path, name: &str) {
    copy(&top().join("tests/network-clients").join(name), &kit.join(name));
}

pub fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").args([from, to]).status().expect("cp runs");
    assert!(copied.success(), "{} is copied", from.display());
}
