//! Names: how one leads to its sandbox, and how a sandbox gets another one.
//!
//! ```text
//!   rename   row lists both names ─▶ the new one is claimed ─▶ row with the new one ─▶ the old one is free
//!                                        └ taken: row as before
//! ```
//!
//! The row says which names are its sandbox's, so the claim of any other is worth nothing: a crash leaves a row with
//! both, and the next daemon settles it in favor of the old one, or a claim that its row does not list.

use std::sync::Arc;

use tracing::{info, warn};

use super::handle::Handle;
use super::supervisor::Supervisor;
use crate::Broker;
use crate::error::Error;
use sandkeep_core::{Principal, SandboxId, SandboxName, Status, failpoint};

/// How near a sandbox of a name is to the caller; the nearest is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Nearness {
    /// It is in the project in which the caller makes sandboxes.
    Own,
    OfUser,
    OfOthers,
    /// Its name is derived from its id: a chosen one comes first.
    Derived,
}

impl Broker {
    /// The sandbox that a text names, by its id or by its name. There need not be one of that id.
    ///
    /// A name is first that of a sandbox which the caller made without naming a project, then of another of its own,
    /// then of any that it may see.
    pub async fn resolve(&self, who: &Principal, text: &str) -> Result<SandboxId, Error> {
        if let Ok(id) = text.parse() {
            return Ok(id);
        }
        let not_found = || Error::NameNotFound { text: text.to_owned() };
        let name: SandboxName = text.parse().map_err(|_| not_found())?;
        let mut named = self.called(who, &name);
        if named.len() > 1 {
            named = self.that_hold(&name, named).await?;
        }
        match named.as_slice() {
            [] => Err(not_found()),
            [one] => Ok(one.id.clone()),
            several => {
                let ids = several.iter().map(|handle| handle.id.clone()).collect();
                Err(Error::NameAmbiguous { name, ids })
            }
        }
    }

    /// Those of this name that are nearest to the caller.
    fn called(&self, who: &Principal, name: &SandboxName) -> Vec<Arc<Handle>> {
        let candidates = self.shared.names.candidates(name).into_iter();
        let near = candidates.filter_map(|id| {
            let handle = self.shared.find(who, &id).ok()?;
            let nearness = nearness(who, &handle, name)?;
            Some((nearness, handle))
        });
        let mut near: Vec<_> = near.collect();
        let nearest = near.iter().map(|(nearness, _)| *nearness).min();
        near.retain(|(nearness, _)| Some(*nearness) == nearest);
        near.into_iter().map(|(_, handle)| handle).collect()
    }

    /// Those for which the name is claimed: of several creates under one name only one gets it, and the others are about
    /// to be refused.
    async fn that_hold(
        &self,
        name: &SandboxName,
        handles: Vec<Arc<Handle>>,
    ) -> Result<Vec<Arc<Handle>>, Error> {
        let mut holders = Vec::with_capacity(handles.len());
        for handle in handles {
            let meta = handle.meta();
            let holds = match &meta.name {
                Some(_) => {
                    let holder = self.shared.directory.name_holder(&meta.owner, name).await?;
                    holder.as_ref() == Some(&handle.id)
                }
                None => true,
            };
            if holds {
                holders.push(handle);
            }
        }
        Ok(holders)
    }
}

/// `None`: it is not called so any more.
fn nearness(who: &Principal, handle: &Handle, name: &SandboxName) -> Option<Nearness> {
    let meta = handle.meta();
    let owner = &meta.owner;
    match &meta.name {
        Some(chosen) if chosen == name => {
            let own = who.owner(None).is_ok_and(|usual| usual == *owner);
            let of_user = who.organization == owner.organization && who.user == owner.user;
            Some(match (own, of_user) {
                (true, _) => Nearness::Own,
                (false, true) => Nearness::OfUser,
                (false, false) => Nearness::OfOthers,
            })
        }
        Some(_) => None,
        None => (SandboxName::derived(&handle.id) == *name).then_some(Nearness::Derived),
    }
}

impl Supervisor {
    /// Claims the name of a sandbox whose row lists it.
    pub(super) async fn claim_name(&self, name: &SandboxName) -> Result<(), Error> {
        match self.shared.directory.claim_name(&self.meta.owner, name, self.id()).await? {
            None => Ok(()),
            Some(holder) => Err(Error::NameTaken { name: name.clone(), holder }),
        }
    }

    /// Claims a new name. Until the caller has written it into the row, it is the old one that counts.
    pub(super) async fn claim_new_name(
        &mut self,
        new: &SandboxName,
        status: &Status,
    ) -> Result<(), Error> {
        self.meta_mut().renaming = Some(new.clone());
        if let Err(error) = self.record(status.clone()).await {
            self.meta_mut().renaming = None;
            return Err(error);
        }
        failpoint!("rename.after_intent");
        let claimed = self.claim_name(new).await;
        failpoint!("rename.after_claim");
        match claimed {
            Ok(()) => self.shared.names.add(self.id(), new),
            Err(_) => self.give_up_name(Some(new.clone())).await,
        }
        claimed
    }

    /// Gives back the name that it was about to get, and takes it off the row.
    pub(super) async fn give_up_name(&mut self, new: Option<SandboxName>) {
        let Some(new) = new else { return };
        self.meta_mut().renaming = None;
        self.shared.names.remove(self.id(), &new);
        self.free_name(&new).await;
        self.settle(self.status()).await;
    }

    /// Lets others find a sandbox by its new name, and have the old one.
    pub(super) async fn leave_name(&self, former: Option<&SandboxName>) {
        failpoint!("rename.after_row");
        if let Some(former) = former {
            self.shared.names.remove(self.id(), former);
            self.free_name(former).await;
        }
        failpoint!("rename.after_free");
    }

    /// A name that cannot be given back is free all the same, because the row does not list it.
    pub(super) async fn free_name(&self, name: &SandboxName) {
        let freed = self.shared.directory.free_name(&self.meta.owner, name, self.id());
        if let Err(error) = freed.await {
            warn!(id = %self.id(), %name, %error, "cannot give a name back; a sweep will");
        }
    }

    /// Ends a rename that an earlier daemon did not live to finish: the sandbox keeps the name that it had.
    pub(super) async fn settle_rename(&mut self) {
        if let Some(new) = self.meta.renaming.clone() {
            info!(id = %self.id(), %new, "undid a rename that was cut short");
            self.give_up_name(Some(new)).await;
            self.rewrite_meta().await;
        }
    }

    /// Claims the name of an adopted sandbox anew. If another has got it meanwhile, this one goes without.
    pub(super) async fn reclaim_name(&mut self) {
        let Some(name) = self.meta.name.clone() else { return };
        match self.claim_name(&name).await {
            Ok(()) => {}
            Err(error @ Error::NameTaken { .. }) => {
                warn!(id = %self.id(), %name, %error, "an adopted sandbox loses its name");
                self.meta_mut().name = None;
                self.settle(self.status()).await;
                self.rewrite_meta().await;
            }
            Err(error) => {
                warn!(id = %self.id(), %name, %error, "an adopted sandbox cannot have its name back");
            }
        }
    }
}
