//! Servers, and the authority that signs for them.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{HeaderMap, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio_rustls::TlsAcceptor;

use super::world::address;
use crate::sandbox::lock;

pub(crate) struct Realm {
    authority: CertifiedIssuer<'static, KeyPair>,
}

/// What a server saw, and when it may go on.
#[derive(Clone, Default)]
pub(crate) struct Seen {
    requests: Arc<Mutex<Vec<String>>>,
    pub(crate) connections: Arc<Mutex<usize>>,
    pub(crate) go: Arc<Notify>,
}

impl Seen {
    /// Each request as the server read it.
    pub(crate) fn requests(&self) -> Vec<String> {
        lock(&self.requests).clone()
    }

    pub(crate) fn connections(&self) -> usize {
        *lock(&self.connections)
    }
}

impl Realm {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "Authority of a test");
        let key = KeyPair::generate().expect("a key");
        Self { authority: CertifiedIssuer::self_signed(params, key).expect("an authority") }
    }

    pub(crate) fn pem(&self) -> String {
        self.authority.pem()
    }

    pub(crate) fn config(&self, name: &str, protocols: &[&str]) -> ServerConfig {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new([name.to_owned()]).expect("parameters");
        let certificate = params.signed_by(&key, &self.authority).expect("a certificate");
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .expect("a pair");
        config.alpn_protocols = protocols.iter().map(|p| p.as_bytes().to_vec()).collect();
        config
    }

    /// Serves HTTPS for a name.
    pub(crate) async fn https(&self, server: u8, name: &str, protocols: &[&str]) -> Seen {
        self.https_with(server, 443, self.config(name, protocols)).await
    }

    pub(crate) async fn https_with(&self, server: u8, port: u16, config: ServerConfig) -> Seen {
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let (listener, seen) = (listen(server, port).await, Seen::default());
        let of = seen.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                *lock(&of.connections) += 1;
                let (acceptor, of) = (acceptor.clone(), of.clone());
                tokio::spawn(async move {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        http(stream, of).await;
                    }
                });
            }
        });
        seen
    }
}

pub(crate) async fn listen(server: u8, port: u16) -> TcpListener {
    let at = SocketAddr::new(address(server), port);
    TcpListener::bind(at).await.unwrap_or_else(|error| panic!("{at}: {error}"))
}

/// Serves HTTP without encryption.
pub(crate) async fn plain(server: u8, port: u16) -> Seen {
    let (listener, seen) = (listen(server, port).await, Seen::default());
    let of = seen.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            *lock(&of.connections) += 1;
            tokio::spawn(http(stream, of.clone()));
        }
    });
    seen
}

/// Sends back what it gets, after a greeting.
pub(crate) async fn echo(server: u8, port: u16, greeting: &'static str) -> Seen {
    let (listener, seen) = (listen(server, port).await, Seen::default());
    let of = seen.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            *lock(&of.connections) += 1;
            tokio::spawn(async move {
                let _ = stream.write_all(greeting.as_bytes()).await;
                let (mut from, mut to) = stream.split();
                let _ = tokio::io::copy(&mut from, &mut to).await;
            });
        }
    });
    seen
}

async fn http(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static, seen: Seen) {
    let service = service_fn(move |request| answer(seen.clone(), request));
    let builder = auto::Builder::new(TokioExecutor::new());
    let _ = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await;
}

type Answer = Response<BoxBody<Bytes, Infallible>>;

async fn answer(seen: Seen, mut request: Request<Incoming>) -> Result<Answer, hyper::Error> {
    let mut text = format!("{} {}\n", request.method(), request.uri());
    for (name, value) in request.headers() {
        text += &format!("{name}: {}\n", String::from_utf8_lossy(value.as_bytes()));
    }
    let path = request.uri().path().to_owned();
    if path == "/socket" {
        lock(&seen.requests).push(text);
        let upgraded = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let Ok(upgraded) = upgraded.await else { return };
            let mut io = TokioIo::new(upgraded);
            let mut bytes = [0; 64];
            while let Ok(len @ 1..) = io.read(&mut bytes).await {
                if io.write_all(&bytes[..len]).await.is_err() {
                    return;
                }
            }
        });
        let response = Response::builder()
            .status(StatusCode::SWITCHING_PROTOCOLS)
            .header("connection", "upgrade")
            .header("upgrade", "websocket");
        return Ok(response.body(Full::default().boxed()).expect("an answer"));
    }
    let collected = request.into_body().collect().await?;
    let trailers = collected.trailers().cloned();
    let body = collected.to_bytes();
    text += &format!("\n{}", String::from_utf8_lossy(&body[..body.len().min(4096)]));
    for (name, value) in trailers.iter().flatten() {
        text += &format!("\ntrailer {name:?}: {value:?}");
    }
    lock(&seen.requests).push(text.clone());
    let body: BoxBody<Bytes, Infallible> = match path.as_str() {
        "/events" => {
            let go = Arc::clone(&seen.go);
            let first = stream::once(async { Ok(Frame::data(Bytes::from("data: 1\n\n"))) });
            let second = stream::once(async move {
                go.notified().await;
                Ok(Frame::data(Bytes::from("data: 2\n\n")))
            });
            BodyExt::boxed(StreamBody::new(first.chain(second)))
        }
        "/large" => {
            let part = Bytes::from(vec![b'x'; 64 * 1024]);
            let parts = stream::iter(std::iter::repeat_n(part, 512));
            BodyExt::boxed(StreamBody::new(parts.map(|part| Ok(Frame::data(part)))))
        }
        "/trailers" => {
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", HeaderValue::from_static("0"));
            let frames = [Frame::data(Bytes::from("message")), Frame::trailers(trailers)];
            BodyExt::boxed(StreamBody::new(stream::iter(frames.map(Ok))))
        }
        _ => Full::new(Bytes::from(text)).boxed(),
    };
    let mut response = Response::new(body);
    if path == "/redirect" {
        *response.status_mut() = StatusCode::FOUND;
        let to = HeaderValue::from_static("http://169.254.169.254/latest/");
        response.headers_mut().insert("location", to);
    }
    Ok(response)
}
