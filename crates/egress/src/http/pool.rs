//! The connection to the server of one site. It is made when it is first needed, and again after the server closed it.

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio_util::sync::{CancellationToken, DropGuard};

use sandkeep_core::limits::{
    EGRESS_BUFFER_BYTES, EGRESS_CONNECTION_WINDOW_BYTES, EGRESS_HEADERS_MAX,
    EGRESS_HEADERS_MAX_BYTES, EGRESS_STREAM_WINDOW_BYTES,
};

use crate::connection::{Flow, Site};
use crate::policy::{Host, Transport};
use crate::stream::Stream;
use crate::terminate::Version;
use crate::upstream::{self, UpstreamError, tls_error};

enum Sender {
    Http1(http1::SendRequest<Incoming>),
    Http2(http2::SendRequest<Incoming>),
}

pub(super) struct Pool {
    flow: Flow,
    site: Site,
    transport: Transport,
    version: Version,
    sender: tokio::sync::Mutex<Option<Sender>>,
    /// Ends the connections to the server.
    stop: CancellationToken,
    _stop: DropGuard,
}

/// Why there is no answer to a request.
#[derive(Debug, thiserror::Error)]
pub(super) enum SendError {
    #[error(transparent)]
    Connect(#[from] Arc<UpstreamError>),
    #[error("{host} did not answer as HTTP says: {problem}")]
    Broken { host: String, problem: String },
}

impl Pool {
    pub(super) fn new(flow: Flow, site: Site, transport: Transport, version: Version) -> Self {
        let stop = CancellationToken::new();
        let sender = tokio::sync::Mutex::default();
        Self { flow, site, transport, version, sender, _stop: stop.clone().drop_guard(), stop }
    }

    /// Uses a connection that was made already.
    pub(super) async fn use_connected(&self, stream: Stream) -> Result<(), SendError> {
        *self.sender.lock().await = Some(self.handshake(stream).await?);
        Ok(())
    }

    pub(super) async fn send(
        &self,
        mut request: Request<Incoming>,
    ) -> Result<Response<Incoming>, SendError> {
        // A server may close a connection that nobody uses at any time. A request that did not get out is sent again,
        // once.
        for _ in 0..2 {
            match self.try_send(request).await? {
                Ok(response) => return Ok(response),
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(self.broken(&error.into_error())),
                },
            }
        }
        Err(self.broken(&std::io::Error::from(std::io::ErrorKind::ConnectionAborted)))
    }

    async fn try_send(
        &self,
        request: Request<Incoming>,
    ) -> Result<Result<Response<Incoming>, TrySendError<Request<Incoming>>>, SendError> {
        let mut slot = self.sender.lock().await;
        let is_ready = match slot.as_mut() {
            Some(Sender::Http1(sender)) => sender.ready().await.is_ok(),
            Some(Sender::Http2(sender)) => sender.ready().await.is_ok(),
            None => false,
        };
        if !is_ready {
            *slot = Some(self.handshake(self.connect().await?).await?);
        }
        match slot.as_mut() {
            // The program sends one request after the other; so does the lock.
            Some(Sender::Http1(sender)) => Ok(sender.try_send_request(request).await),
            Some(Sender::Http2(sender)) => {
                let mut sender = sender.clone();
                drop(slot);
                Ok(sender.try_send_request(request).await)
            }
            None => Err(self.broken(&std::io::Error::from(std::io::ErrorKind::NotConnected))),
        }
    }

    async fn connect(&self) -> Result<Stream, SendError> {
        let Site { host, port, reach } = &self.site;
        let connection = &self.flow.admitted.connection;
        let stream: Stream = match (self.transport, host) {
            (Transport::Tls, Host::Name(name)) => {
                let to = (name.as_str(), *port, *reach);
                let protocols = self.version.protocols();
                let stream =
                    upstream::connect_tls(&self.flow.sandbox, connection, to, protocols).await;
                let stream = stream.map_err(Arc::new)?;
                let chosen = stream.get_ref().1.alpn_protocol();
                if Version::of(chosen) != self.version {
                    let problem = "it speaks another version than before".to_owned();
                    let host = name.clone();
                    return Err(SendError::Broken { host, problem });
                }
                Box::new(stream)
            }
            (Transport::Plain | Transport::Tls, _) => {
                let stream =
                    upstream::connect(&self.flow.sandbox, connection, host, *port, *reach).await;
                Box::new(stream.map_err(Arc::new)?)
            }
        };
        Ok(stream)
    }

    async fn handshake(&self, stream: Stream) -> Result<Sender, SendError> {
        let io = TokioIo::new(stream);
        match self.version {
            Version::Http1 => {
                let mut builder = http1::Builder::new();
                builder
                    .max_buf_size(EGRESS_HEADERS_MAX_BYTES)
                    .max_headers(EGRESS_HEADERS_MAX)
                    .preserve_header_case(true);
                let (sender, connection) =
                    builder.handshake(io).await.map_err(|error| self.broken(&error))?;
                self.drive(connection.with_upgrades());
                Ok(Sender::Http1(sender))
            }
            Version::Http2 => {
                let mut builder = http2::Builder::new(TokioExecutor::new());
                let max = u32::try_from(EGRESS_HEADERS_MAX_BYTES).unwrap_or(u32::MAX);
                builder
                    .timer(TokioTimer::new())
                    .max_header_list_size(max)
                    .initial_stream_window_size(EGRESS_STREAM_WINDOW_BYTES)
                    .initial_connection_window_size(EGRESS_CONNECTION_WINDOW_BYTES)
                    .max_send_buf_size(EGRESS_BUFFER_BYTES);
                let (sender, connection) =
                    builder.handshake(io).await.map_err(|error| self.broken(&error))?;
                self.drive(connection);
                Ok(Sender::Http2(sender))
            }
        }
    }

    /// Keeps a connection going until it ends, or nobody needs it any more. Its errors are those of its requests.
    fn drive<F, E>(&self, connection: F)
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Send,
    {
        let stop = self.stop.clone();
        tokio::spawn(async move {
            tokio::select! {
                _ = connection => {}
                () = stop.cancelled() => {}
            }
        });
    }

    fn broken(&self, error: &(dyn std::error::Error + 'static)) -> SendError {
        let host = self.site.host.to_string();
        // The server's refusal of a certificate that it did not get comes after the handshake.
        let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
        while let Some(error) = source {
            if let Some(error) = error.downcast_ref::<std::io::Error>() {
                let told = tls_error(&host, error);
                if matches!(told, UpstreamError::ClientCertificate { .. }) {
                    return SendError::Connect(Arc::new(told));
                }
            }
            source = error.source();
        }
        SendError::Broken { host, problem: sandkeep_core::with_causes(error) }
    }
}
