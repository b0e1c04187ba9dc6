//! What a step of a build mounts: secrets and bound files, which are drafts of layers that are never kept, and caches.
//!
//! Everything here lives until the step's sandbox is gone. Where something is mounted is made before the launch, if it
//! is missing, and removed before the sandbox's files become a layer.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{CWD, Mode, OFlags, fchmod, openat};

use super::caches::{CacheUse, CacheWanted};
use super::copying::Copying;
use super::steps::Builder;
use crate::error::Error;
use crate::images::layers::id_of;
use sandkeep_core::{ImportId, with_causes};
use sandkeep_image::{
    MountTarget, TargetKind,
    recipe::{
        Access, Archives, Copied, CopiedFile, CopiedFrom, Need, RunMount, Running, Sharing, Step,
    },
};
use sandkeep_runtime::{MountAccess, MountSource, PlannedMount};
use sandkeep_storage::{LayerDraft, StorageError};
use sandkeep_tree::{Ids, Root, digest::Digest, give_to};

/// The mounts of one step.
#[derive(Default)]
pub(crate) struct StepMounts {
    mounts: Vec<StepMount>,
    targets: Mutex<Vec<MountTarget>>,
    /// Variables with secrets.
    pub env: Vec<(String, String)>,
    caches: Vec<CacheUse>,
    /// They are removed with this.
    drafts: Vec<LayerDraft>,
}

struct StepMount {
    source: PathBuf,
    ids: Ids,
    target: String,
    kind: TargetKind,
    access: MountAccess,
}

/// The files that a step binds, one plan for each, in the order of its mounts.
#[derive(Default)]
pub struct Binds(Vec<Copying>);

impl Binds {
    /// For the cache key.
    pub fn files(&self) -> Vec<CopiedFile> {
        self.0.iter().flat_map(|copying| copying.files.iter().cloned()).collect()
    }
}

/// The name of a bound file or directory in its draft. Each has another, so that keys tell them apart.
fn bind_name(index: usize) -> String {
    format!("bind-{index}")
}

impl StepMounts {
    /// What the runtime mounts on this root, on which nothing runs yet.
    pub async fn plan(&self, root: &Root) -> Result<Vec<PlannedMount>, Error> {
        let mut planned = Vec::with_capacity(self.mounts.len());
        for StepMount { source, ids, target, kind, access } in &self.mounts {
            let made = MountTarget::make(root, target, *kind).await?;
            let source = MountSource::Dir(source.clone(), *ids);
            planned.push(PlannedMount { source, target: made.path(), access: *access });
            self.targets.lock().unwrap_or_else(PoisonError::into_inner).push(made);
        }
        Ok(planned)
    }

    /// Removes what was made for the mounts. Nothing runs on the root any more.
    pub async fn remove_targets(&self, root: &Root) -> Result<(), Error> {
        let made =
            std::mem::take(&mut *self.targets.lock().unwrap_or_else(PoisonError::into_inner));
        for target in made.into_iter().rev() {
            target.remove(root).await?;
        }
        Ok(())
    }

    pub fn is_empty(&self) -> bool {
        self.mounts.is_empty()
    }

    pub fn caches(&self) -> &[CacheUse] {
        &self.caches
    }

    fn add(&mut self, source: PathBuf, ids: Ids, target: &str, kind: TargetKind, access: Access) {
        let access = match access {
            Access::Read => MountAccess::Read,
            Access::Write => MountAccess::ReadWrite,
        };
        self.mounts.push(StepMount { source, ids, target: target.to_owned(), kind, access });
    }
}

