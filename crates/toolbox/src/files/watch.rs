//! Watches a directory. One line of JSON per event, until the watcher disconnects.

use std::collections::HashMap;
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

use super::replacement::TEMPORARY;
use crate::answer::{Change, ChangeKind, Failure, FailureKind, Watching};
use crate::request::{RawPath, Reach};
use crate::wire::Output;

/// How many directories are watched at once.
const DIRECTORIES_MAX: usize = 16 * 1024;
/// Room for many events with the longest names.
const BUFFER_BYTES: usize = 64 * 1024;

/// The kernel's events, by meaning.
const EVENTS: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF);

pub fn watch(path: &RawPath, reach: Reach, output: &mut Output) -> Result<(), Failure> {
    let root = path.as_path();
    let found = fs::metadata(root).map_err(|error| Failure::from_io(&error, Some(root)))?;
    let mut watch =
        if found.is_dir() { Watch::of_directory(root, reach)? } else { Watch::of_file(root)? };
    output.head(&Watching { directories: watch.directories.len() as u64 })?;
    output.flush()?;
    let mut buffer = [MaybeUninit::uninit(); BUFFER_BYTES];
    let queue = watch.queue.try_clone();
    let queue = queue.map_err(|error| Failure::from_io(&error, Some(root)))?;
    let mut reader = Reader::new(&queue, &mut buffer);
    let mut last = None;
    loop {
        let event = reader.next().map_err(|errno| Failure::from_errno(errno, root))?;
        let (directory, flags) = (event.wd(), event.events());
        let name = event.file_name().map(|name| RawPath::from_bytes(name.to_bytes().to_vec()));
        for change in watch.take(directory, flags, name) {
            // Combines the events of many small writes.
            if last.as_ref() != Some(&change) {
                output.line(&change)?;
            }
            last = Some(change);
        }
        if reader.is_buffer_empty() {
            last = None;
        }
        if watch.directories.is_empty() {
            return Ok(());
        }
    }
}

struct Watch {
    queue: OwnedFd,
    directories: HashMap<i32, PathBuf>,
    reach: Reach,
    /// For a single file: its name in the watched directory, so that its replacement is seen.
    only: Option<RawPath>,
}

impl Watch {
    fn new(root: &Path, reach: Reach) -> Result<Self, Failure> {
        let queue = inotify::init(CreateFlags::CLOEXEC);
        let queue = queue.map_err(|errno| Failure::from_errno(errno, root))?;
        Ok(Self { queue, directories: HashMap::new(), reach, only: None })
    }

    fn of_directory(root: &Path, reach: Reach) -> Result<Self, Failure> {
        let mut watch = Self::new(root, reach)?;
        watch.add(root)?;
        watch.add_beneath(root, &mut Vec::new())?;
        Ok(watch)
    }

    fn of_file(path: &Path) -> Result<Self, Failure> {
        let mut watch = Self::new(path, Reach::One)?;
        watch.only = path.file_name().map(RawPath::from);
        let above = path.parent().filter(|above| !above.as_os_str().is_empty());
        watch.add(above.unwrap_or(Path::new(".")))?;
        Ok(watch)
    }

    fn add(&mut self, directory: &Path) -> Result<(), Failure> {
        if self.directories.len() >= DIRECTORIES_MAX {
            return Err(too_many(directory));
        }
        match inotify::add_watch(self.queue.as_fd(), directory, EVENTS | WatchFlags::ONLYDIR) {
            Ok(number) => {
                self.directories.insert(number, directory.to_owned());
                Ok(())
            }
            Err(Errno::NOSPC) => Err(too_many(directory)),
            Err(errno) => Err(Failure::from_errno(errno, directory)),
        }
    }

    /// Watches subdirectories, if requested, and records their entries.
    fn add_beneath(&mut self, directory: &Path, seen: &mut Vec<PathBuf>) -> Result<(), Failure> {
        if self.reach == Reach::One {
            return Ok(());
        }
        // A directory that is gone, or unreadable, has no events.
        let Ok(read) = fs::read_dir(directory) else { return Ok(()) };
        for entry in read.flatten() {
            seen.push(entry.path());
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                match self.add(&entry.path()) {
                    Ok(()) => self.add_beneath(&entry.path(), seen)?,
                    Err(failure) if failure.kind == FailureKind::TooLarge => return Err(failure),
                    Err(_) => {}
                }
            }
        }
        Ok(())
    }

    /// Ends the watches of a directory and of all beneath it, which are elsewhere now: where they still are watched from,
    /// they are found again.
    fn leave(&mut self, directory: &Path) {
        let queue = self.queue.as_fd();
        self.directories.retain(|number, path| {
            let leaves = path.starts_with(directory);
            if leaves {
                // It is gone by itself if the directory was removed meanwhile.
                let _ = inotify::remove_watch(queue, *number);
            }
            !leaves
        });
    }

    /// What an event of the kernel comes to.
    fn take(
        &mut self,
        number: i32,
        flags: inotify::ReadFlags,
        name: Option<RawPath>,
    ) -> Vec<Change> {
        if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            return vec![Change { kind: ChangeKind::Overflow, path: None }];
        }
        let Some(directory) = self.directories.get(&number).cloned() else { return Vec::new() };
        if flags.contains(ReadFlags::IGNORED) {
            self.directories.remove(&number);
            return Vec::new();
        }
        // Of one in a directory that is watched as well, that one has told it.
        if flags.contains(ReadFlags::MOVE_SELF) {
            self.leave(&directory);
            let path = self.only.as_ref().map_or(directory.clone(), |only| directory.join(only));
            return vec![change(ChangeKind::Gone, &path)];
        }
        // A file that is still under its temporary name is reported when it gets its own.
        let unfinished = |name: &RawPath| name.as_bytes().starts_with(TEMPORARY.as_bytes());
        if name.as_ref().is_some_and(unfinished) || (self.only.is_some() && self.only != name) {
            return Vec::new();
        }
        let path = name.map_or_else(|| directory.clone(), |name| directory.join(name));
        let Some(kind) = kind_of(flags) else { return Vec::new() };
        let mut changes = vec![change(kind, &path)];
        if flags.contains(ReadFlags::MOVED_FROM | ReadFlags::ISDIR) {
            self.leave(&path);
        }
        if kind == ChangeKind::Created && flags.contains(ReadFlags::ISDIR) {
            // Entries created before it was watched would otherwise never be reported.
            let mut seen = Vec::new();
            if self.reach == Reach::Tree && self.add(&path).is_ok() {
                let _ = self.add_beneath(&path, &mut seen);
            }
            changes.extend(seen.iter().map(|path| change(ChangeKind::Created, path)));
        }
        changes
    }
}

