//! Machine identity in files, which must not exist twice after copying a machine.
//!
//! Everything but the host name (`host_name`) is removed or randomized. Only entries below one directory are touched,
//! and no link is followed, because the files belong to the sandbox.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, fstat, ftruncate, openat, openat2, unlinkat,
};
use rustix::io::Errno;

use super::host_name;
use sandkeep_core::SandboxId;

/// Files with the machine id, as 32 hexadecimal digits and a line feed.
const MACHINE_IDS: [&str; 2] = ["etc/machine-id", "var/lib/dbus/machine-id"];
/// Directories with the random seed for the next boot, and its file name.
const RANDOM_SEEDS: [(&str, &str); 2] =
    [("var/lib/systemd", "random-seed"), ("var/lib/urandom", "random-seed")];

/// The files that differ between a sandbox and its forks although nobody has changed them.
pub fn files() -> impl Iterator<Item = String> {
    let seeds = RANDOM_SEEDS.iter().map(|(parent, name)| format!("{parent}/{name}"));
    let named = MACHINE_IDS.iter().chain(&host_name::PLACES).map(|path| (*path).to_owned());
    named.chain(seeds)
}

/// Gives the files below `root` the identity of a new sandbox, as far as they contain one. Nothing may be using them.
pub fn renew(root: &Path, id: &SandboxId) -> io::Result<()> {
    let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = openat(CWD, root, directory, Mode::empty())?;
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    for path in MACHINE_IDS {
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match openat2(&root, path, flags, Mode::empty(), beneath) {
            Ok(file) => write_machine_id(File::from(file))?,
            Err(error) if is_not_there(error) => {}
            Err(error) => return Err(error.into()),
        }
    }
    host_name::renew(&root, id)?;
    for (parent, name) in RANDOM_SEEDS {
        match openat2(&root, parent, directory, Mode::empty(), beneath) {
            Ok(parent) => match unlinkat(parent, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT | Errno::ISDIR) => {}
                Err(error) => return Err(error.into()),
            },
            Err(error) if is_not_there(error) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// An empty file means that the machine has no id yet; other content is not an id.
fn write_machine_id(mut file: File) -> io::Result<()> {
    let stat = fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || stat.st_size == 0 {
        return Ok(());
    }
    let mut bytes = [0u8; 16];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    ftruncate(&file, 0)?;
    file.write_all(format!("{}\n", hex::encode(bytes)).as_bytes())
}

/// The file does not exist, or is of a kind that we never write to.
pub(super) fn is_not_there(error: Errno) -> bool {
    matches!(
        error,
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::ISDIR | Errno::NXIO
    )
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn ids_and_seeds_are_new_and_all_else_stays() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |path: &str| dir.path().join(path);
        for parent in ["etc", "var/lib/dbus", "var/lib/systemd"] {
            fs::create_dir_all(at(parent)).expect("a directory");
        }
        let old = format!("{}\n", "0123456789abcdef".repeat(2));
        fs::write(at("etc/machine-id"), &old).expect("a file");
        fs::write(at("etc/hostname"), "kept\n").expect("a file");
        fs::write(at("var/lib/systemd/random-seed"), "seed").expect("a file");
        // A link stays a link, and its target is not ours.
        symlink("../../../etc/hostname", at("var/lib/dbus/machine-id")).expect("a link");
        renew(dir.path(), &SandboxId::random()).expect("renewed");
        let new = fs::read_to_string(at("etc/machine-id")).expect("a file");
        assert_eq!(new.len(), old.len());
        assert_ne!(new, old);
        assert!(!at("var/lib/systemd/random-seed").exists());
        assert_eq!(fs::read_to_string(at("etc/hostname")).expect("a file"), "kept\n");
    }

    #[test]
    fn what_has_no_identity_gets_none() {
        let dir = tempfile::tempdir().expect("a directory");
        renew(dir.path(), &SandboxId::random()).expect("nothing to do");
        fs::create_dir_all(dir.path().join("etc/machine-id")).expect("a directory");
        fs::create_dir_all(dir.path().join("var/lib")).expect("a directory");
        symlink("/etc", dir.path().join("var/lib/systemd")).expect("a link");
        renew(dir.path(), &SandboxId::random()).expect("nothing to do");
        fs::remove_dir(dir.path().join("etc/machine-id")).expect("empty");
        fs::write(dir.path().join("etc/machine-id"), "").expect("a file");
        renew(dir.path(), &SandboxId::random()).expect("nothing to do");
        assert_eq!(fs::read(dir.path().join("etc/machine-id")).expect("a file"), b"");
    }
}
