//! Ways around the rules. Each must fail.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, CWD, Mode as FileMode, OFlags, linkat, open, openat};
use rustix::io::Errno;
use sandkeep_core::rules::Permission::{None as Hidden, Read as Readable, View, Write as Writable};
use sandkeep_rulefs::{Effect, Ids, Mode};
use sandkeep_sys::namespace::{self, ChildStack, IdMap};

use crate::ground::{Ground, both, errno, everything, rules, text};
use crate::tests;

tests!(escapes:
    a_sandbox_gets_eacces_even_as_root,
    hard_links_made_outside_give_each_name_its_own_permission,
    links_out_of_the_tree_are_not_followed_by_the_server,
    a_descriptor_cannot_be_reopened_for_more,
    a_path_descriptor_opens_nothing,
    file_handles_are_refused,
    open_files_and_mappings_obey_new_rules,
    passthrough_obeys_new_rules_with_the_next_open,
    what_can_only_be_viewed_cannot_be_executed,
    twins_in_case_or_unicode_are_other_files,
    inotify_names_nothing_hidden,
    renames_race_against_opens_in_vain,
    nameless_files_get_no_forbidden_name,
    directories_known_from_before_are_closed,
);

/// Runs a script in a user namespace whose root is `base` on the host.
fn in_user_namespace(ground: &Ground, base: u32, uid: u32, script: &str) -> String {
    let proc = crate::ground::directory("/proc".as_ref());
    let mut stack = ChildStack::new(64 * 1024);
    let users = namespace::user(proc.as_fd(), &mut stack, IdMap::range(base)).unwrap();
    let users = format!("--user=/proc/{}/fd/{}", std::process::id(), users.as_raw_fd());
    let output = Command::new("nsenter")
        .args([
            OsString::from(users),
            format!("--setuid={uid}").into(),
            format!("--setgid={uid}").into(),
        ])
        .args(["bash", "-c", script])
        .current_dir(ground.root())
        .output()
        .unwrap();
    text(&output.stdout) + &text(&output.stderr)
}

