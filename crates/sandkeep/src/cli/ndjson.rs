//! Answers that come line by line, each line one JSON value.

use reqwest::Response;
use serde::de::DeserializeOwned;

use crate::cli::client::Client;
use crate::cli::failure::Failure;

pub struct Lines<'a> {
    client: &'a Client,
    response: Response,
    pending: Vec<u8>,
}

impl<'a> Lines<'a> {
    pub fn of(client: &'a Client, response: Response) -> Self {
        Self { client, response, pending: Vec::new() }
    }

    /// The next line. That there is none is a failure: the last line says of itself that it is.
    pub async fn next<T: DeserializeOwned>(&mut self) -> Result<T, Failure> {
        loop {
            if let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=end).collect();
                return serde_json::from_slice(&line)
                    .map_err(|e| self.client.not_sandkeep(e.to_string()));
            }
            match self.response.chunk().await {
                Ok(Some(chunk)) => self.pending.extend_from_slice(&chunk),
                Ok(None) | Err(_) => return Err(self.client.went_away()),
            }
        }
    }
}
