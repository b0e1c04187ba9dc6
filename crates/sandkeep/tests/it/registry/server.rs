//! A real registry on loopback, with a directory of its own, that ends with the test.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::images::{Made, write_layout};

/// What a test needs that may be missing.
pub fn obstacle() -> Option<String> {
    let runs = |tool: &&str| {
        let mut version = Command::new(tool);
        version.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
        version.status().is_ok()
    };
    let tools = ["docker-registry", "skopeo", "setpriv"];
    tools.into_iter().find(|tool| !runs(tool)).map(|tool| format!("there is no {tool}"))
}

/// What is kept, apart from who serves it.
pub struct Storage(TempDir);

pub struct Server {
    child: Child,
    port: u16,
}

impl Storage {
    pub fn new() -> Self {
        Self(tempfile::Builder::new().prefix("skreg-").tempdir().expect("a directory"))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Puts images there, through a registry that lets everybody in.
    pub fn push(&self, name: &str, images: &[&Made]) {
        let server = self.serve(json!({}));
        let layout = self.path(&name.replace(['/', ':'], "-"));
        write_layout(&layout, images);
        let pushed = Command::new("skopeo")
            .args(["--insecure-policy", "--tmpdir"])
            .arg(self.0.path())
            .args(["copy", "--quiet", "--all", "--dest-tls-verify=false"])
            .arg(format!("oci:{}:it", layout.display()))
            .arg(format!("docker://{}/{name}", server.host()))
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.0.path())
            .output()
            .expect("skopeo runs");
        assert!(pushed.status.success(), "{}", String::from_utf8_lossy(&pushed.stderr));
    }

    /// Serves it, by a configuration that adds to the usual one.
    pub fn serve(&self, more: Value) -> Server {
        let mut config = json!({
            "version": 0.1,
            "log": { "level": "info", "accesslog": { "disabled": true } },
            "storage": { "filesystem": { "rootdirectory": self.path("kept") } },
            "http": { "addr": "127.0.0.1:0", "secret": "for tests" },
        });
        if let Value::Object(more) = more {
            for (key, value) in more {
                match value {
                    Value::Object(inner) => inner.into_iter().for_each(|(name, value)| {
                        config[&key][name] = value;
                    }),
                    value => config[&key] = value,
                }
            }
        }
        // JSON is YAML.
        let file = tempfile::NamedTempFile::new_in(self.0.path()).expect("a file");
        std::fs::write(file.path(), config.to_string()).expect("written");
        Server::start(file.path())
    }
}

impl Server {
    fn start(config: &Path) -> Self {
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "docker-registry", "serve"])
            .arg(config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it is installed");
        let mut lines = BufReader::new(child.stderr.take().expect("it is piped")).lines();
        let mut said = String::new();
        let port = loop {
            let line = lines.next().unwrap_or_else(|| panic!("it does not listen: {said}"));
            let line = line.expect("text");
            if let Some((_, rest)) = line.split_once("listening on 127.0.0.1:") {
                let digits = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
                break digits.parse().expect("a port");
            }
            said += &format!("{line}\n");
        };
        // It goes on to print; nobody must be in its way.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, port }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A certificate for 127.0.0.1 and whom it leads back to, as files.
pub struct Tls {
    pub ca: PathBuf,
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Tls {
    pub fn make(directory: &Path) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca_key = KeyPair::generate().expect("a key");
        let ca = CertifiedIssuer::self_signed(params, ca_key).expect("a certificate");
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(["127.0.0.1", "git.test"].map(str::to_owned).to_vec())
            .expect("a name");
        let certificate = params.signed_by(&key, &ca).expect("a certificate");
        let put = |name: &str, text: String| {
            let path = directory.join(name);
            std::fs::write(&path, text).expect("a file");
            path
        };
        Self {
            ca: put("ca.pem", ca.pem()),
            certificate: put("server.pem", certificate.pem()),
            key: put("server.key", key.serialize_pem()),
        }
    }

    pub fn config(&self) -> Value {
        json!({ "http": { "tls": { "certificate": self.certificate, "key": self.key } } })
    }
}