fn a_sandbox_gets_eacces_even_as_root() {
    both(|mode| {
        let ids = Ids { disk_base: 0, shown_base: 800_000, count: 65_536 };
        let rules =
            rules(&[("v", View, 0), ("r", Readable, 0), ("w", Writable, 0), ("d", Readable, 0)]);
        let ground = Ground::with_ids(mode, &rules, &["v", "r", "w", "d/x"], ids);
        for path in ["v", "r", "w", "d", "d/x", ""] {
            std::os::unix::fs::chown(ground.below(path), Some(1000), Some(1000)).unwrap();
            fs::set_permissions(ground.below(path), fs::Permissions::from_mode(0o777)).unwrap();
        }
        let script = "
            t() { ( eval \"$1\" ) > /dev/null 2> /tmp/rulefs-$$ && echo \"done: $1\" || { grep -qE 'Permission denied|not permitted' /tmp/rulefs-$$ || { echo \"other: $1\"; cat /tmp/rulefs-$$; }; }; rm -f /tmp/rulefs-$$; }
            t 'cat v'; t 'echo x > v'; t 'echo x >> r'; t 'truncate -s 0 r'; t 'chmod 777 r'; t 'chmod 777 v'
            t 'rm -f r'; t 'rm -f v'; t 'mv r w'; t 'mv w r'; t 'ln r l'; t 'ln w n/l'; t 'mkdir x'; t 'echo > d/new'
            t 'rm -f d/x'; t 'mv d e'; t 'touch -d 2001-01-01 r'; t 'chmod 700 d'; t 'rm -rf d'
            cat r; echo y > w; cat w; stat -c %u w";
        for uid in [0, 1000] {
            let said =
                in_user_namespace(&ground, 800_000, uid, &script.replace("t 'ln w n/l'; ", ""));
            assert_eq!(said, "ry\n1000\n", "as {uid}");
        }
    });
}

fn hard_links_made_outside_give_each_name_its_own_permission() {
    both(|mode| {
        let rules = rules(&[
            ("w/*", Writable, 0),
            ("r/*", Readable, 0),
            ("v/*", View, 0),
            ("h/*", Hidden, 0),
        ]);
        let ground = Ground::new(mode, &rules, &["w/a", "r/", "v/", "h/"]);
        for dir in ["r", "v", "h"] {
            fs::hard_link(ground.below("w/a"), ground.below(&format!("{dir}/a"))).unwrap();
        }
        assert_eq!(errno(OpenOptions::new().write(true).open(ground.at("r/a"))), Errno::ACCESS);
        assert_eq!(errno(File::open(ground.at("v/a"))), Errno::ACCESS);
        assert_eq!(errno(File::open(ground.at("h/a"))), Errno::NOENT);
        let mut writer = OpenOptions::new().write(true).open(ground.at("w/a")).unwrap();
        // In every order of knowing the names.
        assert_eq!(errno(OpenOptions::new().write(true).open(ground.at("r/a"))), Errno::ACCESS);
        assert_eq!(
            errno(fs::set_permissions(ground.at("r/a"), fs::Permissions::from_mode(0o777))),
            Errno::ACCESS
        );
        assert_eq!(fs::read(ground.at("r/a")).unwrap(), b"w/a");
        // A write through one name is soon seen through the other.
        writer.write_all(b"new").unwrap();
        crate::ground::wait_until("the other name shows it", || {
            fs::read(ground.at("r/a")).unwrap() == b"new"
        });
    });
}

fn links_out_of_the_tree_are_not_followed_by_the_server() {
    both(|mode| {
        let ground = Ground::new(mode, &everything(), &["dir/a"]);
        symlink("/etc", ground.at("out")).unwrap();
        symlink("../../../../../../etc/hostname", ground.at("dir/up")).unwrap();
        symlink("dir", ground.at("in")).unwrap();
        symlink("in", ground.at("in2")).unwrap();
        assert_eq!(fs::read(ground.at("in2/a")).unwrap(), b"dir/a");
        assert_eq!(fs::read_link(ground.at("out")).unwrap().to_str(), Some("/etc"));
        // A link takes the place of a directory that the server knows; outside, nobody tells it.
        fs::rename(ground.below("dir"), ground.below("moved")).unwrap();
        symlink("/etc", ground.below("dir")).unwrap();
        fs::write(ground.root().parent().unwrap().join("outside"), "outside").unwrap();
        let read = fs::read(ground.at("dir/hostname"));
        let host = fs::read("/etc/hostname").unwrap_or_default();
        // Following it is up to the kernel of the reader, in the reader's own root: never to the server.
        assert!(read.is_err() || read.unwrap() == host);
        assert!(!ground.below("moved/hostname").exists());
    });
}

fn a_descriptor_cannot_be_reopened_for_more() {
    both(|mode| {
        let ground = Ground::new(mode, &rules(&[("r", Readable, 0)]), &["r"]);
        let opened = File::open(ground.at("r")).unwrap();
        let again = format!("/proc/self/fd/{}", opened.as_raw_fd());
        assert_eq!(errno(OpenOptions::new().write(true).open(&again)), Errno::ACCESS);
        assert_eq!(errno(OpenOptions::new().read(true).append(true).open(&again)), Errno::ACCESS);
        assert_eq!(fs::read(again).unwrap(), b"r");
    });
}

fn a_path_descriptor_opens_nothing() {
    both(|mode| {
        let ground = Ground::new(mode, &rules(&[("v", View, 0)]), &["v", "h"]);
        let path = open(ground.at("v"), OFlags::PATH, FileMode::empty()).unwrap();
        let again = format!("/proc/self/fd/{}", path.as_raw_fd());
        assert_eq!(errno(File::open(&again)), Errno::ACCESS);
        let linked = linkat(CWD, &again, CWD, ground.at("new"), AtFlags::SYMLINK_FOLLOW);
        assert_eq!(errno(linked.map_err(Into::into)), Errno::ACCESS);
        assert_eq!(
            open(ground.at("h"), OFlags::PATH, FileMode::empty()).unwrap_err(),
            Errno::NOENT
        );
        // Not even over a directory's descriptor.
        let root =
            open(ground.root(), OFlags::PATH | OFlags::DIRECTORY, FileMode::empty()).unwrap();
        assert_eq!(
            openat(&root, "h", OFlags::RDONLY, FileMode::empty()).unwrap_err(),
            Errno::NOENT
        );
    });
}

fn file_handles_are_refused() {
    both(|mode| {
        let ground = Ground::new(mode, &rules(&[("r", Readable, 0)]), &["r", "h"]);
        let script = "
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
class H(ctypes.Structure): _fields_ = [('bytes', ctypes.c_uint), ('type', ctypes.c_int), ('data', ctypes.c_char * 128)]
h, m = H(128, 0), ctypes.c_int()
got = libc.name_to_handle_at(-100, b'r', ctypes.byref(h), ctypes.byref(m), 0)
root = os.open('.', os.O_RDONLY)
opened = libc.open_by_handle_at(root, ctypes.byref(h), os.O_RDWR) if got == 0 else -1
print('opened' if opened >= 0 else 'refused')";
        fs::write(ground.root().parent().unwrap().join("handle.py"), script).unwrap();
        assert_eq!(ground.sh_ok("python3 ../handle.py").trim(), "refused");
    });
}

fn open_files_and_mappings_obey_new_rules() {
    let ground = Ground::new(Mode::ZeroMessage, &everything(), &["a", "b", "dir/c"]);
    let mut file = OpenOptions::new().read(true).write(true).open(ground.at("a")).unwrap();
    let mut mapper = mapping_reader(&ground, "b");
    assert_eq!(mapper.ask(), "b");
    let replaced = ground.replace(&rules(&[("a", Readable, 0), ("b", View, 0)]));
    assert_eq!(replaced.effect, Effect::AtOnce);
    assert!(replaced.lowered >= 2);
    assert_eq!(errno(file.write_all(b"x")), Errno::ACCESS);
    assert_eq!(errno(file.set_len(0)), Errno::ACCESS);
    file.rewind().unwrap();
    let mut content = String::new();
    file.read_to_string(&mut content).unwrap();
    assert_eq!(content, "a", "reading is still allowed");
    assert_eq!(mapper.ask(), "SIGBUS");
    assert_eq!(ground.list(""), ["a", "b"]);
    let hidden = ground.replace(&rules(&[("dir/**", Writable, 0)]));
    assert_eq!(hidden.effect, Effect::AtOnce);
    let mut byte = [0];
    assert_eq!(errno(file.read_exact_at(&mut byte, 0)), Errno::ACCESS);
    assert_eq!(errno(fs::metadata(ground.at("a"))), Errno::NOENT);
    // And back: what was not there appears, though the kernel had remembered that it is missing.
    ground.replace(&everything());
    assert_eq!(fs::read(ground.at("a")).unwrap(), b"a");
    assert_eq!(ground.list(""), ["a", "b", "dir"]);
    file.write_all_at(b"z", 0).unwrap();
    assert_eq!(fs::read(ground.below("a")).unwrap(), b"z");
}

/// A process that has mapped a file, and reads it when it is asked to.
struct Mapper {
    process: std::process::Child,
    answers: std::io::BufReader<std::process::ChildStdout>,
}

fn mapping_reader(ground: &Ground, name: &str) -> Mapper {
    let script = "
import mmap, sys, os
f = open(sys.argv[1], 'r+b'); m = mmap.mmap(f.fileno(), 1)
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        sys.stdout.write(m[0:1].decode() + '\\n'); sys.stdout.flush(); os._exit(0)
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status): print('SIGBUS' if os.WTERMSIG(status) == 7 else status, flush=True)";
    let mut process = Command::new("python3")
        .args(["-c", script])
        .arg(ground.at(name))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let answers = std::io::BufReader::new(process.stdout.take().unwrap());
    Mapper { process, answers }
}

impl Mapper {
    fn ask(&mut self) -> String {
        use std::io::BufRead;
        self.process.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }
}

impl Drop for Mapper {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

fn passthrough_obeys_new_rules_with_the_next_open() {
    let ground = Ground::new(Mode::Passthrough, &everything(), &["a", "b"]);
    let mut file = OpenOptions::new().read(true).write(true).open(ground.at("a")).unwrap();
    let replaced = ground.replace(&rules(&[("a", Readable, 0)]));
    assert_eq!(replaced.effect, Effect::NextOpen);
    file.write_all(b"A").unwrap();
    assert_eq!(errno(OpenOptions::new().write(true).open(ground.at("a"))), Errno::ACCESS);
    assert_eq!(fs::read(ground.at("a")).unwrap(), b"A");
    assert_eq!(errno(fs::metadata(ground.at("b"))), Errno::NOENT);
}

fn what_can_only_be_viewed_cannot_be_executed() {
    both(|mode| {
        let ground =
            Ground::new(mode, &rules(&[("v", View, 0), ("r", Readable, 0), ("h", Hidden, 0)]), &[]);
        for name in ["v", "r", "h"] {
            fs::copy("/bin/true", ground.below(name)).unwrap();
        }
        let run = |name: &str| Command::new(ground.at(name)).status();
        assert!(run("r").unwrap().success());
        assert_eq!(errno(run("v")), Errno::ACCESS);
        assert_eq!(errno(run("h")), Errno::NOENT);
        // Neither by the loader, nor as a script's interpreter.
        assert!(!ground.sh("/lib64/ld-linux-x86-64.so.2 ./v").status.success());
    });
}

fn twins_in_case_or_unicode_are_other_files() {
    both(|mode| {
        let rules =
            rules(&[("**/*", Writable, 0), ("secret", Hidden, 1), ("caf\u{e9}", Hidden, 1)]);
        let ground = Ground::new(mode, &rules, &["secret", "caf\u{e9}"]);
        for twin in ["SECRET", "Secret", "cafe\u{301}", "secret ", "secret."] {
            assert_eq!(errno(File::open(ground.at(twin))), Errno::NOENT, "{twin}");
            fs::write(ground.at(twin), twin).unwrap();
        }
        assert_eq!(fs::read(ground.below("secret")).unwrap(), b"secret");
        assert_eq!(ground.list("").len(), 5);
    });
}

fn inotify_names_nothing_hidden() {
    both(|mode| {
        use rustix::fs::inotify;
        let ground =
            Ground::new(mode, &rules(&[("**/*", Writable, 0), ("*.key", Hidden, 1)]), &["a.key"]);
        let watch = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
        inotify::add_watch(&watch, ground.root(), inotify::WatchFlags::ALL_EVENTS).unwrap();
        fs::write(ground.below("b.key"), "made outside").unwrap();
        fs::remove_file(ground.below("a.key")).unwrap();
        assert!(File::create(ground.at("c.key")).is_err());
        fs::write(ground.at("seen"), "").unwrap();
        let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&watch, &mut buffer);
        let mut names = Vec::new();
        while let Ok(event) = reader.next() {
            names.extend(event.file_name().map(|name| name.to_string_lossy().into_owned()));
        }
        assert!(names.iter().any(|name| name == "seen"), "{names:?}");
        assert!(!names.iter().any(|name| name.ends_with(".key")), "{names:?}");
    });
}

fn renames_race_against_opens_in_vain() {
    both(|mode| {
        let rules = rules(&[("w/**", Writable, 0), ("r/**", Readable, 0)]);
        let ground = Ground::new(mode, &rules, &["w/d/x", "r/d/x"]);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Outside, two directories change places; inside, somebody hopes to write to the protected one.
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let (one, other) = (ground.below("w/d"), ground.below("r/d"));
                    let flags = rustix::fs::RenameFlags::EXCHANGE;
                    rustix::fs::renameat_with(CWD, &one, CWD, &other, flags).unwrap();
                }
            });
            for _ in 0..2_000 {
                if let Ok(mut file) = OpenOptions::new().write(true).open(ground.at("r/d/x")) {
                    stop.store(true, Ordering::Relaxed);
                    assert!(file.write_all(b"gotcha").is_err(), "{mode:?}");
                    panic!("opened for writing");
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
    });
}

