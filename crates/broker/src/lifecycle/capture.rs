//! capture: the content of a sandbox's volume becomes a layer. A running sandbox is frozen for it, so that the layer is
//! consistent.
//!
//! The sandbox's own record does not mention it: the caller has recorded that the sandbox may be frozen, and after a
//! crash here it is thawed.

use super::handle::Handle;
use super::request::Command;
use super::supervisor::Supervisor;
use crate::error::Error;
use crate::shared::Shared;
use sandkeep_core::{Trigger, Verb, failpoint};
use sandkeep_storage::LayerId;

impl Handle {
    /// Makes a layer of the volume's current content.
    pub async fn capture(&self, shared: &Shared, layer: LayerId) -> Result<(), Error> {
        self.ask(shared, Verb::Capture, |reply| Command::Capture(layer, reply)).await
    }
}

impl Handle {
    /// The volume's own size, as far as known.
    pub async fn volume_bytes(&self) -> u64 {
        let usage = self.volume.usage().await.ok().flatten();
        usage.map_or(0, |usage| usage.tree.used_bytes)
    }
}

impl Supervisor {
    pub(crate) async fn capture(&mut self, layer: &LayerId) -> Result<(), Error> {
        self.next(Trigger::Begin(Verb::Capture))?;
        self.volume.stored("a template of a sandbox")?;
        self.can_quiesce()?;
        self.write_back().await;
        let quiesced = self.quiesce().await?;
        failpoint!("template.after_freeze");
        let made = self.make_layer(layer).await;
        failpoint!("template.after_layer");
        self.unquiesce(quiesced).await?;
        made
    }

    async fn make_layer(&self, layer: &LayerId) -> Result<(), Error> {
        let base = crate::images::base(&self.meta.spec)?;
        let volume = self.volume.stored("a layer")?;
        self.unless_destroyed(volume.layer(None, base.layers(), layer)).await
    }
}
