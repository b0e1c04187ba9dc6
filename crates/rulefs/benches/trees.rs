//! A tree through the mount, beside an equal tree without it: `cargo bench -p sandkeep-rulefs`, as root. Every round
//! does both, one after the other; the result is the ratio of the medians. Nothing is asserted: machines differ.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{Mode as FileMode, OFlags};
use rustix::mount::{UnmountFlags, unmount};
use sandkeep_core::rules::{RulePreset, Rules, RulesDraft};
use sandkeep_rulefs::{Ids, Mode, Server, Start, Writers};
use sandkeep_sys::board::Board;

const SERVER: &str = "serve-a-directory";
const ROUNDS: usize = 3;

/// What is measured, as a script in the tree, and what is done before each run without being measured.
const WORK: [(&str, &str, &str); 8] = [
    ("stat of 20,000 files", "", "find files -printf '%s' > /dev/null"),
    ("search in 20,000 files", "", "grep -rc needle files > /dev/null"),
    ("git status", "", "git status --porcelain > /dev/null"),
    ("read 512 MB", "", "dd if=big of=/dev/null bs=1M status=none"),
    (
        "write 256 MB",
        "rm -f out; sync",
        "dd if=/dev/zero of=out bs=1M count=256 conv=fsync status=none",
    ),
    ("untar 2,000 files", "rm -rf x; mkdir x", "tar xf some.tar -C x"),
    ("compile", "rm -f c/*.o", "for f in c/*.c; do cc -O1 -c $f -o $f.o; done"),
    ("SQLite, 5,000 inserts with a write-ahead log", "rm -f db*", "python3 sql.py"),
];

const PREPARE: &str = "
    for d in $(seq 200); do mkdir -p files/$d; for f in $(seq 100); do
        printf 'line one of %s\\nline two\\nneedle %s\\n' $f $d > files/$d/$f.rs; done; done
    dd if=/dev/urandom of=big bs=1M count=512 status=none
    tar cf some.tar $(seq -f files/%g 20)
    mkdir c; for n in $(seq 20); do printf '#include <stdio.h>\\n#include <stdlib.h>\\nint f%d(int a) { return printf(\"%%d\", a); }\\n' $n > c/$n.c; done
    git init -q . && git add files c && git -c user.email=a@b -c user.name=n commit -qm all
    sync";

const SQL: &str = "import sqlite3
c = sqlite3.connect('db'); c.execute('pragma journal_mode=wal'); c.execute('create table t(n)')
for n in range(5000): c.execute('insert into t values(?)', (n,)); c.commit()
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == SERVER) {
        return sandkeep_rulefs::main();
    }
    // `cargo test --benches` and lists of tests run this program, too.
    if !arguments.iter().any(|argument| argument == "--bench") {
        return ExitCode::SUCCESS;
    }
    if let Some(reason) = sandkeep_rulefs::unusable() {
        println!("SKIP: {reason}");
        return ExitCode::SUCCESS;
    }
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let places = ["bare", "tree", "mnt"].map(|name| dir.path().join(name));
    for path in &places {
        std::fs::create_dir(path).expect("a directory can be made");
    }
    // Two trees: nobody tells the mount what changes below it.
    for tree in &places[..2] {
        run(tree, PREPARE);
        std::fs::write(tree.join("sql.py"), SQL).expect("the script can be written");
    }
    let rules = RulesDraft::from(RulePreset::Development).check().expect("a preset is valid");
    for mode in [Mode::ZeroMessage, Mode::Passthrough] {
        println!("{mode:?}");
        measure(dir.path(), &places, mode, &rules);
    }
    ExitCode::SUCCESS
}

fn measure(dir: &Path, [bare, tree, mounted]: &[PathBuf; 3], mode: Mode, rules: &Rules) {
    let runtime = tokio::runtime::Runtime::new().expect("threads can be started");
    let home = rustix::fs::open(dir, OFlags::DIRECTORY, FileMode::empty()).expect("it was made");
    let command = [OsString::from("/proc/self/exe"), OsString::from(SERVER)];
    let board = Board::create().expect("memory can be shared");
    let start = Start {
        command: &command,
        tree,
        rules,
        mode,
        ids: Ids::SAME,
        board: &board,
        writers: Writers::Tell,
        home: home.as_fd(),
        socket: "rulefs",
    };
    let begun = Instant::now();
    let (server, mount) = runtime.block_on(Server::start(start)).expect("it starts");
    println!("  {:46} {:6.1} ms", "start of a server", begun.elapsed().as_secs_f64() * 1000.0);
    sandkeep_sys::mount::attach(mount, mounted).expect("it can be attached");
    for (name, before, script) in WORK {
        let mut times = [Vec::new(), Vec::new()];
        let mut first = None;
        for round in 0..=ROUNDS {
            for (place, times) in [bare, mounted].into_iter().zip(&mut times) {
                run(place, before);
                let taken = run(place, script);
                // The first round warms both up.
                match round {
                    0 => first = Some(taken),
                    _ => times.push(taken),
                }
            }
        }
        let [alone, served] = times.map(median);
        let ratio = |time: Duration| time.as_secs_f64() / alone.as_secs_f64();
        let first = first.map_or(f64::NAN, ratio);
        println!(
            "  {name:46} {:7.1} ms  {:5.2} x  first {first:5.1} x",
            alone.as_secs_f64() * 1000.0,
            ratio(served)
        );
    }
    let stats = runtime.block_on(server.stats()).expect("it answers");
    println!("  {} requests, {} nodes", stats.requests, stats.nodes);
    unmount(mounted, UnmountFlags::DETACH).expect("it was attached");
    runtime.block_on(server.stop()).expect("it stops");
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn run(place: &Path, script: &str) -> Duration {
    let mut command = Command::new("sh");
    command.args(["-c", script]).current_dir(place).stdout(Stdio::null());
    let begun = Instant::now();
    let status = command.status().expect("sh is there");
    assert!(status.success(), "{script}");
    begun.elapsed()
}
