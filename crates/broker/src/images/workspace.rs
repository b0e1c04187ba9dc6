//! Workspaces: files that a new sandbox gets on top of its template.
//!
//! ```text
//!  dir ─▶ opened ─▶ copied into the volume ───────────────────────────────────────▶ launch
//!  git (file) ─▶ opened ─▶ copied aside in the volume ─▶ launch ─▶ git clone inside ─▶ the copy is removed
//!  git (https) ─▶ admitted ─────────────────────────────▶ launch ─▶ git clone inside, by the gateway
//!  upload ─▶ looked up ─▶ unpacked into the volume ────────────────────────────────▶ launch
//! ```
//!
//! Errors of a source that can be detected in advance are returned before anything is created. The rest happens while
//! the sandbox is `creating`: a failure or a crash then removes the sandbox as well.

mod git;
mod opening;
pub(super) mod uploads;

use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use tracing::info;

use crate::error::Error;
use crate::images::Abandoned;
use crate::images::draft::{self, PoolRoom};
use crate::lifecycle::supervisor::Supervisor;
use crate::shared::Shared;
use sandkeep_core::{Source, with_causes};
use sandkeep_guestlink::Guest;
use sandkeep_image::{
    layer::{self, SpaceCheck},
    workspace::{self, FileOwner, WorkspaceDir, WorkspaceError},
};
use sandkeep_storage::StorageError;
use sandkeep_sys::namespace::USER_ID;
use sandkeep_tree::Root;

pub use uploads::UploadView;

pub(crate) use opening::{Opened, check, open};
pub(crate) use uploads::Uploads;

/// `user`, with the ids used in a volume.
const USER: FileOwner = FileOwner { uid: USER_ID, gid: USER_ID };

/// The CA file that git trusts, for the duration of a clone.
const TRUST: &str = "trusted.pem";

/// A workspace that is about to be transferred.
pub(crate) struct Bringing {
    pub source: Source,
    pub opened: Opened,
}

/// A directory of a volume that nobody uses yet, and what it gets.
pub(crate) struct Filling<'a> {
    pub shared: &'a Arc<Shared>,
    pub root: Root,
    pub path: String,
}

impl Filling<'_> {
    /// Copies a directory, or unpacks an archive. A repository needs a sandbox.
    pub async fn fill(self, opened: Opened) -> Result<(), Error> {
        let Self { shared, root, path } = self;
        match opened {
            Opened::Directory(directory) => {
                write(shared, move |shared, room| copy(shared, &root, &path, &directory, room))
                    .await
            }
            Opened::Archive(archive) => {
                write(shared, move |shared, room| unpack(shared, &root, &path, &archive, room))
                    .await
            }
            Opened::Repository { .. } | Opened::Remote(_) => {
                let problem = "a repository can only be cloned inside a sandbox".to_owned();
                Err(Error::SourceInvalid { problem })
            }
        }
    }
}

impl Opened {
    /// Whether the sandbox needs a way out until it was cloned.
    pub fn needs_network(&self) -> bool {
        matches!(self, Self::Remote(_))
    }
}

impl Supervisor {
    /// Puts the workspace, or what it is created from, into the new volume.
    pub(crate) async fn bring_source(&self, bringing: &Bringing, root: &Root) -> Result<(), Error> {
        let (root, path) = (root.clone(), bringing.source.path.clone());
        match &bringing.opened {
            Opened::Directory(directory) => {
                let directory = Arc::clone(directory);
                let copy = move |shared: &Shared, room: &SpaceCheck| {
                    copy(shared, &root, &path, &directory, room)
                };
                self.write_workspace(copy).await
            }
            Opened::Repository { directory, aside, .. } => {
                let (directory, aside) = (Arc::clone(directory), aside.clone());
                let copy = move |shared: &Shared, room: &SpaceCheck| {
                    WorkspaceDir::make(&root, &path, USER)?;
                    copy(shared, &root, &aside, &directory, room)
                };
                self.write_workspace(copy).await
            }
            Opened::Remote(remote) => {
                let (trust, aside) = (Arc::clone(&remote.trust), remote.aside.clone());
                let put = move |_: &Shared, _: &SpaceCheck| {
                    WorkspaceDir::make(&root, &path, USER)?;
                    put_trust(&root, &aside, &trust)
                };
                self.write_workspace(put).await
            }
            Opened::Archive(archive) => {
                let archive = Arc::clone(archive);
                let unpack = move |shared: &Shared, room: &SpaceCheck| {
                    unpack(shared, &root, &path, &archive, room)
                };
                self.write_workspace(unpack).await
            }
        }
    }

