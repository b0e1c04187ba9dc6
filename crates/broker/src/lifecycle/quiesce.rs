//! Freezes a sandbox while its volume is copied, so that the copy is consistent.

use std::time::Duration;

use tracing::warn;

use super::supervisor::Supervisor;
use crate::error::Error;
use crate::shared::Shared;
use sandkeep_core::{SandboxId, State};
use sandkeep_home::DataDir;
use sandkeep_runtime::RuntimeError;
use sandkeep_traces::{step, within};

/// Why a volume is not being written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quiesced {
    /// The sandbox does not run, or was already paused.
    AtRest,
    /// The sandbox is frozen until [`Supervisor::unquiesce`].
    Frozen,
}

impl Supervisor {
    /// Refuses a running sandbox that the runtime cannot freeze.
    pub(super) fn can_quiesce(&self) -> Result<(), Error> {
        match self.status().state() {
            State::Running if !self.runtime.capabilities().pause => {
                let (runtime, what) = (self.runtime.name(), "freeze a sandbox; stop it first");
                Err(RuntimeError::Unsupported { runtime, what }.into())
            }
            _ => Ok(()),
        }
    }

    /// Writes most dirty pages before the freeze, so that the freeze is short.
    pub(super) async fn write_back(&self) {
        if self.status().state() != State::Running {
            return;
        }
        let written = async {
            let Some(root) = self.volume.root().await? else { return Ok(()) };
            let path = root.own_dir().to_owned();
            let sync = move |_: &DataDir| Ok(rustix::fs::syncfs(std::fs::File::open(path)?)?);
            self.shared.blocking(sync).await
        };
        if let Err(error) = written.await {
            warn!(id = %self.id(), %error, "cannot write a volume back before it is frozen");
        }
    }

    /// After this nothing writes to the volume.
    pub(super) async fn quiesce(&self) -> Result<Quiesced, Error> {
        match self.status().state() {
            State::Running => {
                within(step!("runtime.freeze"), self.runtime.freeze(self.id())).await?;
                Ok(Quiesced::Frozen)
            }
            // After any failure, no part of it may still be running.
            State::Failed => {
                within(step!("runtime.stop"), self.runtime.stop(self.id(), Duration::ZERO)).await?;
                Ok(Quiesced::AtRest)
            }
            State::Creating | State::Paused | State::Stopped | State::Destroying => {
                Ok(Quiesced::AtRest)
            }
        }
    }

    pub(super) async fn unquiesce(&self, quiesced: Quiesced) -> Result<(), Error> {
        match quiesced {
            Quiesced::AtRest => Ok(()),
            Quiesced::Frozen => {
                Ok(within(step!("runtime.thaw"), self.runtime.thaw(self.id())).await?)
            }
        }
    }
}

/// Thaws a sandbox that may have been frozen when the daemon died. Thawing a running sandbox has no effect.
pub(crate) async fn thaw(shared: &Shared, id: &SandboxId) {
    let Some(handle) = shared.supervised(id) else { return };
    let runs = handle.published.borrow().status.state() == State::Running;
    let Ok(runtime) = shared.runtime(handle.meta().spec.runtime()) else { return };
    if runs && let Err(error) = within(step!("runtime.thaw"), runtime.thaw(id)).await {
        warn!(%id, %error, "cannot thaw a sandbox that an earlier daemon froze");
    }
}
