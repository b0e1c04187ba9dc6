//! What each permission means for each operation.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};

use rustix::fs::{AtFlags, CWD, RenameFlags, Timestamps, XattrFlags};
use rustix::io::Errno;
use sandkeep_core::rules::Permission::{None as Hidden, Read as Readable, View, Write as Writable};
use sandkeep_rulefs::{Action, Ids, Mode};
use sandkeep_sys::namespace::{self, ChildStack, IdMap};

use crate::ground::{Ground, both, errno, everything, rules};
use crate::tests;

tests!(semantics:
    hidden_files_do_not_exist,
    viewed_files_have_attributes_and_no_contents,
    readable_files_cannot_be_changed_in_any_way,
    writable_files_can_be_changed_in_every_way,
    directories_show_the_way_to_what_is_visible_and_nothing_else,
    hidden_names_cannot_be_created_whether_or_not_they_exist,
    directories_move_only_where_nothing_below_changes,
    links_need_write_at_both_ends,
    ids_are_those_of_the_sandbox,
    a_mount_can_be_id_mapped_instead,
    extended_attributes_are_those_of_users,
    large_directories_are_listed_completely,
    refusals_are_recorded,
);

const LEVELS: [(&str, sandkeep_core::rules::Permission, i32); 4] =
    [("none", Hidden, 0), ("view", View, 0), ("read", Readable, 0), ("write", Writable, 0)];

fn levels(mode: Mode) -> Ground {
    Ground::new(mode, &rules(&LEVELS), &["none/a", "view/a", "read/a", "write/a", "other"])
}

fn hidden_files_do_not_exist() {
    both(|mode| {
        let rules = rules(&[("**/*", Writable, 0), ("**/.env*", Hidden, 1), ("secret", Hidden, 1)]);
        let ground = Ground::new(mode, &rules, &[".env", "a/.env.local", "secret/x", "b"]);
        assert_eq!(ground.list(""), ["a", "b"]);
        assert_eq!(ground.list("a"), [] as [&str; 0]);
        for path in [".env", "a/.env.local", "secret", "secret/x"] {
            let at = ground.at(path);
            assert_eq!(errno(fs::symlink_metadata(&at)), Errno::NOENT, "{path}");
            assert_eq!(errno(File::open(&at)), Errno::NOENT, "{path}");
            assert_eq!(errno(fs::read_link(&at)), Errno::NOENT, "{path}");
            assert_eq!(errno(fs::rename(ground.at("b"), &at)), expected_new(path), "{path}");
        }
        assert_eq!(fs::read(ground.below(".env")).unwrap(), b".env", "nothing has changed");
        // A directory with hidden contents is not empty, and says no more.
        assert_eq!(errno(fs::remove_dir(ground.at("a"))), Errno::NOTEMPTY);
    });
}

/// A new name below a hidden directory has no directory.
fn expected_new(path: &str) -> Errno {
    if path == "secret/x" { Errno::NOENT } else { Errno::ACCESS }
}

fn viewed_files_have_attributes_and_no_contents() {
    both(|mode| {
        let ground = levels(mode);
        assert_eq!(ground.list("view"), ["a"]);
        let file = ground.at("view/a");
        assert_eq!(fs::metadata(&file).unwrap().len(), 6);
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0);
        assert_eq!(errno(File::open(&file)), Errno::ACCESS);
        assert_eq!(errno(OpenOptions::new().write(true).open(&file)), Errno::ACCESS);
        assert_eq!(errno(fs::copy(&file, ground.at("write/b"))), Errno::ACCESS);
        assert_eq!(errno(fs::remove_file(&file)), Errno::ACCESS);
    });
}

