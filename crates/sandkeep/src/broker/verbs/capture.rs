//! capture: what the volume of a sandbox holds becomes a layer. While it runs it stands still for that, so that
//! nothing in the layer is torn.
//!
//! Nothing of it is in the sandbox's own record: whoever asks has written down that it may be frozen, and a
//! crash here is mended by thawing it.

use tracing::warn;

use crate::broker::supervisor::Supervisor;
use crate::broker::templates;
use crate::error::Error;
use crate::failpoint;
use crate::runtime::RuntimeError;
use crate::sandbox::{Event, State, Verb};
use crate::storage::LayerId;

impl Supervisor {
    pub(in crate::broker) async fn capture(&mut self, layer: &LayerId) -> Result<(), Error> {
        self.next(Event::Begin(Verb::Capture))?;
        if self.status().state() != State::Running {
            return self.make_layer(layer).await;
        }
        if !self.runtime.capabilities().pause {
            let (runtime, what) = (self.runtime.name(), "freeze a sandbox; stop it first");
            return Err(RuntimeError::Unsupported { runtime, what }.into());
        }
        self.write_back().await;
        self.runtime.freeze(self.id()).await?;
        failpoint!("template.after_freeze");
        let made = self.make_layer(layer).await;
        failpoint!("template.after_layer");
        self.runtime.thaw(self.id()).await?;
        made
    }

    async fn make_layer(&self, layer: &LayerId) -> Result<(), Error> {
        let base = templates::base(&self.meta.spec)?;
        Ok(self.shared.storage.layer_from(self.id(), base.layers(), layer).await?)
    }

    /// Most of what is to be written is, before the sandbox has to stand still for the rest.
    async fn write_back(&self) {
        let written = async {
            let root = self.shared.storage.root(self.id()).await?;
            let path = root.own_dir().to_owned();
            let sync =
                move |_: &crate::home::DataDir| Ok(rustix::fs::syncfs(std::fs::File::open(path)?)?);
            self.shared.blocking(sync).await
        };
        if let Err(error) = written.await {
            warn!(id = %self.id(), %error, "cannot write a volume back before it is frozen");
        }
    }
}
