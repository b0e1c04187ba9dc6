//! The one implementation of cryptography for TLS, both as a server and as a client: ring.

/// Chooses it for the whole process. TLS cannot be used before; to call it again changes nothing.
pub fn provide() {
    // An error says that one was chosen already, and nobody here chooses another.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
