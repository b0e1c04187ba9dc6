//! An uploaded archive. It is written to an unnamed file in the data directory, so that a crash leaves nothing behind,
//! and its size is bounded.

use std::fs::File;
use std::io::{self, Seek};
use std::os::fd::OwnedFd;

use rustix::fs::{CWD, Mode, OFlags, openat};
use tokio::io::AsyncWriteExt;

use crate::Broker;
use crate::error::Error;
use crate::images::workspace::uploads;
use crate::policy::slots::Slot;
use sandkeep_core::Principal;
use sandkeep_core::ledger::Reservation;

pub struct Upload {
    file: tokio::fs::File,
    written: u64,
    limit_bytes: u64,
    path: String,
    /// The space reserved for it from the owner's quota.
    space: Reservation,
    _place: Slot,
}

impl Broker {
    /// Takes an upload slot for the caller.
    pub async fn begin_upload(&self, who: &Principal) -> Result<Upload, Error> {
        let owner = uploads::owner(who);
        let place = self.shared.images.uploads.take(&owner.organization)?;
        let space = self.shared.held.open(&owner);
        let limit_bytes = self.shared.policy.max_upload_bytes;
        let file = self
            .shared
            .blocking(|data| {
                let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
                let mode = Mode::RUSR | Mode::WUSR;
                let file: OwnedFd = openat(CWD, data.path(), flags, mode)?;
                Ok(File::from(file))
            })
            .await?;
        let path = self.shared.data.path().display().to_string();
        let file = tokio::fs::File::from_std(file);
        Ok(Upload { file, written: 0, limit_bytes, path, space, _place: place })
    }
}

impl Upload {
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.written += bytes.len() as u64;
        if self.written > self.limit_bytes {
            return Err(Error::UploadTooLarge { limit_bytes: self.limit_bytes });
        }
        self.space.take(bytes.len() as u64)?;
        let written = self.file.write_all(bytes).await;
        written.map_err(|source| self.unwritable(source))
    }

    /// How many bytes were received.
    pub fn bytes(&self) -> u64 {
        self.written
    }

    /// The complete file, rewound, and its reserved space.
    pub(crate) async fn finish(mut self) -> Result<(File, Reservation), Error> {
        if let Err(source) = self.file.flush().await {
            return Err(self.unwritable(source));
        }
        let path = self.path.clone();
        let mut file = self.file.into_std().await;
        file.rewind().map_err(|source| Error::DataDir { path, source })?;
        Ok((file, self.space))
    }

    fn unwritable(&self, source: io::Error) -> Error {
        Error::DataDir { path: self.path.clone(), source }
    }
}
