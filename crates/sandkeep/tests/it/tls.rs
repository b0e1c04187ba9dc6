//! TLS: from files, or with a self-signed certificate. Connections that are not TLS, or never finish the handshake,
//! delay nobody.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use sandkeep_bench::announced;
use tempfile::TempDir;

use crate::skip_if;
use crate::support::{Patience, Ran, binary, until};

pub struct Daemon {
    child: Child,
    pub address: SocketAddr,
    greeting: String,
    data: TempDir,
}

impl Daemon {
    pub fn start(arguments: &[&str]) -> Self {
        let data = tempfile::tempdir().expect("a directory");
        let mut child = binary()
            .args(["serve", "--listen", "127.0.0.1:0", "--storage", "local", "--data-dir"])
            .arg(data.path())
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let mut greeting = String::new();
        let address = loop {
            let line = lines.next().expect("it says where it listens").expect("text");
            greeting += &format!("{line}\n");
            if line.is_empty() {
                break announced(&greeting).expect("an address");
            }
        };
        // It goes on to print; nobody must be in its way.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address, greeting, data }
    }

    fn runtimes(&self, ca_file: &Path) -> Ran {
        let url = format!("https://{}", self.address);
        let mut command = binary();
        command.args(["--url", &url, "--ca-file"]).arg(ca_file).args(["runtimes", "--json"]);
        command.output().expect("the binary runs").into()
    }

    pub fn own_certificate(&self) -> PathBuf {
        self.data.path().join("tls/dev.crt")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let _ = self.child.wait();
    }
}

#[test]
fn a_daemon_vouches_for_itself_with_a_certificate_that_it_keeps() {
    skip_if!(crate::support::obstacle());
    let daemon = Daemon::start(&["--tls-dev"]);
    assert!(daemon.greeting.contains("https://"), "{}", daemon.greeting);
    assert!(daemon.greeting.contains("SHA-256 "), "{}", daemon.greeting);
    // Clients that never say a word, and one that speaks no TLS.
    let silent: Vec<TcpStream> =
        (0..20).map(|_| TcpStream::connect(daemon.address).expect("it listens")).collect();
    let ran = daemon.runtimes(&daemon.own_certificate());
    assert_eq!(ran.code, 0, "{ran:?}");
    let mut plain = binary();
    plain.args(["--url", &format!("http://{}", daemon.address), "runtimes"]);
    assert_ne!(plain.output().expect("it runs").status.code(), Some(0));
    let mut unknown = binary();
    unknown.args(["--url", &format!("https://{}", daemon.address), "runtimes"]);
    assert_ne!(unknown.output().expect("it runs").status.code(), Some(0), "nobody vouches for it");
    drop(silent);
}

fn write_certificate(dir: &Path) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned(), "127.0.0.1".to_owned()])
        .expect("a certificate");
    std::fs::write(dir.join("cert.pem"), made.cert.pem()).expect("a writable directory");
    std::fs::write(dir.join("key.pem"), made.signing_key.serialize_pem()).expect("writable");
}

#[test]
fn certificates_from_files_are_read_again_on_sighup() {
    skip_if!(crate::support::obstacle());
    let dir = tempfile::tempdir().expect("a directory");
    write_certificate(dir.path());
    let (cert, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    let old = dir.path().join("old.pem");
    std::fs::copy(&cert, &old).expect("a copy");
    let flags = [format!("--tls-cert={}", cert.display()), format!("--tls-key={}", key.display())];
    let daemon = Daemon::start(&[&flags[0], &flags[1]]);
    assert_eq!(daemon.runtimes(&cert).code, 0);
    write_certificate(dir.path());
    assert_ne!(daemon.runtimes(&cert).code, 0, "nobody told it of the new one");
    kill_process(Pid::from_child(&daemon.child), Signal::HUP).expect("it runs");
    until("the new certificate is served", Patience::Short, || daemon.runtimes(&cert).code == 0);
    assert_ne!(daemon.runtimes(&old).code, 0);
}

#[test]
fn a_certificate_that_cannot_be_used_is_named_before_anything_starts() {
    let dir = tempfile::tempdir().expect("a directory");
    let serve = |flags: &[&str]| -> Ran {
        let mut command = binary();
        command.args(["serve", "--listen", "127.0.0.1:0", "--storage", "local", "--data-dir"]);
        command.arg(dir.path().join("data")).args(flags).output().expect("it runs").into()
    };
    let alone = serve(&["--tls-cert=/nothing.pem"]);
    assert!(alone.code == 2 && alone.stderr.contains("tls.key"), "{alone:?}");
    let missing = serve(&["--tls-cert=/nothing.pem", "--tls-key=/nothing.pem"]);
    assert!(missing.code == 2 && missing.stderr.contains("/nothing.pem"), "{missing:?}");
}
