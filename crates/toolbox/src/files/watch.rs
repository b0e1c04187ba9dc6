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
    let mut watch = match found.is_dir() {
        true => Watch::of_directory(root, reach)?,
        false => Watch::of_file(root)?,
    };
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

    /// Translates an event of the kernel.
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
        // A temporary file is reported when it gets its final name.
        let unfinished = |name: &RawPath| name.as_bytes().starts_with(TEMPORARY.as_bytes());
        if name.as_ref().is_some_and(unfinished) || (self.only.is_some() && self.only != name) {
            return Vec::new();
        }
        let path = name.map_or_else(|| directory.clone(), |name| directory.join(name));
        let Some(kind) = kind_of(flags) else { return Vec::new() };
        let mut changes = vec![change(kind, &path)];
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
    } else if any(ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF) {
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