fn nameless_files_get_no_forbidden_name() {
    both(|mode| {
        let rules = rules(&[("w/**", Writable, 0), ("r/**", Readable, 0)]);
        let ground = Ground::new(mode, &rules, &["w/a", "r/a"]);
        let flags = OFlags::TMPFILE | OFlags::RDWR;
        let mode = FileMode::RUSR | FileMode::WUSR;
        assert_eq!(open(ground.at("r"), flags, mode).unwrap_err(), Errno::ACCESS);
        let file = File::from(open(ground.at("w"), flags, mode).unwrap());
        file.write_all_at(b"data", 0).unwrap();
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let link = |to: &str| linkat(CWD, &path, CWD, ground.at(to), AtFlags::SYMLINK_FOLLOW);
        assert_eq!(link("r/new"), Err(Errno::ACCESS));
        link("w/new").unwrap();
        assert_eq!(fs::read(ground.at("w/new")).unwrap(), b"data");
        assert_eq!(fs::read(ground.below("w/new")).unwrap(), b"data");
    });
}

fn directories_known_from_before_are_closed() {
    both(|mode| {
        let ground = Ground::new(mode, &everything(), &["d/e/x"]);
        let dir =
            open(ground.at("d/e"), OFlags::RDONLY | OFlags::DIRECTORY, FileMode::empty()).unwrap();
        assert_eq!(ground.list("d/e"), ["x"]);
        ground.replace(&rules(&[("other", Writable, 0)]));
        assert_eq!(
            openat(&dir, "x", OFlags::RDONLY, FileMode::empty()).unwrap_err(),
            Errno::ACCESS
        );
        let listed = rustix::fs::Dir::read_from(&dir)
            .and_then(|mut dir| dir.next().unwrap_or(Err(Errno::NOENT)));
        assert!(listed.is_err());
        assert!(rustix::fs::mkdirat(&dir, "new", FileMode::RWXU).is_err());
    });
}
