//! ensure: the healthy sandbox of a slot, whoever made it, or a new one.
//!
//! | what holds the slot | what happens |
//! |---|---|
//! | nothing | create |
//! | `running`, and its guest answers | that one |
//! | `running`, and its guest does not answer | destroy, create |
//! | `stopped` | start, then as above: its files are worth keeping |
//! | `failed` | destroy, create |
//! | `destroying` | wait until it is gone, create |
//!
//! One caller at a time goes through this for a slot. Those who waited meanwhile take its word that the
//! sandbox is well instead of asking the guest once more each.

use std::sync::Arc;
use std::time::Instant;

use tokio::time::timeout;
use tracing::info;

use super::request::Command;
use crate::Broker;
use crate::error::Error;
use crate::lifecycle::handle::Handle;
use crate::{policy::admission, records::directory::slot_name};
use sandkeep_core::{Principal, SandboxId, SpecDraft, State, Verb, limits};

pub use sandkeep_core::api::Ensured;

/// A sandbox that an ensure answered with, and when.
pub(crate) struct Verified {
    id: SandboxId,
    at: Instant,
}

/// What a look at the holder of a slot shows.
enum Health {
    Well,
    /// It cannot be used and is not worth keeping.
    Ill(String),
    /// It went while somebody looked.
    Gone,
}

impl Broker {
    /// The healthy sandbox in the draft's slot; a new one if there is none. An existing one is answered
    /// as it is, whatever else the draft asks for.
    pub async fn ensure(&self, who: &Principal, draft: SpecDraft) -> Result<Ensured, Error> {
        let arrived = Instant::now();
        let Some(slot) = draft.slot.clone() else {
            let problem = "ensure needs the name that tells which sandbox is meant".to_owned();
            return Err(Error::InvalidField { field: "slot", problem });
        };
        let owner = admission::owner(who, &draft)?;
        drop(admission::admit(&self.shared, &owner, draft.clone()).await?);
        let mut flight = self.shared.ensures.join(slot_name(&owner, &slot)).await;
        if let Some(Verified { id, at }) = &*flight
            && *at >= arrived
            && let Some(handle) = self.shared.supervised(id)
        {
            return Ok(Ensured { sandbox: handle.view(), created: false });
        }
        let mut refused = None;
        for _ in 0..limits::ENSURE_ATTEMPTS_MAX {
            let holder = self.shared.directory.slot_holder(&owner, &slot).await?;
            let Some(handle) = holder.and_then(|id| self.shared.supervised(&id)) else {
                match self.create(who, draft.clone()).await {
                    Ok(sandbox) => {
                        *flight = Some(Verified { id: sandbox.id.clone(), at: Instant::now() });
                        return Ok(Ensured { sandbox, created: true });
                    }
                    Err(taken @ Error::SlotTaken { .. }) => refused = Some(taken),
                    Err(error) => return Err(error),
                }
                continue;
            };
            match self.examine(&handle).await? {
                Health::Well => {
                    handle.activity.touch();
                    *flight = Some(Verified { id: handle.id.clone(), at: Instant::now() });
                    return Ok(Ensured { sandbox: handle.view(), created: false });
                }
                Health::Gone => {}
                Health::Ill(why) => {
                    info!(id = %handle.id, %slot, why, "replacing the sandbox of a slot");
                    self.remove(&handle).await?;
                }
            }
        }
        Err(refused.unwrap_or_else(|| Error::LimitReached {
            what: "attempts to settle this slot, which others keep changing",
            limit: limits::ENSURE_ATTEMPTS_MAX,
        }))
    }

    /// The same for one who asks again and again: a sandbox that runs as far as is known is answered without asking its
    /// guest.
    pub async fn ensure_running(
        &self,
        who: &Principal,
        draft: SpecDraft,
    ) -> Result<SandboxId, Error> {
        if let Some(slot) = &draft.slot {
            let owner = admission::owner(who, &draft)?;
            let holder = self.shared.directory.slot_holder(&owner, slot).await?;
            if let Some(handle) = holder.and_then(|id| self.shared.supervised(&id))
                && handle.published.borrow().is_at_work()
            {
                return Ok(handle.id.clone());
            }
        }
        Ok(self.ensure(who, draft).await?.sandbox.id)
    }

    async fn remove(&self, handle: &Handle) -> Result<(), Error> {
        match handle.destroy(&self.shared).await {
            // Somebody else was faster.
            Err(Error::NotFound { .. }) => Ok(()),
            other => other,
        }
    }

    async fn examine(&self, handle: &Handle) -> Result<Health, Error> {
        let mut published = handle.published.clone();
        let settled = published.wait_for(|published| {
            published.status.operation().is_none() || published.status.state() == State::Destroying
        });
        let state = match timeout(limits::ENSURE_WAIT, settled).await {
            Ok(Ok(published)) => published.status.state(),
            // Its supervisor ended, and with it the sandbox or what we know of it.
            Ok(Err(_)) => return Ok(Health::Gone),
            Err(_elapsed) => {
                let under_way = handle.published.borrow().status.operation();
                let under_way = under_way.map_or(Verb::Create, Verb::from);
                return Err(Error::Busy { id: handle.id.clone(), verb: Verb::Start, under_way });
            }
        };
        match state {
            State::Running | State::Paused => Ok(self.ping(handle).await),
            State::Stopped => self.revive(handle).await,
            State::Failed => {
                let reason = handle.published.borrow().status.reason().map(ToString::to_string);
                Ok(Health::Ill(reason.unwrap_or_else(|| "it failed".to_owned())))
            }
            State::Creating | State::Destroying => Ok(Health::Ill("it is going away".to_owned())),
        }
    }

    /// A round trip through the guest: that a process exists says nothing.
    async fn ping(&self, handle: &Handle) -> Health {
        let guest = handle.published.borrow().guest.clone();
        let Some(guest) = guest else {
            return Health::Ill("its guest cannot be reached".to_owned());
        };
        let why = match timeout(limits::ENSURE_PING, guest.ping()).await {
            Ok(Ok(())) => return Health::Well,
            Ok(Err(error)) => error.to_string(),
            Err(_elapsed) => "its guest does not answer".to_owned(),
        };
        let published = handle.published.borrow();
        let same = published.guest.as_ref().is_some_and(|now| Arc::ptr_eq(now, &guest));
        match same && published.status.operation().is_none() {
            true => Health::Ill(why),
            // Somebody stopped it, or rolled it back: that guest was meant to go, and the sandbox is not ill.
            false => Health::Gone,
        }
    }

    /// Starts a stopped one. If it cannot be started for a reason that is not its own, it is kept and
    /// the caller is told.
    async fn revive(&self, handle: &Handle) -> Result<Health, Error> {
        match handle.ask(&self.shared, Verb::Start, Command::Start).await {
            Ok(()) => Ok(self.ping(handle).await),
            Err(Error::NotFound { .. }) => Ok(Health::Gone),
            Err(error) => match handle.published.borrow().status.state() {
                State::Failed => Ok(Health::Ill(error.to_string())),
                State::Creating
                | State::Running
                | State::Paused
                | State::Stopped
                | State::Destroying => Err(error),
            },
        }
    }
}
