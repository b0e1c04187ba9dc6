//! The files of a codebase. The toolbox does all of it, in a jail whose root is the tree: the rules are those of the
//! files of a sandbox, and an absolute path or link begins at the root of the codebase.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use toolbox::{
    ByteRange, ChangeMode, Entry, ListDirectory, Listing, MakeDirectory, MoveEntry, Operation,
    Packing, RawPath, Reach, Reading, UnpackArchive, Unpacked, WriteFile, Written,
};

use super::jail::Jail;
use super::{serving, tree_of};
use crate::Broker;
use crate::error::Error;
use crate::inside::files::{FileStream, FileUpload};
use crate::inside::toolbox::{ToolboxRun, begin_in_jail};
use crate::shared::Shared;
use sandkeep_core::api::CodebaseSize;
use sandkeep_core::{CodebaseId, CodebaseRef, Principal, limits};
use sandkeep_sys::namespace::USER_ID;

/// Tells the servers of sandboxes that something in a codebase has changed.
struct ChangeNotice {
    shared: Arc<Shared>,
    codebase: CodebaseId,
}

impl ChangeNotice {
    async fn tell(self) {
        serving::changed(&self.shared, &self.codebase).await;
    }
}

impl Broker {
    async fn work_on(
        &self,
        who: &Principal,
        which: &CodebaseRef,
        operation: Operation,
        timeout: Option<Duration>,
    ) -> Result<ToolboxRun, Error> {
        let shared = &self.shared;
        let row = shared.codebases.ready(who, which)?;
        let slot = shared.codebases.work.take(&who.organization)?;
        let (tree, ids) = tree_of(shared, &row.id).await?;
        let cancelled = CancellationToken::new();
        let jail = Arc::new(Jail { tree, owner: ids.on_disk(USER_ID), cancelled });
        begin_in_jail(shared, jail, operation, timeout, slot).await
    }

    /// The same for what may change something: when it is done, servers of sandboxes are told.
    async fn change_codebase(
        &self,
        who: &Principal,
        which: &CodebaseRef,
        operation: Operation,
        timeout: Option<Duration>,
    ) -> Result<(ToolboxRun, ChangeNotice), Error> {
        let row = self.shared.codebases.ready(who, which)?;
        let told = ChangeNotice { shared: Arc::clone(&self.shared), codebase: row.id.clone() };
        let which = CodebaseRef::from(&row.id);
        Ok((self.work_on(who, &which, operation, timeout).await?, told))
    }

    async fn change_at_once<T: serde::de::DeserializeOwned>(
        &self,
        who: &Principal,
        which: &CodebaseRef,
        operation: Operation,
    ) -> Result<T, Error> {
        let (mut run, told) =
            self.change_codebase(who, which, operation, Some(limits::TOOLBOX_SHORT)).await?;
        let answer = run.answer().await;
        told.tell().await;
        answer
    }

    async fn upload_to_codebase<T>(
        &self,
        who: &Principal,
        which: &CodebaseRef,
        operation: Operation,
    ) -> Result<FileUpload<T>, Error>
    where
        T: serde::de::DeserializeOwned,
    {
        let (run, told) = self.change_codebase(who, which, operation, None).await?;
        Ok(FileUpload::of(run, Box::pin(async move { told.tell().await })))
    }

    async fn short(
        &self,
        who: &Principal,
        which: &CodebaseRef,
        operation: Operation,
    ) -> Result<ToolboxRun, Error> {
        self.work_on(who, which, operation, Some(limits::TOOLBOX_SHORT)).await
    }

    /// Counts what is in a codebase at the moment.
    pub async fn codebase_size(
        &self,
        who: &Principal,
        which: &CodebaseRef,
    ) -> Result<CodebaseSize, Error> {
        let path = RawPath::from(".");
        let pack = Operation::Pack { path };
        let mut run = self.work_on(who, which, pack, Some(limits::CODEBASE_COUNT)).await?;
        // The archive is counted before it is sent, and is not wanted.
        let Packing { entries, bytes, .. } = run.answer().await?;
        Ok(CodebaseSize { entries, bytes })
    }

    pub async fn stat_codebase_file(
        &self,
        who: &Principal,
        which: &CodebaseRef,
        path: RawPath,
    ) -> Result<Entry, Error> {
        self.short(who, which, Operation::Stat { path }).await?.answer().await
    }

    /// The metadata of the content, and the bytes themselves.
    pub async fn read_codebase_file(
        &self,
        who: &Principal,
        which: &CodebaseRef,
        path: RawPath,
        range: Option<ByteRange>,
    ) -> Result<(Reading, FileStream), Error> {
        let mut run = self.work_on(who, which, Operation::Read { path, range }, None).await?;
        let reading = run.answer().await?;
        Ok((reading, FileStream::of(run)))
    }

    /// Starts writing a file. It has its new content once all bytes have arrived; until then, the old one.
    pub async fn write_codebase_file(
        &self,
        who: &Principal,
        which: &CodebaseRef,
        request: WriteFile,
    ) -> Result<FileUpload<Written>, Error> {
        self.upload_to_codebase(who, which, Operation::Write(request)).await
    }

    pub async fn remove_codebase_file(
        &self,
        who: &Principal,
        which: &CodebaseRef,
        path: RawPath,
        reach: Reach,
    ) -> Result<(), Error> {
        let remove = Operation::Remove { path, reach };
        let (mut run, told) = self.change_codebase(who, which, remove, None).await?;
        let answer = run.answer().await;
        told.tell().await;
        answer
    }

    pub async fn list_codebase_files(
        &self,
        who: &Principal,
        which: &CodebaseRef,
        request: ListDirectory,
    ) -> Result<Listing, Error> {
        self.short(who, which, Operation::List(request)).await?.answer().await
    }

    pub async fn make_codebase_directory(
        &self,
        who: &Principal,
        which: &CodebaseRef,
        request: MakeDirectory,
    ) -> Result<Entry, Error> {
        self.change_at_once(who, which, Operation::MakeDirectory(request)).await
    }

    pub async fn move_codebase_file(
        &self,
        who: &Principal,
        which: &CodebaseRef,
        request: MoveEntry,
    ) -> Result<Entry, Error> {
        self.change_at_once(who, which, Operation::Move(request)).await
    }

    pub async fn change_codebase_mode(
        &self,
        who: &Principal,
        which: &CodebaseRef,
        request: ChangeMode,
    ) -> Result<Entry, Error> {
        self.change_at_once(who, which, Operation::ChangeMode(request)).await
    }

    /// A directory or a file as a tar archive.
    pub async fn pack_codebase_files(
        &self,
        who: &Principal,
        which: &CodebaseRef,
        path: RawPath,
    ) -> Result<(Packing, FileStream), Error> {
        let mut run = self.work_on(who, which, Operation::Pack { path }, None).await?;
        let packing = run.answer().await?;
        Ok((packing, FileStream::of(run)))
    }

    /// Starts unpacking a tar archive into a directory.
    pub async fn unpack_codebase_files(
        &self,
        who: &Principal,
        which: &CodebaseRef,
        request: UnpackArchive,
    ) -> Result<FileUpload<Unpacked>, Error> {
        self.upload_to_codebase(who, which, Operation::Unpack(request)).await
    }
}
