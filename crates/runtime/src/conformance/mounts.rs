//! Trees of the host in a sandbox.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use super::lab::{Failure, Lab, ensure, modest, run, same, script};
use crate::{MountAccess, MountSource, Plan, PlannedMount, RuntimeError};
use sandkeep_guestlink::Outcome;
use sandkeep_sys::namespace::USER_ID;
use sandkeep_tree::Ids;

/// The directory of the root that a tree is mounted on.
const TARGET: &str = "tree";

/// Reading and writing land in the tree itself, as the sandbox's user and without devices or set-user-ID programs.
pub(super) async fn a_tree_of_the_host_is_mounted_or_refused(lab: &Lab<'_>) -> Result<(), Failure> {
    let mut plan = lab.plan(modest()).await;
    if !lab.runtime().capabilities().mounts {
        plan.mounts = vec![mount(PathBuf::from("/nowhere"), TARGET, MountAccess::ReadWrite)];
        let refused = lab.runtime().create(&plan).await;
        let unsupported = matches!(refused, Err(RuntimeError::Unsupported { .. }));
        ensure!(unsupported, "create with a mount answers {refused:?}");
        return same("what is listed", lab.found(&plan.id).await?, None);
    }
    let tree = tree(&plan)?;
    fs::write(tree.join("from-outside"), "out")?;
    plan.stored()?.root.make_directory(TARGET, 0o755)?;
    plan.mounts = vec![mount(tree.clone(), TARGET, MountAccess::ReadWrite)];
    lab.runtime().create(&plan).await?;
    lab.runtime().start(&plan).await?;
    let guest = lab.runtime().connect(&plan.id).await?;
    let text = "cat /tree/from-outside && echo in > /tree/from-inside && \\
                grep ' /tree ' /proc/self/mounts | grep nosuid | grep -c nodev";
    let said = run(&*guest, script(text)).await?;
    same("what it said", (said.stdout.as_str(), said.outcome()), ("out1\n", Outcome::Exited(0)))?;
    let made = tree.join("from-inside");
    same("what was written inside", fs::read_to_string(&made)?.as_str(), "in\n")?;
    same("its owner", made.metadata()?.uid(), owner())?;
    fs::write(tree.join("later"), "late")?;
    let said = run(&*guest, script("cat /tree/later")).await?;
    same("a file made while it runs", said.stdout.as_str(), "late")
}

pub(super) async fn a_tree_mounted_for_reading_is_not_written(
    lab: &Lab<'_>,
) -> Result<(), Failure> {
    if !lab.runtime().capabilities().mounts {
        return Ok(());
    }
    let mut plan = lab.plan(modest()).await;
    let tree = tree(&plan)?;
    fs::write(tree.join("kept"), "as it was")?;
    plan.stored()?.root.make_directory(TARGET, 0o755)?;
    plan.mounts = vec![mount(tree.clone(), TARGET, MountAccess::Read)];
    lab.runtime().create(&plan).await?;
    lab.runtime().start(&plan).await?;
    let guest = lab.runtime().connect(&plan.id).await?;
    let attempts = "cd /tree; (echo x > kept) || (echo x > new) || rm kept || mv kept gone || \\
                    chmod 777 kept || ln kept twin || cat kept";
    let said = run(&*guest, script(attempts)).await?;
    same("stdout", said.stdout.as_str(), "as it was")?;
    same("the file", fs::read_to_string(tree.join("kept"))?.as_str(), "as it was")?;
    same("what is in the tree", fs::read_dir(&tree)?.count(), 1)
}

/// The sandbox's users decide what is on the way to the target.
pub(super) async fn a_link_on_the_way_to_a_mount_is_not_followed(
    lab: &Lab<'_>,
) -> Result<(), Failure> {
    if !lab.runtime().capabilities().mounts {
        return Ok(());
    }
    for (link, target) in [("/tmp", "way/tree"), ("/", "way"), ("..", "way"), ("tree", "way")] {
        let mut plan = lab.plan(modest()).await;
        let tree = tree(&plan)?;
        let root = plan.stored()?.root.clone();
        root.make_directory(TARGET, 0o755)?;
        symlink(link, root.own_dir().join("way"))?;
        plan.mounts = vec![mount(tree, target, MountAccess::ReadWrite)];
        lab.runtime().create(&plan).await?;
        let started = lab.runtime().start(&plan).await;
        ensure!(started.is_err(), "it starts with a tree at {target}, where way leads to {link}");
        let connected = lab.runtime().connect(&plan.id).await;
        ensure!(connected.is_err(), "a failed start left a guest");
    }
    Ok(())
}

fn mount(tree: PathBuf, target: &str, access: MountAccess) -> PlannedMount {
    PlannedMount { source: MountSource::Dir(tree, Ids::Plain), target: target.to_owned(), access }
}

/// A directory of the host that belongs to `user`.
fn tree(plan: &Plan) -> io::Result<PathBuf> {
    let tree = plan.home.join("codebase");
    fs::create_dir(&tree)?;
    fs::set_permissions(&tree, fs::Permissions::from_mode(0o755))?;
    give(&tree)?;
    Ok(tree)
}

fn give(path: &Path) -> io::Result<()> {
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(path, Some(USER_ID), Some(USER_ID))
    } else {
        Ok(())
    }
}

/// On the host, a file of `user`.
fn owner() -> u32 {
    let own = rustix::process::geteuid();
    if own.is_root() { USER_ID } else { own.as_raw() }
}