impl Builder<'_> {
    /// Plans what a step binds, on top of nothing.
    pub async fn plan_binds(&mut self, running: &Running, step: &Step) -> Result<Binds, Error> {
        let mut binds = Binds::default();
        for mount in &running.mounts {
            let RunMount::Bind { from, source, target: _ } = mount else { continue };
            let copied = Copied {
                from: from.clone(),
                sources: vec![CopiedFrom::Path(source.clone())],
                to: format!("/{}", bind_name(binds.0.len())),
                owner: None,
                mode: None,
                archives: Archives::Kept,
            };
            binds.0.push(self.plan_copy(&[], &copied, step).await?);
        }
        Ok(binds)
    }

    /// Makes everything that a step mounts.
    pub async fn open_mounts(
        &mut self,
        running: &Running,
        binds: Binds,
        step: &Step,
    ) -> Result<StepMounts, Error> {
        let mut mounts = StepMounts::default();
        if running.mounts.is_empty() {
            return Ok(mounts);
        }
        self.open_caches(running, &mut mounts).await?;
        self.open_secrets(running, step, &mut mounts).await?;
        let targets = running.mounts.iter().filter_map(|mount| match mount {
            RunMount::Bind { target, .. } => Some(target),
            RunMount::Cache { .. } | RunMount::Secret { .. } => None,
        });
        for (index, (target, copying)) in targets.zip(binds.0).enumerate() {
            let draft = self.empty_draft().await?;
            let layer = self.archived(copying, step).await?;
            self.broker.fill(self.job, &layer, &draft, None).await?;
            let source = draft.root.join(bind_name(index));
            let found = std::fs::symlink_metadata(&source).map_err(unmade("bind files"))?;
            let kind = if found.is_dir() { TargetKind::Directory } else { TargetKind::File };
            mounts.add(source, draft.ids, target, kind, Access::Read);
            mounts.drafts.push(draft);
        }
        Ok(mounts)
    }

    /// In the order of their ids, so that two steps with the same caches never wait for each other.
    async fn open_caches(&self, running: &Running, mounts: &mut StepMounts) -> Result<(), Error> {
        let mut wanted: Vec<_> = running
            .mounts
            .iter()
            .filter_map(|mount| match mount {
                RunMount::Cache { id, target, sharing, access, mode, uid, gid } => {
                    let id = id.as_deref().unwrap_or(target);
                    let wanted = CacheWanted { id, mode: *mode, uid: *uid, gid: *gid };
                    Some((wanted, *sharing, target, *access))
                }
                RunMount::Secret { .. } | RunMount::Bind { .. } => None,
            })
            .collect();
        wanted.sort_by_key(|(wanted, ..)| wanted.id);
        if let Some(twice) = wanted.windows(2).find(|pair| pair[0].0.id == pair[1].0.id) {
            let problem = format!("the cache {:?} is mounted twice in one step", twice[0].0.id);
            return Err(Error::BuildFileInvalid { problem });
        }
        for (wanted, sharing, target, access) in wanted {
            let opened = self.open_cache(&wanted, sharing).await?;
            let (source, ids) = match opened {
                Some(cache) => {
                    let found = (cache.tree.clone(), cache.ids);
                    mounts.caches.push(cache);
                    found
                }
                None => {
                    debug_assert_eq!(sharing, Sharing::Private, "only it may be in use elsewhere");
                    let draft = self.empty_draft().await?;
                    let root = Root::dir(draft.root.clone(), draft.ids);
                    root.make_top_dir(CACHE_ALONE, wanted.uid, wanted.gid, wanted.mode)
                        .map_err(unmade("make a cache"))?;
                    let found = (draft.root.join(CACHE_ALONE), draft.ids);
                    mounts.drafts.push(draft);
                    found
                }
            };
            mounts.add(source, ids, target, TargetKind::Directory, access);
        }
        Ok(())
    }

    async fn open_secrets(
        &self,
        running: &Running,
        step: &Step,
        mounts: &mut StepMounts,
    ) -> Result<(), Error> {
        let mut draft = None;
        for (index, mount) in running.mounts.iter().enumerate() {
            let RunMount::Secret { id, target, env, need, mode, uid, gid } = mount else {
                continue;
            };
            let failed = |problem: String| Error::BuildFailed {
                line: step.line,
                instruction: step.written.clone(),
                problem,
            };
            let Some(value) = self.context.secret(id) else {
                match need {
                    Need::Optional => continue,
                    Need::Required => {
                        let problem = format!(
                            "it needs the secret {id:?}: give it with --secret id={id},src=FILE"
                        );
                        return Err(failed(problem));
                    }
                }
            };
            if let Some(name) = env {
                let value = std::str::from_utf8(value).ok().filter(|text| !text.contains('\0'));
                let value = value.ok_or_else(|| {
                    failed(format!(
                        "the secret {id:?} is no text, and cannot be the variable {name}"
                    ))
                })?;
                mounts.env.push((name.clone(), value.to_owned()));
            }
            let Some(target) = target else { continue };
            if draft.is_none() {
                draft = Some(self.empty_draft().await?);
            }
            let Some(draft) = &draft else { continue };
            let path = draft.root.join(format!("secret-{index}"));
            write_secret(&path, value, draft.ids, (*uid, *gid), *mode)
                .map_err(unmade("write a secret"))?;
            mounts.add(path, draft.ids, target, TargetKind::File, Access::Read);
        }
        mounts.drafts.extend(draft);
        Ok(())
    }

    /// A directory of our storage that is gone with the step.
    async fn empty_draft(&self) -> Result<LayerDraft, Error> {
        let nobodys = id_of(&Digest::of(ImportId::random().as_str().as_bytes()));
        let draft = self.broker.shared.storage.draft_layer(&[], &nobodys).await?;
        Ok(draft.ok_or(StorageError::LayerMissing { layer: nobodys })?)
    }
}

/// The name of a cache that is used by one step only.
const CACHE_ALONE: &str = "cache";

fn write_secret(
    path: &Path,
    value: &[u8],
    ids: Ids,
    owner: (u32, u32),
    mode: u32,
) -> std::io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(CWD, path, flags, Mode::RUSR | Mode::WUSR)?;
    let mut file = std::fs::File::from(file);
    file.write_all(value)?;
    give_to(&file, ids, owner.0, owner.1)?;
    Ok(fchmod(&file, Mode::from_raw_mode(mode))?)
}

fn unmade(what: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |source| {
        Error::Storage(StorageError::Io {
            storage: "build",
            what: format!("{what}: {}", with_causes(&source)),
            source,
        })
    }
}
