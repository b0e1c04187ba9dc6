//! The `host` template: a safe part of the host's own system, without set-up.
//!
//! `/usr` without `/usr/local`, and a generated `/etc`, are shared read-only by all sandboxes. Everything else is the
//! sandbox's volume, which starts with a few empty directories: creating them is faster than any snapshot.

mod etc;

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use rustix::fs::{CWD, Gid, Mode, OFlags, ResolveFlags, Uid, mkdirat, openat, openat2, symlinkat};

use super::identity::is_not_there;
use super::{Contains, Template, host_name};
use sandkeep_core::{Privilege, SandboxId};
use sandkeep_storage::StorageError;
use sandkeep_tree::{Bind, Ids, Root};

/// The user that commands run as.
const USER_ID: u32 = 1000;

/// Directories of every volume, parents first, with their modes.
const DIRECTORIES: [(&str, u32); 12] = [
    ("dev", 0o755),
    ("etc", 0o755),
    ("home", 0o755),
    ("opt", 0o755),
    ("proc", 0o755),
    ("root", 0o700),
    ("run", 0o755),
    ("tmp", 0o1777),
    ("usr", 0o755),
    ("var", 0o755),
    ("var/tmp", 0o1777),
    ("home/user", 0o755),
];

/// Program directories besides /usr: links into it on most systems, directories on some.
const SYSTEM_PATHS: [&str; 6] = ["bin", "sbin", "lib", "lib32", "lib64", "libx32"];

pub struct HostTemplate {
    binds: Arc<[Bind]>,
    skeleton: Arc<Skeleton>,
}

/// The initial content of a volume.
struct Skeleton {
    /// Further mount points, for systems whose /bin is a directory.
    mount_points: Vec<&'static str>,
    links: Vec<(&'static str, PathBuf)>,
}

impl HostTemplate {
    /// Generates the shared parts below `data_dir`. Running sandboxes keep those that they started with: if the host's
    /// files change, a new directory is created beside the old one.
    pub fn prepare(data_dir: &Path) -> io::Result<Self> {
        let ours = data_dir.join("host");
        let empty = ours.join("empty");
        std::fs::create_dir_all(&empty)?;
        // Sandboxes see it, and the umask narrows the mode of mkdir.
        std::fs::set_permissions(&empty, std::fs::Permissions::from_mode(0o755))?;
        let bind = |source: PathBuf, target: &str| Bind { source, target: target.into() };
        let mut binds = vec![bind("/usr".into(), "usr"), bind(etc::generate(&ours)?, "etc")];
        if Path::new("/usr/local").is_dir() {
            binds.push(bind(empty, "usr/local"));
        }
        let mut skeleton = Skeleton { mount_points: Vec::new(), links: Vec::new() };
        for path in SYSTEM_PATHS {
            let on_host = Path::new("/").join(path);
            match std::fs::symlink_metadata(&on_host) {
                Ok(metadata) if metadata.is_symlink() => {
                    skeleton.links.push((path, std::fs::read_link(&on_host)?));
                }
                Ok(metadata) if metadata.is_dir() => {
                    skeleton.mount_points.push(path);
                    binds.push(bind(on_host, path));
                }
                // Not every system has all of them.
                _ => {}
            }
        }
        Ok(Self { binds: binds.into(), skeleton: Arc::new(skeleton) })
    }
}

#[async_trait]
impl Template for HostTemplate {
    fn name(&self) -> &'static str {
        "host"
    }

    fn binds(&self) -> Arc<[Bind]> {
        Arc::clone(&self.binds)
    }

    fn has_program(&self, name: &str) -> Contains {
        if Path::new("/usr/bin").join(name).exists() { Contains::Yes } else { Contains::No }
    }

    fn default_privilege(&self) -> Privilege {
        Privilege::None
    }

    async fn lay_out(&self, root: &Root, id: &SandboxId) -> Result<(), StorageError> {
        let path = root.own_dir();
        // A few dozen microseconds of system calls: handing them to another thread costs more.
        let laid_out = self.skeleton.lay_out(path, root.ids()).and_then(|()| write_hosts(root, id));
        laid_out.map_err(|source| StorageError::Io {
            storage: "host template",
            what: format!("fill {}", path.display()),
            source,
        })
    }
}

impl Skeleton {
    /// Creates what is missing, so that it can be repeated after a crash.
    fn lay_out(&self, root: &Path, ids: Ids) -> io::Result<()> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = openat(CWD, root, flags, Mode::empty())?;
        let plain = self.mount_points.iter().map(|path| (*path, 0o755));
        for (path, mode) in DIRECTORIES.into_iter().chain(plain) {
            unless_there(mkdirat(&root, path, Mode::RWXU))?;
            ids.give_to_root(&root, path)?;
            // Not by mkdir's mode, which the umask narrows.
            let read = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let made = openat(&root, path, read, Mode::empty())?;
            rustix::fs::fchmod(made, Mode::from_raw_mode(mode))?;
        }
        for (path, target) in &self.links {
            unless_there(symlinkat(target, &root, *path))?;
            ids.give_to_root(&root, *path)?;
        }
        let user = ids.on_disk(USER_ID);
        let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
        let no_follow = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
        match rustix::fs::chownat(&root, "home/user", Some(uid), Some(gid), no_follow) {
            // A non-root daemon has only one id, which owns everything that it creates.
            Err(rustix::io::Errno::PERM) if !rustix::process::geteuid().is_root() => Ok(()),
            result => Ok(result?),
        }
    }
}

/// Writes the file that this template's shared `/etc/hosts` links to.
pub(super) fn write_hosts(root: &Root, id: &SandboxId) -> io::Result<()> {
    let dir = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let own = openat(CWD, root.own_dir(), dir, Mode::empty())?;
    // In a layer captured from a sandbox it may be anything.
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let flags =
        OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o644);
    let file = match openat2(&own, host_name::SHARED_HOSTS, flags, mode, beneath) {
        Ok(file) => File::from(file),
        Err(error) if is_not_there(error) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    root.ids().give_to_root(&own, host_name::SHARED_HOSTS)?;
    // Not by open's mode, which the umask restricts.
    rustix::fs::fchmod(&file, mode)?;
    (&file).write_all(host_name::hosts(id).as_bytes())
}

fn unless_there(result: rustix::io::Result<()>) -> io::Result<()> {
    match result {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[tokio::test]
    async fn what_sandboxes_see_does_not_depend_on_the_umask() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let before = rustix::process::umask(Mode::from_raw_mode(0o077));
        let template = HostTemplate::prepare(dir.path()).expect("it is prepared");
        let volume = dir.path().join("volume");
        fs::create_dir(&volume).expect("a directory");
        let root = Root::dir(volume.clone(), Ids::Plain);
        let filled = template.lay_out(&root, &SandboxId::random()).await;
        rustix::process::umask(before);
        filled.expect("it is filled");
        let mode = |path: PathBuf| {
            let found = fs::symlink_metadata(&path).expect("it is there");
            found.permissions().mode() & 0o7777
        };
        for (path, expected) in DIRECTORIES {
            assert_eq!(mode(volume.join(path)), expected, "{path}");
        }
        for bind in template.binds().iter().filter(|bind| bind.source.starts_with(dir.path())) {
            assert_eq!(mode(bind.source.clone()), 0o755, "{}", bind.target.display());
        }
        let etc = template.binds().iter().find(|bind| bind.target == Path::new("etc")).cloned();
        assert_eq!(mode(etc.expect("an etc").source.join("passwd")), 0o644);
    }
}
