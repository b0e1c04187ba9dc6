//! HTTP over a Unix socket, as far as Podman's API needs it: one connection per request, answers bounded in size and
//! time.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::Request;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::UnixStream;

use crate::engine::EngineError;
use sandkeep_core::limits;

/// The oldest version with everything we need; later ones still support it.
const API: &str = "/v4.0.0/libpod";

pub struct Client {
    socket: PathBuf,
}

#[derive(Clone, Copy, Debug)]
pub enum Method {
    Get,
    Post,
    Delete,
}

impl Method {
    fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Delete => "DELETE",
        }
    }
}

pub struct Answer {
    pub status: u16,
    pub body: Bytes,
}

impl Client {
    pub fn new(socket: PathBuf) -> Self {
        Self { socket }
    }

    /// `path` with its query, escaped.
    pub async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        patience: Duration,
    ) -> Result<Answer, EngineError> {
        let answered = tokio::time::timeout(patience, self.exchange(method, path, body)).await;
        let answered = answered.map_err(|_| EngineError::TimedOut { after: patience })?;
        answered.map_err(EngineError::Unreachable)
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> io::Result<Answer> {
        let stream = UnixStream::connect(&self.socket).await?;
        let shake = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = shake.map_err(io::Error::other)?;
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = Request::builder()
            .method(method.as_str())
            .uri(format!("{API}{path}"))
            .header("host", "podman")
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(io::Error::other)?;
        let answer = async {
            let answer = sender.send_request(request).await.map_err(io::Error::other)?;
            let status = answer.status().as_u16();
            let body = Limited::new(answer.into_body(), limits::ENGINE_ANSWER_MAX_BYTES);
            let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
            Ok(Answer { status, body })
        };
        tokio::pin!(answer);
        tokio::select! {
            answer = &mut answer => answer,
            // It ends when the answer is complete, or with an error that the answer reports better.
            _ = connection => answer.await,
        }
    }
}
