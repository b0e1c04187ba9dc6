//! A codebase in a sandbox: whether it can be mounted, how its rules are kept, and what the runtime mounts.
//!
//! Rules that allow the same everywhere, or only read but for some directories that are also written, are kept by
//! mounts alone. A server keeps all others (`serving`); where there can be none, the sandbox is not created.

use std::path::Path;
use std::sync::Arc;

use rustix::fs::OFlags;

use super::serving::{self, Asks, Decided};
use super::{revoke, tree_of};
use crate::Broker;
use crate::error::Error;
use crate::lifecycle::amend::{Amendment, Restart};
use crate::shared::Shared;
use sandkeep_core::api::{
    CheckRules, CheckedPath, CheckedRules, ReplaceRules, Revoke, RulesEffect, SandboxRules,
    ServedBy,
};
use sandkeep_core::rules::{Plain, PlainAccess, RulePreset, Rules, RulesDraft};
use sandkeep_core::{
    CodebaseMode, CodebaseMount, CodebaseRef, Principal, SandboxId, Spec, SpecDraft, Terms,
    TermsPatch, limits,
};
use sandkeep_runtime::{MountAccess, MountSource, PlannedMount, Runtime};
use sandkeep_storage::StorageError;
use sandkeep_tree::beneath;

/// The codebase that a request names, before the rest of it is admitted.
pub(crate) struct Attaching {
    mount: CodebaseMount,
}

/// What a request says of a codebase. Everything that can be wrong with it is found here.
pub(crate) fn wanted(
    shared: &Shared,
    who: &Principal,
    draft: &SpecDraft,
) -> Result<Option<Attaching>, Error> {
    let Some(path) = draft.codebase_path()? else { return Ok(None) };
    let Some(which) = &draft.codebase else { return Ok(None) };
    let row = shared.codebases.ready(who, which)?;
    let mode = draft.codebase_mode.unwrap_or_default();
    if mode == CodebaseMode::Copy {
        let problem =
            "sandboxes work on the codebase itself here; leave it out, or give shared".to_owned();
        return Err(Error::InvalidField { field: "codebase_mode", problem });
    }
    let mount = CodebaseMount { codebase: row.id, name: row.name, path, mode };
    kept(draft.rules.as_ref())?;
    Ok(Some(Attaching { mount }))
}

impl Attaching {
    /// The spec with the codebase, if the runtime can mount one.
    pub fn attach(self, runtime: &dyn Runtime, spec: Spec) -> Result<Spec, Error> {
        if runtime.capabilities().mounts {
            return Ok(spec.with_codebase(self.mount));
        }
        let problem = format!(
            "runtime {} cannot mount codebases here; GET /api/v1/runtimes (sandkeep runtimes) lists which can (`mounts`)",
            runtime.name()
        );
        Err(Error::InvalidField { field: "codebase", problem })
    }
}

/// The rules of a sandbox without any: everything is allowed.
fn or_all(rules: Option<&RulesDraft>) -> RulesDraft {
    rules.cloned().unwrap_or_else(|| RulePreset::FullAccess.into())
}

fn checked(rules: &RulesDraft) -> Result<Rules, Error> {
    let wrong = |problem: String| Error::InvalidField { field: "rules", problem };
    rules.check().map_err(|error| wrong(error.to_string()))
}

/// Who can keep some rules.
struct Enforcement {
    rules: Rules,
    /// If mounts alone can keep them. A server can, too.
    plain: Option<Plain>,
}

impl Enforcement {
    fn asks(&self) -> Asks {
        match &self.plain {
            None => Asks::Server,
            Some(Plain { root: PlainAccess::Read, writable }) if writable.is_empty() => Asks::Read,
            Some(_) => Asks::Write,
        }
    }
}

fn kept(rules: Option<&RulesDraft>) -> Result<Enforcement, Error> {
    let rules = checked(&or_all(rules))?;
    let can_mount = |plain: &Plain| {
        let most = if rustix::process::geteuid().is_root() {
            limits::CODEBASE_MOUNTS_MAX
        } else {
            // It attaches trees by their paths, which are not what they were when it checked them.
            0
        };
        plain.writable.len() <= most
    };
    if let Some(plain) = rules.plain().filter(can_mount) {
        return Ok(Enforcement { rules, plain: Some(plain) });
    }
    match sandkeep_rulefs::unusable() {
        None => Ok(Enforcement { rules, plain: None }),
        Some(reason) => {
            let problem = format!("mounts alone cannot keep them, and {reason}");
            Err(Error::RulesNotServed { problem })
        }
    }
}

