//! How fast each storage is with trees of different sizes: a template of one, and a sandbox with one in its
//! workspace. Beside each figure stands that of the smallest tree, and what `cp -a` takes for the same tree:
//! what a storage does in one step does not grow with the tree, and what it copies does.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::daemon::{OwnDaemon, parent};
use super::http::Connection;
use super::report::{Operation, StorageSamples};
use super::trees::Tree;
use super::{BenchError, call, cannot};
use crate::limits::{BENCH_FORKS, BENCH_STORAGE_ANSWER, BENCH_STORAGE_ROUNDS};
use crate::sandbox::SandboxId;

/// Those that need nothing of this machine but what any has.
const STORAGES: [&str; 2] = ["btrfs", "local"];
/// What the pool has besides the trees, and how often each tree may be in it at once.
const SPARE_MB: u64 = 1024;
const COPIES: u64 = 6;

/// Measures every storage that can be used here, with every tree.
pub fn all(trees: &[Tree], interrupted: &AtomicBool) -> Result<Vec<StorageSamples>, BenchError> {
    let place = Place::make().map_err(cannot("make a directory for trees"))?;
    for tree in trees {
        tree.make(&place.tree(*tree)).map_err(cannot("make a tree"))?;
    }
    let mut found = Vec::new();
    for storage in STORAGES {
        let pool_mb = SPARE_MB + COPIES * trees.iter().map(|tree| tree.mebibytes()).sum::<u64>();
        let Ok(daemon) = OwnDaemon::start_on(Some(storage), pool_mb) else { continue };
        let connection =
            Connection::open(daemon.address).map_err(cannot("connect to the daemon"))?;
        let connection = connection
            .with_patience(BENCH_STORAGE_ANSWER)
            .map_err(cannot("wait for the daemon"))?;
        for (index, tree) in trees.iter().enumerate() {
            if interrupted.load(Ordering::Relaxed) {
                return Err(BenchError::Interrupted);
            }
            let mut bench = StorageBench::new(&place, storage, *tree);
            let connection = connection.again().map_err(cannot("connect to the daemon"))?;
            bench.measure(connection, Forks::of(index))?;
            found.push(bench.samples);
        }
    }
    Ok(found)
}

/// Whether many forks at once are measured, too: of the smallest tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Forks {
    Many,
    OneByOne,
}

impl Forks {
    fn of(index: usize) -> Self {
        match index {
            0 => Self::Many,
            _ => Self::OneByOne,
        }
    }
}

/// Where the trees are; it goes away with them.
struct Place(PathBuf);

impl Place {
    fn make() -> io::Result<Self> {
        let path = parent().join(format!("sandkeep-bench-trees-{}", SandboxId::random()));
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }

    fn tree(&self, tree: Tree) -> PathBuf {
        self.0.join(tree.to_string())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("{} is left behind: {error}", self.0.display());
        }
    }
}

struct StorageBench<'a> {
    place: &'a Place,
    tree: PathBuf,
    samples: StorageSamples,
}

/// A daemon, and a sandbox of it that has the tree.
struct Subject {
    connection: Connection,
    id: String,
}

impl<'a> StorageBench<'a> {
    fn new(place: &'a Place, storage: &'static str, tree: Tree) -> Self {
        let samples = StorageSamples::new(storage, tree);
        Self { place, tree: place.tree(tree), samples }
    }

    fn measure(&mut self, mut connection: Connection, forks: Forks) -> Result<(), BenchError> {
        self.copy().map_err(cannot("copy a tree"))?;
        self.templates(&mut connection)?;
        let spec = json!({ "source": { "dir": self.tree, "path": "tree" } });
        let (taken, id) = timed(|| create(&mut connection, &spec))?;
        self.samples.took(Operation::Workspace, taken);
        let mut subject = Subject { connection, id };
        let measured = self.snapshots(&mut subject, forks);
        destroy(&mut subject.connection, &subject.id)?;
        match measured {
            // What it cannot do is left out, and said.
            Err(BenchError::Refused { what, status: 400 | 404 | 405, body }) => {
                self.samples.lacks(what, &body);
                Ok(())
            }
            other => other,
        }
    }

    /// The yardstick.
    fn copy(&mut self) -> io::Result<()> {
        let to = self.place.0.join("copy");
        for _ in 0..BENCH_STORAGE_ROUNDS {
            let began = Instant::now();
            let copied = Command::new("cp").arg("-a").arg(&self.tree).arg(&to).status()?;
            self.samples.took(Operation::Copy, began.elapsed());
            fs::remove_dir_all(&to)?;
            if !copied.success() {
                return Err(io::Error::other("cp -a failed"));
            }
        }
        Ok(())
    }

    fn templates(&mut self, connection: &mut Connection) -> Result<(), BenchError> {
        let name = "bench";
        let body = json!({ "name": name, "source": { "dir": self.tree } }).to_string();
        let import = || call(connection, "import a template", "POST", "/api/v1/templates", &body);
        let (taken, _) = timed(import)?;
        self.samples.took(Operation::Import, taken);
        for round in 0..=BENCH_STORAGE_ROUNDS {
            let spec = json!({ "template": name });
            let (taken, id) = timed(|| create(connection, &spec))?;
            let operation = if round == 0 { Operation::FirstCreate } else { Operation::Create };
            self.samples.took(operation, taken);
            destroy(connection, &id)?;
        }
        let target = format!("/api/v1/templates/{name}");
        call(connection, "remove a template", "DELETE", &target, "").map(drop)
    }