fn readable_files_cannot_be_changed_in_any_way() {
    both(|mode| {
        let ground = levels(mode);
        let file = ground.at("read/a");
        assert_eq!(fs::read(&file).unwrap(), b"read/a");
        let is_refused = |errno: Errno| [Errno::ACCESS, Errno::PERM].contains(&errno);
        let mut refused = Vec::new();
        let mut try_it = |what: &'static str, result: std::io::Result<()>| {
            let errno = errno(result);
            assert!(is_refused(errno), "{what}: {errno}");
            refused.push(what);
        };
        let append = OpenOptions::new().append(true).open(&file);
        try_it("append", append.map(drop));
        try_it("write", OpenOptions::new().write(true).open(&file).map(drop));
        let both = OpenOptions::new().read(true).write(true).open(&file);
        try_it("read and write", both.map(drop));
        let truncated = rustix::fs::open(
            &file,
            rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::TRUNC,
            rustix::fs::Mode::empty(),
        );
        try_it("truncate while opening", truncated.map(drop).map_err(Into::into));
        try_it("chmod", fs::set_permissions(&file, fs::Permissions::from_mode(0o777)));
        try_it("chown", std::os::unix::fs::chown(&file, Some(1), Some(1)));
        let now = rustix::fs::Timespec { tv_sec: 1, tv_nsec: 0 };
        let times = Timestamps { last_access: now, last_modification: now };
        let set = rustix::fs::utimensat(CWD, &file, &times, AtFlags::empty());
        try_it("utimens", set.map_err(Into::into));
        let set = rustix::fs::setxattr(&file, "user.a", b"b", XattrFlags::empty());
        try_it("setxattr", set.map_err(Into::into));
        let removed = rustix::fs::removexattr(&file, "user.a");
        try_it("removexattr", removed.map_err(Into::into));
        try_it("unlink", fs::remove_file(&file));
        try_it("rename away", fs::rename(&file, ground.at("write/b")));
        try_it("rename onto", fs::rename(ground.at("write/a"), &file));
        try_it("link", fs::hard_link(&file, ground.at("write/b")));
        try_it("create", File::create(ground.at("read/new")).map(drop));
        try_it("mkdir", fs::create_dir(ground.at("read/new")));
        try_it("symlink", symlink("x", ground.at("read/new")));
        try_it("rmdir", fs::remove_dir(ground.at("read")));
        try_it("rename the directory", fs::rename(ground.at("read"), ground.at("write/r")));
        let opened = File::open(&file).unwrap();
        try_it("fchmod", opened.set_permissions(fs::Permissions::from_mode(0o600)));
        assert!(opened.set_len(0).is_err());
        assert_eq!(refused.len(), 19);
        assert_eq!(fs::read(ground.below("read/a")).unwrap(), b"read/a");
        assert_eq!(fs::read_dir(ground.below("read")).unwrap().count(), 1);
    });
}

fn writable_files_can_be_changed_in_every_way() {
    both(|mode| {
        let ground = levels(mode);
        let file = ground.at("write/a");
        let mut opened = OpenOptions::new().read(true).append(true).open(&file).unwrap();
        opened.write_all(b" and more").unwrap();
        opened.sync_all().unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"write/a and more");
        assert_eq!(fs::read(ground.below("write/a")).unwrap(), b"write/a and more");
        opened.set_len(5).unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"write");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(fs::metadata(ground.below("write/a")).unwrap().mode() & 0o7777, 0o640);
        std::os::unix::fs::chown(&file, Some(7), Some(8)).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().uid(), 7);
        let time = rustix::fs::Timespec { tv_sec: 1_000_000, tv_nsec: 5 };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, &file, &times, AtFlags::empty()).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().mtime(), 1_000_000);
        fs::hard_link(&file, ground.at("write/b")).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().nlink(), 2);
        fs::remove_file(&file).unwrap();
        opened.write_all(b"!").unwrap();
        assert_eq!(fs::read(ground.at("write/b")).unwrap(), b"write!");
        fs::remove_file(ground.at("write/b")).unwrap();
        // A file without a name is still there for those who have it open.
        opened.write_all(b"?").unwrap();
        let mut all = [0; 7];
        opened.read_exact_at(&mut all, 0).unwrap();
        assert_eq!(&all, b"write!?");
        symlink("../read/a", ground.at("write/link")).unwrap();
        assert_eq!(fs::read(ground.at("write/link")).unwrap(), b"read/a");
        fs::create_dir(ground.at("write/d")).unwrap();
        fs::write(ground.at("write/d/x"), "x").unwrap();
        fs::rename(ground.at("write/d"), ground.at("write/e")).unwrap();
        assert_eq!(fs::read(ground.at("write/e/x")).unwrap(), b"x");
        let (one, other) = (ground.at("write/e"), ground.at("write/link"));
        rustix::fs::renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE).unwrap();
        assert_eq!(fs::read(ground.at("write/link/x")).unwrap(), b"x");
        assert_eq!(fs::read_link(&one).unwrap().to_str(), Some("../read/a"));
        let status = rustix::fs::mknodat(
            CWD,
            ground.at("write/dev"),
            rustix::fs::FileType::CharacterDevice,
            rustix::fs::Mode::RWXU,
            259,
        );
        assert_eq!(status, Err(Errno::PERM));
    });
}

