//! Opens the source that a caller names. A host path is allowed only for the daemon's own user, or below a directory
//! that the operator has opened for all (`source_roots`). It is resolved once, and held by file descriptor.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};

use super::claim::Claim;
use super::datasets;
use super::draft::DraftRoom;
use super::import::unusable;
use super::upload::Upload;
use crate::error::Error;
use crate::lifecycle::handle::Handle;
use crate::shared::Shared;
use sandkeep_core::ledger::Reservation;
use sandkeep_core::{HostPaths, Principal, SandboxId, SnapshotId, SnapshotName};
use sandkeep_home::DataDir;
use sandkeep_image::{
    image::Platform,
    source::{
        Form, Given, Source, SpoolDir, Wanted, recognize,
        registry::{Credentials, Reference, RegistryImage},
    },
};
use sandkeep_storage::{DatasetSnapshot, ForeignTree};

/// The source of a template.
pub enum TemplateSource {
    Path {
        kind: PathKind,
        path: PathBuf,
        reach: HostPaths,
    },
    /// An archive of any kind.
    Upload(Box<Upload>),
    Registry {
        reference: Reference,
        credentials: Option<Credentials>,
    },
    /// Its current state, or one of its snapshots.
    Sandbox {
        id: SandboxId,
        snapshot: Option<SnapshotName>,
    },
    /// A root file system in the pool of the storage, in one of the operator's datasets.
    Dataset(DatasetSnapshot),
}

/// The expected content of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathKind {
    /// A directory with a root file system.
    Dir,
    /// An archive of a root file system, compressed or not.
    Tar,
    /// An OCI layout, as a directory or an archive.
    Oci,
    /// Output of `docker save`.
    DockerArchive,
    /// Any of these.
    Any,
}

pub enum Opened {
    /// The format is detected when it is read.
    Given {
        given: Given,
        kind: PathKind,
        said: String,
    },
    Registry {
        image: Box<RegistryImage>,
        said: String,
    },
    Dataset {
        tree: ForeignTree,
        said: String,
    },
    Sandbox(SandboxId),
    Snapshot {
        sandbox: Arc<Handle>,
        snapshot: SnapshotId,
        said: String,
    },
}

pub async fn open(
    shared: &Arc<Shared>,
    who: &Principal,
    claim: &Claim,
    source: TemplateSource,
) -> Result<(Opened, Arc<Reservation>), Error> {
    let space = Arc::new(shared.held.open(claim.owner()));
    let opened = match source {
        TemplateSource::Sandbox { id, snapshot } => {
            let sandbox = shared.find(who, &id)?;
            let Some(name) = snapshot else { return Ok((Opened::Sandbox(id), space)) };
            let snapshot = sandbox.snapshot_named(&name)?.id.clone();
            Opened::Snapshot { sandbox, snapshot, said: format!("sandbox {id}@{name}") }
        }
        TemplateSource::Registry { reference, credentials } => {
            let said = format!("registry {}", reference.familiar());
            let owner = claim.owner();
            let image = shared.registries.image(reference, credentials, owner, &space);
            Opened::Registry { image: Box::new(image), said }
        }
        TemplateSource::Upload(upload) => {
            let (file, space) = upload.finish().await?;
            let (given, kind) = (Given::File(file), PathKind::Any);
            let opened = Opened::Given { given, kind, said: "upload".to_owned() };
            return Ok((opened, Arc::new(space)));
        }
        TemplateSource::Dataset(snapshot) => {
            let tree = datasets::open(shared, &snapshot).await?;
            Opened::Dataset { tree, said: format!("zfs {snapshot}") }
        }
        TemplateSource::Path { kind, path, reach } => {
            let said = path.display().to_string();
            let file = open_host_path(shared, path, reach).await?;
            Opened::Given { given: given(file)?, kind, said }
        }
    };
    Ok((opened, space))
}

/// Opens a path that a caller names, if that is allowed.
pub async fn open_host_path(
    shared: &Shared,
    path: PathBuf,
    reach: HostPaths,
) -> Result<File, Error> {
    let roots = match reach {
        HostPaths::Any => None,
        HostPaths::BeneathRoots => Some(shared.policy.source_roots.clone()),
    };
    let opened = tokio::task::spawn_blocking(move || open_path(&path, roots.as_deref())).await;
    opened.map_err(|_| Error::ShuttingDown)?
}

