//! The speed of each storage with trees of different sizes: a template of one, and a sandbox with one in its workspace.
//! Each figure is compared with that of the smallest tree, measured alternately, and with `cp -a` of the same tree:
//! constant-time operations do not grow with the tree, and copies do.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde_json::{Value, json};

use super::daemon::OwnDaemon;
use super::http::Connection;
use super::place;
use super::report::{Operation, StorageSamples};
use super::trees::Tree;
use super::{BenchError, call, cannot};
use sandkeep_core::limits::{BENCH_FORKS, BENCH_STORAGE_ANSWER, BENCH_STORAGE_ROUNDS_MAX};
use sandkeep_storage::StorageChoice;

/// How many copies of each tree a sandbox may contain at once.
const COPIES: u64 = 3;

#[derive(Debug, clap::Args)]
pub struct StorageArgs {
    /// Skip storages
    #[arg(long)]
    no_storages: bool,
    /// Storages to measure; zfs:POOL uses an existing pool
    #[arg(long, value_name = "STORAGES", value_delimiter = ',', default_value = "btrfs,local")]
    storages: Vec<StorageChoice>,
    /// Trees to measure storages with, each compared with the first; large ones take long and need several times
    /// their size on disk: 1MB,100MB,1GB,100000files
    #[arg(long, value_name = "TREES", value_delimiter = ',', default_value = "1MB,4MB,1000files")]
    storage_sizes: Vec<Tree>,
    /// Number of measured rounds per storage operation
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=BENCH_STORAGE_ROUNDS_MAX))]
    storage_rounds: u64,
}

/// Measures every usable storage with every tree. An interrupt skips the rest.
pub fn all(
    args: &StorageArgs,
    interrupted: &AtomicBool,
) -> Result<Vec<StorageSamples>, BenchError> {
    let mut found = Vec::new();
    if args.no_storages {
        return Ok(found);
    }
    let place = Trees::make().map_err(cannot("make a directory for trees"))?;
    let trees = &args.storage_sizes;
    for tree in trees {
        tree.make(&place.tree(*tree)).map_err(cannot("make a tree"))?;
    }
    let room_mb = COPIES * trees.iter().map(|tree| tree.mebibytes()).sum::<u64>();
    for storage in &args.storages {
        let daemon = match OwnDaemon::start_on(storage, room_mb) {
            Ok(daemon) => daemon,
            Err(error) => {
                eprintln!("{storage} is left out: {error}");
                continue;
            }
        };
        for tree in trees {
            // It may take minutes, so the user is told what is running.
            eprintln!("measuring {storage} with {tree}");
            let small = (*tree != trees[0]).then_some(trees[0]);
            let subject = |tree| Subject::new(&place, storage, tree, &daemon);
            let all = small.into_iter().chain([*tree]).map(subject).collect::<Result<_, _>>()?;
            let mut subjects = Subjects { all, rounds: args.storage_rounds, interrupted };
            match subjects.measure(&place) {
                Err(BenchError::Interrupted) => {
                    eprintln!("interrupted; the rest is left out");
                    return Ok(found);
                }
                measured => measured?,
            }
            let large = subjects.all.pop().expect("the tree itself is one").samples;
            found.push(match subjects.all.pop() {
                Some(small) => large.beside(small.samples),
                None => large,
            });
        }
    }
    Ok(found)
}

/// The temporary directory of the trees.
struct Trees(PathBuf);

impl Trees {
    fn make() -> io::Result<Self> {
        let path = place::path().join("trees");
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }

    fn tree(&self, tree: Tree) -> PathBuf {
        self.0.join(tree.to_string())
    }
}

impl Drop for Trees {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("{} is left behind: {error}", self.0.display());
        }
    }
}

/// A tree, a daemon, and its sandbox with the tree.
struct Subject {
    tree: PathBuf,
    /// Of its template.
    name: String,
    connection: Connection,
    id: String,
    /// The snapshot for comparisons and rollbacks.
    snapshot: String,
    samples: StorageSamples,
}