fn directories_show_the_way_to_what_is_visible_and_nothing_else() {
    both(|mode| {
        let rules = rules(&[
            ("a/b/c.md", Readable, 0),
            ("**/*.txt", View, 0),
            ("p/**", Hidden, 5),
            ("p/q/open", Writable, 6),
        ]);
        let files = [
            "a/b/c.md",
            "a/b/d.md",
            "a/x",
            "deep/er/t.txt",
            "deep/no/u",
            "empty/",
            "p/q/open",
            "p/z",
        ];
        let ground = Ground::new(mode, &rules, &files);
        assert_eq!(ground.list(""), ["a", "deep", "p"]);
        assert_eq!(ground.list("a"), ["b"]);
        assert_eq!(ground.list("a/b"), ["c.md"]);
        assert_eq!(ground.list("deep"), ["er"]);
        assert_eq!(ground.list("p"), ["q"]);
        assert_eq!(errno(fs::metadata(ground.at("deep/no"))), Errno::NOENT);
        assert_eq!(errno(fs::metadata(ground.at("empty"))), Errno::NOENT);
        assert_eq!(errno(fs::metadata(ground.at("p/z"))), Errno::NOENT);
        fs::write(ground.at("p/q/open"), "changed").unwrap();
        assert_eq!(errno(fs::remove_dir(ground.at("deep"))), Errno::ACCESS);
        assert_eq!(errno(File::create(ground.at("p/q/more"))), Errno::ACCESS);
    });
}

fn hidden_names_cannot_be_created_whether_or_not_they_exist() {
    both(|mode| {
        let rules = rules(&[("**/*", Writable, 0), ("**/*.key", Hidden, 1)]);
        let ground = Ground::new(mode, &rules, &["there.key", "a"]);
        for name in ["there.key", "new.key"] {
            let at = ground.at(name);
            assert_eq!(errno(File::create(&at)), Errno::ACCESS);
            assert_eq!(errno(fs::create_dir(&at)), Errno::ACCESS);
            assert_eq!(errno(symlink("a", &at)), Errno::ACCESS);
            assert_eq!(errno(fs::hard_link(ground.at("a"), &at)), Errno::ACCESS);
            assert_eq!(errno(fs::rename(ground.at("a"), &at)), Errno::ACCESS);
            assert_eq!(errno(fs::remove_file(&at)), Errno::NOENT);
        }
        assert_eq!(fs::read(ground.below("there.key")).unwrap(), b"there.key");
        assert!(!ground.below("new.key").exists());
    });
}

