//! What a supervisor does about the terms of its sandbox: change them, keep them, end it by them.

use std::io;

use tokio::time::timeout;
use tracing::{info, warn};

use crate::error::Error;
use crate::lifecycle::reaper;
use crate::lifecycle::supervisor::{Amendment, Fate, Restart, Supervisor};
use crate::policy::admission;
use sandkeep_core::{AtExpiry, Event, Expiry, Moment, Next, OnTimeout, Verb, failpoint, limits};
use sandkeep_home::DataDir;

impl Supervisor {
    /// Changes the terms, in the row, which decides, and then in the metadata.
    pub(crate) async fn amend(&mut self, amendment: Amendment) -> Result<(), Error> {
        let (status, _) = self.next(Event::Begin(Verb::Amend))?;
        let terms = self.meta.terms.patched(&amendment.patch, &self.shared.policy.timeouts)?;
        admission::check_terms(&terms, self.runtime.as_ref(), &self.shared.policy)?;
        let began = match amendment.restart {
            Restart::Yes => self.shared.now(),
            Restart::No => self.meta.began.clone(),
        };
        if (&terms, &began) == (&self.meta.terms, &self.meta.began) {
            return Ok(());
        }
        let before = self.meta.clone();
        (self.meta.terms, self.meta.began) = (terms, began);
        let recorded = match admission::check_row(&self.meta) {
            Ok(()) => self.record(status).await,
            Err(error) => Err(error),
        };
        if let Err(error) = recorded {
            self.meta = before;
            return Err(error);
        }
        failpoint!("amend.after_row");
        self.rewrite_meta().await;
        failpoint!("amend.after_meta");
        self.set_alarm();
        Ok(())
    }

    /// Brings the metadata in line with the row. It is the second copy: what it lacks after a crash,
    /// reconcile takes from the row.
    pub(crate) async fn rewrite_meta(&self) {
        let (home, meta) = (self.home.clone(), self.meta.clone());
        let write = move |_: &DataDir| match home.write(&meta) {
            // There is no home to keep it in.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            written => written,
        };
        if let Err(error) = self.shared.blocking(write).await {
            warn!(id = %self.id(), %error, "cannot write metadata");
        }
    }

    /// Tells the reaper of the next deadline.
    pub(crate) fn set_alarm(&self) {
        let terms = &self.meta.terms;
        if let Some(first) = terms.timeout().into_iter().chain(terms.idle_timeout()).min() {
            self.shared.alarm.set(self.shared.clock.uptime().saturating_add(first));
        }
    }

    /// Ends the sandbox if its time is over: it may have got more since the reaper looked.
    pub(crate) async fn expire(&mut self) -> (Fate, Result<(), Error>) {
        let Some(expiry) = self.expiry().await else { return (Fate::Lives, Ok(())) };
        info!(id = %self.id(), why = %expiry, "the time of a sandbox is over");
        match self.meta.terms.on_timeout {
            OnTimeout::Destroy => {
                let result = self.destroy().await;
                (if result.is_ok() { Fate::Gone } else { Fate::Lives }, result)
            }
            OnTimeout::Stop => (Fate::Lives, self.stop_because(expiry).await),
            OnTimeout::Pause => (Fate::Lives, self.pause_because(expiry).await),
        }
    }

    async fn stop_because(&mut self, expiry: Expiry) -> Result<(), Error> {
        let (status, next) = self.next(Event::Expired(expiry, AtExpiry::Stop))?;
        if next == Next::Stay {
            return Ok(());
        }
        self.record(status).await?;
        failpoint!("stop.after_intent");
        self.finish_stop().await
    }

    /// What runs stands still as it is: its time is over, whatever it does.
    async fn pause_because(&mut self, expiry: Expiry) -> Result<(), Error> {
        let (status, next) = self.next(Event::Expired(expiry, AtExpiry::Pause))?;
        if next == Next::Stay {
            return Ok(());
        }
        self.record(status).await?;
        failpoint!("pause.after_intent");
        self.finish_pause().await
    }

    /// Which of its times is over. That it is idle is a guess of ours until the guest says so: an
    /// earlier daemon may have left a command that still runs.
    async fn expiry(&self) -> Option<Expiry> {
        let now = self.shared.now();
        let left = reaper::time_left(&self.activity, &self.snapshot.borrow(), &now);
        match left {
            Some((left, expiry)) if left.is_zero() => match expiry {
                Expiry::Timeout => Some(expiry),
                Expiry::Idle if self.runs_commands().await => {
                    self.activity.touch();
                    None
                }
                Expiry::Idle => Some(expiry),
            },
            Some(_) | None => None,
        }
    }

    async fn runs_commands(&self) -> bool {
        let Some(guest) = self.snapshot.borrow().guest.clone() else { return false };
        match timeout(limits::ENSURE_PING, guest.execs()).await {
            Ok(Ok(execs)) => execs.iter().any(|exec| exec.running),
            Ok(Err(_)) | Err(_) => false,
        }
    }

    pub(crate) async fn note_activity(&self, last: Moment) -> Result<(), Error> {
        let home = self.home.clone();
        let write = move |_: &DataDir| match home.note_activity(&last) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            written => written,
        };
        self.shared.blocking(write).await
    }
}
