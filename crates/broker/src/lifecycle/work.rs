//! Work of the host on the files of one sandbox. The processes inside determine how long it takes, so it has a budget,
//! and it is abandoned for a destroy of the sandbox, a shutdown of the daemon, and a caller that disconnects.

use std::io::{self, Read};

use bytes::Bytes;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::shared::Shared;
use sandkeep_core::ledger::Over;
use sandkeep_core::{SandboxId, limits};
use sandkeep_storage::StorageError;
use sandkeep_tree::{Effort, GivenUp};

pub(crate) struct FileWork {
    pub effort: Effort,
    id: SandboxId,
    storage: &'static str,
    closing: CancellationToken,
    destroys: watch::Receiver<usize>,
}

impl FileWork {
    /// `destroys` counts the callers that wait for the sandbox to be destroyed.
    pub fn new(shared: &Shared, id: &SandboxId, destroys: watch::Receiver<usize>) -> Self {
        Self {
            effort: Effort::default(),
            id: id.clone(),
            storage: shared.storage.name(),
            closing: shared.closing.clone(),
            destroys,
        }
    }

    /// The next part of the work, with a budget of its own.
    pub fn then(&self, effort: Effort) -> Self {
        let (id, closing) = (self.id.clone(), self.closing.clone());
        Self { effort, id, storage: self.storage, closing, destroys: self.destroys.clone() }
    }

    /// Runs the work on another thread. It must check the effort often.
    pub async fn run<T: Send + 'static>(
        &self,
        what: &'static str,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Result<T, Error> {
        let mut running = tokio::task::spawn_blocking(work);
        let done = tokio::select! {
            biased;
            done = &mut running => done,
            () = self.unwanted() => {
                self.effort.cancel();
                running.await
            }
        };
        let done = done.unwrap_or_else(|error| Err(io::Error::other(error)));
        done.map_err(|source| self.error(what, source))
    }

    /// Reads the next piece; an empty one is the end. Between pieces no thread is held, so the receiver may be slow.
    pub async fn piece<R: Read + Send + 'static>(
        &self,
        what: &'static str,
        mut from: R,
    ) -> Result<(R, Bytes), Error> {
        let read = move || {
            let mut piece = Vec::with_capacity(limits::STDIN_CHUNK_BYTES);
            from.by_ref().take(limits::STDIN_CHUNK_BYTES as u64).read_to_end(&mut piece)?;
            Ok((from, Bytes::from(piece)))
        };
        self.run(what, read).await
    }

    /// Waits for something, unless the sandbox is destroyed or the daemon shuts down meanwhile.
    pub async fn unless_unwanted<T>(&self, waiting: impl Future<Output = T>) -> Result<T, Error> {
        tokio::select! {
            biased;
            () = self.unwanted() => {
                self.effort.cancel();
                Err(self.gave_way())
            }
            done = waiting => Ok(done),
        }
    }

    /// Resolves when the sandbox is to be destroyed, or the daemon shuts down.
    async fn unwanted(&self) {
        let mut destroys = self.destroys.clone();
        let asked = async {
            if destroys.wait_for(|waiting| *waiting > 0).await.is_err() {
                // No handle is left to ask.
                std::future::pending().await
            }
        };
        tokio::select! {
            () = self.closing.cancelled() => {}
            () = asked => {}
        }
    }

    fn gave_way(&self) -> Error {
        if self.closing.is_cancelled() {
            Error::ShuttingDown
        } else {
            Error::NotFound { id: self.id.clone() }
        }
    }

    fn error(&self, what: &'static str, source: io::Error) -> Error {
        if let Some(over) = source.get_ref().and_then(|inner| inner.downcast_ref::<Over>()) {
            return (*over).into();
        }
        // The error's kind may have been lost on its way through an archive.
        let itself = source.get_ref().and_then(|inner| inner.downcast_ref().copied());
        match self.effort.given_up().or(itself) {
            Some(GivenUp::Cancelled) => self.gave_way(),
            Some(GivenUp::Bytes { .. } | GivenUp::Time { .. }) => {
                Error::FilesTooLarge { what, source }
            }
            None => {
                let (storage, what) = (self.storage, what.to_owned());
                StorageError::Io { storage, what, source }.into()
            }
        }
    }
}
