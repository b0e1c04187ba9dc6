//! The files of a sandbox. The toolbox does all of it inside, as the sandbox's user: the host neither opens nor writes
//! a file of a volume for it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;
use toolbox::{
    ByteRange, Change, ChangeMode, Entry, ListDirectory, Listing, MakeDirectory, MoveEntry,
    Operation, Packing, RawPath, Reach, Reading, UnpackArchive, Unpacked, Watching, WriteFile,
    Written,
};

use super::changed::Changing;
use super::toolbox::{Lines, Presence, ToolboxInput, ToolboxRequest, ToolboxRun, begin};
use crate::Broker;
use crate::error::Error;
use crate::lifecycle::handle::Handle;
use crate::shared::Shared;
use sandkeep_core::{Principal, SandboxId, limits};

/// A file or an archive that is being downloaded. Dropping it ends the reading inside.
pub struct FileStream(ToolboxRun);

impl FileStream {
    pub(crate) fn of(run: ToolboxRun) -> Self {
        Self(run)
    }

    /// The next bytes; `None` at the regular end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        self.0.data().await
    }
}

/// A file or an archive that is being uploaded. Dropping it before the end changes nothing inside.
pub struct FileUpload<T> {
    run: ToolboxRun,
    /// Told of a success.
    changing: Option<(Changing, Arc<Shared>, Arc<Handle>)>,
    answer: std::marker::PhantomData<fn() -> T>,
    /// What is done before the caller learns of the end.
    afterwards: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl<T: serde::de::DeserializeOwned> FileUpload<T> {
    pub(crate) fn of(
        run: ToolboxRun,
        afterwards: Pin<Box<dyn Future<Output = ()> + Send>>,
    ) -> Self {
        let afterwards = Some(afterwards);
        Self { run, changing: None, answer: std::marker::PhantomData, afterwards }
    }

    /// The input for its bytes, and their end.
    pub fn input(&self) -> ToolboxInput {
        self.run.input()
    }

    /// The result, while `sending` sends all bytes.
    pub async fn finish<E: From<Error>>(
        mut self,
        sending: impl Future<Output = Result<(), E>>,
    ) -> Result<T, E> {
        let answer = self.run.answer_while(sending).await;
        if let Some(afterwards) = self.afterwards.take() {
            afterwards.await;
        }
        if let (Ok(_), Some((changing, shared, handle))) = (&answer, self.changing.take()) {
            changing.done(&shared, &handle);
        }
        answer
    }
}

/// Changes in a directory, until it is dropped.
pub struct FileWatch {
    changes: Lines,
    detaching: CancellationToken,
}

/// An event of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Noticed {
    Change(Change),
    /// The watched path is gone.
    NothingLeft,
    /// The daemon shuts down.
    Detached,
}

impl FileWatch {
    /// The next event. Cancel-safe.
    pub async fn next(&mut self) -> Result<Noticed, Error> {
        let detaching = self.detaching.clone();
        tokio::select! {
            biased;
            () = detaching.cancelled() => Ok(Noticed::Detached),
            change = self.changes.next() => {
                Ok(change?.map_or(Noticed::NothingLeft, Noticed::Change))
            }
        }
    }
}

impl Broker {
    pub async fn stat_file(
        &self,
        who: &Principal,
        id: &SandboxId,
        path: RawPath,
    ) -> Result<Entry, Error> {
        self.run(who, id, ToolboxRequest::short(Operation::Stat { path })).await?.answer().await
    }

    /// The metadata of the content, and the bytes themselves.
    pub async fn read_file(
        &self,
        who: &Principal,
        id: &SandboxId,
        path: RawPath,
        range: Option<ByteRange>,
    ) -> Result<(Reading, FileStream), Error> {
        let mut run =
            self.run(who, id, ToolboxRequest::long(Operation::Read { path, range })).await?;
        let reading = run.answer().await?;
        Ok((reading, FileStream(run)))
    }

    /// Starts writing a file. It has its new content once all bytes have arrived; until then, the old one.
    pub async fn write_file(
        &self,
        who: &Principal,
        id: &SandboxId,
        request: WriteFile,
    ) -> Result<FileUpload<Written>, Error> {
        self.upload(who, id, Operation::Write(request)).await
    }