    /// Does the part that is only possible inside.
    pub(crate) async fn finish_source(
        &self,
        bringing: &Bringing,
        guest: &Arc<dyn Guest>,
    ) -> Result<(), Error> {
        let Bringing { source, opened } = bringing;
        match opened {
            Opened::Directory(_) | Opened::Archive(_) => Ok(()),
            Opened::Repository { url, aside, .. } => {
                self.clone_inside(guest.as_ref(), url, aside, &source.path).await
            }
            Opened::Remote(remote) => self.clone_remote(guest.as_ref(), remote, &source.path).await,
        }
    }

    async fn write_workspace(
        &self,
        work: impl FnOnce(&Shared, &SpaceCheck) -> Result<u64, WorkspaceError> + Send + 'static,
    ) -> Result<(), Error> {
        write(&self.shared, work).await
    }
}

async fn write(
    shared: &Arc<Shared>,
    work: impl FnOnce(&Shared, &SpaceCheck) -> Result<u64, WorkspaceError> + Send + 'static,
) -> Result<(), Error> {
    let shared = Arc::clone(shared);
    let tasks = shared.tasks.clone();
    let pool = Arc::new(PoolRoom::new(&shared));
    let room = pool.as_room();
    let written = tasks.spawn_blocking(move || work(&shared, &room)).await;
    let written = written.map_err(|_| Error::ShuttingDown)?.map_err(unusable);
    let skipped = draft::told(written, pool.refused())?;
    if skipped > 0 {
        info!(skipped, "what is no file, link or directory was left out");
    }
    Ok(())
}

/// Returns how many entries were left out.
fn copy(
    shared: &Shared,
    root: &Root,
    path: &str,
    from: &OwnedFd,
    room: &SpaceCheck,
) -> Result<u64, WorkspaceError> {
    let place = WorkspaceDir::make(root, path, USER)?;
    let unread = |source| WorkspaceError::Read { path: String::new(), source };
    let from = from.try_clone().map_err(unread)?;
    let copied = workspace::copy(from, &place, USER, room, &shared.closing)?;
    Ok(copied.skipped)
}

/// Writes the CA certificates for git.
fn put_trust(root: &Root, aside: &str, trust: &[u8]) -> Result<u64, WorkspaceError> {
    let place = WorkspaceDir::make(root, aside, USER)?;
    let unmade = |source| WorkspaceError::Read { path: TRUST.to_owned(), source };
    let mut header = tar::Header::new_gnu();
    header.set_size(trust.len() as u64);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    let mut archive = tar::Builder::new(Vec::new());
    archive.append_data(&mut header, TRUST, trust).map_err(unmade)?;
    let archive = archive.into_inner().map_err(unmade)?;
    let room = SpaceCheck::endless();
    layer::unpack(std::io::Cursor::new(archive), place.as_fd(), place.ids(), USER, &room)?;
    Ok(0)
}

fn unpack(
    shared: &Shared,
    root: &Root,
    path: &str,
    archive: &Arc<File>,
    room: &SpaceCheck,
) -> Result<u64, WorkspaceError> {
    let place = WorkspaceDir::make(root, path, USER)?;
    let unread = |source| WorkspaceError::Read { path: "the archive".to_owned(), source };
    let blob = uploads::reader(archive).map_err(unread)?;
    let blob = Abandoned::new(Box::new(blob), shared.closing.clone());
    let applied = layer::unpack(blob, place.as_fd(), place.ids(), USER, room)?;
    Ok(applied.devices_skipped)
}

fn unusable(error: WorkspaceError) -> Error {
    if error.is_out_of_space() {
        return Error::NoSpace { what: "the workspace" };
    }
    let problem = with_causes(&error);
    match error {
        WorkspaceError::Occupied { .. } | WorkspaceError::InTheWay { .. } => {
            Error::InvalidField { field: "source.path", problem }
        }
        WorkspaceError::GivenUp => Error::ShuttingDown,
        // The failure is on this machine; the source is fine.
        WorkspaceError::Write { path, source }
        | WorkspaceError::Archive(layer::LayerError::Write { path, source }) => {
            let what = format!("write {path} of a workspace");
            Error::Storage(StorageError::Io { storage: "workspace", what, source })
        }
        WorkspaceError::TooLarge { .. }
        | WorkspaceError::TooDeep { .. }
        | WorkspaceError::Read { .. }
        | WorkspaceError::Archive(_) => Error::SourceInvalid { problem },
    }
}
