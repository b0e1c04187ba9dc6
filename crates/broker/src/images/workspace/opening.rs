//! Opens the source of a workspace. Host paths are opened as for templates: once, and then held by file descriptor.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

use crate::error::Error;
use crate::images::open_host_path;
use crate::shared::Shared;
use sandkeep_core::network::Network;
use sandkeep_core::{GitUrl, HOME, HostPaths, Origin, Principal, Source, Transport, UploadId};
use sandkeep_egress::{NotAdmitted, Rules};
use sandkeep_image::{Contains, Template};

/// The port of a URL that names none.
const HTTPS: u16 = 443;

pub enum Opened {
    Directory(Arc<OwnedFd>),
    /// A repository of the host: its own directory, and the place of its copy until it was cloned.
    Repository {
        url: GitUrl,
        directory: Arc<OwnedFd>,
        aside: String,
    },
    Remote(Box<Remote>),
    Archive(Arc<File>),
}

/// A remote repository.
pub struct Remote {
    pub url: GitUrl,
    /// What the sandbox may reach while it is cloned: its host.
    pub rules: Rules,
    /// The CA certificates that the gateway trusts.
    pub trust: Arc<[u8]>,
    /// Where the certificates are stored until it was cloned.
    pub aside: String,
}

/// Checks that need no access to the source.
pub fn check(source: &Source, template: &dyn Template) -> Result<(), Error> {
    let Origin::Git(_) = &source.origin else { return Ok(()) };
    match template.has_program("git") {
        Contains::Yes | Contains::Unknown => Ok(()),
        Contains::No => Err(Error::SourceInvalid { problem: without_git(template.name()) }),
    }
}

pub fn without_git(template: &str) -> String {
    format!("template {template} has no git, which a clone needs; use one that has, or dir")
}

pub async fn open(
    shared: &Shared,
    who: &Principal,
    source: &Source,
    reach: HostPaths,
    network: &Network,
) -> Result<Opened, Error> {
    match &source.origin {
        Origin::Dir(path) => {
            let directory = open_directory(shared, PathBuf::from(path), reach).await?;
            Ok(Opened::Directory(Arc::new(directory)))
        }
        Origin::Upload(id) => Ok(Opened::Archive(shared.uploads.find(who, id)?)),
        Origin::Git(url) if url.transport() == Transport::Https => {
            let remote = remote(shared, who, url, network).await?;
            Ok(Opened::Remote(Box::new(remote)))
        }
        Origin::Git(url) => {
            let path = path_of(url)?;
            let directory = open_directory(shared, path.clone(), reach).await?;
            let opened = tokio::task::spawn_blocking(move || repository(&path, directory)).await;
            let directory = Arc::new(opened.map_err(|_| Error::ShuttingDown)??);
            Ok(Opened::Repository { url: url.clone(), directory, aside: aside() })
        }
    }
}

/// Checks that a sandbox with this policy could be given the way to a remote repository.
async fn remote(
    shared: &Shared,
    who: &Principal,
    url: &GitUrl,
    beside: &Network,
) -> Result<Remote, Error> {
    let wrong = |problem: String| Error::SourceInvalid { problem };
    let place = reqwest::Url::parse(url.url()).map_err(|error| wrong(error.to_string()))?;
    let port = place.port_or_known_default().unwrap_or(HTTPS);
    let host = place.host_str().unwrap_or_default();
    let rules = shared.network.rules_of_clone(host, port, beside)?;
    let gateway = &shared.network.gateway;
    match gateway.admit(&who.organization, &rules, host, port).await {
        Ok(_) => {}
        Err(unknown @ NotAdmitted::Unknown(_)) => {
            return Err(Error::SourceUnavailable { problem: unknown.to_string() });
        }
        Err(refused) => return Err(wrong(refused.to_string())),
    }
    let gateway = gateway.clone();
    let trust = tokio::task::spawn_blocking(move || gateway.roots_pem()).await;
    let trust = trust.map_err(|_| Error::ShuttingDown)?.into();
    Ok(Remote { url: url.clone(), rules, trust, aside: aside() })
}

/// A name that no template contains.
fn aside() -> String {
    format!("{HOME}/.{}", UploadId::random())
}

fn path_of(url: &GitUrl) -> Result<PathBuf, Error> {
    let path = reqwest::Url::parse(url.url()).ok().and_then(|url| url.to_file_path().ok());
    let wrong = || Error::InvalidField {
        field: "source.git",
        problem: format!("{} names no path", url.url()),
    };
    path.ok_or_else(wrong)
}

async fn open_directory(
    shared: &Shared,
    path: PathBuf,
    reach: HostPaths,
) -> Result<OwnedFd, Error> {
    let shown = path.display().to_string();
    let file = open_host_path(shared, path, reach).await?;
    match file.metadata() {
        Ok(found) if found.is_dir() => Ok(file.into()),
        Ok(_) => Err(Error::SourceInvalid { problem: format!("{shown} is no directory") }),
        Err(error) => {
            Err(Error::SourceInvalid { problem: format!("cannot read {shown}: {error}") })
        }
    }
}

/// The repository's directory: `.git` of a checkout, or a bare repository itself.
fn repository(path: &Path, directory: OwnedFd) -> Result<OwnedFd, Error> {
    let wrong =
        |problem: &str| Error::SourceInvalid { problem: format!("{} {problem}", path.display()) };
    let unreadable = |error: Errno| wrong(&format!("cannot be read: {error}"));
    let own = match look(&directory, ".git", OFlags::DIRECTORY) {
        Ok(own) => own,
        Err(Errno::NOENT) => directory,
        Err(Errno::NOTDIR | Errno::LOOP) => {
            return Err(wrong(
                "is a worktree or submodule: its repository is elsewhere; name that one",
            ));
        }
        Err(error) => return Err(unreadable(error)),
    };
    for part in ["HEAD", "objects", "refs"] {
        match look(&own, part, OFlags::PATH) {
            Ok(_) => {}
            Err(Errno::NOENT) => return Err(wrong("is no git repository")),
            Err(error) => return Err(unreadable(error)),
        }
    }
    Ok(own)
}

fn look(directory: &OwnedFd, name: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    openat2(directory, name, flags, Mode::empty(), resolve)
}
