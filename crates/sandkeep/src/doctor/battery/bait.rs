//! What a leak would find. Everything belongs to this process: the attempts target nothing else on the host, and
//! nothing beyond it.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use probe::Attempt;
use tokio::net::UdpSocket;
use tokio::process::{Child, Command};
use tokio_util::task::AbortOnDropHandle;

use super::kernel;
use super::subject::TestSandbox;
use sandkeep_broker::error::Error;
use sandkeep_core::SandboxId;

const PREFIX: &str = "sandkeep-bait.";

/// Everything is removed on drop.
pub struct Bait {
    dir: PathBuf,
    word: String,
    tcp: TcpListener,
    _abstract: UnixListener,
    _by_path: UnixListener,
    udp_port: u16,
    resolver: AbortOnDropHandle<()>,
    /// A query arrived, whether or not its answer was received.
    was_asked: Arc<AtomicBool>,
    process: Child,
    shared: Vec<String>,
    /// Paths of the other sandbox's file, on the host and inside.
    other_files: Vec<PathBuf>,
}

impl Bait {
    /// `shared`: directories that the sandbox shares with the host, as paths inside.
    pub async fn lay(shared: Vec<String>) -> io::Result<Self> {
        let parent = std::env::temp_dir();
        sweep(&parent);
        let word = format!("bait-{}", &SandboxId::random().as_str()[SandboxId::PREFIX.len()..]);
        // World-readable: a sandbox must be kept out because the file is not visible, not by permissions.
        let dir = parent.join(format!("{PREFIX}{}", std::process::id()));
        DirBuilder::new().mode(0o755).create(&dir)?;
        fs::write(dir.join("secret"), &word)?;
        fs::set_permissions(dir.join("secret"), Permissions::from_mode(0o644))?;
        let by_path = UnixListener::bind(dir.join("socket"))?;
        fs::set_permissions(dir.join("socket"), Permissions::from_mode(0o666))?;
        let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let was_asked = Arc::<AtomicBool>::default();
        Ok(Self {
            tcp: TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?,
            _abstract: UnixListener::bind_addr(&SocketAddr::from_abstract_name(&word)?)?,
            _by_path: by_path,
            udp_port: udp.local_addr()?.port(),
            resolver: AbortOnDropHandle::new(tokio::spawn(answer(udp, Arc::clone(&was_asked)))),
            was_asked,
            process: process(&word)?,
            shared,
            other_files: Vec::new(),
            dir,
            word,
        })
    }

    /// Puts a secret, and a process that is named after it, into another sandbox.
    pub async fn hide_in(&mut self, other: &TestSandbox<'_>) -> Result<(), Error> {
        let inside = format!("tmp/{}-of-another", self.word);
        other.hide(&format!("/{inside}"), &self.word).await?;
        let root = other.volume().await?;
        self.other_files = vec![root.own_dir().join(&inside), Path::new("/").join(inside)];
        Ok(())
    }

    /// The keys that the probe knows. `setuid`: a set-user-ID program that must not raise anybody's rights.
    pub fn arguments(&self, setuid: Option<&str>) -> Vec<String> {
        let path = |name: &str| self.dir.join(name).display().to_string();
        let others: Vec<_> =
            self.other_files.iter().map(|path| path.display().to_string()).collect();
        let mut pairs = vec![
            ("host-file", path("secret")),
            ("host-word", self.word.clone()),
            ("host-socket", path("socket")),
            ("other-files", others.join(":")),
            ("other-word", self.word.clone()),
            ("process-words", self.word.clone()),
            ("process", self.process.id().unwrap_or_default().to_string()),
            ("tcp", self.port().to_string()),
            ("udp", self.udp_port.to_string()),
            ("abstract", self.word.clone()),
            ("shared", self.shared.join(":")),
            ("kernel", kernel()),
        ];
        pairs.extend(setuid.map(|path| ("setuid", path.to_owned())));
        pairs.into_iter().map(|(key, value)| format!("{key}={value}")).collect()
    }

    /// The port of its listener on the host's loopback.
    pub fn port(&self) -> u16 {
        self.tcp.local_addr().map_or(0, |address| address.port())
    }

    /// Damage done by a sandbox, as seen from the host: nothing else would end the process or query the resolver.
    pub fn harm(&mut self) -> Option<(Attempt, &'static str)> {
        if !matches!(self.process.try_wait(), Ok(None)) {
            return Some((Attempt::HostProcessSignal, "a process of the host was ended"));
        }
        let asked = self.was_asked.load(Ordering::Relaxed) || self.resolver.is_finished();
        asked.then_some((Attempt::Dns, "a query came to the host's loopback"))
    }
}

#[cfg(test)]
impl Bait {
    pub fn host_file(&self) -> PathBuf {
        self.dir.join("secret")
    }

    /// A file of the host that represents another sandbox's.
    pub fn other_is(&mut self, path: &Path) {
        fs::write(path, &self.word).expect("a writable directory");
        self.other_files = vec![path.to_owned()];
    }
}

impl Drop for Bait {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// A process of the host with a word among its arguments. It ends with this process, however that ends.
fn process(word: &str) -> io::Result<Child> {
    let mut command = Command::new("sh");
    command.args(["-c", "read nothing", word]);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    command.kill_on_drop(true).spawn()
}

/// Answers queries like a resolver.
async fn answer(socket: UdpSocket, was_asked: Arc<AtomicBool>) {
    let mut query = [0; 512];
    while let Ok((_, from)) = socket.recv_from(&mut query).await {
        was_asked.store(true, Ordering::Relaxed);
        let _ = socket.send_to(b"sandkeep", from).await;
    }
}

/// Removes the leftovers of a killed doctor: the directory is named after a process that is gone.
fn sweep(parent: &Path) {
    let uid = rustix::process::geteuid().as_raw();
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse::<u32>().ok());
        let is_ours = entry.metadata().is_ok_and(|found| found.is_dir() && found.uid() == uid);
        let is_alive = |pid: u32| {
            pid != std::process::id() && Path::new("/proc").join(pid.to_string()).exists()
        };
        if is_ours && pid.is_some_and(|pid| !is_alive(pid)) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
