//! The image's working directory, created in a new volume if the image does not contain it, as container engines do.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, Stat, Uid, chownat, fchmod, fstat, mkdirat, openat,
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
    let made = tokio::task::spawn_blocking(move || make(&root, &path)).await;
    let made = made.unwrap_or_else(|error| Err(io::Error::other(error)));
    made.map_err(|source| StorageError::Io { storage: "image template", what, source })
}

fn make(root: &Root, path: &str) -> io::Result<()> {
    let view = View::of_root(root)?;
    let own = open_own(root)?;
    let path = TreePath::clean(path.as_bytes())?;
    let mut done = TreePath::default();
    for part in path.parts() {
        let next = done.join(part)?;
        match view.resolve(&next, Last::Followed)? {
            Some(found) => match view.look(&found)?.map(|node| node.kind()) {
                Some(FileType::Directory) => done = found,
                Some(_) | None => return Ok(()),
            },
            // A dangling link is the image's own problem.
            None if view.look(&next)?.is_some() => return Ok(()),
            None => {
                make_parents(&view, &own, &done)?;
                make_directory(&own, &next, &fstat(&own)?, MODE)?;
                done = next;
            }
        }
    }
    Ok(())
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
