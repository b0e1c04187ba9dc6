//! Having a sandbox stand still while its volume is copied, so that nothing in the copy is torn.

use std::time::Duration;

use tracing::warn;

use super::supervisor::Supervisor;
use crate::error::Error;
use sandkeep_core::State;
use sandkeep_home::DataDir;
use sandkeep_runtime::RuntimeError;

/// Why nothing writes to a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Still {
    /// It does not run, or it was paused before.
    AtRest,
    /// It runs again by [`Supervisor::go_on`].
    Frozen,
}

impl Supervisor {
    /// Refuses what runs and cannot be made to stand still.
    pub(super) fn can_stand_still(&self) -> Result<(), Error> {
        match self.status().state() {
            State::Running if !self.runtime.capabilities().pause => {
                let (runtime, what) = (self.runtime.name(), "freeze a sandbox; stop it first");
                Err(RuntimeError::Unsupported { runtime, what }.into())
            }
            _ => Ok(()),
        }
    }

    /// Most of what is to be written is, before the sandbox has to stand still for the rest.
    pub(super) async fn write_back(&self) {
        if self.status().state() != State::Running {
            return;
        }
        let written = async {
            let root = self.shared.storage.root(self.id()).await?;
            let path = root.own_dir().to_owned();
            let sync = move |_: &DataDir| Ok(rustix::fs::syncfs(std::fs::File::open(path)?)?);
            self.shared.blocking(sync).await
        };
        if let Err(error) = written.await {
            warn!(id = %self.id(), %error, "cannot write a volume back before it is frozen");
        }
    }

    /// When it returns, nothing writes to the volume.
    pub(super) async fn stand_still(&self) -> Result<Still, Error> {
        match self.status().state() {
            State::Running => {
                self.runtime.freeze(self.id()).await?;
                Ok(Still::Frozen)
            }
            // Whatever went wrong, nothing of it may still run.
            State::Failed => {
                self.runtime.stop(self.id(), Duration::ZERO).await?;
                Ok(Still::AtRest)
            }
            State::Creating | State::Paused | State::Stopped | State::Destroying => {
                Ok(Still::AtRest)
            }
        }
    }

    pub(super) async fn go_on(&self, still: Still) -> Result<(), Error> {
        match still {
            Still::AtRest => Ok(()),
            Still::Frozen => Ok(self.runtime.thaw(self.id()).await?),
        }
    }
}
