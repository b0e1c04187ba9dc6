//! Servers on loopback that sandboxes want to reach, and a daemon that knows them by name.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair,
};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::alone::alone;
use crate::support::{Daemon, Setup};

/// A server that answers every request, and remembers what it got.
pub struct Upstream {
    pub port: u16,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Upstream {
    pub fn http() -> Self {
        Self::start("127.0.0.1:0", answer)
    }

    /// On port 80 of a loopback address that only this test uses.
    pub fn http_at(address: &str) -> Self {
        Self::start(&format!("{address}:80"), answer)
    }

    fn start(
        at: &str,
        serve: impl Fn(TcpStream, &Mutex<Vec<String>>) -> Option<()> + Send + Sync + 'static,
    ) -> Self {
        alone();
        let listener = TcpListener::bind(at).expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let requests: Arc<Mutex<Vec<String>>> = Arc::default();
        let (seen, serve) = (Arc::clone(&requests), Arc::new(serve));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (seen, serve) = (Arc::clone(&seen), Arc::clone(&serve));
                std::thread::spawn(move || serve(stream, &seen));
            }
        });
        Self { port, requests }
    }

    /// The heads of all requests so far.
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().expect("no panic").clone()
    }

    pub fn entry(&self, host: &str) -> String {
        format!("{host}:{}", self.port)
    }

    pub fn url(&self, host: &str) -> String {
        format!("http://{host}:{}/", self.port)
    }
}

/// `None`: whoever asked is gone. `/hold` is never answered to its end.
fn answer(stream: impl Read + Write, requests: &Mutex<Vec<String>>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    loop {
        let before = head.len();
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
        if head[before..].trim_end().is_empty() {
            break;
        }
    }
    let holds = head.starts_with("GET /hold ");
    requests.lock().expect("no panic").push(head);
    let stream = reader.get_mut();
    let length = if holds { 1_000_000 } else { 6 };
    let head =
        format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\nhello\n");
    stream.write_all(head.as_bytes()).ok()?;
    stream.flush().ok()?;
    // Until the other side leaves.
    let mut rest = Vec::new();
    if holds {
        reader.read_to_end(&mut rest).ok()?;
    }
    Some(())
}

/// A certificate authority of the test.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Self { issuer: CertifiedIssuer::self_signed(params, key).expect("a certificate") }
    }

    /// A server with a certificate of these names.
    pub fn https(&self, names: &[&str]) -> Upstream {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(names).expect("names");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .expect("a configuration");
        let config = Arc::new(config);
        Upstream::start("127.0.0.1:0", move |stream, requests| {
            let connection = ServerConnection::new(Arc::clone(&config)).ok()?;
            answer(StreamOwned::new(connection, stream), requests)
        })
    }

    /// A certificate of these names and its key, for a server that reads them from files.
    pub fn certificate(&self, names: &[&str]) -> (String, String) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(names).expect("names");
        // Not the name of the authority: OpenSSL takes such a certificate for one that signed itself.
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "server");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        (certificate.pem(), key.serialize_pem())
    }

    pub fn pem(&self) -> String {
        self.issuer.pem()
    }
}

/// Files that a daemon is started with.
pub struct World {
    dir: TempDir,
    pub setup: Setup,
}

/// Hosts that are this machine.
pub const HOSTS: &str = "127.0.0.1 a.test b.test api.test\n192.0.2.1 far.test\n";

impl World {
    /// Hosts of the test, on loopback, and no ceiling.
    pub fn new() -> Self {
        let world = Self::strict();
        let setup = world.setup.clone().argument("--egress-allow-ranges=127.0.0.0/8");
        Self { setup, ..world }
    }

    /// The same, where nothing but public addresses can be reached.
    pub fn strict() -> Self {
        alone();
        let dir = tempfile::tempdir().expect("a directory");
        let hosts = dir.path().join("hosts");
        std::fs::write(&hosts, HOSTS).expect("a file");
        let setup = Setup::default().argument(&format!("--egress-hosts={}", hosts.display()));
        Self { dir, setup }
    }

    /// With one more host.
    pub fn with_host(self, address: &str, name: &str) -> Self {
        let text = format!("{HOSTS}{address} {name}\n");
        std::fs::write(self.dir.path().join("hosts"), text).expect("a file");
        self
    }

    pub fn trusting(mut self, authority: &Authority) -> Self {
        let path = self.dir.path().join("ca.pem");
        std::fs::write(&path, authority.pem()).expect("a file");
        self.setup = self.setup.argument(&format!("--egress-ca={}", path.display()));
        self
    }

    pub fn daemon(&self) -> Daemon {
        Daemon::start_with(&self.setup)
    }
}

/// What the tests ask of the network of a sandbox.
impl Daemon {
    pub fn create_allowing(&self, allow: &[&str]) -> String {
        self.create_with(&json!({ "network": { "allow": allow } }))
    }

    pub fn network(&self, id: &str) -> Value {
        self.expect(200, "GET", &format!("/api/v1/sandboxes/{id}/network"), &Value::Null)
    }

    pub fn patch_network(&self, id: &str, patch: &Value) -> Value {
        self.expect(200, "PATCH", &format!("/api/v1/sandboxes/{id}/network"), patch)
    }

    pub fn network_log(&self, id: &str) -> Vec<Value> {
        let target = format!("/api/v1/sandboxes/{id}/network/log?limit=1000");
        let log = self.expect(200, "GET", &target, &Value::Null);
        log["items"].as_array().expect("a list").clone()
    }

    /// Whether a sandbox gets an answer from there.
    pub fn reaches(&self, id: &str, url: &str) -> bool {
        let curl = format!("curl -sS --max-time 20 {url}");
        let ended = self.sh(id, &curl);
        let reached = ended.stdout_text() == "hello\n";
        assert_eq!(reached, ended.exit_code == Some(0), "{ended:?}");
        reached
    }
}
