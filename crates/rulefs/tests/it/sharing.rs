//! Several mounts of one tree: what one of them changes, the others show.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};

use rustix::io::Errno;
use sandkeep_core::rules::Permission::{None as Hidden, Read as Readable, Write as Writable};
use sandkeep_rulefs::{Mode, Writers};

use crate::ground::{Ground, errno, everything, rules, wait_until};
use crate::server::kill_server;
use crate::tests;

tests!(sharing:
    names_that_one_changes_the_other_shows,
    contents_that_one_writes_the_other_reads,
    a_file_that_stays_open_for_writing_is_never_read_stale,
    attributes_that_one_changes_the_other_shows,
    a_mapping_shows_what_the_other_has_written,
    a_removed_file_stays_what_it_was_for_those_who_have_it_open,
    a_file_that_was_moved_is_still_open_elsewhere,
    each_mount_keeps_its_own_rules,
    what_a_killed_server_missed_is_made_up_for,
    a_file_that_was_open_before_the_other_came_is_not_trusted,
    silent_writers_are_seen_without_a_word,
    many_writers_on_one_tree_agree_in_the_end,
);

const MODES: [Mode; 2] = [Mode::ZeroMessage, Mode::Passthrough];

/// Two mounts that allow everything, in each combination of modes.
fn on_two(files: &[&str], test: impl Fn(&Ground, &Ground)) {
    for first in MODES {
        for second in MODES {
            let one = Ground::new(first, &everything(), files);
            let two = one.beside(second, Writers::Tell, &everything());
            println!("{first:?} and {second:?}");
            test(&one, &two);
            test_again(&two, &one, files, &test);
        }
    }
}

/// The other way around, with the files as they were.
fn test_again(one: &Ground, two: &Ground, files: &[&str], test: impl Fn(&Ground, &Ground)) {
    for entry in fs::read_dir(one.root()).unwrap() {
        let path = entry.unwrap().path();
        if fs::symlink_metadata(&path).unwrap().is_dir() {
            fs::remove_dir_all(path).unwrap()
        } else {
            fs::remove_file(path).unwrap()
        }
    }
    for file in files {
        let path = one.at(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, file).unwrap();
    }
    for file in files {
        wait_until("the files are back", || {
            fs::read(two.at(file)).is_ok_and(|read| read == file.as_bytes())
        });
    }
    test(one, two);
}

fn names_that_one_changes_the_other_shows() {
    on_two(&["d/a", "d/b", "e/x"], |one, two| {
        // What the kernel of the second mount knows: names, missing names, lists.
        assert_eq!(two.list("d"), ["a", "b"]);
        assert_eq!(errno(fs::metadata(two.at("d/c"))), Errno::NOENT);
        assert_eq!(errno(fs::metadata(two.at("d/new/deep"))), Errno::NOENT);
        fs::write(one.at("d/c"), "c").unwrap();
        wait_until("a new file", || fs::read(two.at("d/c")).is_ok_and(|read| read == b"c"));
        assert_eq!(two.list("d"), ["a", "b", "c"]);
        fs::create_dir_all(one.at("d/new/deep")).unwrap();
        wait_until("new directories", || two.at("d/new/deep").is_dir());
        fs::remove_file(one.at("d/b")).unwrap();
        wait_until("a removed file", || !two.at("d/b").exists());
        fs::rename(one.at("d/a"), one.at("e/a")).unwrap();
        wait_until("a moved file", || two.at("e/a").exists() && !two.at("d/a").exists());
        assert_eq!(fs::read(two.at("e/a")).unwrap(), b"d/a");
        fs::rename(one.at("e"), one.at("f")).unwrap();
        wait_until("a moved directory", || two.at("f/x").exists() && !two.at("e").exists());
        assert_eq!(two.list(""), ["d", "f"]);
        fs::hard_link(one.at("f/x"), one.at("f/y")).unwrap();
        wait_until("a link", || fs::metadata(two.at("f/x")).unwrap().nlink() == 2);
        symlink("f/x", one.at("l")).unwrap();
        wait_until("a symbolic link", || fs::read(two.at("l")).is_ok_and(|read| read == b"e/x"));
        // One file takes the place of another, as editors do it.
        fs::write(one.at("f/tmp"), "edited").unwrap();
        fs::rename(one.at("f/tmp"), one.at("f/y")).unwrap();
        wait_until("a replaced file", || fs::read(two.at("f/y")).unwrap() == b"edited");
    });
}

