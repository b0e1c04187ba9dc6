//! Directories shared with the host and other sandboxes, such as /usr. A change there affects all of them. Attempts
//! remove what they create, and write to nothing that they open.

use std::fs::{self, File, OpenOptions, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink as make_symlink};
use std::path::{Path, PathBuf};

use super::walk::Scratch;
use crate::finding::{Finding, Judge, Ways, leaked, not_applicable};
use crate::scene::Scene;

/// Runs `attempt` on every shared directory, with a scratch directory.
fn each(scene: &Scene, attempt: impl Fn(&mut Ways, &Path, &Scratch)) -> Finding {
    let shared = scene.all("shared");
    if shared.is_empty() {
        return not_applicable("this template shares nothing with the host");
    }
    let scratch = match Scratch::new("shared") {
        Ok(scratch) => scratch,
        Err(error) => return leaked(format!("not judged: no place of its own: {error}")),
    };
    let mut ways = Ways::judged(Judge::BySuccess);
    shared.iter().for_each(|dir| attempt(&mut ways, Path::new(dir), &scratch));
    ways.finding()
}

/// An unused name.
fn new_name(dir: &Path) -> PathBuf {
    dir.join(format!(".sandkeep-probe-{}", std::process::id()))
}

/// An ordinary file nearby; `None` in an empty directory.
fn some_file(dir: &Path) -> Option<PathBuf> {
    let files = |dir: &Path| {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        entries.filter(|e| e.file_type().is_ok_and(|t| t.is_file())).map(|e| e.path()).next()
    };
    files(dir).or_else(|| files(&dir.join("bin")))
}

fn for_writing(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().write(true).open(path)
}

pub fn write(scene: &Scene) -> Finding {
    each(scene, |ways, dir, _| {
        let (name, shown) = (new_name(dir), dir.display());
        if ways.note(&format!("a file in {shown}"), File::create_new(&name)).is_some() {
            let _ = fs::remove_file(&name);
        }
        if ways.note(&format!("a directory in {shown}"), fs::create_dir(&name)).is_some() {
            let _ = fs::remove_dir(&name);
        }
        if let Ok(metadata) = fs::metadata(dir) {
            let same = Permissions::from_mode(metadata.mode() & 0o7777);
            let changed = fs::set_permissions(dir, same);
            // A kernel of the sandbox's own may report success and keep the change to itself; the host checks the
            // shared directory.
            if !scene.has_kernel_of_its_own() {
                ways.note(&format!("the mode of {shown}"), changed);
            }
        }
        if let Some(file) = some_file(dir) {
            ways.note(&format!("{} for writing", file.display()), for_writing(&file));
        }
    })
}

/// By a link to the file, to its directory, and by the paths of descriptors.
pub fn symlink(scene: &Scene) -> Finding {
    each(scene, |ways, dir, scratch| {
        let Some(file) = some_file(dir) else { return };
        let (to_file, to_dir) = (scratch.join("to-file"), scratch.join("to-dir"));
        if make_symlink(&file, &to_file).and_then(|()| make_symlink(dir, &to_dir)).is_err() {
            ways.leak("not judged: no link can be made");
            return;
        }
        ways.note("a link to a file", for_writing(&to_file));
        let name = new_name(&to_dir);
        if ways.note("a link to a directory", File::create_new(&name)).is_some() {
            let _ = fs::remove_file(&name);
        }
        let again = Path::new("/proc/self/root").join(file.strip_prefix("/").unwrap_or(&file));
        ways.note("the root of a process", for_writing(&again));
        if let Ok(opened) = File::open(&file) {
            let path = format!("/proc/self/fd/{}", opened.as_raw_fd());
            ways.note("the path of a descriptor", for_writing(Path::new(&path)));
        }
        for link in [to_file, to_dir] {
            let _ = fs::remove_file(link);
        }
    })
}

pub fn hardlink(scene: &Scene) -> Finding {
    each(scene, |ways, dir, scratch| {
        let (link, own) = (scratch.join("link"), scratch.join("own"));
        if let Some(file) = some_file(dir) {
            let linked = fs::hard_link(&file, &link);
            if ways.note(&format!("a link to {}", file.display()), linked).is_some() {
                let _ = fs::remove_file(&link);
            }
        }
        if fs::write(&own, "").is_err() {
            ways.leak("not judged: no file can be made");
            return;
        }
        let name = new_name(dir);
        let linked = fs::hard_link(&own, &name);
        if ways.note(&format!("a link into {}", dir.display()), linked).is_some() {
            let _ = fs::remove_file(&name);
        }
        let moved = fs::rename(&own, &name);
        if ways.note(&format!("a file moved into {}", dir.display()), moved).is_some() {
            let _ = fs::remove_file(&name);
        }
    })
}
