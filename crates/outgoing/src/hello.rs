//! Reads the first message of TLS, unchanged, so that it can be judged and forwarded.

use std::io;

use rustls::server::Acceptor;
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// Maximum length of a ClientHello; real ones have some hundred bytes to a few KiB.
const CLIENT_HELLO_MAX_BYTES: usize = 32 * 1024;
const HANDSHAKE: u8 = 22;
const MAJOR: u8 = 3;
/// Type and length of a message.
const MESSAGE_HEAD_LEN: usize = 4;
/// The extension of RFC 9849.
const ENCRYPTED_CLIENT_HELLO: u16 = 0xfe0d;

/// A ClientHello that was read, and not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientHello {
    /// Everything that was read, to be forwarded.
    pub bytes: Vec<u8>,
    /// The name that the client asks for, in lower case.
    pub name: Option<String>,
    /// The protocols that the client offers to speak, best first (ALPN).
    pub protocols: Vec<Vec<u8>>,
    /// Whether there is another one in it that only the server can read (ECH), or random bytes that look like it: the two
    /// cannot be told apart.
    pub has_hidden_hello: bool,
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
                    let has_hidden_hello = extensions(&bytes).contains(&ENCRYPTED_CLIENT_HELLO);
                    return Ok(Some(ClientHello { bytes, name, protocols, has_hidden_hello }));
                }
                Err(_) => return Ok(None),
            }
        }
        if bytes.len() > CLIENT_HELLO_MAX_BYTES || from.read_buf(&mut bytes).await? == 0 {
            return Ok(None);
        }
    }
}

/// The types of a ClientHello's extensions, which is in one record or several.
fn extensions(records: &[u8]) -> Vec<u16> {
    let (mut rest, mut message) = (records, Vec::new());
    while let [_, _, _, high, low, content @ ..] = rest {
        let length = usize::from(u16::from_be_bytes([*high, *low])).min(content.len());
        message.extend_from_slice(&content[..length]);
        rest = &content[length..];
    }
    // The message's type and length, the version and random bytes; then three lists with a length of their own.
    let mut at = MESSAGE_HEAD_LEN + 2 + 32;
    for length_len in [1, 2, 1] {
        at = after_list(&message, at, length_len);
    }
    let mut types = Vec::new();
    at += 2;
    while let Some([high, low]) = message.get(at..at + 2) {
        types.push(u16::from_be_bytes([*high, *low]));
        at = after_list(&message, at + 2, 2);
    }
    types
}

/// Where a list ends whose length is at its beginning, in so many bytes.
fn after_list(message: &[u8], at: usize, length_len: usize) -> usize {
    let length = message.get(at..at + length_len).unwrap_or_default();
    at + length_len + length.iter().fold(0, |length, byte| (length << 8) | usize::from(*byte))
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

    #[test]
    fn extensions_are_found_in_one_record_or_several_and_in_nothing() {
        const SERVER_NAME: u16 = 0;
        let whole = hello("git.example");
        let found = extensions(&whole);
        assert!(found.contains(&SERVER_NAME) && !found.contains(&ENCRYPTED_CLIENT_HELLO));
        let records: Vec<u8> = whole[5..]
            .chunks(50)
            .flat_map(|part| [&[HANDSHAKE, MAJOR, 1, 0, part.len() as u8], part].concat())
            .collect();
        assert_eq!(extensions(&records), found);
        for end in 0..whole.len() {
            assert!(extensions(&whole[..end]).len() <= found.len());
        }
    }
}
