//! Promises of a store on disk: it keeps everything, even when its process is killed, and reports clearly if its file
//! is unusable.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::*;
use crate::conformance::{Factory, run};

/// A directory and the path of a store in it.
fn place() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("registry.sqlite3");
    (dir, path)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sqlite_store_keeps_every_promise() {
    let (dir, _) = place();
    let count = std::sync::atomic::AtomicUsize::new(0);
    let root = dir.path().to_owned();
    let factory: Factory = Arc::new(move |max| {
        let n = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Arc::new(SqliteStore::remembering(&root.join(n.to_string()), max).expect("a new store"))
    });
    run(factory).await.unwrap_or_else(|violation| panic!("{violation}"));
}

#[tokio::test]
async fn a_store_opened_again_holds_everything_and_counts_on() {
    let (_dir, path) = place();
    let kept = Key::new(["kept"]);
    let gone = Key::new(["gone"]);
    let last = {
        let store = SqliteStore::open(&path).expect("a new store");
        let revision = store.create(&gone, b"x".to_vec()).await.expect("create");
        store.create(&kept, b"value".to_vec()).await.expect("create");
        store.delete(&gone, revision).await.expect("delete")
    };
    let store = SqliteStore::open(&path).expect("the store again");
    let listing = store.list(&Prefix::all()).await.expect("list");
    assert_eq!(listing.revision, last);
    assert_eq!(listing.entries.len(), 1);
    assert_eq!(listing.entries[0].value, b"value");
    let next = store.create(&gone, Vec::new()).await.expect("create");
    assert_eq!(next, Revision(last.0 + 1));
    let mut watch = store.watch(&Prefix::all(), Revision(0)).await.expect("watch");
    for expected in 1..=next.0 {
        let change = watch.recv().await.expect("a change").expect("no error");
        assert_eq!(change.revision, Revision(expected));
    }
}