/// The rules of a sandbox with these terms.
pub(super) fn rules_of(terms: &Terms) -> Result<Rules, Error> {
    checked(&or_all(terms.rules.as_ref()))
}

/// How the rules of a sandbox with these terms are kept if no other sandbox matters.
pub(crate) fn served_alone(terms: &Terms) -> ServedBy {
    match kept(terms.rules.as_ref()) {
        Ok(Enforcement { plain: Some(_), .. }) => ServedBy::Bind,
        Ok(Enforcement { plain: None, .. }) | Err(_) => ServedBy::Fuse,
    }
}

/// How the server of a running sandbox serves, if it has one.
pub(crate) fn served_now(shared: &Shared, id: &SandboxId) -> Option<ServedBy> {
    shared.codebases.serving.of(id).map(|served| served.by())
}

/// Whether a server keeps the rules of a running sandbox.
pub(crate) fn is_served(shared: &Shared, id: &SandboxId) -> bool {
    shared.codebases.serving.of(id).is_some()
}

/// What a runtime mounts in a sandbox that is about to be launched. Starts the server of its rules, if they need one.
pub(crate) async fn mounts(
    shared: &Arc<Shared>,
    id: &SandboxId,
    spec: &Spec,
    terms: &Terms,
) -> Result<Vec<PlannedMount>, Error> {
    let Some(codebase) = spec.codebase() else { return Ok(Vec::new()) };
    let missing = || Error::CodebaseNotFound { text: codebase.codebase.to_string() };
    let row = shared.codebases.all().get(&codebase.codebase).cloned().ok_or_else(missing)?;
    row.check_ready()?;
    let kept = kept(terms.rules.as_ref())?;
    let (tree, ids) = tree_of(shared, &codebase.codebase).await?;
    let target = codebase.path.trim_start_matches('/').to_owned();
    let decided = serving::decide(shared, id, codebase, kept.asks()).await?;
    let (root, writable) = match (decided, kept.plain) {
        (Decided::Mounts, Some(Plain { root, writable })) => (root, writable),
        (Decided::Mounts, None) => (PlainAccess::Read, Vec::new()),
        (Decided::Server(decided), _) => {
            let on = (tree.as_path(), &kept.rules);
            let mount = serving::serve(shared, id, codebase, on, decided).await?;
            let source = MountSource::Served(Arc::new(mount), ids);
            return Ok(vec![PlannedMount { source, target, access: MountAccess::ReadWrite }]);
        }
    };
    let access = match root {
        PlainAccess::Read => MountAccess::Read,
        PlainAccess::Write => MountAccess::ReadWrite,
    };
    let source = MountSource::Dir(tree.clone(), ids);
    let mut mounts = vec![PlannedMount { source, target: target.clone(), access }];
    for path in writable {
        let source = MountSource::Opened(Arc::new(writable_dir(&tree, &path)?), ids);
        let target = format!("{target}/{path}");
        mounts.push(PlannedMount { source, target, access: MountAccess::ReadWrite });
    }
    Ok(mounts)
}

/// Finds out how a sandbox has its codebase that an earlier daemon left running, with its server if there is one.
pub(crate) async fn adopt(
    shared: &Arc<Shared>,
    id: &SandboxId,
    spec: &Spec,
    terms: &Terms,
) -> Result<(), Error> {
    let Some(codebase) = spec.codebase() else { return Ok(()) };
    let asks = kept(terms.rules.as_ref())?.asks();
    serving::adopt(shared, id, codebase, asks).await
}

/// A directory of the tree, as it is now: no link is followed, because sandboxes may have put it there.
fn writable_dir(tree: &Path, path: &str) -> Result<std::os::fd::OwnedFd, Error> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(tree, flags | OFlags::NOFOLLOW, rustix::fs::Mode::empty());
    let root = root.map_err(|errno| {
        let what = "open the files of a codebase".to_owned();
        Error::Storage(StorageError::Io { storage: "codebase", what, source: errno.into() })
    })?;
    beneath::open(&root, path.as_bytes(), OFlags::PATH | OFlags::DIRECTORY).map_err(|errno| {
        let problem =
            format!("{path:?} is to be writable, and is no directory of the codebase: {errno}");
        Error::RulesNotServed { problem }
    })
}

