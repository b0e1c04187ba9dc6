//! The certificates that a sandbox trusts, as Java reads them: a key store in the format JKS, which every Java since 1.2
//! knows. Java reads no PEM, and its own list of certificates knows neither the machine's nor ours.

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

const MAGIC: u32 = 0xfeed_feed;
const VERSION: u32 = 2;
/// An entry that is a certificate.
const TRUSTED: u32 = 2;
const X_509: &str = "X.509";
/// The password that everybody uses for trusted certificates. They are public; it only finds damage.
const PASSWORD: &str = "changeit";
const PEPPER: &[u8] = b"Mighty Aphrodite";

/// A key store with all certificates of a PEM text. Every text makes the same file each time.
pub(crate) fn trust_store(pem: &[u8]) -> Vec<u8> {
    let certificates: Vec<CertificateDer<'_>> =
        CertificateDer::pem_slice_iter(pem).flatten().collect();
    let mut store = Vec::with_capacity(pem.len());
    let count = u32::try_from(certificates.len()).unwrap_or(u32::MAX);
    [MAGIC, VERSION, count].iter().for_each(|word| store.extend(word.to_be_bytes()));
    for (number, certificate) in certificates.iter().enumerate() {
        store.extend(TRUSTED.to_be_bytes());
        text(&mut store, &format!("sandkeep-{number}"));
        // When it was added, which nobody asks for.
        store.extend(0_u64.to_be_bytes());
        text(&mut store, X_509);
        let len = u32::try_from(certificate.len()).expect("a certificate of a PEM file is small");
        store.extend(len.to_be_bytes());
        store.extend_from_slice(certificate);
    }
    let mut digest = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
    PASSWORD.encode_utf16().for_each(|unit| digest.update(&unit.to_be_bytes()));
    digest.update(PEPPER);
    digest.update(&store);
    store.extend_from_slice(digest.finish().as_ref());
    store
}

/// Its length, and ASCII, which is the same in Java's own UTF-8.
fn text(store: &mut Vec<u8>, text: &str) {
    let len = u16::try_from(text.len()).expect("names are short");
    store.extend(len.to_be_bytes());
    store.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    fn pem(names: &[&str]) -> String {
        let one = |name: &&str| {
            let key = KeyPair::generate().expect("a key");
            let params = CertificateParams::new(vec![(*name).to_owned()]).expect("a name");
            params.self_signed(&key).expect("a certificate").pem()
        };
        names.iter().map(one).collect()
    }

    #[test]
    fn a_store_has_every_certificate_and_its_own_digest() {
        let pem = pem(&["a.example", "b.example"]);
        let store = trust_store(pem.as_bytes());
        assert_eq!(store[..12], [0xfe, 0xed, 0xfe, 0xed, 0, 0, 0, 2, 0, 0, 0, 2]);
        for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
            let certificate = certificate.expect("a certificate");
            assert!(store.windows(certificate.len()).any(|part| part == certificate.as_ref()));
        }
        assert_eq!(store, trust_store(pem.as_bytes()));
        assert_eq!(trust_store(b"nothing").len(), 12 + 20);
    }

    /// By Java itself, which checks the digest when it gets the password.
    #[test]
    fn keytool_lists_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("store");
        std::fs::write(&path, trust_store(pem(&["a.example", "b.example"]).as_bytes()))
            .expect("a file");
        let listed = Command::new("keytool")
            .args(["-J-Duser.language=en", "-list", "-storepass", PASSWORD, "-keystore"])
            .arg(&path)
            .output();
        let Ok(listed) = listed else {
            eprintln!("SKIP keytool_lists_it: there is no keytool");
            return;
        };
        let said = String::from_utf8_lossy(&listed.stdout);
        assert!(listed.status.success() && said.contains("2 entries"), "{listed:?}");
    }
}
