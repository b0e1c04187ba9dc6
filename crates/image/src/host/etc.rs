//! The `/etc` of the `host` template: generated, without the host's accounts, names or secrets; it has only what
//! programs need and everybody may know.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::host_name::SHARED_HOSTS;
use crate::resolver::RESOLV_CONF;

const PASSWD: &str = "\
root:x:0:0:root:/root:/bin/sh
user:x:1000:1000:user:/home/user:/bin/sh
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
";
const GROUP: &str = "\
root:x:0:
tty:x:5:
user:x:1000:
nogroup:x:65534:
";
const NSSWITCH: &str = "\
passwd: files
group: files
shadow: files
hosts: files dns
services: files
protocols: files
";

/// Public files of the host that are the same for every user.
const COPIED: [&str; 6] =
    ["ld.so.cache", "mime.types", "protocols", "services", "ssl/openssl.cnf", "debian_version"];
/// Directories of the host with links into /usr and public certificates.
const COPIED_DIRECTORIES: [&str; 2] = ["alternatives", "ssl/certs"];

/// No public certificate bundle is larger.
const FILE_MAX_BYTES: u64 = 4 * 1024 * 1024;

#[derive(Hash)]
enum Piece {
    File(Vec<u8>),
    Link(PathBuf),
}

/// Creates `<ours>/etc-<fingerprint>` unless it exists, and returns it.
pub fn generate(ours: &Path) -> io::Result<PathBuf> {
    let pieces = pieces(Path::new("/etc"))?;
    let mut hasher = DefaultHasher::new();
    pieces.hash(&mut hasher);
    let made = ours.join(format!("etc-{:016x}", hasher.finish()));
    if made.is_dir() {
        return Ok(made);
    }
    let unfinished = ours.join("etc-unfinished");
    match fs::remove_dir_all(&unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    for (path, piece) in pieces {
        put(&unfinished.join(path), piece)?;
    }
    open_to_all(&unfinished)?;
    fs::rename(&unfinished, &made)?;
    Ok(made)
}

fn pieces(host: &Path) -> io::Result<Vec<(PathBuf, Piece)>> {
    let file = |name: &str, text: &str| (name.into(), Piece::File(text.as_bytes().to_vec()));
    let link = |name: &str, target: &str| (name.into(), Piece::Link(target.into()));
    let mut pieces = vec![
        file("passwd", PASSWD),
        file("group", GROUP),
        // The only file that differs per sandbox: it is in its volume.
        link("hosts", &format!("../{SHARED_HOSTS}")),
        link("hostname", "../proc/sys/kernel/hostname"),
        file("nsswitch.conf", NSSWITCH),
        file("resolv.conf", RESOLV_CONF),
        link("os-release", "../usr/lib/os-release"),
        link("localtime", "/usr/share/zoneinfo/Etc/UTC"),
        link("mtab", "/proc/self/mounts"),
    ];
    for name in COPIED {
        pieces.extend(copy(host, Path::new(name))?);
    }
    for directory in COPIED_DIRECTORIES {
        let mut names: Vec<PathBuf> = match fs::read_dir(host.join(directory)) {
            Ok(entries) => entries
                .map(|entry| Ok(Path::new(directory).join(entry?.file_name())))
                .collect::<io::Result<_>>()?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        names.sort_unstable();
        for name in names {
            pieces.extend(copy(host, &name)?);
        }
    }
    Ok(pieces)
}

/// A link unchanged, or a world-readable file with its content; nothing else.
fn copy(host: &Path, name: &Path) -> io::Result<Option<(PathBuf, Piece)>> {
    let path = host.join(name);
    let metadata = match fs::symlink_metadata(&path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let piece = if metadata.is_symlink() {
        Piece::Link(fs::read_link(&path)?)
    } else if metadata.is_file()
        && metadata.permissions().mode() & 0o004 != 0
        && metadata.len() <= FILE_MAX_BYTES
    {
        Piece::File(fs::read(&path)?)
    } else {
        return Ok(None);
    };
    Ok(Some((name.to_owned(), piece)))
}

fn put(path: &Path, piece: Piece) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    match piece {
        Piece::File(content) => {
            fs::write(path, content)?;
            fs::set_permissions(path, fs::Permissions::from_mode(0o644))
        }
        Piece::Link(target) => symlink(target, path),
    }
}

/// The daemon's umask may be too strict for a sandbox.
fn open_to_all(directory: &Path) -> io::Result<()> {
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755))?;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            open_to_all(&entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etc_is_made_once_and_holds_no_account_of_the_host() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let first = generate(dir.path()).expect("etc is generated");
        assert_eq!(generate(dir.path()).expect("it is found again"), first);
        assert!(!first.join("shadow").exists());
        assert_eq!(fs::read_to_string(first.join("passwd")).expect("passwd is there"), PASSWD);
        assert!(!dir.path().join("etc-unfinished").exists());
    }
}