fn directories_move_only_where_nothing_below_changes() {
    both(|mode| {
        let rules = rules(&[("**/*", Writable, 0), ("keep/*/x", Readable, 1)]);
        let ground = Ground::new(mode, &rules, &["keep/d/x", "e/x", "f/"]);
        fs::rename(ground.at("e"), ground.at("f/e")).unwrap();
        assert_eq!(fs::read(ground.at("f/e/x")).unwrap(), b"e/x");
        // Below its new place x would be protected, and below its old one it would not be.
        assert_eq!(errno(fs::rename(ground.at("f/e"), ground.at("keep/e"))), Errno::XDEV);
        assert_eq!(errno(fs::rename(ground.at("keep/d"), ground.at("d"))), Errno::XDEV);
        assert_eq!(
            errno(OpenOptions::new().write(true).open(ground.at("keep/d/x"))),
            Errno::ACCESS
        );
        // Programs copy instead, and the rules hold for every file.
        assert!(!ground.sh("mv keep/d moved").status.success());
        assert_eq!(fs::read(ground.at("keep/d/x")).unwrap(), b"keep/d/x");
    });
}

fn links_need_write_at_both_ends() {
    both(|mode| {
        let ground = levels(mode);
        let link = |from: &str, to: &str| fs::hard_link(ground.at(from), ground.at(to));
        assert_eq!(errno(link("read/a", "write/b")), Errno::ACCESS);
        assert_eq!(errno(link("write/a", "read/b")), Errno::ACCESS);
        assert_eq!(errno(link("view/a", "write/b")), Errno::ACCESS);
        link("write/a", "write/b").unwrap();
    });
}

fn ids_are_those_of_the_sandbox() {
    both(|mode| {
        let ids = Ids { disk_base: 0, shown_base: 700_000, count: 65_536 };
        let ground = Ground::with_ids(mode, &everything(), &["a"], ids);
        std::os::unix::fs::chown(ground.below("a"), Some(1000), Some(1001)).unwrap();
        std::os::unix::fs::chown(ground.below(""), Some(1000), Some(1000)).unwrap();
        let seen = fs::metadata(ground.at("a")).unwrap();
        assert_eq!((seen.uid(), seen.gid()), (701_000, 701_001));
        // A user of the sandbox makes a file, which is theirs on disk.
        let made = std::process::Command::new("setpriv")
            .args([
                "--reuid=701000",
                "--regid=701002",
                "--clear-groups",
                "sh",
                "-ec",
                "echo x > new; mkdir d",
            ])
            .current_dir(ground.root())
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        for name in ["new", "d"] {
            let below = fs::metadata(ground.below(name)).unwrap();
            assert_eq!((below.uid(), below.gid()), (1000, 1002), "{name}");
        }
        // Somebody without an id there cannot leave files to nobody.
        let overflow = Some(Errno::OVERFLOW.raw_os_error());
        let made = File::create(ground.at("by-root")).unwrap_err();
        assert_eq!(made.raw_os_error(), overflow);
        let given = std::os::unix::fs::chown(ground.at("a"), Some(5), None).unwrap_err();
        assert_eq!(given.raw_os_error(), overflow);
    });
}

fn a_mount_can_be_id_mapped_instead() {
    both(|mode| {
        let ids = Ids { disk_base: 0, shown_base: 0, count: 65_536 };
        let rules = rules(&[("**/*", Writable, 0), ("r", Readable, 1)]);
        let map = |mount: &std::os::fd::OwnedFd| {
            let proc = crate::ground::directory("/proc".as_ref());
            let mut stack = ChildStack::new(64 * 1024);
            let users = namespace::user(proc.as_fd(), &mut stack, IdMap::range(900_000)).unwrap();
            let attributes = rustix::mount::MountAttrFlags::empty();
            sandkeep_sys::mount::set_id_map(mount, attributes, users).unwrap();
        };
        let ground = Ground::prepared(mode, &rules, &["a", "r"], (ids, map));
        std::os::unix::fs::chown(ground.below(""), Some(1000), Some(1000)).unwrap();
        assert_eq!(fs::metadata(ground.at("a")).unwrap().uid(), 900_000);
        let made = std::process::Command::new("setpriv")
            .args(["--reuid=901000", "--regid=901000", "--clear-groups", "sh", "-ec"])
            .arg("echo x > new; cat new r; ! echo y > r")
            .current_dir(ground.root())
            .output()
            .unwrap();
        assert_eq!(
            (made.status.success(), crate::ground::text(&made.stdout)),
            (true, "x\nr".to_owned()),
            "{made:?}"
        );
        assert_eq!(fs::metadata(ground.below("new")).unwrap().uid(), 1000);
    });
}

