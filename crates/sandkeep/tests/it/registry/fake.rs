//! A registry with scripted answers that records its requests.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, Response, StatusCode};
use futures_util::future::BoxFuture;
use sandkeep_image::manifest::OCI_MANIFEST;
use sandkeep_tree::digest::Digest;

use super::images::Made;

/// What came in.
#[derive(Clone, Debug)]
pub struct Asked {
    pub path: String,
    pub query: String,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

impl Asked {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().expect("text"))
    }

    pub fn is_blob(&self) -> bool {
        self.path.contains("/blobs/")
    }

    /// The byte from which on something is wanted.
    pub fn from(&self) -> usize {
        let range = self.header("range").unwrap_or("bytes=0-");
        range.trim_start_matches("bytes=").trim_end_matches('-').parse().expect("a range")
    }
}

pub type Answer = Response<Body>;
type Handler = dyn Fn(Asked) -> BoxFuture<'static, Answer> + Send + Sync;

pub struct Fake {
    pub address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
    _runtime: tokio::runtime::Runtime,
}

impl Fake {
    /// Answers at once.
    pub fn answering(answer: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> Self {
        Self::start(move |asked| {
            let answer = answer(&asked);
            Box::pin(async move { answer })
        })
    }

    pub fn start(
        handler: impl Fn(Asked) -> BoxFuture<'static, Answer> + Send + Sync + 'static,
    ) -> Self {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.set_nonblocking(true).expect("a socket");
        let address = listener.local_addr().expect("an address");
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (seen, handler): (_, Arc<Handler>) = (Arc::clone(&asked), Arc::new(handler));
        let serve = move |request: Request| {
            let uri = request.uri();
            let (path, query) = (uri.path().to_owned(), uri.query().unwrap_or_default().to_owned());
            let headers = request.headers().clone();
            let (seen, handler) = (Arc::clone(&seen), Arc::clone(&handler));
            async move {
                let body = axum::body::to_bytes(request.into_body(), 1 << 20).await;
                let body = body.expect("a small body").to_vec();
                let asked = Asked { path, query, headers, body };
                seen.lock().expect("not poisoned").push(asked.clone());
                handler(asked).await
            }
        };
        let router = axum::Router::new().fallback(serve);
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a socket");
            axum::serve(listener, router).await
        });
        Self { address, asked, _runtime: runtime }
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().expect("not poisoned").clone()
    }

    pub fn asked_for_blobs(&self) -> Vec<Asked> {
        self.asked().into_iter().filter(Asked::is_blob).collect()
    }
}

/// What a good registry has: manifests and blobs by the end of their paths.
#[derive(Clone)]
pub struct Content(HashMap<String, Vec<u8>>);

impl Content {
    pub fn of(image: &Made) -> Self {
        let mut content = HashMap::from([("manifests/it".to_owned(), image.manifest.clone())]);
        for blob in image.blobs() {
            content.insert(format!("blobs/{}", Digest::of(blob)), blob.clone());
        }
        Self(content)
    }

    pub fn find(&self, asked: &Asked) -> Option<&Vec<u8>> {
        self.0.iter().find(|(end, _)| asked.path.ends_with(*end)).map(|(_, bytes)| bytes)
    }

    /// As a good registry answers.
    pub fn answer(&self, asked: &Asked) -> Answer {
        let Some(bytes) = self.find(asked) else { return status(404) };
        let (from, all) = (asked.from(), bytes.len());
        let answer = if asked.is_blob() {
            Response::builder()
        } else {
            Response::builder().header("content-type", OCI_MANIFEST)
        };
        let answer = match from {
            0 => answer.status(StatusCode::OK),
            _ => answer
                .status(StatusCode::PARTIAL_CONTENT)
                .header("content-range", format!("bytes {from}-{}/{all}", all - 1)),
        };
        answer.body(Body::from(bytes[from..].to_vec())).expect("an answer")
    }
}

pub fn status(status: u16) -> Answer {
    Response::builder().status(status).body(Body::empty()).expect("an answer")
}

pub fn with_header(status: u16, name: &str, value: &str) -> Answer {
    Response::builder().status(status).header(name, value).body(Body::empty()).expect("an answer")
}