/// A tree, and before it the smallest one (unless it is that itself): every operation alternates between them.
struct Subjects<'a> {
    all: Vec<Subject>,
    rounds: u64,
    interrupted: &'a AtomicBool,
}

impl Subjects<'_> {
    fn in_turn(
        &mut self,
        work: impl FnMut(&mut Subject) -> Result<(), BenchError>,
    ) -> Result<(), BenchError> {
        if self.interrupted.load(Ordering::Relaxed) {
            Err(BenchError::Interrupted)
        } else {
            self.all.iter_mut().try_for_each(work)
        }
    }

    fn measure(&mut self, place: &Trees) -> Result<(), BenchError> {
        for _ in 0..self.rounds {
            self.in_turn(|subject| subject.copy(place))?;
        }
        self.in_turn(Subject::import)?;
        self.in_turn(|subject| subject.create_from_template(Operation::FirstCreate))?;
        for _ in 0..self.rounds {
            self.in_turn(|subject| subject.create_from_template(Operation::Create))?;
        }
        self.in_turn(Subject::forget_template)?;
        self.in_turn(Subject::create_with_workspace)?;
        let measured = self.measure_time();
        self.all
            .iter_mut()
            .try_for_each(|subject| destroy(&mut subject.connection, &subject.id))?;
        match measured {
            // Unsupported operations are left out, with a note.
            Err(BenchError::Refused { what, status: 400 | 404 | 405, body }) => {
                self.all.iter_mut().for_each(|subject| subject.samples.lacks(what, &body));
                Ok(())
            }
            other => other,
        }
    }

    /// Snapshots, and operations on them.
    fn measure_time(&mut self) -> Result<(), BenchError> {
        for _ in 0..self.rounds {
            self.in_turn(|subject| {
                subject.sh("sync")?;
                subject.snapshot = subject.timed(Operation::Snapshot, Subject::snapshot)?;
                Ok(())
            })?;
        }
        for _ in 0..self.rounds {
            self.in_turn(|subject| {
                subject.write_more()?;
                let snapshot = subject.timed(Operation::SnapshotDirty, Subject::snapshot)?;
                // Only the deleted snapshot has this data.
                subject.delete_snapshot(&snapshot)?;
                subject.remove_more()
            })?;
        }
        self.in_turn(|subject| subject.sh("echo changed > ~/tree/0/0"))?;
        for _ in 0..self.rounds {
            self.in_turn(|subject| subject.timed(Operation::Diff, Subject::diff))?;
            self.in_turn(|subject| subject.fork(Operation::Fork, From::Snapshot, 1))?;
            self.in_turn(|subject| subject.timed(Operation::Rollback, Subject::roll_back))?;
        }
        for _ in 0..self.rounds {
            self.in_turn(Subject::dirty)?;
        }
        match &mut self.all[..] {
            [alone] => alone.fork(Operation::ForkMany, From::Snapshot, BENCH_FORKS),
            _ => Ok(()),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    Snapshot,
    Now,
}

impl Subject {
    fn new(
        place: &Trees,
        storage: &StorageChoice,
        tree: Tree,
        daemon: &OwnDaemon,
    ) -> Result<Self, BenchError> {
        let connection = Connection::open(daemon.address)
            .and_then(|connection| connection.with_patience(BENCH_STORAGE_ANSWER));
        Ok(Self {
            tree: place.tree(tree),
            name: format!("bench-{}", tree.to_string().to_lowercase()),
            connection: connection.map_err(cannot("connect to the daemon"))?,
            id: String::new(),
            snapshot: String::new(),
            samples: StorageSamples::new(storage, tree),
        })
    }

    fn timed<T>(
        &mut self,
        operation: Operation,
        work: impl FnOnce(&mut Self) -> Result<T, BenchError>,
    ) -> Result<T, BenchError> {
        let began = Instant::now();
        let done = work(self)?;
        self.samples.took(operation, began.elapsed());
        Ok(done)
    }

    /// The yardstick.
    fn copy(&mut self, place: &Trees) -> Result<(), BenchError> {
        let to = place.0.join("copy");
        let copied = self.timed(Operation::Copy, |subject| {
            let copied = Command::new("cp").arg("-a").arg(&subject.tree).arg(&to).status();
            copied.map_err(cannot("copy a tree"))
        })?;
        fs::remove_dir_all(&to).map_err(cannot("remove a copy"))?;
        if copied.success() {
            Ok(())
        } else {
            Err(cannot("copy a tree")(io::Error::other("cp -a failed")))
        }
    }

    fn import(&mut self) -> Result<(), BenchError> {
        let body = json!({ "name": self.name, "source": { "dir": self.tree } }).to_string();
        self.timed(Operation::Import, |subject| {
            let connection = &mut subject.connection;
            call(connection, "import a template", "POST", "/api/v1/templates", &body).map(drop)
        })
    }

    fn create_from_template(&mut self, operation: Operation) -> Result<(), BenchError> {
        let spec = json!({ "template": self.name });
        let id = self.timed(operation, |subject| create(&mut subject.connection, &spec))?;
        destroy(&mut self.connection, &id)
    }

    fn forget_template(&mut self) -> Result<(), BenchError> {
        let target = format!("/api/v1/templates/{}", self.name);
        call(&mut self.connection, "remove a template", "DELETE", &target, "").map(drop)
    }

    fn create_with_workspace(&mut self) -> Result<(), BenchError> {
        let spec = json!({ "source": { "dir": self.tree, "path": "tree" } });
        let made = |subject: &mut Self| create(&mut subject.connection, &spec);
        self.id = self.timed(Operation::Workspace, made)?;
        Ok(())
    }

    /// The time of a storage that first has to write dirty data.
    fn dirty(&mut self) -> Result<(), BenchError> {
        self.write_more()?;
        self.timed(Operation::DiffDirty, Self::diff)?;
        self.remove_more()?;
        self.write_more()?;
        self.fork(Operation::ForkDirty, From::Now, 1)?;
        self.remove_more()?;
        self.write_more()?;
        self.timed(Operation::RollbackDirty, Self::roll_back)
    }

    /// The same amount of unwritten data in addition.
    fn write_more(&mut self) -> Result<(), BenchError> {
        self.sh("cp -a --reflink=never ~/tree ~/more")
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
            _ => {
                let said = ended["stderr"].as_str().unwrap_or_default();
                let first = said.lines().next().unwrap_or_default().to_owned();
                Err(cannot("run a command")(io::Error::other(first)))
            }
        }
    }

    fn snapshot(&mut self) -> Result<String, BenchError> {
        let made = self.post("take a snapshot", "snapshots", &json!({}))?;
        text(&made["id"], "take a snapshot")
    }

    fn delete_snapshot(&mut self, snapshot: &str) -> Result<(), BenchError> {
        let target = self.target(&format!("snapshots/{snapshot}"));
        call(&mut self.connection, "remove a snapshot", "DELETE", &target, "").map(drop)
    }

    fn roll_back(&mut self) -> Result<(), BenchError> {
        let body = json!({ "snapshot": self.snapshot });
        self.post("roll back", "rollback", &body).map(drop)
    }

    fn diff(&mut self) -> Result<(), BenchError> {
        let target = self.target(&format!("diff?from={}", self.snapshot));
        call(&mut self.connection, "tell what changed", "GET", &target, "").map(drop)
    }

    fn fork(&mut self, operation: Operation, from: From, count: u64) -> Result<(), BenchError> {
        let what = "fork";
        let snapshot = (from == From::Snapshot).then_some(&self.snapshot);
        let body = json!({ "snapshot": snapshot, "count": count });
        let made = self.timed(operation, |subject| subject.post(what, "fork", &body))?;
        for fork in made["sandboxes"].as_array().into_iter().flatten() {
            destroy(&mut self.connection, &text(&fork["id"], what)?)?;
        }
        Ok(())
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