    pub async fn remove_file(
        &self,
        who: &Principal,
        id: &SandboxId,
        path: RawPath,
        reach: Reach,
    ) -> Result<(), Error> {
        self.change(who, id, Operation::Remove { path, reach }).await
    }

    pub async fn list_files(
        &self,
        who: &Principal,
        id: &SandboxId,
        request: ListDirectory,
    ) -> Result<Listing, Error> {
        self.run(who, id, ToolboxRequest::short(Operation::List(request))).await?.answer().await
    }

    pub async fn make_directory(
        &self,
        who: &Principal,
        id: &SandboxId,
        request: MakeDirectory,
    ) -> Result<Entry, Error> {
        self.change(who, id, Operation::MakeDirectory(request)).await
    }

    pub async fn move_file(
        &self,
        who: &Principal,
        id: &SandboxId,
        request: MoveEntry,
    ) -> Result<Entry, Error> {
        self.change(who, id, Operation::Move(request)).await
    }

    pub async fn change_mode(
        &self,
        who: &Principal,
        id: &SandboxId,
        request: ChangeMode,
    ) -> Result<Entry, Error> {
        self.change(who, id, Operation::ChangeMode(request)).await
    }

    pub async fn watch_files(
        &self,
        who: &Principal,
        id: &SandboxId,
        path: RawPath,
        reach: Reach,
    ) -> Result<FileWatch, Error> {
        let request = ToolboxRequest::long(Operation::Watch { path, reach });
        let request = ToolboxRequest { presence: Presence::Onlooker, ..request };
        let mut run = self.run(who, id, request).await?;
        let _: Watching = run.answer().await?;
        let changes = Lines::of(run, limits::FILE_CHANGE_MAX_BYTES);
        Ok(FileWatch { changes, detaching: self.shared.detaching.clone() })
    }

    /// A tree, or one file, as a tar archive.
    pub async fn pack_files(
        &self,
        who: &Principal,
        id: &SandboxId,
        path: RawPath,
    ) -> Result<(Packing, FileStream), Error> {
        let mut run = self.run(who, id, ToolboxRequest::long(Operation::Pack { path })).await?;
        let packing = run.answer().await?;
        Ok((packing, FileStream(run)))
    }

    /// Starts unpacking a tar archive into a directory.
    pub async fn unpack_files(
        &self,
        who: &Principal,
        id: &SandboxId,
        request: UnpackArchive,
    ) -> Result<FileUpload<Unpacked>, Error> {
        self.upload(who, id, Operation::Unpack(request)).await
    }

    async fn upload<T>(
        &self,
        who: &Principal,
        id: &SandboxId,
        operation: Operation,
    ) -> Result<FileUpload<T>, Error> {
        let changing = Changing::by(who, &operation);
        let handle = self.shared.find(who, id)?;
        let run = begin(&self.shared, &handle, ToolboxRequest::long(operation)).await?;
        let changing = changing.map(|changing| (changing, Arc::clone(&self.shared), handle));
        Ok(FileUpload { run, changing, answer: std::marker::PhantomData, afterwards: None })
    }

    /// A short operation that changes something.
    async fn change<T: serde::de::DeserializeOwned>(
        &self,
        who: &Principal,
        id: &SandboxId,
        operation: Operation,
    ) -> Result<T, Error> {
        let changing = Changing::by(who, &operation);
        let handle = self.shared.find(who, id)?;
        let mut run = begin(&self.shared, &handle, ToolboxRequest::short(operation)).await?;
        let answer = run.answer().await?;
        if let Some(changing) = changing {
            changing.done(&self.shared, &handle);
        }
        Ok(answer)
    }

    async fn run(
        &self,
        who: &Principal,
        id: &SandboxId,
        request: ToolboxRequest,
    ) -> Result<ToolboxRun, Error> {
        let handle: Arc<Handle> = self.shared.find(who, id)?;
        begin(&self.shared, &handle, request).await
    }
}
