//! A template whose files are all in layers: an image, or a captured sandbox.
//!
//! A sandbox of it sees nothing of the host, unless it was captured from a sandbox of a built-in template: then that
//! template shows through as it did there. Only what the image lacks is written to the volume: mount points, and the
//! few files of /etc that a container engine would add. The image is not trusted, so none of its links is followed, and
//! its files are never replaced, except for the name of another sandbox.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, Stat, Uid, chownat, fchmod, fgetxattr, mkdirat,
    openat, statat, unlinkat,
};
use rustix::io::Errno;

use super::identity::is_not_there;
use super::resolver::{RESOLV_CONF, is_useless};
use super::workdir::take_over;
use super::{Contains, Template, host, host_name};
use sandkeep_core::{Privilege, SandboxId};
use sandkeep_storage::StorageError;
use sandkeep_tree::{Bind, Ids, MOUNT_POINTS, OPAQUE, Root, is_whiteout};

/// Files of /etc that programs expect, and that images leave to the engine.
fn files(id: &SandboxId) -> [(&'static str, String); 3] {
    [
        ("hosts", host_name::hosts(id)),
        ("hostname", host_name::host_name(id)),
        ("resolv.conf", RESOLV_CONF.to_owned()),
    ]
}

pub struct ImageTemplate {
    name: String,
    over: Option<Arc<dyn Template>>,
}

impl ImageTemplate {
    /// `over` is the built-in template that shows through, if any.
    pub fn new(name: &str, over: Option<Arc<dyn Template>>) -> Self {
        Self { name: name.to_owned(), over }
    }
}

#[async_trait]
impl Template for ImageTemplate {
    fn name(&self) -> &str {
        &self.name
    }

    fn binds(&self) -> Arc<[Bind]> {
        self.over.as_ref().map_or_else(|| Arc::new([]) as Arc<[Bind]>, |over| over.binds())
    }

    fn has_program(&self, name: &str) -> Contains {
        match self.over.as_ref().map(|over| over.has_program(name)) {
            Some(Contains::Yes) => Contains::Yes,
            // Its layers may contain it.
            Some(Contains::No | Contains::Unknown) | None => Contains::Unknown,
        }
    }

    fn default_privilege(&self) -> Privilege {
        self.over.as_ref().map_or(Privilege::Root, |over| over.default_privilege())
    }

    async fn lay_out(&self, root: &Root, id: &SandboxId) -> Result<(), StorageError> {
        let (root, id, binds) = (root.clone(), id.clone(), self.binds());
        let over = self.over.is_some();
        let what = format!("fill {}", root.own_dir().display());
        let fill = move || {
            for bind in binds.iter() {
                // Paths with several components are inside another one.
                if let Some(name) = bind.target.to_str().filter(|name| !name.contains('/')) {
                    root.make_directory(name, 0o755)?;
                }
            }
            for (name, mode) in MOUNT_POINTS {
                root.make_directory(name, mode)?;
            }
            if over {
                // The /etc of a built-in template is its own.
                take_over(&root, "run").and_then(|()| host::write_hosts(&root, &id))
            } else {
                add_to_etc(&root, &id)
            }
        };
        let filled = tokio::task::spawn_blocking(fill).await.unwrap_or_else(|error| {
            Err(io::Error::other(format!("the work was given up: {error}")))
        });
        let storage = "image template";
        filled.map_err(|source| StorageError::Io { storage, what, source })
    }
}

/// What the layers of a root have at `/etc/<name>`.
enum EtcFile {
    /// Nothing, or an empty file, as engines leave behind at their mount points.
    Nothing,
    Text(String),
    Something,
}

/// Writes files to the volume's own part where the image has none, or where they contain another sandbox's name.
fn add_to_etc(root: &Root, id: &SandboxId) -> io::Result<()> {
    let etc = Etc::open(root)?;
    let mut own = None;
    for (name, text) in files(id) {
        let text = match etc.look(name)? {
            EtcFile::Nothing => text,
            EtcFile::Text(found) if name == "resolv.conf" && is_useless(&found) => text,
            EtcFile::Text(found) => match host_name::renamed(&found, id) {
                Some(renamed) => renamed,
                None => continue,
            },
            EtcFile::Something => continue,
        };
        let own = match &own {
            Some(own) => own,
            None => own.insert(make_own_etc(root, etc.stat.as_ref())?),
        };
        put(own, name, text.as_bytes(), root.ids())?;
    }
    Ok(())
}

fn make_own_etc(root: &Root, below: Option<&Stat>) -> io::Result<OwnedFd> {
    let own = directory(CWD, root.own_dir())?;
    make_etc(&own, below, root.ids())?;
    directory(&own, "etc")
}

/// Replaces an empty file, hides a lower one, or returns why it must not.
fn put(etc: &OwnedFd, name: &str, content: &[u8], ids: Ids) -> io::Result<()> {
    match unlinkat(etc, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(etc, name, flags, Mode::from_raw_mode(0o644))?;
    ids.give_to_root(etc, name)?;
    // Not by open's mode, which the umask restricts.
    fchmod(&file, Mode::from_raw_mode(0o644))?;
    io::Write::write_all(&mut File::from(file), content)
}

/// Creates the volume's own /etc, if it is still only in a layer, with the same attributes.
fn make_etc(own: &OwnedFd, below: Option<&Stat>, ids: Ids) -> io::Result<()> {
    match statat(own, "etc", AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) if is_whiteout(&stat) => unlinkat(own, "etc", AtFlags::empty())?,
        Ok(_) => return Ok(()),
        Err(Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    let mode = below.map_or(0o755, |stat| stat.st_mode & 0o7777);
    mkdirat(own, "etc", Mode::RWXU)?;
    ids.give_to_root(own, "etc")?;
    if let Some(stat) = below {
        let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
        match chownat(own, "etc", Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW) {
            // A non-root daemon has only one id, which owns everything that it creates.
            Err(Errno::PERM) if !rustix::process::geteuid().is_root() => {}
            result => result?,
        }
    }
    Ok(fchmod(directory(own, "etc")?, Mode::from_raw_mode(mode))?)
}

/// /etc as the overlay will show it.
struct Etc {
    /// In all visible layers, topmost first.
    directories: Vec<OwnedFd>,
    /// That of the topmost.
    stat: Option<Stat>,
    /// Below all of them is a link or a file in its place: the image wants it so.
    is_something_else: bool,
}

impl Etc {
    fn open(root: &Root) -> io::Result<Self> {
        let mut etc = Self { directories: Vec::new(), stat: None, is_something_else: false };
        for layer in parts(root) {
            let layer = directory(CWD, layer)?;
            match statat(&layer, "etc", AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => continue,
                Err(error) => return Err(error.into()),
                Ok(stat) if is_whiteout(&stat) => break,
                Ok(stat) if !is_directory(&stat) => {
                    etc.is_something_else = true;
                    break;
                }
                Ok(stat) => etc.stat = etc.stat.or(Some(stat)),
            }
            let found = directory(&layer, "etc")?;
            let hides_all = is_opaque(&found);
            etc.directories.push(found);
            if hides_all {
                break;
            }
        }
        Ok(etc)
    }

    fn look(&self, name: &str) -> io::Result<EtcFile> {
        for directory in &self.directories {
            match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) if is_whiteout(&stat) || is_empty_file(&stat) => {
                    return Ok(EtcFile::Nothing);
                }
                Ok(_) => return read(directory, name),
                Err(Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(if self.is_something_else { EtcFile::Something } else { EtcFile::Nothing })
    }
}

fn read(directory: &OwnedFd, name: &str) -> io::Result<EtcFile> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut file = match openat(directory, name, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(error) if is_not_there(error) => return Ok(EtcFile::Something),
        Err(error) => return Err(error.into()),
    };
    Ok(host_name::read(&mut file)?.map_or(EtcFile::Something, EtcFile::Text))
}

/// The visible parts of a root, topmost first.
fn parts(root: &Root) -> Vec<&Path> {
    match root {
        Root::Dir(path) | Root::Shifted(path) => vec![path],
        Root::Overlay { lowers, upper, work: _ } => {
            let lowers = lowers.iter().rev().map(PathBuf::as_path);
            std::iter::once(upper.as_path()).chain(lowers).collect()
        }
    }
}

fn directory(at: impl AsFd, path: impl rustix::path::Arg) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(at, path, flags, Mode::empty())?)
}

fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

fn is_empty_file(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_size == 0
}

fn is_opaque(directory: &OwnedFd) -> bool {
    let mut value = [0; 1];
    fgetxattr(directory, OPAQUE, &mut value).is_ok_and(|_| value == *b"y")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn overlay(dir: &Path) -> Root {
        let [lower, upper, work] = ["lower", "upper", "work"].map(|name| dir.join(name));
        for path in [&lower, &upper, &work] {
            fs::create_dir(path).expect("a directory");
        }
        Root::Overlay { lowers: vec![lower], upper, work }
    }

    async fn laid_out(root: &Root) -> SandboxId {
        let id = SandboxId::random();
        // Idempotent.
        for _ in 0..2 {
            ImageTemplate::new("x", None).lay_out(root, &id).await.expect("it is filled");
        }
        id
    }

    #[tokio::test]
    async fn an_empty_image_gets_what_it_needs_to_run() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = Root::Dir(dir.path().to_owned());
        laid_out(&root).await;
        for (name, _) in MOUNT_POINTS {
            assert!(dir.path().join(name).is_dir(), "{name}");
        }
        let hosts = fs::read_to_string(dir.path().join("etc/hosts")).expect("hosts");
        assert!(hosts.contains("127.0.0.1\tlocalhost"), "{hosts}");
        assert!(!dir.path().join("etc/passwd").exists(), "users are the image's own affair");
    }

    #[tokio::test]
    async fn what_the_image_has_stays_and_is_not_copied() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = overlay(dir.path());
        let etc = dir.path().join("lower/etc");
        fs::create_dir(&etc).expect("etc");
        fs::write(etc.join("hosts"), "10.0.0.1 mine\n").expect("hosts");
        fs::write(etc.join("hostname"), "").expect("an empty file");
        fs::create_dir(dir.path().join("lower/proc")).expect("proc");
        let id = laid_out(&root).await;
        let upper = dir.path().join("upper");
        assert!(!upper.join("proc").exists() && upper.join("dev").is_dir());
        assert!(!upper.join("etc/hosts").exists());
        assert_eq!(fs::read_to_string(upper.join("etc/hostname")).expect("it"), format!("{id}\n"));
    }

    #[tokio::test]
    async fn what_a_sandbox_left_is_not_called_as_that_was() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = overlay(dir.path());
        let (etc, old) = (dir.path().join("lower/etc"), SandboxId::random());
        fs::create_dir(&etc).expect("etc");
        fs::write(etc.join("hosts"), format!("10.0.0.1 mine\n127.0.0.1 {old}\n")).expect("hosts");
        fs::write(etc.join("hostname"), format!("{old}\n")).expect("a name");
        let id = laid_out(&root).await;
        let upper = dir.path().join("upper/etc");
        let read = |name: &str| fs::read_to_string(upper.join(name)).expect("a file");
        assert_eq!(read("hostname"), format!("{id}\n"));
        assert_eq!(read("hosts"), format!("10.0.0.1 mine\n127.0.0.1 {id}\n"));
    }

    #[tokio::test]
    async fn links_of_the_image_lead_nowhere() {
        let dir = tempfile::tempdir().expect("a directory");
        let outside = tempfile::tempdir().expect("a directory");
        let root = Root::Dir(dir.path().to_owned());
        std::os::unix::fs::symlink(outside.path(), dir.path().join("etc")).expect("a link");
        laid_out(&root).await;
        assert_eq!(fs::read_dir(outside.path()).expect("a look").count(), 0);
        std::os::unix::fs::symlink("/", dir.path().join("x")).expect("a link");
        fs::remove_dir(dir.path().join("proc")).expect("it was made");
        std::os::unix::fs::symlink(outside.path(), dir.path().join("proc")).expect("a link");
        let refused = ImageTemplate::new("x", None).lay_out(&root, &SandboxId::random()).await;
        assert!(refused.is_err(), "nothing can be mounted on a link");
    }
}
