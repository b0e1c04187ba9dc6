//! A tree, its mount and its server.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use rustix::fs::{Mode as FileMode, OFlags};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use sandkeep_core::rules::{Permission, Rule, Rules};
use sandkeep_rulefs::{Ids, Mode, Server, Start, Writers};
use sandkeep_sys::board::Board;

pub use crate::wait::wait_until;

pub const SERVER: &str = "serve-a-directory";

pub struct Ground {
    dir: tempfile::TempDir,
    tree: PathBuf,
    board: Arc<Board>,
    pub server: Server,
    pub runtime: tokio::runtime::Runtime,
}

pub fn rules(rows: &[(&str, Permission, i32)]) -> Rules {
    let rule = |(pattern, permission, priority): &(&str, Permission, i32)| {
        Rule::new(*pattern, *permission).with_priority(*priority)
    };
    Rules::new(rows.iter().map(rule).collect()).unwrap()
}

pub fn everything() -> Rules {
    rules(&[("**/*", Permission::Write, 0)])
}

pub fn both(test: impl Fn(Mode)) {
    for mode in [Mode::ZeroMessage, Mode::Passthrough] {
        test(mode);
    }
}

impl Ground {
    /// Files, whose content is their own path; a path that ends with `/` is a directory.
    pub fn new(mode: Mode, rules: &Rules, files: &[&str]) -> Self {
        Self::with_ids(mode, rules, files, Ids::SAME)
    }

    pub fn with_ids(mode: Mode, rules: &Rules, files: &[&str], ids: Ids) -> Self {
        Self::prepared(mode, rules, files, (ids, |_| {}))
    }

    /// The last is done to the mount before it is attached.
    pub fn prepared(
        mode: Mode,
        rules: &Rules,
        files: &[&str],
        (ids, prepare): (Ids, impl FnOnce(&OwnedFd)),
    ) -> Self {
        let dir = place();
        let tree = dir.path().join("tree");
        std::fs::create_dir(&tree).unwrap();
        for file in files {
            let path = tree.join(file);
            if file.ends_with('/') {
                std::fs::create_dir_all(&path).unwrap()
            } else {
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(&path, file).unwrap();
            }
        }
        let board = Arc::new(Board::create().unwrap());
        Self::mounted(dir, (tree, board), (mode, Writers::Tell), rules, (ids, prepare))
    }

    /// Another mount of the same tree.
    pub fn beside(&self, mode: Mode, writers: Writers, rules: &Rules) -> Self {
        self.board.share();
        let shared = (self.tree.clone(), Arc::clone(&self.board));
        Self::mounted(place(), shared, (mode, writers), rules, (Ids::SAME, |_| {}))
    }

    fn mounted(
        dir: tempfile::TempDir,
        (tree, board): (PathBuf, Arc<Board>),
        (mode, writers): (Mode, Writers),
        rules: &Rules,
        (ids, prepare): (Ids, impl FnOnce(&OwnedFd)),
    ) -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let home = directory(&dir.path().join("home"));
        let start = Start {
            command: &[OsString::from("/proc/self/exe"), OsString::from(SERVER)],
            tree: &tree,
            rules,
            mode,
            ids,
            board: &board,
            writers,
            home: home.as_fd(),
            socket: "rulefs",
        };
        let (server, mount) = runtime.block_on(Server::start(start)).unwrap();
        prepare(&mount);
        sandkeep_sys::mount::attach(mount, dir.path().join("mnt")).unwrap();
        Self { dir, tree, board, server, runtime }
    }

    pub fn home(&self) -> OwnedFd {
        directory(&self.dir.path().join("home"))
    }

    /// A path in the mount.
    pub fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join("mnt").join(path)
    }

    /// The same path in the tree below.
    pub fn below(&self, path: &str) -> PathBuf {
        self.tree.join(path)
    }

    pub fn root(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    pub fn replace(&self, rules: &Rules) -> sandkeep_rulefs::Replaced {
        self.runtime.block_on(self.server.replace_rules(rules)).unwrap()
    }

    pub fn list(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.at(path)).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Runs a shell script in the mount.
    pub fn sh(&self, script: &str) -> Output {
        let mut command = Command::new("sh");
        command.arg("-ec").arg(script).current_dir(self.root());
        command.env("HOME", self.dir.path()).output().unwrap()
    }

    #[track_caller]
    pub fn sh_ok(&self, script: &str) -> String {
        let output = self.sh(script);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{script}\n{}\n{out}{err}", output.status);
        out
    }
}

fn place() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(dir.path(), open).unwrap();
    for name in ["mnt", "home"] {
        std::fs::create_dir(dir.path().join(name)).unwrap();
    }
    dir
}

impl Drop for Ground {
    fn drop(&mut self) {
        let _ = unmount(self.root(), UnmountFlags::DETACH);
        let _ = self.runtime.block_on(self.server.stop());
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub fn directory(path: &Path) -> OwnedFd {
    rustix::fs::open(path, OFlags::DIRECTORY | OFlags::CLOEXEC, FileMode::empty()).unwrap()
}

/// What an operation failed with.
#[track_caller]
pub fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> Errno {
    let error = result.expect_err("it must fail");
    match Errno::from_io_error(&error) {
        // These tests are root of the host, which has power over every owner but an invalid one. In the user namespace
        // of a sandbox it is EACCES: see `a_sandbox_gets_eacces_even_as_root`.
        Some(Errno::OVERFLOW) => Errno::ACCESS,
        Some(errno) => errno,
        None => panic!("{error}"),
    }
}
