//! The certificates that programs in a sandbox trust if the daemon reads some of its requests: two files on its volume,
//! and beside them the settings of the programs that find them by no variable.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, fchmod, mkdirat, openat, unlinkat};
use rustix::io::Errno;

use sandkeep_storage::StorageError;
use sandkeep_tree::{Root, beneath};

use super::workdir::take_over;

/// Where the certificates are inside: PEM, and a key store of Java.
pub const CERTIFICATES: &str = "/run/sandkeep/certificates.pem";
pub const JAVA_TRUST_STORE: &str = "/run/sandkeep/certificates.jks";

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
const PEM: &str = "certificates.pem";
const JAVA: &str = "certificates.jks";

/// The content of the files.
pub struct Certificates {
    pub pem: Vec<u8>,
    pub java: Vec<u8>,
}

/// Writes the files, in place of earlier ones. No link on the way is followed, because the files belong to the sandbox.
/// Nothing may be running on the volume.
pub async fn install(root: &Root, certificates: Certificates) -> Result<(), StorageError> {
    blocking("write", root, move |root| write(root, &certificates)).await
}

/// Removes the files, under the same conditions.
pub async fn remove(root: &Root) -> Result<(), StorageError> {
    blocking("remove", root, clear).await
}

async fn blocking(
    verb: &str,
    root: &Root,
    work: impl FnOnce(&Root) -> io::Result<()> + Send + 'static,
) -> Result<(), StorageError> {
    let what = format!("{verb} {CERTIFICATES} in {}", root.own_dir().display());
    let root = root.clone();
    let done = tokio::task::spawn_blocking(move || work(&root)).await;
    let done = done.unwrap_or_else(|error| Err(io::Error::other(error)));
    done.map_err(|source| StorageError::Io { storage: "certificates", what, source })
}

const OPEN_DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

fn own_dir(root: &Root) -> io::Result<OwnedFd> {
    Ok(openat(CWD, root.own_dir(), OPEN_DIRECTORY, Mode::empty())?)
}

fn write(root: &Root, certificates: &Certificates) -> io::Result<()> {
    root.make_directory(PARENT, 0o755)?;
    take_over(root, PARENT)?;
    let parent = beneath::open_dir(&own_dir(root)?, PARENT.as_bytes())?;
    match mkdirat(&parent, DIRECTORY, Mode::RWXU) {
        Ok(()) => root.ids().give_to_root(&parent, DIRECTORY)?,
        Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let directory = beneath::open_dir(&parent, DIRECTORY.as_bytes())?;
    // Not by mkdir's mode, which the umask restricts.
    let mode = Mode::from_raw_mode(0o755);
    fchmod(openat(&parent, DIRECTORY, OPEN_DIRECTORY, Mode::empty())?, mode)?;
    for (name, content) in [(PEM, &certificates.pem), (JAVA, &certificates.java)] {
        write_file(root, &directory, name, content)?;
    }
    for (_, name, text) in SETTINGS {
        write_file(root, &directory, name, text.as_bytes())?;
    }
    Ok(())
}

fn write_file(root: &Root, directory: &impl AsFd, name: &str, content: &[u8]) -> io::Result<()> {
    unlink(directory, name, AtFlags::empty())?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(openat(directory, name, flags, Mode::from_raw_mode(0o644))?);
    root.ids().give_to_root(directory, name)?;
    fchmod(&file, Mode::from_raw_mode(0o644))?;
    file.write_all(content)
}

fn clear(root: &Root) -> io::Result<()> {
    let found = |opened: io::Result<OwnedFd>| match opened {
        Ok(directory) => Ok(Some(directory)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    };
    let parent = beneath::open_dir(&own_dir(root)?, PARENT.as_bytes());
    let Some(parent) = found(parent.map_err(Into::into))? else { return Ok(()) };
    let directory = beneath::open_dir(&parent, DIRECTORY.as_bytes());
    let Some(directory) = found(directory.map_err(Into::into))? else { return Ok(()) };
    for name in [PEM, JAVA].into_iter().chain(SETTINGS.map(|(_, name, _)| name)) {
        unlink(&directory, name, AtFlags::empty())?;
    }
    match unlinkat(&parent, DIRECTORY, AtFlags::REMOVEDIR) {
        // Something else is in it.
        Ok(()) | Err(Errno::NOTEMPTY | Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn unlink(directory: &impl AsFd, name: &str, flags: AtFlags) -> io::Result<()> {
    match unlinkat(directory, name, flags) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn of(text: &str) -> Certificates {
        Certificates { pem: text.into(), java: format!("{text} for Java").into() }
    }

    #[tokio::test]
    async fn the_files_are_written_again_and_links_lead_nowhere() {
        let (dir, outside) = (tempfile::tempdir().expect("one"), tempfile::tempdir().expect("one"));
        let root = Root::Dir(dir.path().to_owned());
        remove(&root).await.expect("there is nothing to remove");
        for text in ["first", "second"] {
            install(&root, of(text)).await.expect("they are written");
            for (path, text) in
                [(CERTIFICATES, text), (JAVA_TRUST_STORE, &format!("{text} for Java"))]
            {
                let path = dir.path().join(path.trim_start_matches('/'));
                assert_eq!(fs::read_to_string(&path).expect("it is there"), text);
                let mode = fs::metadata(&path).expect("it").permissions().mode();
                assert_eq!(mode & 0o777, 0o644);
            }
        }
        remove(&root).await.expect("they are removed");
        assert!(!dir.path().join("run/sandkeep").exists());
        symlink(outside.path(), dir.path().join("run/sandkeep")).expect("a link");
        fs::write(outside.path().join(PEM), "of another").expect("a file");
        install(&root, of("third")).await.expect_err("a link is no directory");
        remove(&root).await.expect_err("a link is no directory");
        fs::remove_dir_all(dir.path().join("run")).expect("it was made");
        symlink(outside.path(), dir.path().join("run")).expect("a link");
        install(&root, of("third")).await.expect_err("a link is no directory");
        remove(&root).await.expect_err("a link is no directory");
        assert_eq!(fs::read_dir(outside.path()).expect("a look").count(), 1);
    }
}
