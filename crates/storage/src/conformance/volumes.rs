//! The life of volumes.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use super::{Failure, StorageUnderTest, Verdict, ensure, make};
use crate::{Base, Quota, StorageError};
use sandkeep_core::{SandboxId, SnapshotId};
use sandkeep_tree::Root;

pub async fn a_new_volume_is_an_empty_directory_of_root(subject: StorageUnderTest) -> Verdict {
    let (id, path) = make(&subject, Quota::NONE).await?;
    let metadata = fs::symlink_metadata(&path)?;
    ensure!(metadata.is_dir(), "{} is no directory", path.display());
    ensure!(metadata.mode() & 0o7777 == 0o755, "its mode is {:o}", metadata.mode());
    let again = subject.storage.root(&id).await?;
    let root = again.ids().on_disk(rustix::process::geteuid().as_raw());
    ensure!(metadata.uid() == root, "it belongs to {}", metadata.uid());
    ensure!(fs::read_dir(&path)?.next().is_none(), "it is not empty");
    ensure!(
        again == Root::dir(path.clone(), again.ids()),
        "its root is {again:?}, not {}",
        path.display()
    );
    Ok(subject.storage.destroy(&id).await?)
}

pub async fn a_volume_is_made_only_once(subject: StorageUnderTest) -> Verdict {
    let (id, path) = make(&subject, Quota::NONE).await?;
    fs::write(path.join("file"), "kept")?;
    let answer = subject.storage.create(&id, &Base::Empty, &Quota::NONE).await;
    ensure!(matches!(answer, Err(StorageError::Exists { .. })), "create answered {answer:?}");
    ensure!(fs::read(path.join("file"))? == b"kept", "the first volume was changed");
    Ok(subject.storage.destroy(&id).await?)
}

pub async fn what_does_not_exist_is_not_found(subject: StorageUnderTest) -> Verdict {
    let id = SandboxId::random();
    let root = subject.storage.root(&id).await;
    ensure!(matches!(root, Err(StorageError::NotFound { .. })), "root answered {root:?}");
    let usage = subject.storage.usage(&id).await;
    ensure!(matches!(usage, Err(StorageError::NotFound { .. })), "usage answered {usage:?}");
    Ok(())
}

pub async fn destroy_may_be_repeated(subject: StorageUnderTest) -> Verdict {
    subject.storage.destroy(&SandboxId::random()).await?;
    let (id, path) = make(&subject, Quota::NONE).await?;
    subject.storage.destroy(&id).await?;
    ensure!(!path.exists(), "{} is still there", path.display());
    subject.storage.destroy(&id).await?;
    let root = subject.storage.root(&id).await;
    ensure!(matches!(root, Err(StorageError::NotFound { .. })), "root answered {root:?}");
    Ok(())
}

/// The directory of the volumes.
async fn volumes_dir(subject: &StorageUnderTest) -> Result<PathBuf, Failure> {
    let (id, path) = make(subject, Quota::NONE).await?;
    subject.storage.destroy(&id).await?;
    path.parent().map(PathBuf::from).ok_or_else(|| Failure("a volume is /".to_owned()))
}

pub async fn a_half_made_volume_is_listed_and_destroyed(subject: StorageUnderTest) -> Verdict {
    let (dir, id) = (volumes_dir(&subject).await?, SandboxId::random());
    (subject.half_make)(&dir, &id);
    let listed = subject.storage.list().await?;
    ensure!(listed == [id.clone()], "with a half-made volume it lists {listed:?}");
    subject.storage.destroy(&id).await?;
    ensure!(!dir.join(id.as_str()).exists(), "the half-made volume is still there");
    Ok(())
}

pub async fn only_volumes_are_listed(subject: StorageUnderTest) -> Verdict {
    let dir = volumes_dir(&subject).await?;
    let file_like_a_volume = dir.join(SandboxId::random().as_str());
    fs::write(&file_like_a_volume, "")?;
    fs::write(dir.join("file"), "")?;
    fs::create_dir(dir.join("sb-directory"))?;
    let mut made = Vec::new();
    for _ in 0..3 {
        made.push(make(&subject, Quota::NONE).await?.0);
    }
    let mut listed = subject.storage.list().await?;
    listed.sort();
    made.sort();
    fs::remove_file(&file_like_a_volume)?;
    fs::remove_file(dir.join("file"))?;
    fs::remove_dir(dir.join("sb-directory"))?;
    ensure!(listed == made, "it lists {listed:?}, not {made:?}");
    for id in made {
        subject.storage.destroy(&id).await?;
    }
    Ok(())
}

pub async fn fifty_at_once_leave_nothing(subject: StorageUnderTest) -> Verdict {
    let tasks: Vec<_> = (0..50)
        .map(|n: u32| {
            let subject = subject.clone();
            tokio::spawn(async move {
                let (id, path) = make(&subject, Quota::NONE).await?;
                fs::create_dir(path.join("directory"))?;
                fs::write(path.join("directory/file"), n.to_le_bytes())?;
                let read = fs::read(path.join("directory/file"))?;
                ensure!(read == n.to_le_bytes(), "volume {n} holds {read:?}");
                subject.storage.destroy(&id).await?;
                Verdict::Ok(())
            })
        })
        .collect();
    for task in tasks {
        task.await.map_err(|error| Failure(error.to_string()))??;
    }
    Ok(())
}

pub async fn what_it_cannot_do_it_refuses(subject: StorageUnderTest) -> Verdict {
    let (id, _) = make(&subject, Quota::NONE).await?;
    if !subject.storage.capabilities().snapshots {
        let answer = subject.storage.snapshot(&id, &SnapshotId::random()).await;
        let refused = matches!(answer, Err(StorageError::Unsupported { .. }));
        ensure!(refused, "snapshot answered {answer:?}");
    }
    let health = subject.storage.pool_health().await?;
    let sensible = health.total_bytes > 0 && health.free_bytes <= health.total_bytes;
    ensure!(sensible, "the pool is {health:?}");
    Ok(subject.storage.destroy(&id).await?)
}
