//! A layer in a registry, fetched when it is opened.
//!
//! ```text
//!          ┌───────────── broken: wait, resume where it ended ───────────┐
//!          ▼                                                             │
//! claim ─ part ──▶ GET, from its end on ──▶ bytes into the spool ──┬─────┘
//!          ▲                                                       └─▶ complete ──▶ verified ──▶ opened
//!          └──────────── bytes of an earlier pull were wrong ──────────────────────────┘
//! ```
//!
//! Dropping the future leaves a partial file that a later pull resumes, also after a restart of the daemon.

use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use reqwest::header::CONTENT_RANGE;
use reqwest::{Response, StatusCode};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::spawn_blocking;

use super::problem::RegistryError;
use super::retry::Attempts;
use super::session::{Session, Thing};
use super::spool::{BlobState, Origin, Part, Spool};
use crate::image::{Blob, ImageError, Progress};
use sandkeep_core::{
    Owner,
    ledger::Reservation,
    limits::{REGISTRY_CHUNKS_MAX, REGISTRY_IDLE, REGISTRY_PROGRESS_MIN_BYTES},
};
use sandkeep_tree::digest::{Digest, Mismatch};

pub struct RegistryBlob {
    pub session: Arc<Session>,
    pub spool: Arc<Spool>,
    /// The owner of the fetched data.
    pub owner: Owner,
    /// The disk space that the owner has reserved for it.
    pub space: Arc<Reservation>,
    /// Limits the concurrent fetches of an image.
    pub permits: Arc<Semaphore>,
    pub digest: Digest,
    pub size_bytes: u64,
}

#[async_trait]
impl Blob for RegistryBlob {
    fn size_bytes(&self) -> Option<u64> {
        Some(self.size_bytes)
    }

    async fn open(&self, progress: &Progress) -> Result<Box<dyn Read + Send>, ImageError> {
        let file = self.bring(progress).await?;
        Ok(Box::new(file))
    }
}

/// How one response ended.
enum Received {
    /// Its body is complete.
    All,
    Broken {
        problem: String,
    },
}

impl RegistryBlob {
    async fn bring(&self, progress: &Progress) -> Result<File, RegistryError> {
        let _permit = self.permits.acquire().await.expect("nobody closes the semaphore");
        let found = self.spool.claim(&self.owner, self.digest, self.size_bytes).await;
        let mut part = match found.map_err(RegistryError::Spool)? {
            BlobState::Whole(file) => {
                self.space.count(self.size_bytes);
                progress.tell(self.size_bytes);
                return Ok(file);
            }
            BlobState::Part(part) => *part,
        };
        self.space.count(part.length_bytes());
        loop {
            let origin = part.origin();
            let whole = self.complete(part, progress).await?;
            match spawn_blocking(|| whole.finish()).await.map_err(io::Error::from) {
                Ok(Ok(Ok(file))) => return Ok(file),
                Ok(Ok(Err((mismatch, again)))) => match origin {
                    // Data of an earlier pull may have been torn; data of this one was not.
                    Origin::TakenUp => part = again,
                    Origin::Fresh => {
                        again.discard().map_err(RegistryError::Spool)?;
                        return Err(self.session.mismatch(mismatch));
                    }
                },
                Ok(Err(e)) | Err(e) => return Err(RegistryError::Spool(e)),
            }
        }
    }

    /// Sends requests until all bytes are here, or too many consecutive responses make too little progress.
    async fn complete(&self, mut part: Part, progress: &Progress) -> Result<Part, RegistryError> {
        let mut attempts = Attempts::default();
        while !part.is_complete() {
            let before_bytes = part.length_bytes();
            let response = self.ask(&mut part).await?;
            let (grown, received) = self.receive(part, response, progress).await?;
            part = grown;
            let problem = match received {
                Received::All if part.is_complete() => break,
                Received::All => "the answer ended early".to_owned(),
                Received::Broken { problem } => problem,
            };
            if part.length_bytes().saturating_sub(before_bytes) >= REGISTRY_PROGRESS_MIN_BYTES {
                attempts.begin_anew();
            }
            match attempts.pause(None) {
                Some(pause) => tokio::time::sleep(pause).await,
                None => return Err(self.broken(&part, problem)),
            }
        }
        Ok(part)
    }