    fn snapshots(&mut self, subject: &mut Subject, forks: Forks) -> Result<(), BenchError> {
        let mut snapshot = String::new();
        for _ in 0..BENCH_STORAGE_ROUNDS {
            subject.sh("sync")?;
            let (taken, id) = timed(|| subject.snapshot())?;
            self.samples.took(Operation::Snapshot, taken);
            snapshot = id;
        }
        for _ in 0..BENCH_STORAGE_ROUNDS {
            subject.write_more()?;
            let (taken, _) = timed(|| subject.snapshot())?;
            self.samples.took(Operation::SnapshotDirty, taken);
            subject.remove_more()?;
        }
        subject.sh("echo changed > ~/tree/0/0")?;
        for _ in 0..BENCH_STORAGE_ROUNDS {
            let (taken, ()) = timed(|| subject.diff(&snapshot))?;
            self.samples.took(Operation::Diff, taken);
            let (taken, ids) = timed(|| subject.fork(Some(&snapshot), 1))?;
            self.samples.took(Operation::Fork, taken);
            subject.destroy(&ids)?;
            let (taken, ()) = timed(|| subject.roll_back(&snapshot))?;
            self.samples.took(Operation::Rollback, taken);
        }
        for _ in 0..BENCH_STORAGE_ROUNDS {
            self.dirty(subject, &snapshot)?;
        }
        if forks == Forks::Many {
            let (taken, ids) = timed(|| subject.fork(Some(&snapshot), BENCH_FORKS))?;
            self.samples.took(Operation::ForkMany, taken);
            subject.destroy(&ids)?;
        }
        Ok(())
    }
}

impl StorageBench<'_> {
    /// What a storage takes when it first has to write what is not on the disk yet.
    fn dirty(&mut self, subject: &mut Subject, snapshot: &str) -> Result<(), BenchError> {
        subject.write_more()?;
        let (taken, ()) = timed(|| subject.diff(snapshot))?;
        self.samples.took(Operation::DiffDirty, taken);
        subject.remove_more()?;
        subject.write_more()?;
        let (taken, ids) = timed(|| subject.fork(None, 1))?;
        self.samples.took(Operation::ForkDirty, taken);
        subject.destroy(&ids)?;
        subject.remove_more()?;
        subject.write_more()?;
        let (taken, ()) = timed(|| subject.roll_back(snapshot))?;
        self.samples.took(Operation::RollbackDirty, taken);
        Ok(())
    }
}

impl Subject {
    /// As much again that is not on the disk yet.
    fn write_more(&mut self) -> Result<(), BenchError> {
        self.sh("cp -a ~/tree ~/more")
    }

    fn remove_more(&mut self) -> Result<(), BenchError> {
        self.sh("rm -rf ~/more && sync")
    }

    fn target(&self, more: &str) -> String {
        format!("/api/v1/sandboxes/{}/{more}", self.id)
    }

    fn post(&mut self, what: &'static str, more: &str, body: &Value) -> Result<Value, BenchError> {
        let target = self.target(more);
        let answer = call(&mut self.connection, what, "POST", &target, &body.to_string())?;
        serde_json::from_slice(&answer).map_err(io::Error::from).map_err(cannot(what))
    }

    fn sh(&mut self, command: &str) -> Result<(), BenchError> {
        let ended = self.post("run a command", "execs", &json!({ "command": command }))?;
        match ended["exit_code"].as_i64() {
            Some(0) => Ok(()),
            _ => Err(cannot("run a command")(io::Error::other(ended.to_string()))),
        }
    }

    fn snapshot(&mut self) -> Result<String, BenchError> {
        let made = self.post("take a snapshot", "snapshots", &json!({}))?;
        text(&made["id"], "take a snapshot")
    }

    fn roll_back(&mut self, snapshot: &str) -> Result<(), BenchError> {
        self.post("roll back", "rollback", &json!({ "snapshot": snapshot })).map(drop)
    }

    fn diff(&mut self, snapshot: &str) -> Result<(), BenchError> {
        let target = self.target(&format!("diff?from={snapshot}"));
        call(&mut self.connection, "tell what changed", "GET", &target, "").map(drop)
    }

    /// Without a snapshot it is of this moment.
    fn fork(&mut self, snapshot: Option<&str>, count: u64) -> Result<Vec<String>, BenchError> {
        let what = "fork";
        let made = self.post(what, "fork", &json!({ "snapshot": snapshot, "count": count }))?;
        let forks = made["sandboxes"].as_array().into_iter().flatten();
        forks.map(|fork| text(&fork["id"], what)).collect()
    }

    fn destroy(&mut self, ids: &[String]) -> Result<(), BenchError> {
        ids.iter().try_for_each(|id| destroy(&mut self.connection, id))
    }
}

fn create(connection: &mut Connection, spec: &Value) -> Result<String, BenchError> {
    let what = "create a sandbox";
    let answer = call(connection, what, "POST", "/api/v1/sandboxes", &spec.to_string())?;
    let made: Value =
        serde_json::from_slice(&answer).map_err(io::Error::from).map_err(cannot(what))?;
    text(&made["id"], what)
}

fn destroy(connection: &mut Connection, id: &str) -> Result<(), BenchError> {
    let target = format!("/api/v1/sandboxes/{id}");
    call(connection, "destroy a sandbox", "DELETE", &target, "").map(drop)
}

fn text(value: &Value, what: &'static str) -> Result<String, BenchError> {
    let missing = || cannot(what)(io::ErrorKind::InvalidData.into());
    value.as_str().map(str::to_owned).ok_or_else(missing)
}

fn timed<T>(work: impl FnOnce() -> Result<T, BenchError>) -> Result<(Duration, T), BenchError> {
    let began = Instant::now();
    let done = work()?;
    Ok((began.elapsed(), done))
}
