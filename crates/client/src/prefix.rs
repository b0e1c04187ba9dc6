//! Names, and ids by their beginning, as people type them.

use std::fmt::Display;

use sandkeep_core::api::Sandbox;
use sandkeep_core::{ExecId, ProcessId, SandboxId, SandboxName, ShellId, SnapshotId, SnapshotName};

use crate::{Client, Error};

/// Minimum length of a prefix.
pub(crate) const PREFIX_MIN_LEN: usize = 4;

impl Client {
    /// The full id of a sandbox for its id, its name, or the beginning of its id. A name comes before a beginning.
    pub async fn resolve(&self, text: &str) -> Result<SandboxId, Error> {
        if let Ok(id) = text.parse() {
            return Ok(id);
        }
        // An empty variable in a script must not name the one sandbox that there is.
        let Ok(name) = text.parse::<SandboxName>() else {
            return Err(Error::NotAnId { text: text.to_owned() });
        };
        if !text.starts_with(SandboxId::PREFIX) || text.len() < PREFIX_MIN_LEN {
            return self.named(&name).await;
        }
        let all = self.sandboxes(&[]).await?;
        if all.iter().any(|sandbox| sandbox.name == name) {
            return self.named(&name).await;
        }
        let ids = all.into_iter().map(|sandbox| sandbox.id);
        pick(text, ids.filter(|id| id.as_str().starts_with(text)).collect())
    }

    /// The daemon knows which of several of one name is the caller's own.
    async fn named(&self, name: &SandboxName) -> Result<SandboxId, Error> {
        let found = self.get(&format!("/api/v1/sandboxes/{name}")).await?;
        Ok(self.read::<Sandbox>(found)?.id)
    }

    /// The full id of an exec for an id or the beginning of one. A process is an exec, so its id is as good.
    pub async fn resolve_exec(&self, sandbox: &SandboxId, text: &str) -> Result<ExecId, Error> {
        if text.starts_with(ProcessId::PREFIX) {
            return Ok(self.resolve_process(sandbox, text).await?.exec());
        }
        if let Ok(id) = text.parse() {
            return Ok(id);
        }
        let ids = self.execs(sandbox).await?.into_iter().map(|exec| exec.exec_id);
        only_one("exec", sandbox, text, ids.filter(|id| id.as_str().starts_with(text)))
    }

    /// The full id of a process for an id or the beginning of one.
    pub async fn resolve_process(
        &self,
        sandbox: &SandboxId,
        text: &str,
    ) -> Result<ProcessId, Error> {
        if let Ok(id) = text.parse() {
            return Ok(id);
        }
        let ids = self.processes(sandbox).await?.items.into_iter().map(|known| known.process.id);
        only_one("process", sandbox, text, ids.filter(|id| id.as_str().starts_with(text)))
    }

    /// The name of a snapshot for its name, its id, or the beginning of its id. A name comes before a beginning; what is
    /// none of them is left to the daemon, which knows further names.
    pub async fn resolve_snapshot(
        &self,
        sandbox: &SandboxId,
        name: &SnapshotName,
    ) -> Result<SnapshotName, Error> {
        let text = name.as_str();
        if !text.starts_with(SnapshotId::PREFIX)
            || text.len() < PREFIX_MIN_LEN
            || text.parse::<SnapshotId>().is_ok()
        {
            return Ok(name.clone());
        }
        let all = self.snapshots(sandbox).await?.items;
        let ids = all.iter().map(|snapshot| &snapshot.id);
        let begins: Vec<_> = ids.filter(|id| id.as_str().starts_with(text)).cloned().collect();
        if begins.is_empty() || all.iter().any(|snapshot| snapshot.name == *name) {
            return Ok(name.clone());
        }
        let id = only_one("snapshot", sandbox, text, begins.into_iter())?;
        Ok(id.as_str().parse().expect("an id of a snapshot is one of its names"))
    }

    /// The full id of a shell for an id or a prefix.
    pub async fn resolve_shell(&self, sandbox: &SandboxId, text: &str) -> Result<ShellId, Error> {
        if let Ok(id) = text.parse() {
            return Ok(id);
        }
        let ids = self.shells(sandbox).await?.into_iter().map(|shell| shell.id);
        only_one("shell", sandbox, text, ids.filter(|id| id.as_str().starts_with(text)))
    }
}

fn only_one<T: Display>(
    kind: &'static str,
    sandbox: &SandboxId,
    prefix: &str,
    matches: impl Iterator<Item = T>,
) -> Result<T, Error> {
    let mut matches: Vec<T> = matches.collect();
    let prefix = prefix.to_owned();
    match (prefix.len() >= PREFIX_MIN_LEN, matches.len()) {
        (true, 1) => Ok(matches.remove(0)),
        (true, count) if count > 1 => {
            let matches = matches.iter().map(T::to_string).collect();
            Err(Error::AmbiguousInside { kind, prefix, matches })
        }
        _ => Err(Error::NoMatchInside { kind, sandbox: sandbox.clone(), prefix }),
    }
}

fn pick(prefix: &str, mut matches: Vec<SandboxId>) -> Result<SandboxId, Error> {
    match matches.len() {
        0 => Err(Error::NoMatch { prefix: prefix.to_owned() }),
        1 => Ok(matches.remove(0)),
        _ => Err(Error::Ambiguous {
            prefix: prefix.to_owned(),
            matches: matches.into_iter().map(String::from).collect(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_accepted_only_when_it_names_one_sandbox() {
        let (one, two) = (SandboxId::random(), SandboxId::random());
        assert!(matches!(pick("sb", vec![]), Err(Error::NoMatch { .. })));
        assert_eq!(pick("sb", vec![one.clone()]).ok(), Some(one.clone()));
        assert!(matches!(pick("sb", vec![one, two]), Err(Error::Ambiguous { .. })));
    }
}
