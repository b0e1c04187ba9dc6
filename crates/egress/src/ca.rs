//! The certificate authority of this daemon. It signs for the hosts whose requests a policy lets the daemon read, and
//! only the sandboxes with such a policy trust it. Its key never leaves the daemon's directory and memory.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use jiff::{ToSpan as _, Zoned};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;

use sandkeep_core::limits::{EGRESS_LEAF_DAYS, EGRESS_LEAVES_MAX};

use crate::sandbox::lock;

/// The certificate and its key in one file, so that they always belong together.
const FILE: &str = "egress-ca.pem";
const NAME: &str = "Sandkeep egress";
const LEAF_NAME: &str = "Host behind Sandkeep egress";
const YEARS: i64 = 20;
const DAYS_OF_YEAR: i64 = 365;
const CERTIFICATE_END: &str = "-----END CERTIFICATE-----";

#[derive(Debug, thiserror::Error)]
#[error("cannot use the certificate authority {}: {problem}", path.display())]
pub struct CaError {
    path: PathBuf,
    problem: String,
}

/// Why the authority cannot sign.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    #[error("it has no certificate")]
    NoCertificate,
    #[error(transparent)]
    Make(#[from] rcgen::Error),
    #[error(transparent)]
    Use(#[from] rustls::Error),
}

/// Made when it is first used.
pub(crate) struct Authority {
    dir: PathBuf,
    loaded: Mutex<Option<Arc<Loaded>>>,
}

struct Loaded {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
    /// The key of all certificates for hosts, new with every daemon.
    key: KeyPair,
    leaves: Mutex<HashMap<String, Leaf>>,
}

struct Leaf {
    made: jiff::Timestamp,
    key: Arc<CertifiedKey>,
}

impl Authority {
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self { dir, loaded: Mutex::new(None) }
    }

    /// Blocks when it is first used.
    pub(crate) fn certificate_pem(&self) -> Result<String, CaError> {
        Ok(self.loaded()?.pem.clone())
    }

    /// A certificate for this host. Blocks when the authority is first used.
    pub(crate) fn leaf(&self, host: &str) -> Result<Arc<CertifiedKey>, CaError> {
        let loaded = self.loaded()?;
        let now = jiff::Timestamp::now();
        // Half of its life is left for the connections that use it.
        let fresh = |leaf: &&Leaf| now.duration_since(leaf.made).as_hours() < EGRESS_LEAF_DAYS * 12;
        if let Some(leaf) = lock(&loaded.leaves).get(host).filter(fresh) {
            return Ok(Arc::clone(&leaf.key));
        }
        let key = loaded.sign(host).map_err(|problem| self.error(problem))?;
        let key = Arc::new(key);
        let mut leaves = lock(&loaded.leaves);
        if leaves.len() >= EGRESS_LEAVES_MAX {
            // A new one is made in less than a millisecond.
            leaves.clear();
        }
        leaves.insert(host.to_owned(), Leaf { made: now, key: Arc::clone(&key) });
        Ok(key)
    }

    fn loaded(&self) -> Result<Arc<Loaded>, CaError> {
        let mut loaded = lock(&self.loaded);
        if let Some(loaded) = loaded.as_ref() {
            return Ok(Arc::clone(loaded));
        }
        let path = self.dir.join(FILE);
        let pem = match fs::read_to_string(&path) {
            Ok(pem) => pem,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let pem = make().map_err(|error| self.error(error))?;
                keep(&self.dir, &path, &pem).map_err(|error| self.error(error))?;
                pem
            }
            Err(error) => return Err(self.error(error)),
        };
        let read = Arc::new(read(&pem).map_err(|problem| self.error(problem))?);
        *loaded = Some(Arc::clone(&read));
        Ok(read)
    }

    fn error(&self, problem: impl ToString) -> CaError {
        CaError { path: self.dir.join(FILE), problem: problem.to_string() }
    }
}

fn params() -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

fn make() -> Result<String, rcgen::Error> {
    let key = KeyPair::generate()?;
    let mut params = params()?;
    set_validity(&mut params, YEARS * DAYS_OF_YEAR);
    let certificate = params.self_signed(&key)?;
    Ok(format!("{}{}", certificate.pem(), key.serialize_pem()))
}

/// From yesterday, because clocks differ.
fn set_validity(params: &mut CertificateParams, days: i64) {
    let now = Zoned::now();
    let date = |day: Zoned| {
        let date = day.date();
        let part = |number: i8| u8::try_from(number).unwrap_or(1);
        rcgen::date_time_ymd(i32::from(date.year()), part(date.month()), part(date.day()))
    };
    let later = |days: i64| now.checked_add(days.days()).unwrap_or_else(|_| now.clone());
    params.not_before = date(later(-1));
    params.not_after = date(later(days));
}

fn keep(dir: &Path, path: &Path, pem: &str) -> io::Result<()> {
    DirBuilder::new().mode(0o700).recursive(true).create(dir)?;
    let temporary = path.with_extension("new");
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(pem.as_bytes())?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    File::open(dir)?.sync_all()
}

fn read(pem: &str) -> Result<Loaded, Unusable> {
    let end = pem.find(CERTIFICATE_END).ok_or(Unusable::NoCertificate)? + CERTIFICATE_END.len();
    Ok(Loaded {
        pem: format!("{}\n", &pem[..end]),
        issuer: Issuer::new(params()?, KeyPair::from_pem(&pem[end..])?),
        key: KeyPair::generate()?,
        leaves: Mutex::default(),
    })
}

impl Loaded {
    fn sign(&self, host: &str) -> Result<CertifiedKey, Unusable> {
        let mut params = CertificateParams::new([host.to_owned()])?;
        // Not the name of the authority: OpenSSL takes such a certificate for one that signed itself.
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, LEAF_NAME);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        set_validity(&mut params, EGRESS_LEAF_DAYS);
        let certificate = params.signed_by(&self.key, &self.issuer)?;
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(self.key.serialize_der()));
        let key = any_supported_type(&key)?;
        Ok(CertifiedKey::new(vec![certificate.der().clone()], key))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_authority_is_made_once_for_us_alone_and_survives_a_restart() {
        let dir = tempfile::tempdir().expect("a directory");
        let ca_dir = dir.path().join("ca");
        let first = Authority::new(ca_dir.clone());
        let pem = first.certificate_pem().expect("an authority");
        assert!(!pem.contains("PRIVATE"), "{pem}");
        for (path, mode) in [(ca_dir.join(FILE), 0o600), (ca_dir.clone(), 0o700)] {
            let found = fs::metadata(&path).expect("it is there").permissions().mode();
            assert_eq!(found & 0o777, mode, "{}", path.display());
        }
        let again = Authority::new(ca_dir.clone());
        assert_eq!(again.certificate_pem().expect("the same"), pem);
        let leaf = again.leaf("a.example").expect("a certificate");
        assert!(Arc::ptr_eq(&leaf, &again.leaf("a.example").expect("the same")));
        fs::write(ca_dir.join(FILE), "broken").expect("written");
        let error = Authority::new(ca_dir).certificate_pem().expect_err("broken");
        assert!(error.to_string().contains(FILE), "{error}");
    }
}