fn contents_that_one_writes_the_other_reads() {
    on_two(&["a"], |one, two| {
        let read = |expected: &str| {
            wait_until(expected, || fs::read_to_string(two.at("a")).unwrap() == expected);
        };
        let reader = File::open(two.at("a")).unwrap();
        read("a");
        fs::write(one.at("a"), "something longer").unwrap();
        read("something longer");
        // Of the same length, so that no size tells.
        let writer = OpenOptions::new().write(true).open(one.at("a")).unwrap();
        writer.write_all_at(b"Something longer", 0).unwrap();
        read("Something longer");
        let mut appender = OpenOptions::new().append(true).open(one.at("a")).unwrap();
        appender.write_all(b", and more").unwrap();
        read("Something longer, and more");
        writer.set_len(4).unwrap();
        read("Some");
        // Those who have it open see it, too.
        let mut bytes = [0; 4];
        reader.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"Some");
    });
}

fn a_file_that_stays_open_for_writing_is_never_read_stale() {
    on_two(&["log"], |one, two| {
        let mut writer = OpenOptions::new().append(true).open(one.at("log")).unwrap();
        let mut expected = fs::read_to_string(two.at("log")).unwrap();
        for line in 0..20 {
            let line = format!("line {line}\n");
            writer.write_all(line.as_bytes()).unwrap();
            expected.push_str(&line);
            let len = expected.len() as u64;
            wait_until("the size", || fs::metadata(two.at("log")).unwrap().len() == len);
            wait_until("the line", || fs::read_to_string(two.at("log")).unwrap() == expected);
        }
        drop(writer);
        // Closed, it is trusted again: what comes later is told again.
        assert_eq!(fs::read_to_string(two.at("log")).unwrap(), expected);
        fs::write(one.at("log"), "new").unwrap();
        wait_until("a new log", || fs::read_to_string(two.at("log")).unwrap() == "new");
    });
}

fn attributes_that_one_changes_the_other_shows() {
    on_two(&["a", "d/b"], |one, two| {
        let mode = |path: &str| fs::metadata(two.at(path)).unwrap().mode() & 0o777;
        assert_ne!((mode("a"), mode("d")), (0o600, 0o700));
        fs::set_permissions(one.at("a"), fs::Permissions::from_mode(0o600)).unwrap();
        fs::set_permissions(one.at("d"), fs::Permissions::from_mode(0o700)).unwrap();
        wait_until("the modes", || (mode("a"), mode("d")) == (0o600, 0o700));
        let open = File::open(two.at("a")).unwrap();
        fs::set_permissions(one.at("a"), fs::Permissions::from_mode(0o640)).unwrap();
        wait_until("the mode of an open file", || open.metadata().unwrap().mode() & 0o777 == 0o640);
    });
}

fn a_mapping_shows_what_the_other_has_written() {
    on_two(&["a"], |one, two| {
        fs::write(one.at("a"), vec![b'1'; 8192]).unwrap();
        wait_until("its size", || fs::metadata(two.at("a")).unwrap().len() == 8192);
        // A program that maps the file, and says which byte it sees in the last page until it is told to stop.
        let script = "import mmap,sys\n\
            f = open('a','rb')\n\
            m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)\n\
            for line in sys.stdin: print(chr(m[8000]), flush=True)\n";
        let mut program = std::process::Command::new("python3")
            .args(["-c", script])
            .current_dir(two.root())
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut asks = program.stdin.take().unwrap();
        let mut answers = std::io::BufReader::new(program.stdout.take().unwrap());
        let mut seen = || {
            asks.write_all(b"\n").unwrap();
            let mut line = String::new();
            std::io::BufRead::read_line(&mut answers, &mut line).unwrap();
            line
        };
        assert_eq!(seen(), "1\n");
        let writer = OpenOptions::new().write(true).open(one.at("a")).unwrap();
        for expected in ["2\n", "3\n"] {
            writer.write_all_at(&[expected.as_bytes()[0]; 8192], 0).unwrap();
            wait_until("the mapped page", || seen() == expected);
        }
        drop(asks);
        program.wait().unwrap();
    });
}

