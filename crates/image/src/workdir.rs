//! Places in a new volume that are made if the image does not contain them, as container engines do: its working
//! directory, and where something is to be mounted.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, Stat, Uid, chownat, fchmod, fstat, mkdirat, openat,
    statat, unlinkat,
};
use rustix::io::Errno;

use sandkeep_storage::StorageError;
use sandkeep_tree::{Root, TreePath, View, beneath, view::Last};

const MODE: u32 = 0o755;

/// Creates it, with missing parents. Anything else in its place stays: commands that use it get the error. Nothing may
/// be running on the volume.
pub async fn make_workdir(root: &Root, path: &str) -> Result<(), StorageError> {
    // The root always exists, and most images use no other.
    if path == "/" {
        return Ok(());
    }
    let (root, path) = (root.clone(), path.to_owned());
    let what = format!("make {path} in {}", root.own_dir().display());
    blocking(what, move || make(&root, &path, TargetKind::Directory)).await.map(drop)
}

async fn blocking<T: Send + 'static>(
    what: String,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, StorageError> {
    let done = tokio::task::spawn_blocking(work).await;
    let done = done.unwrap_or_else(|error| Err(io::Error::other(error)));
    done.map_err(|source| StorageError::Io { storage: "image template", what, source })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetKind {
    Directory,
    File,
}

/// Where something is to be mounted in a volume on which nothing runs yet.
#[derive(Debug)]
pub struct MountTarget {
    /// Without links.
    path: TreePath,
    /// What was missing of it, from above.
    made: Vec<(TreePath, TargetKind)>,
}

impl MountTarget {
    /// Finds it, and makes an empty one with all parents if it is not there.
    pub async fn make(root: &Root, path: &str, kind: TargetKind) -> Result<Self, StorageError> {
        let (root, path) = (root.clone(), path.to_owned());
        let what = format!("make a place to mount at {path}");
        let found = move || {
            let obstacle =
                || io::Error::new(io::ErrorKind::AlreadyExists, "something else is there");
            make(&root, &path, kind)?.ok_or_else(obstacle)
        };
        blocking(what, found).await
    }

    /// Relative to the root.
    pub fn path(&self) -> String {
        String::from_utf8_lossy(self.path.bytes()).into_owned()
    }

    /// Removes what was made, unless something is in it by now. Nothing may be running on the volume.
    pub async fn remove(self, root: &Root) -> Result<(), StorageError> {
        let root = root.clone();
        let remove = move || {
            let own = open_own(&root)?;
            self.made.into_iter().rev().try_for_each(|(path, kind)| remove_empty(&own, &path, kind))
        };
        blocking("remove a place where something was mounted".to_owned(), remove).await
    }
}

/// `None` if something else is in its place, or on the way there.
fn make(root: &Root, path: &str, kind: TargetKind) -> io::Result<Option<MountTarget>> {
    let view = View::of_root(root)?;
    let own = open_own(root)?;
    let path = TreePath::clean(path.as_bytes())?;
    let mut target = MountTarget { path: TreePath::default(), made: Vec::new() };
    let count = path.parts().count();
    for (index, part) in path.parts().enumerate() {
        let wanted = if index + 1 == count { kind } else { TargetKind::Directory };
        let next = target.path.join(part)?;
        match view.resolve(&next, Last::Followed)? {
            Some(found) => match (view.look(&found)?.map(|node| node.kind()), wanted) {
                (Some(FileType::Directory), TargetKind::Directory)
                | (Some(FileType::RegularFile), TargetKind::File) => target.path = found,
                (Some(_) | None, _) => return Ok(None),
            },
            // A dangling link is the image's own problem.
            None if view.look(&next)?.is_some() => return Ok(None),
            None => {
                make_parents(&view, &own, &target.path)?;
                match wanted {
                    TargetKind::Directory => make_directory(&own, &next, &fstat(&own)?, MODE)?,
                    TargetKind::File => make_file(&own, &next)?,
                }
                target.made.push((next.clone(), wanted));
                target.path = next;
            }
        }
    }
    Ok(Some(target))
}

/// An empty file, which the mount covers.
fn make_file(own: &OwnedFd, path: &TreePath) -> io::Result<()> {
    let Some((parent, name)) = path.split() else { return Ok(()) };
    let parent = beneath::open_dir(own, parent.bytes())?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(&parent, name, flags, Mode::RUSR | Mode::WUSR).map(drop)?)
}

