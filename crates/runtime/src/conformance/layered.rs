//! Sandboxes with a layered root, like those of images: nothing of the host is in it.
//!
//! One bench for all of it, because the root is tested and not the verbs.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::mount::{UnmountFlags, unmount};

use super::lab::{Failure, Lab, command, modest, run, same};
use super::{Bench, Violation};
use crate::{Plan, PlannedFiles, StoredFiles};
use sandkeep_core::{Privilege, limits::LAYERS_MAX};
use sandkeep_guestlink::Outcome;
use sandkeep_storage::{
    Base, BtrfsOptions, BtrfsStorage, LayerId, LocalStorage, Quota, Storage, StorageError,
    conformance::fixture,
};
use sandkeep_tree::{Ids, MOUNT_POINTS, Root};

/// Whether a set-user-ID program makes its caller root inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Setuid {
    Works,
    /// It does not change the caller's identity.
    GivesNothing,
    /// It depends on the version of the tool.
    Untold,
}

/// Checks every kind of root on every storage of this machine.
pub(crate) async fn keeps_above_layers(bench: &dyn Bench, setuid: Setuid) -> Result<(), Violation> {
    let broken = |promise| move |Failure(detail)| Violation { promise, detail };
    let dir = tempfile::tempdir().expect("a temporary directory");
    let _unmounted = Unmounted(dir.path().join("storage/btrfs"));
    let local = LocalStorage::open(dir.path()).expect("local storage works everywhere");
    try_on(bench, &local, setuid).await.map_err(broken("above layers of local storage"))?;
    if rustix::process::geteuid().is_root() {
        try_shifted(bench, setuid).await.map_err(broken("where ids are shifted on the disk"))?;
    }
    let options = BtrfsOptions { image_bytes: Some(256 * 1024 * 1024), image_max_bytes: None };
    match BtrfsStorage::open(dir.path(), &options) {
        Ok(btrfs) => {
            let kept = try_on(bench, &btrfs, setuid).await;
            btrfs.close(&[]).await.expect("nothing is left in it");
            kept.map_err(broken("above layers of btrfs storage"))
        }
        // A non-root daemon has no other storage.
        Err(StorageError::Unusable { .. }) => Ok(()),
        Err(error) => panic!("{error:?}"),
    }
}

/// Starts a sandbox on the maximum number of layers, each of which has a file of its own.
pub(crate) async fn keeps_above_many_layers(bench: &dyn Bench) -> Result<(), Violation> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let make = |path: String| {
        let path = dir.path().join(path);
        std::fs::create_dir_all(&path).expect("a directory");
        path
    };
    let lowers: Vec<_> = (0..LAYERS_MAX).map(|at| make(format!("layers/{at:064}"))).collect();
    for (at, lower) in lowers.iter().enumerate() {
        std::fs::write(lower.join(format!("file-{at}")), "").expect("a file");
    }
    let programs = make(format!("layers/{:064}/bin", 0));
    std::fs::copy("/bin/busybox", programs.join("busybox")).expect("a program");
    let root = Root::Overlay { lowers, upper: make("own/u".into()), work: make("own/w".into()) };
    let lab = Lab::new(bench);
    let mut plan = lab.plan(modest()).await;
    let kept = async {
        stand_on(&lab, &mut plan, root)?;
        lab.runtime().create(&plan).await?;
        lab.runtime().start(&plan).await?;
        let count = "cd /; set -- file-*; echo $#";
        says(&lab, &plan, count, &format!("{LAYERS_MAX}\n")).await
    };
    let kept = kept.await;
    let promise = "above as many layers as there may be";
    kept.and(lab.clean_up().await).map_err(|Failure(detail)| Violation { promise, detail })
}

/// Unmounts the pool, and with it the loop device, however a test ends.
struct Unmounted(PathBuf);

