//! The result of copying a workspace, on a real file system.

use std::fs::{self, File};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::layer;
use sandkeep_tree::{OPAQUE, Root, archive::building::Tar};

const USER: FileOwner = FileOwner { uid: 1000, gid: 1000 };

/// A volume, and a directory of the host beside it.
struct World {
    top: TempDir,
}

impl World {
    fn new() -> Self {
        let top = tempfile::tempdir().unwrap();
        for name in ["host", "volume", "upper", "work", "low", "high"] {
            fs::create_dir(top.path().join(name)).unwrap();
        }
        Self { top }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.top.path().join(path)
    }

    fn make_dir(&self, path: &str) -> PathBuf {
        fs::create_dir_all(self.path(path)).unwrap();
        self.path(path)
    }

    fn plain(&self) -> Root {
        Root::Dir(self.path("volume"))
    }

    fn overlay(&self) -> Root {
        let lowers = vec![self.path("low"), self.path("high")];
        Root::Overlay { lowers, upper: self.path("upper"), work: self.path("work") }
    }

    fn copy(&self, path: &str) -> Result<Copied, WorkspaceError> {
        let place = WorkspaceDir::make(&self.plain(), path, USER)?;
        let host = OwnedFd::from(File::open(self.path("host")).unwrap());
        copy(host, &place, USER, &layer::SpaceCheck::endless(), &CancellationToken::new())
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn assert_users(path: &Path) {
    let found = fs::symlink_metadata(path).unwrap();
    if is_root() {
        assert_eq!((found.uid(), found.gid()), (1000, 1000), "{}", path.display());
    }
}

#[test]
fn a_copy_has_the_bytes_modes_times_links_and_holes_of_the_host_and_is_the_users() {
    let world = World::new();
    let deep = world.make_dir("host/a/b");
    fs::write(deep.join("tool"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(deep.join("tool"), fs::Permissions::from_mode(0o4755)).unwrap();
    fs::hard_link(deep.join("tool"), world.path("host/same")).unwrap();
    symlink("/etc/passwd", world.path("host/link")).unwrap();
    symlink("nowhere", deep.join("dangling")).unwrap();
    let sparse = File::create(world.path("host/sparse")).unwrap();
    sparse.set_len(64 << 20).unwrap();
    sparse.write_all_at(b"middle", 32 << 20).unwrap();
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    File::open(deep.join("tool")).unwrap().set_modified(then).unwrap();
    File::open(&deep).unwrap().set_modified(then).unwrap();
    let copied = world.copy("/home/user/work").unwrap();
    assert_eq!((copied.entries, copied.skipped), (7, 0));
    let work = world.path("volume/home/user/work");
    assert_eq!(fs::read(work.join("a/b/tool")).unwrap(), b"#!/bin/sh\n");
    let tool = fs::metadata(work.join("a/b/tool")).unwrap();
    assert_eq!(tool.mode() & 0o7777, 0o755, "it acts for nobody else");
    assert_eq!((tool.modified().unwrap(), tool.nlink()), (then, 2));
    assert_eq!(tool.ino(), fs::metadata(work.join("same")).unwrap().ino());
    assert_eq!(fs::metadata(work.join("a/b")).unwrap().modified().unwrap(), then);
    assert_eq!(fs::read_link(work.join("link")).unwrap(), Path::new("/etc/passwd"));
    assert_eq!(fs::read_link(work.join("a/b/dangling")).unwrap(), Path::new("nowhere"));
    let found = fs::metadata(work.join("sparse")).unwrap();
    assert_eq!(found.len(), 64 << 20);
    assert!(found.blocks() * 512 < 1 << 20, "holes stay holes: {} blocks", found.blocks());
    let mut middle = [0; 6];
    File::open(work.join("sparse")).unwrap().read_exact_at(&mut middle, 32 << 20).unwrap();
    assert_eq!(&middle, b"middle");
    for path in ["", "a", "a/b/tool", "link", "sparse"] {
        assert_users(&work.join(path));
    }
    assert_users(&world.path("volume/home/user"));
}

#[test]
fn what_is_no_file_link_or_directory_is_left_out_and_counted() {
    let world = World::new();
    let fifo = world.path("host/fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(world.path("host/socket")).unwrap();
    fs::write(world.path("host/file"), "1").unwrap();
    let copied = world.copy("/home/user/work").unwrap();
    assert_eq!((copied.entries, copied.skipped), (1, 2));
    let names: Vec<_> = fs::read_dir(world.path("volume/home/user/work")).unwrap().collect();
    assert_eq!(names.len(), 1);
}

#[test]
fn a_copy_that_nobody_wants_any_more_ends() {
    let world = World::new();
    fs::write(world.path("host/file"), "1").unwrap();
    let place = WorkspaceDir::make(&world.plain(), "/home/user/work", USER).unwrap();
    let host = OwnedFd::from(File::open(world.path("host")).unwrap());
    let gone = CancellationToken::new();
    gone.cancel();
    let ended = copy(host, &place, USER, &layer::SpaceCheck::endless(), &gone);
    assert!(matches!(ended, Err(WorkspaceError::GivenUp)), "{ended:?}");
}

#[test]
fn directories_of_the_template_stay_as_they_are() {
    let world = World::new();
    let home = world.make_dir("low/home/user");
    fs::set_permissions(&home, fs::Permissions::from_mode(0o750)).unwrap();
    fs::set_permissions(world.path("low/home"), fs::Permissions::from_mode(0o711)).unwrap();
    fs::write(home.join(".profile"), "mine").unwrap();
    if is_root() {
        std::os::unix::fs::chown(&home, Some(1234), Some(5678)).unwrap();
    }
    WorkspaceDir::make(&world.overlay(), "/home/user/work/deep", USER).unwrap();
    let mode = |path: &str| fs::metadata(world.path(path)).unwrap().mode() & 0o7777;
    assert_eq!((mode("upper/home"), mode("upper/home/user")), (0o711, 0o750));
    assert_eq!(mode("upper/home/user/work"), 0o755);
    if is_root() {
        let taken = fs::metadata(world.path("upper/home/user")).unwrap();
        assert_eq!((taken.uid(), taken.gid()), (1234, 5678));
    }
    assert_users(&world.path("upper/home/user/work"));
    assert_users(&world.path("upper/home/user/work/deep"));
    assert!(!world.path("upper/home/user/.profile").exists(), "it shows through");
}

#[test]
fn a_place_in_which_the_template_has_something_is_refused() {
    let world = World::new();
    let app = world.make_dir("low/home/user/app");
    world.make_dir("low/home/user/empty");
    fs::write(app.join("file"), "1").unwrap();
    symlink("/etc", world.path("low/home/user/link")).unwrap();
    fs::write(world.path("low/home/user/file"), "1").unwrap();
    let make = |path: &str| WorkspaceDir::make(&world.overlay(), path, USER);
    assert!(matches!(make("/home/user/app"), Err(WorkspaceError::Occupied { .. })));
    assert!(matches!(make("/home/user"), Err(WorkspaceError::Occupied { .. })));
    for path in ["/home/user/link", "/home/user/link/x", "/home/user/file/x"] {
        assert!(matches!(make(path), Err(WorkspaceError::InTheWay { .. })), "{path}");
    }
    make("/home/user/empty").unwrap();
    make("/home/user/app/other").unwrap();
}

#[test]
fn what_a_higher_layer_hides_is_not_in_the_way() {
    let world = World::new();
    let app = world.make_dir("low/home/user/app");
    fs::write(app.join("file"), "1").unwrap();
    let hidden = world.make_dir("high/home/user/app");
    let opaque = rustix::fs::setxattr(&hidden, OPAQUE, b"y", rustix::fs::XattrFlags::empty());
    if let Err(rustix::io::Errno::OPNOTSUPP) = opaque {
        eprintln!("SKIP: the temporary directory keeps no attributes");
        return;
    }
    opaque.unwrap();
    WorkspaceDir::make(&world.overlay(), "/home/user/app", USER).unwrap();
}

#[test]
fn where_ids_cannot_be_mapped_everything_has_the_shifted_ones() {
    if !is_root() {
        eprintln!("SKIP: only root gives files away");
        return;
    }
    let world = World::new();
    fs::write(world.path("host/file"), "1").unwrap();
    let place =
        WorkspaceDir::make(&Root::Shifted(world.path("volume")), "/home/user/work", USER).unwrap();
    let host = OwnedFd::from(File::open(world.path("host")).unwrap());
    copy(host, &place, USER, &layer::SpaceCheck::endless(), &CancellationToken::new()).unwrap();
    let owner = |path: &str| fs::metadata(world.path(path)).unwrap().uid();
    let shifted = |id| sandkeep_tree::Ids::Shifted.on_disk(id);
    assert_eq!(owner("volume/home"), shifted(0));
    assert_eq!(owner("volume/home/user"), shifted(1000));
    assert_eq!(owner("volume/home/user/work/file"), shifted(1000));
}

#[test]
fn names_in_an_uploaded_archive_mean_nothing_but_themselves() {
    let world = World::new();
    let place = WorkspaceDir::make(&world.plain(), "/home/user/work", USER).unwrap();
    let mut setuid = Tar::header(b'0', "tool", 1);
    setuid.set_mode(0o6755);
    let tar = Tar::new()
        .dir("./")
        .file("kept", "1")
        .file(".wh.kept", "2")
        .file("../../../escape", "3")
        .symlink("out", "/etc")
        .file("out/passwd", "4")
        .entry(setuid, b"x");
    layer::unpack(
        std::io::Cursor::new(tar.end()),
        place.as_fd(),
        place.ids(),
        USER,
        &layer::SpaceCheck::endless(),
    )
    .unwrap();
    let work = world.path("volume/home/user/work");
    let read = |path: &str| fs::read_to_string(work.join(path)).unwrap();
    assert_eq!(
        (read("kept"), read(".wh.kept"), read("escape")),
        ("1".into(), "2".into(), "3".into())
    );
    assert!(!world.path("escape").exists() && !world.path("volume/escape").exists());
    assert_eq!(read("etc/passwd"), "4", "links lead no further than the workspace");
    assert_eq!(fs::metadata(work.join("tool")).unwrap().mode() & 0o7777, 0o755);
    for path in ["", "kept", "out", "tool"] {
        assert_users(&work.join(path));
    }
}

#[test]
fn what_is_no_archive_is_refused() {
    let world = World::new();
    let place = WorkspaceDir::make(&world.plain(), "/home/user/work", USER).unwrap();
    let bytes = std::io::Cursor::new(vec![b'x'; 2048]);
    let refused =
        layer::unpack(bytes, place.as_fd(), place.ids(), USER, &layer::SpaceCheck::endless());
    assert!(refused.is_err(), "{refused:?}");
}