impl Broker {
    /// The rules of a sandbox's codebase, and how they are kept.
    pub fn sandbox_rules(&self, who: &Principal, id: &SandboxId) -> Result<SandboxRules, Error> {
        let handle = self.shared.find(who, id)?;
        let meta = handle.meta();
        if meta.spec.codebase().is_none() {
            return Err(without(id));
        }
        let rules = or_all(meta.terms.rules.as_ref());
        let served = self.shared.codebases.serving.of(id).map(|served| served.by());
        let effect = match served {
            Some(ServedBy::Fuse) => RulesEffect::AtOnce,
            Some(ServedBy::Passthrough) => RulesEffect::NextOpen,
            Some(ServedBy::Bind) | None => RulesEffect::NextStart,
        };
        let served = served.unwrap_or_else(|| served_alone(&meta.terms));
        Ok(SandboxRules { rules, served, effect, killed: None })
    }

    /// Replaces the rules of a sandbox: while it runs if a server keeps them, else only if it is stopped.
    /// `revoke` also ends processes that hold what they forbid.
    pub async fn replace_rules(
        &self,
        who: &Principal,
        id: &SandboxId,
        request: ReplaceRules,
    ) -> Result<SandboxRules, Error> {
        let ReplaceRules { rules, revoke } = request;
        self.sandbox_rules(who, id)?;
        kept(Some(&rules))?;
        let patch = TermsPatch::default();
        let amendment = Amendment { patch, restart: Restart::No, rules: Some(rules) };
        let handle = self.shared.find(who, id)?;
        self.ask_to_amend(&handle, amendment).await?;
        let killed = match revoke {
            Some(Revoke::Kill) => Some(revoke::kill_holders(&self.shared, id).await?),
            None => None,
        };
        Ok(SandboxRules { killed, ..self.sandbox_rules(who, id)? })
    }

    /// What the rules of a sandbox, or those of the request, say of some paths.
    pub fn check_rules(
        &self,
        who: &Principal,
        id: &SandboxId,
        request: &CheckRules,
    ) -> Result<CheckedRules, Error> {
        let own = self.sandbox_rules(who, id)?.rules;
        judge(request.rules.as_ref().unwrap_or(&own), &request.paths)
    }

    /// What these rules would say of some paths in a codebase.
    pub fn check_codebase_rules(
        &self,
        who: &Principal,
        which: &CodebaseRef,
        request: &CheckRules,
    ) -> Result<CheckedRules, Error> {
        self.shared.codebases.find(who, which)?;
        judge(&or_all(request.rules.as_ref()), &request.paths)
    }
}

/// Has the server of a running sandbox keep other rules from now on.
pub(crate) async fn replace_served(
    shared: &Arc<Shared>,
    id: &SandboxId,
    terms: &Terms,
) -> Result<(), Error> {
    let Some(served) = shared.codebases.serving.of(id) else {
        return Err(Error::RulesServer { problem: serving::LOST.to_owned() });
    };
    served.server.replace_rules(&rules_of(terms)?).await.map(drop).map_err(serving::failed)
}

fn without(id: &SandboxId) -> Error {
    Error::InvalidField { field: "rules", problem: format!("{id} has no codebase") }
}

fn judge(rules: &RulesDraft, paths: &[String]) -> Result<CheckedRules, Error> {
    let wrong = |problem: String| Error::InvalidField { field: "paths", problem };
    if paths.len() > limits::FILES_PAGE_MAX as usize {
        return Err(wrong(format!("there are more than {}", limits::FILES_PAGE_MAX)));
    }
    let rules = checked(rules)?;
    let item = |path: &String| {
        let decision = rules.decide(path);
        CheckedPath {
            path: path.clone(),
            permission: decision.permission.to_string(),
            rule: decision.reason.rule().map(ToString::to_string),
        }
    };
    Ok(CheckedRules { items: paths.iter().map(item).collect() })
}
