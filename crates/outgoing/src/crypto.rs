//! The only implementation of cryptography for TLS, for server and client: ring.

/// Selects it for the whole process. TLS cannot be used before; calling it again changes nothing.
pub fn provide() {
    // An error means that one was already selected, and nothing here selects another.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
