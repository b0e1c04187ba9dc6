//! Reads the first message of TLS, unchanged, so that it can be judged and forwarded.

use std::io;

use rustls::server::Acceptor;
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// Maximum length of a ClientHello; real ones have some hundred bytes to a few KiB.
const CLIENT_HELLO_MAX_BYTES: usize = 32 * 1024;
const HANDSHAKE: u8 = 22;
const MAJOR: u8 = 3;

/// A ClientHello that was read, and not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientHello {
    /// Everything that was read, to be forwarded.
    pub bytes: Vec<u8>,
    /// The name that the client asks for, in lower case.
    pub name: Option<String>,
    /// The protocols that the client offers to speak, best first (ALPN).
    pub protocols: Vec<Vec<u8>>,
}

/// Whether these bytes can be the beginning of a ClientHello.
pub fn may_be_client(bytes: &[u8]) -> bool {
    bytes.iter().zip([HANDSHAKE, MAJOR]).all(|(byte, expected)| *byte == expected)
}

/// Reads a ClientHello, of which `bytes` have already arrived. `None` if it is something else.
pub async fn read_client(
    from: &mut (impl AsyncRead + Unpin),
    mut bytes: Vec<u8>,
) -> io::Result<Option<ClientHello>> {
    let (mut acceptor, mut fed) = (Acceptor::default(), 0);
    loop {
        while fed < bytes.len() {
            match acceptor.read_tls(&mut &bytes[fed..])? {
                0 => return Ok(None),
                read => fed += read,
            }
            match acceptor.accept() {
                Ok(None) => {}
                Ok(Some(accepted)) => {
                    let hello = accepted.client_hello();
                    let name = hello.server_name().map(str::to_ascii_lowercase);
                    let protocols = hello.alpn().into_iter().flatten().map(<[u8]>::to_vec);
                    let protocols = protocols.collect();
                    return Ok(Some(ClientHello { bytes, name, protocols }));
                }
                Err(_) => return Ok(None),
            }
        }
        if bytes.len() > CLIENT_HELLO_MAX_BYTES || from.read_buf(&mut bytes).await? == 0 {
            return Ok(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::{ClientConfig, ClientConnection, RootCertStore};

    use super::*;

    fn hello(host: &str) -> Vec<u8> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        let name = host.to_owned().try_into().expect("a name");
        let mut client = ClientConnection::new(Arc::new(config), name).expect("a client");
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).expect("a hello");
        bytes
    }

    #[tokio::test]
    async fn a_client_hello_is_read_whole_and_anything_else_is_none() {
        for (said, name) in [("git.example", Some("git.example")), ("127.0.0.1", None)] {
            let whole = hello(said);
            for cut in [0, 1, 7, whole.len()] {
                let (early, mut rest) = whole.split_at(cut);
                let read = read_client(&mut rest, early.to_vec()).await.expect("it is there");
                let read = read.expect("a hello");
                assert_eq!((read.name.as_deref(), read.bytes), (name, whole.clone()), "{cut}");
            }
        }
        let whole = hello("git.example");
        for other in [&b"SSH-2.0-x\r\n"[..], b"GET / HTTP/1.1\r\n\r\n", b"", &whole[..100]] {
            let read = read_client(&mut &other[..], Vec::new()).await;
            assert_eq!(read.expect("it is there"), None, "{other:?}");
        }
    }
}
