//! The TLS certificate of the API: read from files, reloaded on demand, or self-signed by the daemon.
//!
//! The self-signed certificate is kept in the data directory, so that a client that trusted it once (`--ca-file`) need
//! not do so again. It is meant for evaluation: no authority vouches for it.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use ring::digest::{SHA256, digest};
use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

/// Beneath the data directory.
const DIRECTORY: &str = "tls";
const CERTIFICATE: &str = "dev.crt";
const KEY: &str = "dev.key";

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read {}: {problem}", path.display())]
    Unreadable { path: PathBuf, problem: String },
    #[error("{} contains no certificate", path.display())]
    Empty { path: PathBuf },
    #[error("{} and {} do not match: {problem}", files.certificate.display(), files.key.display())]
    Mismatch { files: TlsFiles, problem: String },
    #[error("cannot create a certificate: {0}")]
    Make(#[from] rcgen::Error),
    #[error("cannot store a certificate in {}", path.display())]
    Keep {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Paths of a certificate chain and its private key, both PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// The TLS configuration in use.
pub struct Tls {
    files: TlsFiles,
    current: RwLock<Arc<ServerConfig>>,
}

impl Tls {
    pub fn load(files: TlsFiles) -> Result<Self, TlsError> {
        let current = RwLock::new(read(&files)?);
        Ok(Self { files, current })
    }

    /// Reloads the files for new connections. If they cannot be used, nothing changes.
    pub fn reload(&self) -> Result<(), TlsError> {
        let config = read(&self.files)?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    pub fn acceptor(&self) -> TlsAcceptor {
        // Only complete values are stored, so even a poisoned lock guards a valid one.
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        TlsAcceptor::from(Arc::clone(&current))
    }
}

fn read(files: &TlsFiles) -> Result<Arc<ServerConfig>, TlsError> {
    let chain = certificates(&files.certificate)?;
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(unreadable(&files.key))?;
    let mismatch =
        |e: rustls::Error| TlsError::Mismatch { files: files.clone(), problem: e.to_string() };
    let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(mismatch)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(mismatch)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found = CertificateDer::pem_file_iter(path).map_err(unreadable(path))?;
    let chain: Vec<_> = found.collect::<Result<_, _>>().map_err(unreadable(path))?;
    if chain.is_empty() { Err(TlsError::Empty { path: path.to_owned() }) } else { Ok(chain) }
}

fn unreadable(path: &Path) -> impl Fn(rustls::pki_types::pem::Error) -> TlsError {
    move |e| TlsError::Unreadable { path: path.to_owned(), problem: e.to_string() }
}

/// The SHA-256 fingerprint of a certificate, as browsers and `openssl x509 -fingerprint` show it.
pub fn fingerprint(certificate: &Path) -> Result<String, TlsError> {
    let chain = certificates(certificate)?;
    let hash = digest(&SHA256, chain.first().map(AsRef::as_ref).unwrap_or_default());
    let pairs: Vec<String> = hash.as_ref().iter().map(|byte| format!("{byte:02X}")).collect();
    Ok(pairs.join(":"))
}

/// The self-signed certificate for these names: the existing one, or a new one.
pub fn own_certificate(data_dir: &Path, names: &[String]) -> Result<TlsFiles, TlsError> {
    let directory = data_dir.join(DIRECTORY);
    let files = TlsFiles { certificate: directory.join(CERTIFICATE), key: directory.join(KEY) };
    if files.certificate.exists() && files.key.exists() {
        return Ok(files);
    }
    let made = rcgen::generate_simple_self_signed(names)?;
    let keep = || {
        DirBuilder::new().mode(0o700).recursive(true).create(&directory)?;
        // The certificate is written last: if it exists, the key is complete.
        write(&files.key, made.signing_key.serialize_pem().as_bytes())?;
        write(&files.certificate, made.cert.pem().as_bytes())
    };
    keep().map_err(|source| TlsError::Keep { path: directory.clone(), source })?;
    Ok(files)
}

/// Atomically, and readable by us alone.
fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("new");
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&temporary, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_of_our_own_is_kept_and_belongs_to_its_key() {
        let dir = tempfile::tempdir().expect("a directory");
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let files = own_certificate(dir.path(), &names).expect("a new one");
        let print = fingerprint(&files.certificate).expect("it is readable");
        assert_eq!(print.len(), 32 * 3 - 1);
        let again = own_certificate(dir.path(), &names).expect("the same");
        assert_eq!(fingerprint(&again.certificate).expect("it is readable"), print);
        let tls = Tls::load(files.clone()).expect("they fit together");
        tls.reload().expect("they still do");
        let other = rcgen::generate_simple_self_signed(names).expect("another key");
        write(&files.key, other.signing_key.serialize_pem().as_bytes()).expect("a writable file");
        assert!(matches!(tls.reload(), Err(TlsError::Mismatch { .. })));
    }

    #[test]
    fn files_that_are_missing_or_hold_something_else_are_named() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("nothing.pem");
        let files = TlsFiles { certificate: file.clone(), key: file.clone() };
        let missing = Tls::load(files.clone()).err().expect("there is no file").to_string();
        assert!(missing.contains("nothing.pem"), "{missing}");
        fs::write(&file, "hello").expect("a writable directory");
        assert!(matches!(Tls::load(files), Err(TlsError::Empty { .. })));
    }
}
