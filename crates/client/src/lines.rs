//! Answers in lines, each line one JSON value.

use reqwest::Response;
use sandkeep_core::limits::CLIENT_LINE_MAX_BYTES;
use serde::de::DeserializeOwned;

use crate::{Client, Error};

pub struct Lines {
    client: Client,
    response: Response,
    pending: Vec<u8>,
}

impl Lines {
    pub fn of(client: &Client, response: Response) -> Self {
        Self { client: client.clone(), response, pending: Vec::new() }
    }

    /// The next line. A missing line is an error, because the last line identifies itself.
    pub async fn next<T: DeserializeOwned>(&mut self) -> Result<T, Error> {
        let line = self.next_line().await?;
        serde_json::from_slice(&line).map_err(|e| self.client.not_sandkeep(e))
    }

    /// The same, where an empty line says that the daemon is there.
    pub async fn next_or_blank<T: DeserializeOwned>(&mut self) -> Result<Option<T>, Error> {
        let line = self.next_line().await?;
        if line.trim_ascii().is_empty() {
            Ok(None)
        } else {
            serde_json::from_slice(&line).map_err(|e| self.client.not_sandkeep(e)).map(Some)
        }
    }

    async fn next_line(&mut self) -> Result<Vec<u8>, Error> {
        let mut looked_at = 0;
        loop {
            let new = &self.pending[looked_at..];
            if let Some(end) = new.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=looked_at + end).collect();
                return Ok(line);
            }
            looked_at = self.pending.len();
            if looked_at > CLIENT_LINE_MAX_BYTES {
                return Err(self.client.not_sandkeep("a line of its answer has no end"));
            }
            match self.response.chunk().await {
                Ok(Some(chunk)) => self.pending.extend_from_slice(&chunk),
                Ok(None) | Err(_) => return Err(self.client.went_away()),
            }
        }
    }
}
