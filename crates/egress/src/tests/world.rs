//! A gateway with one sandbox, and what a program inside would do.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use sandkeep_core::SandboxId;
use sandkeep_core::network::{
    Admin, Decision, DecisionKind, Network, NetworkVerdict, PendingRequest, Policy, Presets,
};
use sandkeep_sys::namespace;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::server::Realm;
pub(crate) use super::support::wait::until;
use crate::sandbox::{Sandbox, lock};
use crate::{
    Attachment, FixedHosts, Gateway, Recorder, Resolve, Rules, Settings, Times, connection,
};

/// A bound for things that happen at once, also on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(30);

#[derive(Default)]
pub(crate) struct Log {
    pub(crate) decisions: Mutex<Vec<Decision>>,
    pub(crate) asked: Mutex<Vec<PendingRequest>>,
}

impl Recorder for Log {
    fn record(&self, decision: &Decision) {
        lock(&self.decisions).push(decision.clone());
    }

    fn asked(&self, request: &PendingRequest) {
        lock(&self.asked).push(request.clone());
    }
}

pub(crate) fn address(server: u8) -> IpAddr {
    Ipv4Addr::new(127, 0, 1, server).into()
}

/// Whether the test can run. Then its thread, and those that it starts from here on, have a network of their own: a
/// guard that fails reaches nobody.
pub(crate) fn is_root(test: &str) -> bool {
    thread_local! {
        static IS_ALONE: Cell<bool> = const { Cell::new(false) };
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let is_root = status.lines().any(|line| line.starts_with("Uid:\t0\t"));
    if !is_root {
        eprintln!("SKIP {test}: needs root");
    } else if !IS_ALONE.replace(true) {
        let proc = std::fs::File::open("/proc").expect("/proc");
        namespace::enter_network(proc.as_fd()).expect("root can have a network of its own");
    }
    is_root
}

pub(crate) struct World {
    pub(crate) gateway: Gateway,
    pub(crate) attachment: Attachment,
    pub(crate) log: Arc<Log>,
    pub(crate) realm: Realm,
    _dir: tempfile::TempDir,
}

pub(crate) struct Setup {
    pub(crate) rules: Rules,
    pub(crate) hosts: BTreeMap<String, Vec<IpAddr>>,
    pub(crate) resolver: Option<Arc<dyn Resolve>>,
    pub(crate) ranges: Vec<&'static str>,
    pub(crate) ceiling: Option<serde_json::Value>,
    pub(crate) times: Times,
}

pub(crate) fn policy(json: serde_json::Value) -> Policy {
    serde_json::from_value(json).expect("a policy")
}

pub(crate) fn rules(json: serde_json::Value) -> Rules {
    Rules { policy: policy(json), ..Rules::default() }
}

/// A sandbox with this policy, in a world where these hosts are the servers of these numbers.
pub(crate) fn setup(json: serde_json::Value, hosts: &[(&str, u8)]) -> Setup {
    let hosts = hosts.iter().map(|(name, server)| ((*name).to_owned(), vec![address(*server)]));
    Setup {
        rules: rules(json),
        hosts: hosts.collect(),
        resolver: None,
        ranges: vec!["127.0.0.0/8"],
        ceiling: None,
        times: Times::default(),
    }
}

impl Setup {
    pub(crate) fn build(self) -> World {
        let dir = tempfile::tempdir().expect("a directory");
        let realm = Realm::new();
        let roots = dir.path().join("roots.pem");
        std::fs::write(&roots, realm.pem()).expect("written");
        let network = |json| serde_json::from_value::<Network>(json).expect("a ceiling");
        let resolver = self.resolver.unwrap_or_else(|| Arc::new(FixedHosts(self.hosts)));
        let settings = Settings {
            presets: Arc::new(Presets::built_in()),
            admin: Admin {
                ceiling: self.ceiling.map(network),
                ranges: self.ranges.iter().map(|range| range.parse().expect("a range")).collect(),
            },
            ca_dir: dir.path().join("ca"),
            roots: sandkeep_outgoing::Roots::read(&roots).expect("roots"),
            resolver,
            times: self.times,
        };
        let gateway = Gateway::new(settings);
        let log = Arc::new(Log::default());
        let attachment = open(&gateway, "acme", self.rules, &log);
        World { gateway, attachment, log, realm, _dir: dir }
    }
}

/// One more sandbox.
pub(crate) fn open(
    gateway: &Gateway,
    organization: &str,
    rules: Rules,
    log: &Arc<Log>,
) -> Attachment {
    let nothing = sandkeep_sys::egress::Sockets { tcp: Vec::new(), udp: Vec::new() };
    let recorder: Arc<dyn Recorder> = Arc::clone(log) as _;
    let opened = gateway.open(SandboxId::random(), organization, nothing, rules, recorder);
    opened.expect("it opens")
}

impl World {
    pub(crate) fn sandbox(&self) -> &Arc<Sandbox> {
        &self.attachment.sandbox
    }

    /// The address that stands for a name in the sandbox.
    pub(crate) fn name(&self, name: &str) -> IpAddr {
        self.sandbox().names().number(name).v4().into()
    }

    /// Connects to a name, as a program does after it asked the resolver.
    pub(crate) async fn to(&self, name: &str, port: u16) -> TcpStream {
        self.connect(SocketAddr::new(self.name(name), port)).await
    }

    /// Connects to what the sandbox claims.
    pub(crate) async fn connect(&self, claimed: SocketAddr) -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let at = listener.local_addr().expect("an address");
        let (client, accepted) = tokio::join!(TcpStream::connect(at), listener.accept());
        let (stream, _) = accepted.expect("a connection");
        tokio::spawn(connection::serve(Arc::clone(self.sandbox()), stream, claimed));
        client.expect("connected")
    }

    /// TLS with a name, trusting the gateway's authority and the servers'.
    pub(crate) async fn tls(
        &self,
        stream: TcpStream,
        name: &str,
        protocols: &[&str],
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let mut config = self.client_config();
        config.alpn_protocols = protocols.iter().map(|p| p.as_bytes().to_vec()).collect();
        let server = ServerName::try_from(name.to_owned()).expect("a name");
        let connecting = TlsConnector::from(Arc::new(config)).connect(server, stream);
        timeout(SOON, connecting).await.expect("it does not hang")
    }

    pub(crate) fn client_config_roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        let ours = self.gateway.ca_pem().expect("an authority");
        for pem in [ours.as_bytes(), self.realm.pem().as_bytes()] {
            roots.add(CertificateDer::from_pem_slice(pem).expect("PEM")).expect("a root");
        }
        roots
    }

    pub(crate) fn client_config(&self) -> ClientConfig {
        let roots = self.client_config_roots();
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth()
    }

    pub(crate) fn decisions(&self) -> Vec<Decision> {
        lock(&self.log.decisions).clone()
    }

    /// Waits until the log has such a line.
    pub(crate) async fn logged(
        &self,
        kind: DecisionKind,
        verdict: NetworkVerdict,
        part: &str,
    ) -> Decision {
        let found = || {
            let is = |line: &Decision| {
                let reason = line.reason.as_deref().unwrap_or_default();
                line.kind == kind && line.verdict == verdict && reason.contains(part)
            };
            self.decisions().into_iter().find(is)
        };
        let what = format!("{kind:?} {verdict:?} {part:?}");
        until(&what, || found().is_some()).await;
        found().expect("it came")
    }
}

/// Sends some bytes and reads until the other side closes; `None` if it resets.
pub(crate) async fn exchange(
    mut stream: impl AsyncReadExt + AsyncWriteExt + Unpin,
    bytes: &[u8],
) -> Option<String> {
    let done = timeout(SOON, async {
        stream.write_all(bytes).await.ok()?;
        stream.flush().await.ok()?;
        let mut answer = Vec::new();
        if let Err(error) = stream.read_to_end(&mut answer).await {
            eprintln!("{error} after {}", String::from_utf8_lossy(&answer));
            return None;
        }
        Some(String::from_utf8_lossy(&answer).into_owned())
    });
    done.await.expect("it does not hang")
}