    fn broken(&self, part: &Part, problem: String) -> RegistryError {
        RegistryError::Broken {
            host: self.session.host(),
            blob: self.digest,
            got_bytes: part.length_bytes(),
            size_bytes: self.size_bytes,
            problem,
        }
    }

    /// Requests the missing bytes. If a response starts elsewhere, the part is set to that position.
    async fn ask(&self, part: &mut Part) -> Result<Response, RegistryError> {
        let thing = Thing::Blob { digest: self.digest, from_bytes: part.length_bytes() };
        let response = self.session.get(&thing).await?;
        let goes_on = response.status() == StatusCode::PARTIAL_CONTENT
            && first_byte(&response) == Some(part.length_bytes());
        if goes_on {
            return Ok(response);
        }
        if part.length_bytes() > 0 {
            part.restart().map_err(RegistryError::Spool)?;
        }
        match response.status() {
            StatusCode::OK => self.check_length(response),
            // An unexpected or invalid range: start over with all of it.
            _ => {
                let thing = Thing::Blob { digest: self.digest, from_bytes: 0 };
                self.check_length(self.session.get(&thing).await?)
            }
        }
    }

    /// A complete blob has a content length; a wrong one is refused without fetching it.
    fn check_length(&self, response: Response) -> Result<Response, RegistryError> {
        let status = response.status();
        if status != StatusCode::OK {
            let said = "it was asked for all of a blob".to_owned();
            let (host, status) = (self.session.host(), status.as_u16());
            return Err(RegistryError::Status { host, status, said });
        }
        match response.content_length() {
            Some(found_bytes) if found_bytes != self.size_bytes => {
                let (expected, expected_bytes) = (self.digest, self.size_bytes);
                Err(self.session.mismatch(Mismatch::Size { expected, expected_bytes, found_bytes }))
            }
            Some(_) | None => Ok(response),
        }
    }

    /// Writes one response. A thread that may block writes the part, and keeps it until everything that it was given is
    /// written, even if nobody waits any more.
    async fn receive(
        &self,
        mut part: Part,
        mut response: Response,
        progress: &Progress,
    ) -> Result<(Part, Received), RegistryError> {
        let mut done_bytes = part.length_bytes();
        let (chunks, mut handed) = mpsc::channel::<Bytes>(REGISTRY_CHUNKS_MAX);
        let space = Arc::clone(&self.space);
        let writer = spawn_blocking(move || {
            while let Some(chunk) = handed.blocking_recv() {
                if let Err(over) = space.take(chunk.len() as u64) {
                    // The next attempt has no more space, so it would be useless.
                    part.discard()?;
                    return Err(io::Error::new(io::ErrorKind::StorageFull, over));
                }
                part.append(&chunk)?;
            }
            Ok(part)
        });
        let received = loop {
            let chunk = match tokio::time::timeout(REGISTRY_IDLE, response.chunk()).await {
                Ok(Ok(Some(chunk))) => chunk,
                Ok(Ok(None)) => break Received::All,
                Ok(Err(e)) => {
                    let problem = sandkeep_core::with_causes(&e.without_url());
                    break Received::Broken { problem };
                }
                Err(_) => {
                    let problem = format!("nothing came for {} s", REGISTRY_IDLE.as_secs());
                    break Received::Broken { problem };
                }
            };
            done_bytes += chunk.len() as u64;
            if chunks.send(chunk).await.is_err() {
                break Received::All;
            }
            progress.tell(done_bytes.min(self.size_bytes));
        };
        drop(chunks);
        let written: io::Result<Part> = writer.await.map_err(io::Error::from).flatten();
        Ok((written.map_err(|e| self.unwritten(e))?, received))
    }

    fn unwritten(&self, error: io::Error) -> RegistryError {
        match error.downcast::<Mismatch>() {
            Ok(mismatch) => self.session.mismatch(mismatch),
            Err(error) => RegistryError::Spool(error),
        }
    }
}

/// The start of a partial response: `bytes 100-199/200`.
fn first_byte(response: &Response) -> Option<u64> {
    let range = response.headers().get(CONTENT_RANGE)?.to_str().ok()?;
    range.strip_prefix("bytes ")?.split('-').next()?.trim().parse().ok()
}
