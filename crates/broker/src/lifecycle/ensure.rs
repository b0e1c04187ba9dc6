//! ensure: the healthy sandbox of a slot, whoever created it, or a new one.
//!
//! | the slot's holder | action |
//! |---|---|
//! | none | create |
//! | `running`, and its guest answers | return it |
//! | `running`, and its guest does not answer | destroy, create |
//! | `stopped` | start, then as above: its files are worth keeping |
//! | `failed` | destroy, create |
//! | `destroying` | wait until it is gone, create |
//!
//! One caller at a time does this for a slot. Callers that waited meanwhile rely on its result instead of each asking
//! the guest again.

use std::sync::Arc;
use std::time::Instant;

use tokio::time::timeout;
use tracing::info;

use super::request::Command;
use crate::Broker;
use crate::error::Error;
use crate::lifecycle::handle::Handle;
use crate::{policy::admission, records::directory::slot_name};
use sandkeep_core::{Principal, SandboxId, SlotName, SpecDraft, State, Verb, limits};

pub use sandkeep_core::api::Ensured;

/// A sandbox that an ensure returned, and when.
pub(crate) struct Verified {
    id: SandboxId,
    at: Instant,
}

/// The state of a slot's holder.
enum HolderHealth {
    Well,
    /// It is unusable and not worth keeping.
    Ill(String),
    /// It disappeared during the check.
    Gone,
}

impl Broker {
    /// Returns the healthy sandbox in the draft's slot, or a new one. An existing one is returned as it is, whatever
    /// else the draft contains.
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
                HolderHealth::Well => {
                    handle.activity.touch();
                    *flight = Some(Verified { id: handle.id.clone(), at: Instant::now() });
                    return Ok(Ensured { sandbox: handle.view(), created: false });
                }
                HolderHealth::Gone => {}
                HolderHealth::Ill(why) => {
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

    /// The same for a caller that asks repeatedly: a sandbox that is believed to be running is returned without asking
    /// its guest.
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

    /// Destroys the sandbox in a slot of the caller, if there is one.
    pub async fn destroy_slot(&self, who: &Principal, slot: &SlotName) -> Result<(), Error> {
        let owner = admission::owner(who, &SpecDraft::default())?;
        let holder = self.shared.directory.slot_holder(&owner, slot).await?;
        match holder.and_then(|id| self.shared.supervised(&id)) {
            Some(handle) => self.remove(&handle).await,
            None => Ok(()),
        }
    }

    /// Starts or resumes a sandbox that does not run.
    pub async fn awake(&self, who: &Principal, id: &SandboxId) -> Result<SandboxId, Error> {
        match self.shared.find(who, id)?.view().state {
            State::Stopped | State::Failed => drop(self.start(who, id).await?),
            State::Paused => drop(self.resume(who, id).await?),
            State::Running | State::Creating | State::Destroying => {}
        }
        Ok(id.clone())
    }

    async fn remove(&self, handle: &Handle) -> Result<(), Error> {
        match handle.destroy(&self.shared).await {
            // Another caller was faster.
            Err(Error::NotFound { .. }) => Ok(()),
            other => other,
        }
    }

    async fn examine(&self, handle: &Handle) -> Result<HolderHealth, Error> {
        let mut published = handle.published.clone();
        let settled = published.wait_for(|published| {
            published.status.operation().is_none() || published.status.state() == State::Destroying
        });
        let state = match timeout(limits::ENSURE_WAIT, settled).await {
            Ok(Ok(published)) => published.status.state(),
            // Its supervisor ended: the sandbox is gone, or its state is unknown.
            Ok(Err(_)) => return Ok(HolderHealth::Gone),
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
                Ok(HolderHealth::Ill(reason.unwrap_or_else(|| "it failed".to_owned())))
            }
            State::Creating | State::Destroying => {
                Ok(HolderHealth::Ill("it is going away".to_owned()))
            }
        }
    }

    /// A round trip through the guest. The existence of a process would prove nothing.
    async fn ping(&self, handle: &Handle) -> HolderHealth {
        let guest = handle.published.borrow().guest.clone();
        let Some(guest) = guest else {
            return HolderHealth::Ill("its guest cannot be reached".to_owned());
        };
        let why = match timeout(limits::ENSURE_PING, guest.ping()).await {
            Ok(Ok(())) => return HolderHealth::Well,
            Ok(Err(error)) => error.to_string(),
            Err(_elapsed) => "its guest does not answer".to_owned(),
        };
        let published = handle.published.borrow();
        let same = published.guest.as_ref().is_some_and(|now| Arc::ptr_eq(now, &guest));
        if same && published.status.operation().is_none() {
            HolderHealth::Ill(why)
        } else {
            // It was stopped or rolled back meanwhile: its guest was meant to end, and the sandbox is healthy.
            HolderHealth::Gone
        }
    }

    /// Starts a stopped sandbox. If starting fails for a reason other than the sandbox itself, it is kept and the
    /// caller gets the error.
    async fn revive(&self, handle: &Handle) -> Result<HolderHealth, Error> {
        match handle.ask(&self.shared, Verb::Start, Command::Start).await {
            Ok(()) => Ok(self.ping(handle).await),
            Err(Error::NotFound { .. }) => Ok(HolderHealth::Gone),
            Err(error) => match handle.published.borrow().status.state() {
                State::Failed => Ok(HolderHealth::Ill(error.to_string())),
                State::Creating
                | State::Running
                | State::Paused
                | State::Stopped
                | State::Destroying => Err(error),
            },
        }
    }
}
