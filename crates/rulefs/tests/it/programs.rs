//! Programs that people run, in both modes.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};

use sandkeep_core::rules::Permission::{None as Hidden, Read as Readable, Write as Writable};
use sandkeep_core::rules::RulePreset;

use crate::ground::{Ground, both, everything, rules};
use crate::tests;

tests!(programs:
    git_works,
    git_works_as_an_owner_on_a_readable_tree,
    sqlite_with_a_write_ahead_log_works,
    a_c_program_is_built_and_run,
    tar_and_rm_work_on_trees,
    sparse_files_stay_sparse,
    parallel_readers_see_the_same,
    locks_and_mappings_work,
    a_preset_protects_what_it_names,
);

fn git_works() {
    both(|mode| {
        let hidden = rules(&[("**/*", Writable, 0), ("**/.env", Hidden, 1)]);
        let ground = Ground::new(mode, &hidden, &["src/main.rs", ".env", "sub/.env"]);
        ground.sh_ok(
            "git init -q . && git config user.email a@b && git config user.name n
             git add -A && git commit -qm first && echo more >> src/main.rs && git commit -qam second
             git checkout -qb other HEAD~1 && git merge -q --no-edit master 2>/dev/null || git merge -q --no-edit main
             git gc -q && git fsck --strict 2>&1",
        );
        assert_eq!(ground.sh_ok("git status --porcelain"), "");
        assert_eq!(ground.sh_ok("git ls-files"), "src/main.rs\n");
        assert_eq!(fs::read(ground.below("sub/.env")).unwrap(), b"sub/.env");
    });
}

/// Git refuses a repository whose directories belong to somebody else; files that may only be read belong to nobody.
fn git_works_as_an_owner_on_a_readable_tree() {
    both(|mode| {
        let ground = Ground::new(mode, &everything(), &["a"]);
        ground.sh_ok("git init -q . && git config user.email a@b && git config user.name n && git add -A && git commit -qm first");
        ground.replace(&rules(&[("**/*", Readable, 0)]));
        assert_eq!(ground.sh_ok("git log --format=%s && git status --porcelain"), "first\n");
        assert!(!ground.sh("git commit --allow-empty -m second").status.success());
    });
}

fn sqlite_with_a_write_ahead_log_works() {
    both(|mode| {
        let ground = Ground::new(mode, &everything(), &[]);
        let script = r#"
import sqlite3, os
one = sqlite3.connect('db'); print(one.execute('pragma journal_mode=wal').fetchone()[0])
one.execute('create table t(n)'); one.commit()
if os.fork() == 0:
    two = sqlite3.connect('db', timeout=30)
    for n in range(200): two.execute('insert into t values(?)', (n,)); two.commit()
    os._exit(0)
three = sqlite3.connect('db', timeout=30)
for n in range(200): three.execute('insert into t values(?)', (n,)); three.commit()
print(os.wait()[1], sqlite3.connect('db').execute('select count(*), sum(n) from t').fetchone())
print(sqlite3.connect('db').execute('pragma integrity_check').fetchone()[0])"#;
        fs::write(ground.below("t.py"), script).unwrap();
        assert_eq!(ground.sh_ok("python3 t.py"), "wal\n0 (400, 39800)\nok\n");
    });
}

fn a_c_program_is_built_and_run() {
    both(|mode| {
        let ground = Ground::new(
            mode,
            &rules(&[("src/**", Readable, 0), ("out/**", Writable, 0)]),
            &["out/"],
        );
        fs::create_dir(ground.below("src")).unwrap();
        fs::write(ground.below("src/lib.h"), "int f(int);").unwrap();
        fs::write(ground.below("src/lib.c"), "#include \"lib.h\"\nint f(int a) { return a + 1; }")
            .unwrap();
        fs::write(
            ground.below("src/main.c"),
            "#include \"lib.h\"\n#include <stdio.h>\nint main() { printf(\"%d\\n\", f(41)); }",
        )
        .unwrap();
        let script = "cc -c src/lib.c -o out/lib.o && cc -c src/main.c -o out/main.o
                      ar rcs out/lib.a out/lib.o && cc out/main.o out/lib.a -o out/main && ./out/main";
        assert_eq!(ground.sh_ok(script), "42\n");
        assert!(!ground.sh("cc -c src/lib.c -o src/lib.o").status.success());
    });
}