fn a_removed_file_stays_what_it_was_for_those_who_have_it_open() {
    on_two(&["a"], |one, two| {
        let open = File::open(two.at("a")).unwrap();
        let mut byte = [0];
        open.read_exact_at(&mut byte, 0).unwrap();
        fs::remove_file(one.at("a")).unwrap();
        // Its number may be used again at once; the new file is another one.
        fs::write(one.at("b"), "b").unwrap();
        wait_until("the new file", || fs::read(two.at("b")).is_ok_and(|read| read == b"b"));
        wait_until("the removed file", || !two.at("a").exists());
        match open.read_at(&mut byte, 0) {
            Ok(1) => assert_eq!(&byte, b"a"),
            Err(error) => assert_eq!(error.raw_os_error(), Some(Errno::STALE.raw_os_error())),
            other => panic!("{other:?}"),
        }
        fs::create_dir(one.at("dir")).unwrap();
        wait_until("a directory", || two.at("dir").is_dir());
        fs::remove_dir(one.at("dir")).unwrap();
        fs::write(one.at("dir"), "a file now").unwrap();
        wait_until("a file", || fs::read(two.at("dir")).is_ok_and(|read| read == b"a file now"));
    });
}

fn a_file_that_was_moved_is_still_open_elsewhere() {
    on_two(&["log", "d/e/x"], |one, two| {
        let log = File::open(two.at("log")).unwrap();
        let dir = crate::ground::directory(&two.at("d/e"));
        fs::rename(one.at("log"), one.at("log.1")).unwrap();
        fs::write(one.at("log"), "another").unwrap();
        fs::rename(one.at("d"), one.at("f")).unwrap();
        wait_until("the new names", || two.at("log.1").exists() && two.at("f").exists());
        // The next server has nothing open, and knows names alone.
        kill_server(two);
        let mut bytes = [0; 3];
        log.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"log");
        assert_eq!(log.metadata().unwrap().len(), 3);
        let flags = rustix::fs::OFlags::RDONLY;
        let below = rustix::fs::openat(&dir, "x", flags, rustix::fs::Mode::empty()).unwrap();
        let mut read = String::new();
        std::io::Read::read_to_string(&mut File::from(below), &mut read).unwrap();
        assert_eq!(read, "d/e/x");
    });
}

fn each_mount_keeps_its_own_rules() {
    for modes in [MODES, [Mode::Passthrough, Mode::ZeroMessage]] {
        let strict =
            rules(&[("**/*", Readable, 0), ("secrets/**", Hidden, 1), ("out", Writable, 1)]);
        let one = Ground::new(modes[0], &everything(), &["src/a", "out/"]);
        let two = one.beside(modes[1], Writers::Tell, &strict);
        assert_eq!(two.list(""), ["out", "src"]);
        fs::create_dir(one.at("secrets")).unwrap();
        fs::write(one.at("secrets/key"), "secret").unwrap();
        fs::write(one.at("src/b"), "b").unwrap();
        wait_until("a new file", || two.at("src/b").exists());
        assert_eq!(two.list(""), ["out", "src"]);
        assert_eq!(errno(fs::read(two.at("secrets/key"))), Errno::NOENT);
        assert_eq!(errno(fs::write(two.at("src/b"), "x")), Errno::ACCESS);
        fs::write(two.at("out/report"), "done").unwrap();
        wait_until("the report", || {
            fs::read(one.at("out/report")).is_ok_and(|read| read == b"done")
        });
        // A file that is moved to where it is hidden is gone, whoever has looked at it before.
        assert_eq!(fs::read(two.at("src/a")).unwrap(), b"src/a");
        fs::rename(one.at("src/a"), one.at("secrets/a")).unwrap();
        wait_until("the moved file", || !two.at("src/a").exists());
        assert_eq!(errno(fs::read(two.at("secrets/a"))), Errno::NOENT);
    }
}

