//! Requests that are not JSON: bytes in, bytes or events out.

use std::future::Future;
use std::io;

use reqwest::{Body, Client, Method, Response};

use super::Daemon;

/// Runs one exchange to its end.
fn wait<T>(work: impl Future<Output = reqwest::Result<T>>) -> io::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(work).map_err(io::Error::other)
}

fn client() -> Client {
    sandkeep_outgoing::crypto::provide();
    Client::builder().no_proxy().build().expect("a client")
}

impl Daemon {
    /// The bytes of an answer that is no JSON. An answer that breaks off is an error.
    pub fn fetch(&self, target: &str, accept: &str) -> io::Result<(u16, Vec<u8>)> {
        let request = client().get(format!("{}{target}", self.url())).header("accept", accept);
        wait(async move {
            let response: Response = request.send().await?;
            let status = response.status().as_u16();
            Ok((status, response.bytes().await?.to_vec()))
        })
    }

    /// Sends bytes as they are; returns the status and the answer's text.
    pub fn send_bytes(&self, target: &str, bytes: Vec<u8>) -> (u16, String) {
        self.send_bytes_by(Method::POST, target, bytes)
    }

    /// The same with `PUT`.
    pub fn put_bytes(&self, target: &str, bytes: Vec<u8>) -> (u16, String) {
        self.send_bytes_by(Method::PUT, target, bytes)
    }

    fn send_bytes_by(&self, method: Method, target: &str, bytes: Vec<u8>) -> (u16, String) {
        let request = client().request(method, format!("{}{target}", self.url()));
        let sent = wait(async move {
            let response = request.body(Body::from(bytes)).send().await?;
            Ok((response.status().as_u16(), response.text().await?))
        });
        sent.unwrap_or_else(|error| panic!("{target}: {error}\n{}", self.said()))
    }
}
