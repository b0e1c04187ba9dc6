//! The certificates that servers are verified with.

use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use reqwest::Certificate;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

use crate::OutgoingError;

/// Trusted CA certificates, besides those of this machine.
#[derive(Clone, Debug, Default)]
pub struct Roots {
    certificates: Arc<[Certificate]>,
    /// As read from the file.
    pem: Arc<[u8]>,
}

impl Roots {
    /// Reads certificates from a PEM file.
    pub fn read(path: &Path) -> Result<Self, OutgoingError> {
        let wrong = |problem: String| OutgoingError::Certificates {
            path: path.display().to_string(),
            problem,
        };
        let pem = std::fs::read(path).map_err(|e| wrong(e.to_string()))?;
        let certificates = Certificate::from_pem_bundle(&pem)
            .map_err(|e| wrong(sandkeep_core::with_causes(&e)))?;
        if certificates.is_empty() {
            Err(wrong("there is no certificate in it; it must be PEM".to_owned()))
        } else {
            Ok(Self { certificates: certificates.into(), pem: pem.into() })
        }
    }

    /// Those besides the machine's, for a client of requests.
    pub(super) fn additional(&self) -> impl Iterator<Item = Certificate> {
        self.certificates.iter().cloned()
    }

    /// How a TLS client verifies servers: with the machine's certificates and these. It has no certificate of its own.
    /// Blocks.
    pub fn client_config(&self) -> ClientConfig {
        let mut store = RootCertStore::empty();
        store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        store.add_parsable_certificates(CertificateDer::pem_slice_iter(&self.pem).flatten());
        ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .expect("the provider has the default versions")
            .with_root_certificates(store)
            .with_no_client_auth()
    }

    /// All CA certificates that outgoing connections trust, including those of this machine, as PEM: for a program that
    /// connects by itself. Blocks.
    pub fn all_as_pem(&self) -> Vec<u8> {
        // If some of the machine's certificates cannot be read, the others still count.
        let mut all = Vec::new();
        for certificate in rustls_native_certs::load_native_certs().certs {
            all.extend_from_slice(b"-----BEGIN CERTIFICATE-----\n");
            let text = BASE64.encode(&certificate);
            for line in text.as_bytes().chunks(PEM_LINE) {
                all.extend_from_slice(line);
                all.push(b'\n');
            }
            all.extend_from_slice(b"-----END CERTIFICATE-----\n");
        }
        all.extend_from_slice(&self.pem);
        all
    }
}

/// Line length in PEM.
const PEM_LINE: usize = 64;