fn tar_and_rm_work_on_trees() {
    both(|mode| {
        let ground = Ground::new(mode, &everything(), &[]);
        ground.sh_ok(
            "mkdir -p t/a/b/c && for n in $(seq 300); do echo $n > t/a/f$n; done
             ln t/a/f1 t/hard && ln -s a/f2 t/soft && chmod 750 t/a && touch -d 2001-02-03 t/a/f3
             tar cf t.tar t && mkdir u && tar xf t.tar -C u && diff -r t u/t",
        );
        let (from, to) = (
            fs::metadata(ground.at("t/a/f3")).unwrap(),
            fs::metadata(ground.at("u/t/a/f3")).unwrap(),
        );
        assert_eq!((from.mtime(), from.mode()), (to.mtime(), to.mode()));
        assert_eq!(fs::metadata(ground.at("u/t/hard")).unwrap().nlink(), 2);
        ground.sh_ok("rm -rf t u && test ! -e t && cp -a t.tar copy && cmp t.tar copy");
        assert_eq!(ground.list(""), ["copy", "t.tar"]);
    });
}

fn sparse_files_stay_sparse() {
    both(|mode| {
        let ground = Ground::new(mode, &everything(), &[]);
        let file = fs::File::create(ground.at("sparse")).unwrap();
        file.write_all_at(b"end", 64 << 20).unwrap();
        let seen = fs::metadata(ground.at("sparse")).unwrap();
        assert_eq!(seen.len(), (64 << 20) + 3);
        assert!(seen.blocks() < 1024, "{}", seen.blocks());
        let data = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0)).unwrap();
        assert!(data > 60 << 20, "{data}");
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::KEEP_SIZE, 0, 8192).unwrap();
        rustix::fs::fallocate(
            &file,
            rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE,
            64 << 20,
            4096,
        )
        .unwrap();
        let mut end = [1; 3];
        fs::File::open(ground.at("sparse")).unwrap().read_exact_at(&mut end, 64 << 20).unwrap();
        assert_eq!(end, [0; 3]);
        ground.sh_ok("cp --sparse=always sparse copy && cmp sparse copy");
    });
}

fn parallel_readers_see_the_same() {
    both(|mode| {
        let ground = Ground::new(mode, &everything(), &[]);
        let data: Vec<u8> = (0..4_000_000u32).flat_map(|n| (n as u16).to_ne_bytes()).collect();
        fs::write(ground.below("big"), &data).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| assert!(fs::read(ground.at("big")).unwrap() == data));
            }
        });
    });
}

fn locks_and_mappings_work() {
    both(|mode| {
        let ground = Ground::new(mode, &everything(), &["a"]);
        let script = r#"
import fcntl, os, mmap
f = open('a', 'r+b'); f.truncate(8192); m = mmap.mmap(f.fileno(), 8192)
m[0:5] = b'hello'; m[4096:4099] = b'abc'; m.flush()
fcntl.flock(f, fcntl.LOCK_EX)
g = open('a', 'r+b')
try: fcntl.flock(g, fcntl.LOCK_EX | fcntl.LOCK_NB); print('both')
except BlockingIOError: print('one')
fcntl.lockf(f, fcntl.LOCK_EX)
if os.fork() == 0:
    try: fcntl.lockf(g, fcntl.LOCK_EX | fcntl.LOCK_NB); print('both', flush=True)
    except (BlockingIOError, PermissionError): print('one', flush=True)
    os._exit(0)
os.wait()"#;
        fs::write(ground.below("t.py"), script).unwrap();
        assert_eq!(ground.sh_ok("python3 t.py"), "one\none\n");
        assert_eq!(&fs::read(ground.below("a")).unwrap()[..5], b"hello");
        assert_eq!(&fs::read(ground.below("a")).unwrap()[4096..4099], b"abc");
    });
}

fn a_preset_protects_what_it_names() {
    both(|mode| {
        let preset = sandkeep_core::rules::RulesDraft::from(RulePreset::AgentSafe).check().unwrap();
        let files = [
            "src/a",
            ".env",
            "x/secrets/y",
            "k.pem",
            ".git/config",
            "output/",
            "x/credentials.json",
        ];
        let ground = Ground::new(mode, &preset, &files);
        assert_eq!(ground.sh_ok("find . -type f | sort"), "./src/a\n");
        ground.sh_ok("mkdir tmp && echo x > tmp/x && echo y > output/y && cat src/a");
        assert!(!ground.sh("echo x >> src/a").status.success());
        assert!(!ground.sh("mkdir output/secrets").status.success());
    });
}