#[tokio::test]
async fn entries_are_read_beside_a_running_store() {
    let (_dir, path) = place();
    let store = SqliteStore::open(&path).expect("a new store");
    for n in 0..10_u8 {
        store.create(&Key::new(["row", &n.to_string()]), vec![n]).await.expect("create");
        let listing = SqliteStore::read_entries(&path, &Prefix::new(["row"])).expect("read");
        assert_eq!(listing.entries.len(), usize::from(n) + 1);
    }
    drop(store);
    let listing = SqliteStore::read_entries(&path, &Prefix::all()).expect("read");
    assert_eq!(listing.entries.len(), 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_may_write_to_one_file() {
    const EACH: usize = 50;
    let (_dir, path) = place();
    let daemon = Arc::new(SqliteStore::remembering(&path, 40).expect("a new store"));
    let beside = Arc::new(SqliteStore::open_beside(&path).expect("a second writer"));
    let mut tasks = tokio::task::JoinSet::new();
    for (name, store) in [("daemon", &daemon), ("beside", &beside)] {
        let store = Arc::clone(store);
        tasks.spawn(async move {
            let mut revisions = Vec::new();
            for n in 0..EACH {
                let key = Key::new([name, &n.to_string()]);
                revisions.push(store.create(&key, name.into()).await.expect("create"));
            }
            revisions
        });
    }
    let mut all: Vec<Revision> = tasks.join_all().await.into_iter().flatten().collect();
    all.sort();
    let expected: Vec<Revision> = (1..=2 * EACH as u64).map(Revision).collect();
    assert_eq!(all, expected, "every write has a revision of its own");
    for store in [&daemon, &beside] {
        let listing = store.list(&Prefix::all()).await.expect("list");
        assert_eq!(listing.entries.len(), 2 * EACH);
    }
    // A comparison sees what the other wrote.
    let taken = beside.create(&Key::new(["daemon", "0"]), Vec::new()).await;
    assert!(matches!(taken, Err(StoreError::Exists { .. })));
    let at = beside.get(&Key::new(["daemon", "0"])).await.expect("get").expect("it is there");
    beside.delete(&at.key, at.revision).await.expect("delete");
    assert!(daemon.get(&at.key).await.expect("get").is_none());
    // A watcher of the one learns of the other's writes with the one's own next.
    let last = Revision(2 * EACH as u64);
    let mut watch = daemon.watch(&Prefix::all(), last).await.expect("watch");
    daemon.create(&Key::new(["last"]), Vec::new()).await.expect("create");
    for expected in 1..=2 {
        let change = watch.recv().await.expect("a change").expect("no error");
        assert_eq!(change.revision, Revision(last.0 + expected));
    }
}

#[test]
fn a_second_writer_makes_no_store() {
    let (_dir, path) = place();
    assert!(SqliteStore::open_beside(&path).is_err());
    assert!(!path.exists());
}

#[tokio::test]
async fn the_log_stays_bounded_and_keeps_only_what_is_current() {
    let (_dir, path) = place();
    let store = SqliteStore::remembering(&path, 32).expect("a new store");
    let keys: Vec<Key> = (0..10).map(|n| Key::new(["k", &n.to_string()])).collect();
    for round in 0..50_u8 {
        for key in &keys {
            match store.get(key).await.expect("get") {
                None => store.create(key, vec![round]).await.expect("create"),
                Some(entry) => {
                    store.update(key, vec![round], entry.revision).await.expect("update")
                }
            };
        }
    }
    drop(store);
    let connection = schema::open_reader(&path).expect("open");
    let rows: i64 =
        connection.query_row("SELECT count(*) FROM log", [], |row| row.get(0)).expect("count");
    assert!(rows <= 32 + 10, "{rows} rows are in the log");
}

#[test]
fn an_unusable_file_is_named_with_its_fault() {
    let (dir, path) = place();
    let fault = |path: &Path| match SqliteStore::open(path) {
        Ok(_) => panic!("{} was opened", path.display()),
        Err(StoreError::Unavailable(error)) => *error.downcast::<SqliteError>().expect("ours"),
        Err(error) => panic!("unexpected {error:?}"),
    };

    drop(SqliteStore::open(&path).expect("a new store"));
    let connection = rusqlite::Connection::open(&path).expect("open");
    connection.pragma_update(None, "user_version", 99).expect("change the version");
    drop(connection);
    assert!(matches!(fault(&path), SqliteError::NewerSchema { found: 99, .. }));

    let foreign = dir.path().join("foreign");
    let connection = rusqlite::Connection::open(&foreign).expect("open");
    connection.execute_batch("CREATE TABLE t (x)").expect("a table");
    drop(connection);
    assert!(matches!(fault(&foreign), SqliteError::Foreign { .. }));

    let text = dir.path().join("text");
    std::fs::write(&text, "not a database, but long enough to be read as one".repeat(100))
        .expect("write");
    assert!(matches!(fault(&text), SqliteError::Damaged { .. }));
    assert!(matches!(fault(dir.path()), SqliteError::Open { .. }));
    assert!(matches!(fault(&dir.path().join("no/such/dir")), SqliteError::Open { .. }));
}

#[tokio::test]
async fn a_damaged_file_is_refused() {
    let (_dir, path) = place();
    let store = SqliteStore::open(&path).expect("a new store");
    for n in 0..200 {
        store.create(&Key::new([n.to_string()]), vec![7; 2000]).await.expect("create");
    }
    drop(store);
    let size = std::fs::metadata(&path).expect("metadata").len();
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("open");
    for page in (1..size / 4096).step_by(3) {
        std::os::unix::fs::FileExt::write_all_at(&file, &[0xA5; 512], page * 4096).expect("write");
    }
    let answer = SqliteStore::open(&path).map(|_| ()).expect_err("a damaged file was opened");
    let StoreError::Unavailable(error) = answer else { panic!("unexpected {answer:?}") };
    assert!(error.to_string().contains("is damaged"), "{error}");
}

const CHILD_PATH: &str = "SANDKEEP_TEST_STORE_PATH";

/// Not a separate test: the process that the test below kills.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "started by a_killed_process_loses_nothing_it_acknowledged"]
async fn child_that_writes_until_it_is_killed() {
    let Some(path) = std::env::var_os(CHILD_PATH) else { return };
    let store = Arc::new(SqliteStore::open(Path::new(&path)).expect("the store"));
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                for n in 0.. {
                    let key = Key::new([format!("{writer}"), format!("{n}")]);
                    let revision = store.create(&key, vec![writer; 500]).await.expect("create");
                    // One write call per line, so that lines of several writers do not mix.
                    let line = format!("ack {writer} {n} {}\n", revision.0);
                    std::io::stdout().write_all(line.as_bytes()).expect("the parent listens");
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.expect("writes until it is killed");
    }
}

#[tokio::test]
async fn a_killed_process_loses_nothing_it_acknowledged() {
    let (_dir, path) = place();
    let mut acknowledged = Vec::new();
    for round in 1..=3 {
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--ignored", "--nocapture", "--exact"])
            .arg("sqlite::tests::child_that_writes_until_it_is_killed")
            .env(CHILD_PATH, path.with_extension(round.to_string()))
            .stdout(Stdio::piped())
            .spawn()
            .expect("a child");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        acknowledged.clear();
        for line in lines.map(|line| line.expect("text")) {
            if let Some((_, rest)) = line.split_once("ack ") {
                acknowledged.push(rest.to_owned());
            }
            if acknowledged.len() == 150 * round {
                child.kill().expect("SIGKILL");
            }
        }
        child.wait().expect("the child's end");
        assert!(acknowledged.len() >= 150 * round, "only {} writes came", acknowledged.len());

        let store = SqliteStore::open(&path.with_extension(round.to_string())).expect("reopen");
        for line in &acknowledged {
            let [writer, n, revision] = line.split(' ').collect::<Vec<_>>()[..] else {
                panic!("unexpected line {line:?}")
            };
            let entry = store.get(&Key::new([writer, n])).await.expect("get").expect(line);
            assert_eq!(entry.revision.0.to_string(), revision);
            assert_eq!(entry.value.len(), 500);
        }
    }
}

/// How long a single create takes, and how many concurrent ones fit a second. Figures without a verdict.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: run it alone with --nocapture"]
async fn measure_creates() {
    let (_dir, path) = place();
    let store = Arc::new(SqliteStore::open(&path).expect("a new store"));
    let create = |n: usize| {
        let store = Arc::clone(&store);
        async move {
            let mut value = vec![0; 1500];
            value[..8].copy_from_slice(&n.to_le_bytes());
            store.create(&Key::new(["sandboxes", &n.to_string()]), value).await.expect("create")
        }
    };
    let mut times = Vec::new();
    for n in 0..2000 {
        let start = std::time::Instant::now();
        create(n).await;
        times.push(start.elapsed());
    }
    times.sort();
    println!("one at a time: p50 {:?} p99 {:?}", times[1000], times[1980]);
    let start = std::time::Instant::now();
    let tasks: Vec<_> = (2000..22_000).map(|n| tokio::spawn(create(n))).collect();
    for task in tasks {
        task.await.expect("create");
    }
    println!("20000 at once: {:?}", start.elapsed());
    let start = std::time::Instant::now();
    for n in 0..2000 {
        store.get(&Key::new(["sandboxes", &n.to_string()])).await.expect("get");
    }
    println!("get: {:?} each", start.elapsed() / 2000);
    let start = std::time::Instant::now();
    let listing = store.list(&Prefix::all()).await.expect("list");
    println!("list of {}: {:?}", listing.entries.len(), start.elapsed());
    drop(store);
    let start = std::time::Instant::now();
    drop(SqliteStore::open(&path).expect("reopen"));
    println!("open with its check: {:?}", start.elapsed());
}
