//! A receiver of webhooks that behaves as it is told.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use futures_util::stream;
use ring::hmac;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// Generous: the machine may be busy.
const WAIT: Duration = Duration::from_secs(60);

/// What a receiver does with one message.
#[derive(Clone, Copy, Debug)]
pub enum Act {
    Answer(u16),
    Redirect,
    /// It answers 200, and the connection breaks in the middle of the answer.
    BreakOff,
    /// It never answers.
    Hang,
}

#[derive(Clone, Debug)]
pub struct Message {
    pub id: String,
    pub signed: Signed,
    pub body: Value,
}

#[derive(Clone, Debug)]
pub struct Signed {
    timestamp: String,
    signature: String,
    body: Bytes,
}

impl Message {
    /// Checks the signature as a receiver does that has only the secret and the documentation.
    pub fn verify(&self, secret: &str) {
        let Signed { timestamp, signature, body } = &self.signed;
        let key = BASE64.decode(secret.strip_prefix("whsec_").expect("a prefix")).expect("base64");
        let text = [format!("{}.{timestamp}.", self.id).as_bytes(), body].concat();
        let mac = BASE64.decode(signature.strip_prefix("v1,").expect("a version")).expect("base64");
        let key = hmac::Key::new(hmac::HMAC_SHA256, &key);
        hmac::verify(&key, &text, &mac).expect("the signature is right");
        assert_eq!(self.body["id"], *self.id, "the id of the message is that of the event");
    }
}

struct Shared {
    acts: Mutex<VecDeque<Act>>,
    messages: watch::Sender<Vec<Message>>,
}

pub struct Receiver {
    pub url: String,
    shared: Arc<Shared>,
}

impl Receiver {
    /// It does these things with the first messages, and answers 204 to all later ones.
    pub async fn start(acts: &[Act]) -> Self {
        let acts = Mutex::new(acts.iter().copied().collect());
        let shared = Arc::new(Shared { acts, messages: watch::Sender::new(Vec::new()) });
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}/hook?token=x", listener.local_addr().expect("an address"));
        let app = Router::new().route("/hook", post(receive)).with_state(Arc::clone(&shared));
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { url, shared }
    }

    pub fn messages(&self) -> Vec<Message> {
        self.shared.messages.borrow().clone()
    }

    /// Waits until the messages are so.
    pub async fn wait(
        &self,
        what: &str,
        mut is_so: impl FnMut(&[Message]) -> bool,
    ) -> Vec<Message> {
        let mut messages = self.shared.messages.subscribe();
        let waited = tokio::time::timeout(WAIT, messages.wait_for(|all| is_so(all))).await;
        match waited {
            Ok(found) => found.expect("the receiver lives").clone(),
            Err(_) => panic!("no {what}: {:#?}", self.messages()),
        }
    }

    /// Waits for a message of this type.
    pub async fn wait_for(&self, kind: &str) -> Vec<Message> {
        let wanted = format!("dev.sandkeep.{kind}");
        self.wait(kind, |all| all.iter().any(|message| message.body["type"] == *wanted)).await
    }
}

async fn receive(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Bytes) -> Response {
    let header = |name: &str| {
        headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
    };
    assert_eq!(header("content-type"), "application/cloudevents+json");
    let signed = Signed {
        timestamp: header("webhook-timestamp"),
        signature: header("webhook-signature"),
        body: body.clone(),
    };
    let id = header("webhook-id");
    let body = serde_json::from_slice(&body).expect("JSON");
    shared.messages.send_modify(|all| all.push(Message { id, signed, body }));
    let act = shared.acts.lock().expect("no panic").pop_front().unwrap_or(Act::Answer(204));
    match act {
        Act::Answer(status) => StatusCode::from_u16(status).expect("a status").into_response(),
        Act::Redirect => {
            (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, "/elsewhere")]).into_response()
        }
        Act::BreakOff => {
            let parts = [Ok(Bytes::from_static(b"fi")), Err(io::Error::other("broken off"))];
            Body::from_stream(stream::iter(parts)).into_response()
        }
        Act::Hang => std::future::pending().await,
    }
}
