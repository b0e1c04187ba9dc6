//! The content of a volume is counted, limited, and removed with it.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use super::{StorageUnderTest, Verdict, ensure, make};
use crate::Quota;

pub(super) const MIB: u64 = 1024 * 1024;

/// Incompressible bytes.
pub(super) fn fill(path: &Path, mib: u64) -> io::Result<()> {
    let mut file = File::create(path)?;
    let mut block = vec![0; MIB as usize];
    for _ in 0..mib {
        getrandom::fill(&mut block).expect("random bytes");
        file.write_all(&block)?;
    }
    file.sync_all()
}

pub async fn destroy_removes_all_and_nothing_else(subject: StorageUnderTest) -> Verdict {
    let outside = tempfile::tempdir()?;
    fs::write(outside.path().join("file"), "kept")?;
    let (id, path) = make(&subject, Quota::NONE).await?;
    symlink(outside.path(), path.join("link"))?;
    symlink("/does/not/exist", path.join("dangling"))?;
    let deep = path.join("a/b/c/d/e");
    fs::create_dir_all(&deep)?;
    fs::write(deep.join("file"), "x")?;
    symlink(outside.path().join("file"), deep.join("link"))?;
    fs::hard_link(deep.join("file"), path.join("a/hard"))?;
    fs::create_dir(path.join("a/sealed"))?;
    fs::write(path.join("a/sealed/file"), "x")?;
    fs::set_permissions(path.join("a/sealed"), fs::Permissions::from_mode(0o000))?;
    subject.storage.destroy(&id).await?;
    ensure!(!path.exists(), "{} is still there", path.display());
    let kept = fs::read_to_string(outside.path().join("file"));
    ensure!(
        kept.is_ok_and(|text| text == "kept"),
        "it followed a link and removed what is outside"
    );
    Ok(())
}

pub async fn usage_follows_what_is_written(subject: StorageUnderTest) -> Verdict {
    let (id, path) = make(&subject, Quota::NONE).await?;
    let empty = subject.storage.usage(&id).await?;
    ensure!(empty.tree.used_bytes < MIB, "an empty volume uses {empty:?}");
    ensure!(empty.tree.limit_bytes.is_none(), "a volume without a quota has {empty:?}");
    fs::create_dir(path.join("directory"))?;
    fill(&path.join("directory/file"), 8)?;
    let full = subject.storage.usage(&id).await?.tree.used_bytes;
    ensure!((8 * MIB..10 * MIB).contains(&full), "8 MiB count as {full} bytes");
    Ok(subject.storage.destroy(&id).await?)
}

pub async fn a_quota_holds_or_is_refused(subject: StorageUnderTest) -> Verdict {
    const QUOTA: u64 = 16 * MIB;
    if !subject.storage.capabilities().disk_quota {
        let answer = make(&subject, Quota::of_tree(QUOTA)).await;
        ensure!(answer.is_err(), "a quota was accepted that does not hold");
        return Ok(());
    }
    let (id, path) = make(&subject, Quota::of_tree(QUOTA)).await?;
    let limit = subject.storage.usage(&id).await?.tree.limit_bytes;
    ensure!(limit == Some(QUOTA), "the quota is told as {limit:?}");
    fill(&path.join("within"), 8)?;
    let written = fill(&path.join("past"), 16);
    let full = matches!(
        written.as_ref().map_err(io::Error::kind),
        Err(io::ErrorKind::QuotaExceeded | io::ErrorKind::StorageFull)
    );
    ensure!(full, "24 MiB in a volume of 16 answered {written:?}");
    let used = subject.storage.usage(&id).await?.tree.used_bytes;
    // A storage may notice a transaction late.
    ensure!(used <= QUOTA + QUOTA / 16, "a volume of {QUOTA} bytes uses {used}");
    // A full volume must not be a trap: files can be removed, and then there is room.
    fs::remove_file(path.join("past"))?;
    fill(&path.join("again"), 4)?;

    let (other, beside) = make(&subject, Quota::NONE).await?;
    fill(&beside.join("file"), 24)?;
    subject.storage.destroy(&other).await?;
    Ok(subject.storage.destroy(&id).await?)
}
