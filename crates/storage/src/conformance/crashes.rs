//! Kills a storage at each of its failpoints, and checks what the next one finds.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use crate::offload::{Blocking, Offloaded};
use crate::{Base, Quota, StorageError};
use sandkeep_core::{
    SandboxId, SnapshotId,
    failpoint::{self, simulated},
};

/// The operation that is interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Snapshot,
    Rollback,
    Fork,
    Delete,
    Destroy,
}

impl Doing {
    /// The operation of a failpoint; `None` if it belongs to something else.
    fn at(point: &str) -> Option<Self> {
        let (_, step) = point.split_once('.')?;
        let (verb, _) = step.split_once("_after_")?;
        match verb {
            "snapshot" => Some(Self::Snapshot),
            "rollback" => Some(Self::Rollback),
            "fork" => Some(Self::Fork),
            "delete" => Some(Self::Delete),
            "destroy" => Some(Self::Destroy),
            _ => None,
        }
    }
}

/// A volume with a snapshot of its earlier content.
struct Scene {
    id: SandboxId,
    earlier: SnapshotId,
    new: SnapshotId,
    fork: SandboxId,
}

impl Scene {
    fn set<S: Blocking>(storage: &S) -> Self {
        let [id, fork] = [SandboxId::random(), SandboxId::random()];
        let [earlier, new] = [SnapshotId::random(), SnapshotId::random()];
        let root = storage.create(&id, &Base::Empty, &Quota::NONE).expect("a volume");
        fs::write(root.own_dir().join("file"), "earlier").expect("a file");
        storage.snapshot(&id, &earlier).expect("a snapshot");
        fs::write(root.own_dir().join("file"), "now").expect("a file");
        Self { id, earlier, new, fork }
    }

    fn act<S: Blocking>(&self, storage: &S, doing: Doing) -> Result<(), StorageError> {
        match doing {
            Doing::Snapshot => storage.snapshot(&self.id, &self.new),
            Doing::Rollback => storage.rollback(&self.id, &self.earlier).map(drop),
            Doing::Fork => {
                storage.fork(&self.id, &self.earlier, &self.fork, &Quota::NONE).map(drop)
            }
            Doing::Delete => storage.delete_snapshot(&self.id, &self.earlier),
            Doing::Destroy => storage.destroy(&self.id),
        }
    }

    /// Everything that exists is complete.
    fn check<S: Blocking>(&self, storage: &S, doing: Doing, point: &str) {
        let volumes = storage.list().expect("a list");
        for id in &volumes {
            let held = read(storage.root(id).expect("a root").own_dir());
            let expected: &[&str] = match (*id == self.fork, doing) {
                (true, _) => &["earlier"],
                (false, Doing::Rollback) => &["earlier", "now"],
                (false, _) => &["now"],
            };
            assert!(expected.contains(&held.as_str()), "{point}: a volume holds {held}");
        }
        let removing = matches!(doing, Doing::Delete | Doing::Destroy);
        let snapshots = storage.snapshots().expect("a list");
        let gone = doing == Doing::Destroy && !snapshots.iter().any(|(id, _)| *id == self.id);
        let there = volumes.contains(&self.id);
        assert!(there || gone, "{point}: the volume is gone before its snapshots");
        let listed = snapshots.iter().any(|(_, snapshot)| *snapshot == self.earlier);
        assert!(listed || removing, "{point}: a committed snapshot is lost");
        for (id, snapshot) in snapshots {
            let view = storage.view(&id, Some(&snapshot)).expect("a view");
            let file = view.root().and_then(|root| root.child(b"file")).expect("a tree");
            let held = io_text(file.expect("the file").open().expect("readable"));
            let expected = if snapshot == self.earlier { "earlier" } else { "now" };
            assert_eq!(held, expected, "{point}: {snapshot}");
        }
    }
}

fn read(root: &Path) -> String {
    fs::read_to_string(root.join("file")).expect("the file")
}

fn io_text(mut file: impl std::io::Read) -> String {
    let mut text = String::new();
    file.read_to_string(&mut text).expect("text");
    text
}

/// Kills the storage at every failpoint of its own. `rooms` are the directories that must be empty in the end.
pub(crate) fn survives_every_point<S: Blocking>(
    open: impl Fn() -> Offloaded<S>,
    rooms: &[PathBuf],
) {
    let prefix = format!("{}.", S::NAME);
    let points = failpoint::ALL.iter().filter(|point| point.starts_with(&prefix));
    let points: Vec<_> = points.filter_map(|point| Some((*point, Doing::at(point)?))).collect();
    assert!(points.len() > 5, "only {points:?} are tried");
    for (point, doing) in points {
        let storage = open().inner;
        let scene = Scene::set(&*storage);
        simulated::arm(point);
        let killed = catch_unwind(AssertUnwindSafe(|| scene.act(&*storage, doing)));
        assert!(killed.is_err() && simulated::has_fired(), "{point} was not passed: {killed:?}");
        let storage = open().inner;
        scene.check(&*storage, doing, point);
        // As reconcile does, and as a caller retries.
        if doing == Doing::Fork {
            storage.destroy(&scene.fork).expect("destroy what is half-made");
        }
        if doing == Doing::Snapshot {
            storage.delete_snapshot(&scene.id, &scene.new).expect("delete what nobody knows");
        }
        scene.act(&*storage, doing).unwrap_or_else(|error| panic!("{point}: again: {error:?}"));
        for id in [&scene.fork, &scene.id] {
            storage.destroy(id).unwrap_or_else(|error| panic!("{point}: {error:?}"));
        }
        for room in rooms {
            let left: Vec<_> = fs::read_dir(room).expect("a room").flatten().collect();
            let left = left.iter().map(|entry| entry.file_name());
            let left: Vec<_> =
                left.filter(|name| !name.to_string_lossy().starts_with('.')).collect();
            assert!(left.is_empty(), "{point}: {} holds {left:?}", room.display());
        }
    }
}