fn what_a_killed_server_missed_is_made_up_for() {
    on_two(&["a", "log"], |one, two| {
        let writer = OpenOptions::new().append(true).open(one.at("log")).unwrap();
        assert_eq!(fs::read(two.at("log")).unwrap(), b"log");
        kill_server(two);
        // The next one learns what is being written.
        fs::write(one.at("a"), "after the second").unwrap();
        wait_until("the second", || fs::read(two.at("a")).unwrap() == b"after the second");
        (&writer).write_all(b", more").unwrap();
        wait_until("the log", || fs::read(two.at("log")).unwrap() == b"log, more");
        kill_server(one);
        (&writer).write_all(b", again").unwrap();
        wait_until("the log again", || fs::read(two.at("log")).unwrap() == b"log, more, again");
        fs::write(one.at("a"), "after the first").unwrap();
        wait_until("the first", || fs::read(two.at("a")).unwrap() == b"after the first");
        fs::write(two.at("new"), "new").unwrap();
        wait_until("the new one", || fs::read(one.at("new")).is_ok_and(|read| read == b"new"));
    });
}

fn a_file_that_was_open_before_the_other_came_is_not_trusted() {
    for (first, second) in MODES.iter().flat_map(|first| MODES.map(|second| (*first, second))) {
        let one = Ground::new(first, &everything(), &["log"]);
        let mut writer = OpenOptions::new().append(true).open(one.at("log")).unwrap();
        let two = one.beside(second, Writers::Tell, &everything());
        let mut expected = "log".to_owned();
        for _ in 0..3 {
            wait_until("the log", || fs::read_to_string(two.at("log")).unwrap() == expected);
            writer.write_all(b", more").unwrap();
            expected.push_str(", more");
        }
        wait_until("the log", || fs::read_to_string(two.at("log")).unwrap() == expected);
    }
}

fn silent_writers_are_seen_without_a_word() {
    let one = Ground::new(Mode::Passthrough, &everything(), &["d/a", "d/b"]);
    let two = one.beside(Mode::Passthrough, Writers::Silent, &everything());
    assert_eq!(two.list("d"), ["a", "b"]);
    assert_eq!(fs::read(two.at("d/a")).unwrap(), b"d/a");
    assert_eq!(errno(fs::metadata(two.at("d/c"))), Errno::NOENT);
    fs::write(two.below("d/a"), "much longer").unwrap();
    fs::write(two.below("d/c"), "c").unwrap();
    fs::remove_file(two.below("d/b")).unwrap();
    // At once: nothing is waited for.
    assert_eq!(fs::metadata(two.at("d/a")).unwrap().len(), 11);
    assert_eq!(fs::read(two.at("d/a")).unwrap(), b"much longer");
    assert_eq!(fs::read(two.at("d/c")).unwrap(), b"c");
    assert_eq!(errno(fs::metadata(two.at("d/b"))), Errno::NOENT);
    assert_eq!(two.list("d"), ["a", "c"]);
}

fn many_writers_on_one_tree_agree_in_the_end() {
    const ROUNDS: usize = 100;
    let one = Ground::new(Mode::ZeroMessage, &everything(), &["d/a"]);
    let others = MODES.map(|mode| one.beside(mode, Writers::Tell, &everything()));
    let all = [&one, &others[0], &others[1]];
    std::thread::scope(|scope| {
        for (number, ground) in all.into_iter().enumerate() {
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let name = format!("d/{}", round % 7);
                    let moved = format!("d/{number}-{}", round % 5);
                    // Others do the same: whatever fails was done by them.
                    let _ = fs::write(ground.at(&name), format!("{number} {round}"));
                    let _ = fs::rename(ground.at(&name), ground.at(&moved));
                    let _ = fs::remove_file(ground.at(&format!(
                        "d/{}-{}",
                        (number + 1) % 3,
                        round % 5
                    )));
                    // So that every kernel knows all names, also those that are missing.
                    let moved = (0..3).flat_map(|by| (0..5).map(move |n| format!("d/{by}-{n}")));
                    for name in moved.chain((0..7).map(|n| format!("d/{n}"))) {
                        let _ = fs::read(ground.at(&name));
                    }
                }
            });
        }
    });
    let below = |name: &str| fs::read(one.below("d").join(name)).unwrap();
    let mut names: Vec<String> = fs::read_dir(one.below("d"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    for ground in all {
        wait_until("all names", || ground.list("d") == names);
        for name in &names {
            let path = ground.at("d").join(name);
            wait_until(name, || fs::read(&path).is_ok_and(|read| read == below(name)));
        }
    }
}