impl Drop for Unmounted {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

async fn try_on(bench: &dyn Bench, storage: &dyn Storage, setuid: Setuid) -> Result<(), Failure> {
    let layers = layers(storage).await?;
    let lab = Lab::new(bench);
    let plans = [plan(&lab, storage, &layers).await?, plan(&lab, storage, &layers).await?];
    let kept = try_both(&lab, &plans, setuid).await;
    let cleaned = lab.clean_up().await;
    for plan in &plans {
        storage.destroy(&plan.id).await?;
    }
    for key in storage.layers().await? {
        storage.remove_layer(&key).await?;
    }
    kept.and(cleaned)
}

/// A static program, and files; the upper layer changes some of them.
async fn layers(storage: &dyn Storage) -> Result<Vec<LayerId>, Failure> {
    let lower = fixture::layer(storage, &[], |draft| {
        for path in ["gone", "opaque/hidden"] {
            fixture::write(&draft.root, path, "low")?;
        }
        fill(&draft.root, "low")
    });
    let lower = lower.await?;
    let upper = fixture::layer(storage, std::slice::from_ref(&lower), |draft| {
        fixture::write(&draft.root, "etc/both", "high")?;
        fixture::hide(draft, "gone")?;
        fixture::hide_below(draft, "opaque")?;
        fixture::write(&draft.root, "opaque/seen", "high")
    });
    let upper = upper.await?;
    Ok(vec![lower, upper])
}

fn fill(root: &Path, both: &str) -> io::Result<()> {
    for (path, text) in [("etc/lower", "low"), ("etc/both", both), ("dir/file", "low")] {
        fixture::write(root, path, text)?;
    }
    let users = "root::0:0::/:/bin/sh\nuser:x:1000:1000::/:/bin/sh\n";
    fixture::write(root, "etc/passwd", users)?;
    let bin = root.join("bin");
    std::fs::create_dir(&bin)?;
    std::os::unix::fs::symlink("busybox", bin.join("sh"))?;
    for program in ["busybox", "su"] {
        std::fs::copy("/bin/busybox", bin.join(program))?;
    }
    std::fs::set_permissions(bin.join("su"), Permissions::from_mode(0o4755))
}

/// The same without layers, on a root with ids of the range that sandboxes share.
async fn try_shifted(bench: &dyn Bench, setuid: Setuid) -> Result<(), Failure> {
    let lab = Lab::new(bench);
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut plans = [lab.plan(modest()).await, lab.plan(modest()).await];
    for plan in &mut plans {
        let root = dir.path().join(plan.id.as_str());
        fill(&root, "high")?;
        fixture::write(&root, "opaque/seen", "high")?;
        shift(&root)?;
        stand_on(&lab, plan, Root::Shifted(root))?;
    }
    let kept = if lab.runtime().capabilities().own_id_range {
        try_both(&lab, &plans, setuid).await
    } else {
        same("that it refuses", lab.runtime().create(&plans[0]).await.is_err(), true)
    };
    kept.and(lab.clean_up().await)
}

/// Gives everything to root inside, and enables set-user-ID programs.
fn shift(root: &Path) -> io::Result<()> {
    let mut left = vec![root.to_owned()];
    while let Some(path) = left.pop() {
        let metadata = path.symlink_metadata()?;
        Ids::Shifted.give_to_root(rustix::fs::CWD, &path)?;
        if metadata.is_file() {
            std::fs::set_permissions(&path, metadata.permissions())?;
        } else if metadata.is_dir() {
            for entry in std::fs::read_dir(&path)? {
                left.push(entry?.path());
            }
        }
    }
    Ok(())
}

/// A plan for a sandbox that sees only layers.
async fn plan(lab: &Lab<'_>, storage: &dyn Storage, layers: &[LayerId]) -> Result<Plan, Failure> {
    let mut plan = lab.plan(modest()).await;
    let root = storage.create(&plan.id, &Base::Layers(layers.to_vec()), &Quota::NONE).await?;
    stand_on(lab, &mut plan, root)?;
    Ok(plan)
}

fn stand_on(lab: &Lab<'_>, plan: &mut Plan, root: Root) -> Result<(), Failure> {
    for (name, mode) in MOUNT_POINTS {
        root.make_directory(name, mode)?;
    }
    plan.files = PlannedFiles::Stored(StoredFiles { root, binds: Arc::from([]) });
    plan.privilege =
        if lab.runtime().capabilities().any_user { Privilege::Root } else { Privilege::None };
    Ok(())
}

/// Checks the complete output of a script, run as root if possible.
async fn says(lab: &Lab<'_>, plan: &Plan, script: &str, expected: &str) -> Result<(), Failure> {
    let guest = lab.runtime().connect(&plan.id).await?;
    let mut request = command(&["/bin/busybox", "sh", "-c", script]);
    (request.user, request.privilege) = if lab.runtime().capabilities().any_user {
        ("0:0".to_owned(), Privilege::Root)
    } else {
        ("1000:1000".to_owned(), Privilege::None)
    };
    let said = run(&*guest, request).await?;
    let all = (said.stdout.as_str(), said.stderr.as_str(), said.outcome());
    same(script, all, (expected, "", Outcome::Exited(0)))
}

const SEE: &str = "cd /; b=bin/busybox; $b cat etc/lower etc/both dir/file; $b ls opaque; \
                   $b ls -d gone 2>&1 || :";
const UNTOUCHED: &str = "lowhighlowseen\nls: gone: No such file or directory\n";

async fn try_both(lab: &Lab<'_>, plans: &[Plan; 2], setuid: Setuid) -> Result<(), Failure> {
    let [first, second] = plans;
    for plan in plans {
        lab.runtime().create(plan).await?;
        lab.runtime().start(plan).await?;
    }
    says(lab, first, SEE, UNTOUCHED).await?;
    let becomes = becomes_root(lab, first).await?;
    match setuid {
        Setuid::Works => same("that su makes one root", becomes, true)?,
        Setuid::GivesNothing => same("that su makes one root", becomes, false)?,
        Setuid::Untold => {}
    }
    let change = "cd /; b=bin/busybox; echo new > etc/lower; $b rm etc/both; $b mv dir moved; \\
                  $b chmod 700 opaque; $b rm opaque/seen; echo x > opaque/own; $b sync";
    says(lab, first, change, "").await?;
    let changed = "cd /; b=bin/busybox; $b cat etc/lower moved/file; $b ls etc opaque; \
                   $b ls -d dir 2>&1 || :";
    let seen = "new\nlowetc:\nlower\npasswd\n\nopaque:\nown\nls: dir: No such file or directory\n";
    says(lab, first, changed, seen).await?;
    lab.runtime().stop(&first.id, Duration::from_secs(1)).await?;
    lab.runtime().start(first).await?;
    says(lab, first, changed, seen).await?;
    says(lab, second, SEE, UNTOUCHED).await
}

/// An ordinary user runs the set-user-ID program.
async fn becomes_root(lab: &Lab<'_>, plan: &Plan) -> Result<bool, Failure> {
    let guest = lab.runtime().connect(&plan.id).await?;
    let mut request = command(&["/bin/su", "root", "-c", "busybox id -u"]);
    request.user = "1000:1000".to_owned();
    request.privilege = plan.privilege;
    let said = run(&*guest, request).await?;
    Ok(said.stdout == "0\n" && said.outcome() == Outcome::Exited(0))
}
