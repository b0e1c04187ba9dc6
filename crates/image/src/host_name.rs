//! A machine's own name, which is the id of its sandbox. A copy of a machine gets its own.
//!
//! The kernel's host name is set by the runtime. This module handles the files: `/etc/hostname`, and the line of
//! `/etc/hosts` that resolves the name to the machine itself, without which `sudo` and `hostname -f` complain.
//!
//! A file is changed only if it contains no name yet, or the id of a sandbox: the one that the files belonged to
//! before. No link is followed, because the files belong to the sandbox.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsFd;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, ftruncate, openat2};
use rustix::io::Errno;

use sandkeep_core::{SandboxId, limits};

/// The target of a shared `/etc/hosts`, relative to the root.
pub(super) const SHARED_HOSTS: &str = "run/hosts";

/// Files of a sandbox that may contain the name.
pub(super) const PLACES: [&str; 3] = ["etc/hostname", "etc/hosts", SHARED_HOSTS];

/// On an address of its own, so that the name comes first for it, as `hostname -f` prints.
pub(super) fn hosts(id: &SandboxId) -> String {
    format!("127.0.0.1\tlocalhost\n127.0.1.1\t{id}\n::1\tlocalhost\n")
}

pub(super) fn host_name(id: &SandboxId) -> String {
    format!("{id}\n")
}

/// The same text with this sandbox's name in place of another's; `None` if it contains none, or this one.
pub(super) fn renamed(text: &str, id: &SandboxId) -> Option<String> {
    let new: String = text
        .split_inclusive(char::is_whitespace)
        .map(|word| {
            let name = word.trim_end();
            match name.parse::<SandboxId>() {
                Ok(_) => format!("{id}{}", &word[name.len()..]),
                Err(_) => word.to_owned(),
            }
        })
        .collect();
    (new != text).then_some(new)
}

/// Gives the files below a root the name of their new sandbox. Nothing may be using them.
pub(super) fn renew(root: impl AsFd, id: &SandboxId) -> io::Result<()> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    for path in PLACES {
        match openat2(&root, path, flags, Mode::empty(), beneath) {
            Ok(file) => rewrite(File::from(file), id)?,
            Err(error) if super::identity::is_not_there(error) => {}
            // The file cannot be written to, like a running program.
            Err(Errno::TXTBSY) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn rewrite(mut file: File, id: &SandboxId) -> io::Result<()> {
    let Some(text) = read(&mut file)? else { return Ok(()) };
    let Some(new) = renamed(&text, id) else { return Ok(()) };
    file.rewind()?;
    ftruncate(&file, 0)?;
    file.write_all(new.as_bytes())
}

/// The text of a small regular file; `None` for anything else.
pub(super) fn read(file: &mut File) -> io::Result<Option<String>> {
    let stat = fstat(&*file)?;
    let small = u64::try_from(stat.st_size).is_ok_and(|bytes| bytes <= limits::HOSTS_MAX_BYTES);
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || !small {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    file.take(limits::HOSTS_MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8(bytes).ok())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, openat};

    use super::*;

    #[test]
    fn only_names_of_sandboxes_are_replaced() {
        let (old, new) = (SandboxId::random(), SandboxId::random());
        let text = format!("127.0.0.1\tlocalhost {old}\n10.0.0.1 mine.{old}\n{old}");
        let expected = format!("127.0.0.1\tlocalhost {new}\n10.0.0.1 mine.{old}\n{new}");
        assert_eq!(renamed(&text, &new), Some(expected));
        assert_eq!(renamed("127.0.0.1\tlocalhost\n", &new), None);
        assert_eq!(renamed(&hosts(&new), &new), None);
    }

    #[test]
    fn a_copy_gets_its_own_name_and_all_else_stays() {
        let (dir, outside) = (tempfile::tempdir().expect("one"), tempfile::tempdir().expect("one"));
        let (old, new) = (SandboxId::random(), SandboxId::random());
        fs::create_dir(dir.path().join("etc")).expect("etc");
        fs::write(dir.path().join("etc/hostname"), host_name(&old)).expect("a file");
        fs::write(dir.path().join("etc/hosts"), "10.0.0.1 mine\n").expect("a file");
        fs::write(outside.path().join("hosts"), hosts(&old)).expect("a file");
        symlink(outside.path(), dir.path().join("run")).expect("a link");
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let root = openat(CWD, dir.path(), flags, Mode::empty()).expect("the root");
        renew(&root, &new).expect("renewed");
        let read = |path: &str| fs::read_to_string(dir.path().join(path)).expect("a file");
        assert_eq!(read("etc/hostname"), host_name(&new));
        assert_eq!(read("etc/hosts"), "10.0.0.1 mine\n");
        assert_eq!(read("run/hosts"), hosts(&old), "a link was followed");
    }
}