fn remove_empty(own: &OwnedFd, path: &TreePath, kind: TargetKind) -> io::Result<()> {
    let Some((parent, name)) = path.split() else { return Ok(()) };
    let removed = beneath::open_dir(own, parent.bytes()).and_then(|parent| match kind {
        TargetKind::Directory => unlinkat(&parent, name, AtFlags::REMOVEDIR),
        TargetKind::File => {
            let stat = statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
            let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
            if is_file && stat.st_size == 0 {
                return unlinkat(&parent, name, AtFlags::empty());
            }
            Ok(())
        }
    });
    match removed {
        // The command made something of it.
        Err(Errno::NOENT | Errno::NOTEMPTY | Errno::NOTDIR | Errno::LOOP) => Ok(()),
        removed => Ok(removed?),
    }
}

fn open_own(root: &Root) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(CWD, root.own_dir(), flags, Mode::empty())
}

/// Copies a directory that may exist only in layers into the volume, if it exists.
pub(super) fn take_over(root: &Root, path: &str) -> io::Result<()> {
    let (view, own) = (View::of_root(root)?, open_own(root)?);
    let path = TreePath::clean(path.as_bytes())?;
    match view.look(&path)?.map(|node| node.kind()) {
        Some(FileType::Directory) => make_parents(&view, &own, &path),
        Some(_) | None => Ok(()),
    }
}

/// Copies directories that exist only in layers into the volume, with their attributes.
fn make_parents(view: &View, own: &OwnedFd, path: &TreePath) -> io::Result<()> {
    let mut done = TreePath::default();
    for part in path.parts() {
        done.push(part)?;
        match beneath::open_dir(own, done.bytes()) {
            Ok(_) => continue,
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        let node = view.look(&done)?.ok_or(io::ErrorKind::NotFound)?;
        make_directory(own, &done, node.stat(), node.stat().st_mode & 0o7777)?;
    }
    Ok(())
}

/// A directory with the owner of another.
fn make_directory(own: &OwnedFd, path: &TreePath, like: &Stat, mode: u32) -> io::Result<()> {
    let Some((parent, name)) = path.split() else { return Ok(()) };
    let parent = beneath::open_dir(own, parent.bytes())?;
    mkdirat(&parent, name, Mode::RWXU)?;
    let (uid, gid) = (Uid::from_raw(like.st_uid), Gid::from_raw(like.st_gid));
    match chownat(&parent, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW) {
        // A non-root daemon has only one id, which owns everything that it creates.
        Err(Errno::PERM) if !rustix::process::geteuid().is_root() => {}
        result => result?,
    }
    // Not by mkdir's mode, which the umask restricts.
    Ok(fchmod(beneath::open_dir(&parent, name)?, Mode::from_raw_mode(mode))?)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[tokio::test]
    async fn a_directory_that_is_missing_is_made_where_the_layers_lead() {
        let dir = tempfile::tempdir().expect("a directory");
        let [lower, upper, work] = ["lower", "upper", "work"].map(|name| dir.path().join(name));
        for path in [&lower, &upper, &work, &lower.join("real")] {
            fs::create_dir(path).expect("a directory");
        }
        fs::set_permissions(lower.join("real"), fs::Permissions::from_mode(0o711)).expect("a mode");
        symlink("/real", lower.join("link")).expect("a link");
        fs::write(lower.join("file"), "").expect("a file");
        let root = Root::Overlay { lowers: vec![lower], upper: upper.clone(), work };
        for path in ["/", "/real", "/file/a", "/link/a/b", "/link/a/b"] {
            make_workdir(&root, path).await.expect(path);
        }
        let mode = |path: &str| {
            fs::symlink_metadata(upper.join(path)).map(|found| found.permissions().mode() & 0o7777)
        };
        assert_eq!(mode("real").expect("it"), 0o711, "as the layer has it");
        assert_eq!(mode("real/a/b").expect("it"), 0o755);
        assert!(mode("file").is_err() && mode("link").is_err(), "nothing else is touched");
    }
}
