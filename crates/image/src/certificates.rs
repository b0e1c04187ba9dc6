//! The certificates that programs in a sandbox trust if the daemon reads some of its requests: one file on its volume.

use std::fs::File;
use std::io::{self, Write};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, fchmod, mkdirat, openat, unlinkat};
use rustix::io::Errno;

use sandkeep_storage::StorageError;
use sandkeep_tree::{Root, beneath};

use super::workdir::take_over;

/// Where the file is inside.
pub const CERTIFICATES: &str = "/run/sandkeep/certificates.pem";

const PARENT: &str = "run";
const DIRECTORY: &str = "sandkeep";
const NAME: &str = "certificates.pem";

/// Writes the file, in place of an earlier one. No link on the way is followed, because the files belong to the sandbox.
/// Nothing may be running on the volume.
pub async fn install(root: &Root, pem: Vec<u8>) -> Result<(), StorageError> {
    let root = root.clone();
    let what = format!("write {CERTIFICATES} in {}", root.own_dir().display());
    let written = tokio::task::spawn_blocking(move || write(&root, &pem)).await;
    let written = written.unwrap_or_else(|error| Err(io::Error::other(error)));
    written.map_err(|source| StorageError::Io { storage: "certificates", what, source })
}

fn write(root: &Root, pem: &[u8]) -> io::Result<()> {
    root.make_directory(PARENT, 0o755)?;
    take_over(root, PARENT)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let own = openat(CWD, root.own_dir(), flags, Mode::empty())?;
    let parent = beneath::open_dir(&own, PARENT.as_bytes())?;
    match mkdirat(&parent, DIRECTORY, Mode::RWXU) {
        Ok(()) => root.ids().give_to_root(&parent, DIRECTORY)?,
        Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let directory = beneath::open_dir(&parent, DIRECTORY.as_bytes())?;
    // Not by mkdir's mode, which the umask restricts.
    fchmod(openat(&parent, DIRECTORY, flags, Mode::empty())?, Mode::from_raw_mode(0o755))?;
    match unlinkat(&directory, NAME, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(openat(&directory, NAME, flags, Mode::from_raw_mode(0o644))?);
    root.ids().give_to_root(&directory, NAME)?;
    fchmod(&file, Mode::from_raw_mode(0o644))?;
    file.write_all(pem)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[tokio::test]
    async fn the_file_is_written_again_and_links_lead_nowhere() {
        let (dir, outside) = (tempfile::tempdir().expect("one"), tempfile::tempdir().expect("one"));
        let root = Root::Dir(dir.path().to_owned());
        for text in ["first", "second"] {
            install(&root, text.into()).await.expect("it is written");
            let path = dir.path().join("run/sandkeep/certificates.pem");
            assert_eq!(fs::read_to_string(&path).expect("it is there"), text);
            let mode = fs::metadata(&path).expect("it").permissions().mode();
            assert_eq!(mode & 0o777, 0o644);
        }
        fs::remove_dir_all(dir.path().join("run/sandkeep")).expect("it was made");
        symlink(outside.path(), dir.path().join("run/sandkeep")).expect("a link");
        install(&root, "third".into()).await.expect_err("a link is no directory");
        fs::remove_dir_all(dir.path().join("run")).expect("it was made");
        symlink(outside.path(), dir.path().join("run")).expect("a link");
        install(&root, "third".into()).await.expect_err("a link is no directory");
        assert_eq!(fs::read_dir(outside.path()).expect("a look").count(), 0);
    }
}