fn extended_attributes_are_those_of_users() {
    both(|mode| {
        let ground = levels(mode);
        let file = ground.at("write/a");
        let set = |path: &std::path::Path, name: &str| {
            rustix::fs::setxattr(path, name, b"value", XattrFlags::empty())
        };
        set(&file, "user.a").unwrap();
        set(&ground.below("read/a"), "user.b").unwrap();
        set(&ground.below("view/a"), "user.c").unwrap();
        set(&ground.below("write/a"), "trusted.host").unwrap();
        let mut value = [0; 16];
        assert_eq!(rustix::fs::getxattr(&file, "user.a", &mut value), Ok(5));
        assert_eq!(rustix::fs::getxattr(ground.at("read/a"), "user.b", &mut value), Ok(5));
        let viewed = rustix::fs::getxattr(ground.at("view/a"), "user.c", &mut value);
        assert_eq!(viewed, Err(Errno::ACCESS));
        let mut names = [0; 64];
        let len = rustix::fs::listxattr(&file, &mut names).unwrap();
        assert_eq!(&names[..len], b"user.a\0");
        assert_eq!(set(&file, "trusted.x"), Err(Errno::OPNOTSUPP));
        assert_eq!(set(&file, "security.other"), Err(Errno::OPNOTSUPP));
        rustix::fs::removexattr(&file, "user.a").unwrap();
    });
}

fn large_directories_are_listed_completely() {
    both(|mode| {
        let files: Vec<String> = (0..3_000)
            .map(|n| if n % 3 == 0 { format!("d/secret-{n}") } else { format!("d/file-{n}") })
            .collect();
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        let rules = rules(&[("**/*", Writable, 0), ("**/secret-*", Hidden, 1)]);
        let ground = Ground::new(mode, &rules, &files);
        for _ in 0..2 {
            let names = ground.list("d");
            assert_eq!(names.len(), 2_000);
            assert!(names.iter().all(|name| name.starts_with("file-")));
        }
        let with_attributes = ground.sh_ok("ls -l d | grep -c file-");
        assert_eq!(with_attributes.trim(), "2000");
    });
}

fn refusals_are_recorded() {
    both(|mode| {
        let ground = levels(mode);
        assert_eq!(errno(fs::create_dir(ground.at("read/new"))), Errno::ACCESS);
        let moved = fs::rename(ground.at("write/a"), ground.at("view/b"));
        assert_eq!(errno(moved), Errno::ACCESS);
        let refusals = ground.runtime.block_on(ground.server.refusals()).unwrap();
        let [made, moved] = &refusals.newest[..] else { panic!("{refusals:?}") };
        assert_eq!(
            (&made.path[..], made.action, made.permission),
            (&b"read/new"[..], Action::Create, Readable)
        );
        assert_eq!((&moved.path[..], moved.action), (&b"view/b"[..], Action::Rename));
        assert_eq!(made.pid, std::process::id());
        let again = ground.runtime.block_on(ground.server.refusals()).unwrap();
        assert!(again.newest.is_empty());
        // Bounded, and the rest is counted.
        for n in 0..70 {
            assert!(fs::create_dir(ground.at(&format!("read/{n}"))).is_err());
        }
        let many = ground.runtime.block_on(ground.server.refusals()).unwrap();
        assert_eq!((many.newest.len(), many.omitted), (64, 6));
    });
}
