//! amend and keepalive: change the terms of a sandbox, or restart its timeouts.

use std::sync::Arc;

use tracing::warn;

use super::handle::Handle;
use super::request::Command;
use super::supervisor::Supervisor;
use crate::Broker;
use crate::codebases;
use crate::error::Error;
use crate::policy::admission;
use crate::view::View;
use sandkeep_core::rules::RulesDraft;
use sandkeep_core::{Principal, SandboxId, State, TermsPatch, Trigger, Verb, failpoint};

/// A change of a sandbox's terms.
pub(crate) struct Amendment {
    pub patch: TermsPatch,
    pub restart: Restart,
    /// New rules for its codebase.
    pub rules: Option<RulesDraft>,
}

/// Whether the timeout restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Restart {
    Yes,
    No,
}

impl Broker {
    /// Changes labels and timeouts. A new timeout counts from now.
    pub async fn amend(
        &self,
        who: &Principal,
        id: &SandboxId,
        patch: TermsPatch,
    ) -> Result<View, Error> {
        let handle = self.shared.find(who, id)?;
        if patch.idle_timeout_secs.is_some() {
            handle.activity.touch();
        }
        let restart = match patch.timeout_secs {
            Some(_) => Restart::Yes,
            None => Restart::No,
        };
        self.ask_to_amend(&handle, Amendment { patch, restart, rules: None }).await
    }

    /// Restarts both timeouts of a sandbox, with a new timeout if one is given.
    pub async fn keepalive(
        &self,
        who: &Principal,
        id: &SandboxId,
        timeout_secs: Option<u64>,
    ) -> Result<View, Error> {
        let handle = self.shared.find(who, id)?;
        handle.activity.touch();
        let has_timeout = handle.published.borrow().meta.terms.timeout_secs.is_some();
        if !has_timeout && timeout_secs.is_none() {
            return Ok(handle.view());
        }
        let patch = TermsPatch { timeout_secs: timeout_secs.map(Some), ..TermsPatch::default() };
        self.ask_to_amend(&handle, Amendment { patch, restart: Restart::Yes, rules: None }).await
    }

    pub(crate) async fn ask_to_amend(
        &self,
        handle: &Handle,
        amendment: Amendment,
    ) -> Result<View, Error> {
        let amend = |reply| Command::Amend(Box::new(amendment), reply);
        handle.ask(&self.shared, Verb::Amend, amend).await?;
        Ok(handle.view())
    }
}

impl Supervisor {
    /// Changes the terms: first in the row, which is authoritative, then in the metadata.
    pub(crate) async fn amend(&mut self, amendment: Amendment) -> Result<(), Error> {
        let (status, _) = self.next(Trigger::Begin(Verb::Amend))?;
        let mut terms = self.meta.terms.patched(&amendment.patch, &self.shared.policy.timeouts)?;
        if let Some(rules) = amendment.rules {
            terms.rules = Some(rules);
            let served = codebases::is_served(&self.shared, self.id());
            let state = self.status().state();
            if served && state == State::Running {
                codebases::replace_served(&self.shared, self.id(), &terms).await?;
            } else if state != State::Stopped {
                // Rules that mounts enforce stay as they are while something runs on the mounts.
                let id = self.id().clone();
                return Err(Error::WrongState {
                    id,
                    state,
                    verb: Verb::Amend,
                    helps: Some(Verb::Stop),
                });
            }
        }
        admission::check_terms(&terms, self.runtime.as_ref(), &self.shared.policy)?;
        let began = match amendment.restart {
            Restart::Yes => self.shared.now(),
            Restart::No => self.meta.began.clone(),
        };
        let rename = amendment.patch.name.filter(|name| *name != self.meta.name);
        if rename.is_none() && (&terms, &began) == (&self.meta.terms, &self.meta.began) {
            return Ok(());
        }
        let before = Arc::clone(&self.meta);
        if let Some(Some(new)) = &rename {
            self.claim_new_name(new, &status).await?;
        }
        let meta = self.meta_mut();
        (meta.terms, meta.began) = (terms, began);
        if let Some(name) = &rename {
            (meta.name, meta.renaming) = (name.clone(), None);
        }
        let recorded = match admission::check_row(&self.meta) {
            Ok(()) => self.record(status).await,
            Err(error) => Err(error),
        };
        if let Err(error) = recorded {
            self.meta = before;
            self.give_back_rules().await;
            self.give_up_name(rename.flatten()).await;
            return Err(error);
        }
        if rename.is_some() {
            self.leave_name(before.name.as_ref()).await;
        }
        failpoint!("amend.after_row");
        self.rewrite_meta().await;
        failpoint!("amend.after_meta");
        self.set_alarm();
        Ok(())
    }

    /// A server that was told of rules which could not be recorded keeps the recorded ones again.
    async fn give_back_rules(&self) {
        let has_codebase = self.meta.spec.codebase().is_some();
        if !has_codebase
            || self.status().state() != State::Running
            || !codebases::is_served(&self.shared, self.id())
        {
            return;
        }
        let told = codebases::replace_served(&self.shared, self.id(), &self.meta.terms).await;
        if let Err(error) = told {
            warn!(id = %self.id(), %error, "a server keeps rules that are not recorded");
        }
    }
}