fn kind_of(flags: ReadFlags) -> Option<ChangeKind> {
    let any = |some: ReadFlags| flags.intersects(some);
    if any(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
        Some(ChangeKind::Created)
    } else if any(ReadFlags::DELETE | ReadFlags::MOVED_FROM) {
        Some(ChangeKind::Deleted)
    } else if any(ReadFlags::DELETE_SELF) {
        Some(ChangeKind::Gone)
    } else if any(ReadFlags::MODIFY | ReadFlags::CLOSE_WRITE) {
        Some(ChangeKind::Modified)
    } else if any(ReadFlags::ATTRIB) {
        Some(ChangeKind::Attributes)
    } else {
        None
    }
}

fn change(kind: ChangeKind, path: &Path) -> Change {
    Change { kind, path: Some(RawPath::from(path)) }
}

fn too_many(directory: &Path) -> Failure {
    let message =
        "there are more directories than can be watched; watch fewer, or without recursive";
    Failure::new(FailureKind::TooLarge, message).at(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a watch tells of all that has happened until now.
    fn told(watch: &mut Watch, top: &Path) -> Vec<String> {
        let mut buffer = [MaybeUninit::uninit(); BUFFER_BYTES];
        let queue = watch.queue.try_clone().expect("a descriptor");
        let mut told = Vec::new();
        loop {
            let mut waiting = [rustix::event::PollFd::new(&queue, rustix::event::PollFlags::IN)];
            let at_once = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            if rustix::event::poll(&mut waiting, Some(&at_once)).expect("it can be asked") == 0 {
                return told;
            }
            let mut reader = Reader::new(&queue, &mut buffer);
            loop {
                let event = reader.next().expect("an event");
                let (number, flags) = (event.wd(), event.events());
                let name =
                    event.file_name().map(|name| RawPath::from_bytes(name.to_bytes().to_vec()));
                told.extend(watch.take(number, flags, name).iter().map(|change| {
                    let path = change.path.as_ref().expect("a path").as_path();
                    let path = path.strip_prefix(top).expect("in it").display().to_string();
                    format!("{:?} {path}", change.kind)
                }));
                if reader.is_buffer_empty() {
                    break;
                }
            }
        }
    }

    #[test]
    fn a_directory_that_is_moved_is_watched_where_it_is_now_and_only_there() {
        let top = tempfile::tempdir().expect("a directory");
        let (top, outside) = (top.path(), tempfile::tempdir().expect("another"));
        fs::create_dir_all(top.join("w/a/b")).expect("directories");
        let mut watch = Watch::of_directory(&top.join("w"), Reach::Tree).expect("a watch");
        fs::rename(top.join("w/a"), top.join("w/c")).expect("moved");
        assert_eq!(told(&mut watch, top), ["Deleted w/a", "Created w/c", "Created w/c/b"]);
        fs::create_dir(top.join("w/c/b/new")).expect("made");
        assert_eq!(told(&mut watch, top), ["Created w/c/b/new"]);
        fs::create_dir(top.join("w/a")).expect("another of the old name");
        fs::write(top.join("w/a/x"), "").expect("a file");
        let seen = told(&mut watch, top);
        assert!(seen.contains(&"Created w/a/x".to_owned()), "{seen:?}");
        assert!(seen.iter().all(|line| line.contains("w/a")), "{seen:?}");
        let away = outside.path().join("away");
        fs::rename(top.join("w/c"), &away).expect("moved");
        assert_eq!(told(&mut watch, top), ["Deleted w/c"]);
        fs::write(away.join("b/file"), "").expect("a file");
        assert!(told(&mut watch, top).is_empty(), "it is watched no more");
        assert_eq!(watch.directories.len(), 2, "{:?}", watch.directories);
    }

    #[test]
    fn a_watch_ends_when_what_it_watches_is_moved_away() {
        let top = tempfile::tempdir().expect("a directory");
        let top = top.path();
        fs::create_dir_all(top.join("w/a")).expect("directories");
        fs::write(top.join("w/file"), "").expect("a file");
        let mut watch = Watch::of_directory(&top.join("w"), Reach::Tree).expect("a watch");
        let mut of_file = Watch::of_file(&top.join("w/file")).expect("a watch");
        fs::rename(top.join("w"), top.join("v")).expect("moved");
        fs::write(top.join("v/file"), "new").expect("written");
        assert_eq!(told(&mut watch, top), ["Gone w"]);
        assert_eq!(told(&mut of_file, top), ["Gone w/file"]);
        assert!(watch.directories.is_empty() && of_file.directories.is_empty());
    }
}
