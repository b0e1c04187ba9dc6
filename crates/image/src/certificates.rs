//! The certificates that programs in a sandbox trust if the daemon reads some of its requests: a file on its volume, and
//! beside it the settings of the programs that find it by no variable.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, fchmod, mkdirat, openat, unlinkat};
use rustix::io::Errno;

use sandkeep_storage::StorageError;
use sandkeep_tree::{Root, beneath};

use super::workdir::take_over;

/// Where the certificates are inside.
pub const CERTIFICATES: &str = "/run/sandkeep/certificates.pem";

/// Settings that name the certificates: the variable by which a program finds its file, the file's name, and what it says.
const SETTINGS: [(&str, &str, &str); 2] = [
    // GNU's, on GnuTLS.
    ("SYSTEM_WGETRC", "wgetrc", "ca_certificate = /run/sandkeep/certificates.pem\n"),
    ("APT_CONFIG", "apt.conf", "Acquire::https::CAInfo \"/run/sandkeep/certificates.pem\";\n"),
];

/// The variables of the settings that are beside the certificates.
pub fn settings() -> impl Iterator<Item = (&'static str, String)> {
    SETTINGS.iter().map(|(variable, name, _)| (*variable, format!("/{PARENT}/{DIRECTORY}/{name}")))
}

const PARENT: &str = "run";
const DIRECTORY: &str = "sandkeep";
const NAME: &str = "certificates.pem";

/// Writes the files, in place of earlier ones. No link on the way is followed, because the files belong to the sandbox.
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
    write_file(root, &directory, NAME, pem)?;
    SETTINGS
        .iter()
        .try_for_each(|(_, name, text)| write_file(root, &directory, name, text.as_bytes()))
}

fn write_file(root: &Root, directory: &OwnedFd, name: &str, content: &[u8]) -> io::Result<()> {
    match unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(openat(directory, name, flags, Mode::from_raw_mode(0o644))?);
    root.ids().give_to_root(directory, name)?;
    fchmod(&file, Mode::from_raw_mode(0o644))?;
    file.write_all(content)
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
            for (variable, path) in settings() {
                let said = fs::read_to_string(dir.path().join(&path[1..])).expect(variable);
                assert!(said.contains(CERTIFICATES), "{path}: {said}");
            }
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