/// Opens a path, unrestricted or below one of the roots.
fn open_path(path: &Path, roots: Option<&[PathBuf]>) -> Result<File, Error> {
    let unreadable = |source: io::Error| Error::SourceInvalid {
        problem: format!("cannot read {}: {source}", path.display()),
    };
    if !path.is_absolute() {
        let problem = format!("{} is not an absolute path", path.display());
        return Err(Error::InvalidField { field: "source", problem });
    }
    let Some(roots) = roots else {
        let opened = openat(CWD, path, FLAGS, Mode::empty());
        return opened.map(File::from).map_err(|error| unreadable(error.into()));
    };
    let beneath = roots.iter().find_map(|root| Some((root, path.strip_prefix(root).ok()?)));
    let setting = "source_roots";
    let forbidden = || Error::SourceForbidden { path: path.display().to_string(), setting };
    let (root, rest) = beneath.ok_or_else(forbidden)?;
    match open_beneath(root, rest) {
        Ok(file) => Ok(file.into()),
        // It leaves the root through a link or `..`.
        Err(error) if error.raw_os_error() == Some(libc::EXDEV) => Err(forbidden()),
        Err(error) => Err(unreadable(error)),
    }
}

/// Opening must not block on a FIFO.
const FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NOCTTY).union(OFlags::NONBLOCK);

fn open_beneath(root: &Path, rest: &Path) -> io::Result<OwnedFd> {
    let root =
        openat(CWD, root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let rest = if rest.as_os_str().is_empty() { Path::new(".") } else { rest };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    Ok(openat2(&root, rest, FLAGS, Mode::empty(), resolve)?)
}

pub fn given(file: File) -> Result<Given, Error> {
    let unusable = |problem: String| Error::SourceInvalid { problem };
    let kind = file.metadata().map_err(|error| unusable(error.to_string()))?.file_type();
    match (kind.is_dir(), kind.is_file()) {
        (true, _) => Ok(Given::Directory(file.into())),
        (false, true) => Ok(Given::File(file)),
        (false, false) => Err(unusable("it is neither a file nor a directory".to_owned())),
    }
}

impl PathKind {
    /// Whether this form was expected.
    fn admits(self, form: Form) -> bool {
        match self {
            Self::Any => true,
            Self::Dir => form == Form::Directory,
            Self::Tar => form == Form::Tar,
            Self::Oci => form == Form::OciLayout,
            Self::DockerArchive => form == Form::DockerArchive,
        }
    }

    /// Detects the format by reading all of the source, and checks that it is the expected one.
    pub(super) async fn recognize(
        self,
        shared: &Arc<Shared>,
        given: Given,
        (space, room): (&Arc<Reservation>, &Arc<DraftRoom>),
    ) -> Result<Box<dyn Source>, Error> {
        let spool = spool(shared, space).await?.decoding_while(room.as_decoder());
        let wanted = Wanted { platform: Platform::here(), reference: None };
        let work = move || recognize(given, wanted, &spool);
        let recognized = shared.tasks.spawn_blocking(work).await;
        let recognized = recognized.map_err(|_| Error::ShuttingDown)?;
        let (form, source) = recognized.map_err(unusable)?;
        if self.admits(form) {
            Ok(source)
        } else {
            let found = match form {
                Form::Directory => "a directory that is no OCI layout",
                Form::Tar => "an archive of plain files",
                Form::OciLayout => "an OCI layout",
                Form::DockerArchive => "what docker save writes",
            };
            Err(Error::SourceInvalid { problem: format!("the source is {found}") })
        }
    }
}

/// A directory for unnamed temporary files, within the space reserved by their owner.
pub async fn spool(shared: &Arc<Shared>, space: &Arc<Reservation>) -> Result<SpoolDir, Error> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = move |data: &DataDir| Ok(openat(CWD, data.path(), flags, Mode::empty())?);
    Ok(SpoolDir::new(shared.blocking(open).await?, Arc::clone(space)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lies_beneath_a_root_is_opened_for_others() {
        let dir = tempfile::tempdir().expect("a directory");
        let (open, closed) = (dir.path().join("open"), dir.path().join("closed"));
        for path in [&open, &closed] {
            std::fs::create_dir(path).expect("a directory");
            std::fs::write(path.join("image.tar"), "x").expect("a file");
        }
        std::os::unix::fs::symlink(&closed, open.join("link")).expect("a link");
        let roots = [open.clone()];
        let look = |path: PathBuf| open_path(&path, Some(&roots));
        assert!(look(open.join("image.tar")).is_ok() && look(open.clone()).is_ok());
        for path in [
            closed.join("image.tar"),
            open.join("link/image.tar"),
            open.join("../closed/image.tar"),
        ] {
            let refused = look(path.clone());
            assert!(matches!(refused, Err(Error::SourceForbidden { .. })), "{}", path.display());
        }
        assert!(matches!(look("image.tar".into()), Err(Error::InvalidField { .. })));
        assert!(open_path(&closed.join("image.tar"), None).is_ok());
    }
}
