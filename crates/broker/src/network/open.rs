//! What a supervisor does for the network of its sandbox: before a launch, after it, and for a sandbox that it finds.

use std::sync::Arc;

use tracing::{info, warn};

use super::Values;
use super::room::SandboxRecorder;
use super::seal::wrong;
use crate::error::Error;
use crate::lifecycle::handle::Handle;
use crate::lifecycle::supervisor::Supervisor;
use crate::lifecycle::supervisor::telling;
use crate::shared::Shared;
use sandkeep_core::network::NetworkTerms;
use sandkeep_core::{SandboxId, State, failpoint, limits, with_causes};
use sandkeep_egress::{Rules, Secret};
use sandkeep_home::{Meta, Phase, network_log};
use sandkeep_image::certificates;
use sandkeep_runtime::Runtime;
use sandkeep_tree::Root;

impl Supervisor {
    /// Stores the values of a new sandbox's secrets, before it is launched.
    pub(crate) async fn keep_secrets(&self, values: &Values) -> Result<(), Error> {
        if values.is_empty() {
            return Ok(());
        }
        let sealed = self.shared.network.seal.close(self.id(), values).await?;
        let home = self.home.clone();
        self.shared.blocking(move |_| home.keep_secrets(&sealed)).await?;
        failpoint!("network.after_secrets");
        Ok(())
    }

    /// Decides what the coming launch has to prepare. It is recorded with the intent.
    pub(crate) fn expect_network(&mut self) {
        let needs = self.meta.terms.network.needs();
        if self.meta.terms.network.prepared != needs {
            self.meta_mut().terms.network.prepared = needs;
        }
    }

    /// Puts the daemon's certificate on the volume, if programs inside need it. Nothing runs on it.
    pub(crate) async fn install_certificate(&self, root: Option<&Root>) -> Result<(), Error> {
        let Some(root) = root.filter(|_| self.meta.terms.network.prepared.certificate) else {
            return Ok(());
        };
        let gateway = self.shared.network.gateway.clone();
        let bundle = tokio::task::spawn_blocking(move || gateway.bundle()).await;
        let bundle = bundle.map_err(|_| Error::ShuttingDown)?.map_err(|e| self.no_gateway(e))?;
        certificates::install(root, bundle).await?;
        failpoint!("network.after_certificate");
        Ok(())
    }

    /// Opens the network of a sandbox that was launched. Nothing of the user runs yet.
    pub(crate) async fn open_network(&self) -> Result<(), Error> {
        if !self.meta.terms.network.prepared.network {
            return Ok(());
        }
        open(&self.shared, self.runtime.as_ref(), &self.meta, &self.network).await?;
        failpoint!("network.after_open");
        Ok(())
    }

    /// The same for a sandbox that has just been launched; if it fails, nothing of it runs.
    pub(crate) async fn open_network_or_end(&self) -> Result<(), Error> {
        let Err(error) = self.open_network().await else { return Ok(()) };
        if let Err(stop) = self.runtime.stop(self.id(), std::time::Duration::ZERO).await {
            warn!(id = %self.id(), error = %stop, "cannot end a sandbox whose network failed");
        }
        Err(error)
    }

    /// Opens the network of a sandbox that an earlier daemon left running. Until that succeeds its connections are
    /// refused; nothing in it is ended for that.
    pub(crate) async fn reopen_network(&self, handle: &Arc<Handle>) {
        let Err(error) = self.open_network().await else { return };
        let reason = with_causes(&error);
        warn!(id = %self.id(), error = reason, "cannot open the network of a running sandbox; it will be tried again");
        self.network.fail(reason);
        let (shared, runtime) = (Arc::clone(&self.shared), Arc::clone(&self.runtime));
        self.shared.tasks.spawn(try_again(shared, runtime, Arc::clone(handle)));
    }

    fn no_gateway(&self, source: sandkeep_egress::GatewayError) -> Error {
        Error::Gateway { id: self.id().clone(), source }
    }
}

/// Repeats until the network is open, or the sandbox runs no more.
async fn try_again(shared: Arc<Shared>, runtime: Arc<dyn Runtime>, handle: Arc<Handle>) {
    let stops = handle.published.borrow().stops;
    loop {
        tokio::select! {
            () = shared.closing.cancelled() => return,
            () = tokio::time::sleep(limits::GATEWAY_RETRY) => {}
        }
        let (same, meta) = {
            let published = handle.published.borrow();
            let runs = matches!(published.status.state(), State::Running | State::Paused);
            (runs && published.stops == stops, Arc::clone(&published.meta))
        };
        if !same || handle.network.attachment().is_some() {
            return;
        }
        match open(&shared, runtime.as_ref(), &meta, &handle.network).await {
            Ok(()) => return info!(id = %handle.id, "opened the network of a running sandbox"),
            Err(error) => handle.network.fail(with_causes(&error)),
        }
    }
}

async fn open(
    shared: &Arc<Shared>,
    runtime: &dyn Runtime,
    meta: &Meta,
    room: &Arc<super::NetworkRoom>,
) -> Result<(), Error> {
    let rules = rules_of(shared, &meta.id, &meta.terms.network).await?;
    let sockets = runtime.network(&meta.id).await?;
    let home = shared.data.home(&meta.id).path().to_owned();
    let earlier = match meta.phase {
        Phase::Creating => 0,
        Phase::Ready | Phase::Destroying => {
            // What a former daemon or start noted may still be on its way there.
            shared.network.flush().await;
            let noted = home.clone();
            shared.blocking(move |_| network_log::used_bytes(&noted)).await?
        }
    };
    let recorder = Arc::new(SandboxRecorder::of(shared, room, home, telling::subject(meta)));
    let gateway = &shared.network.gateway;
    let opened = gateway.open(meta.id.clone(), sockets, rules, Arc::clone(&recorder) as _);
    let attachment = opened.map_err(|source| Error::Gateway { id: meta.id.clone(), source })?;
    attachment.add_earlier_bytes(earlier);
    room.open(attachment, recorder);
    Ok(())
}

/// The rules of a sandbox, with the values of its secrets. A policy of `none` allows nothing.
pub(super) async fn rules_of(
    shared: &Arc<Shared>,
    id: &SandboxId,
    terms: &NetworkTerms,
) -> Result<Rules, Error> {
    let mut values = secrets_of(shared, id, terms).await?;
    let secret = |(name, secret): (&String, &sandkeep_core::network::SecretTerms)| {
        let value = values.remove(name);
        let value = value.ok_or_else(|| wrong(format!("the value of {name} is missing")))?;
        let (placeholder, hosts) = (secret.placeholder.clone(), secret.hosts.clone());
        Ok((name.clone(), Secret { placeholder, value, hosts }))
    };
    let secrets = terms.secrets.iter().map(secret).collect::<Result<_, Error>>()?;
    let policy = terms.policy.policy().cloned().unwrap_or_default();
    Ok(Rules { policy, secrets, headers: Vec::new() })
}

/// The values of a sandbox's secrets.
pub(crate) async fn secrets_of(
    shared: &Arc<Shared>,
    id: &SandboxId,
    terms: &NetworkTerms,
) -> Result<Values, Error> {
    if terms.secrets.is_empty() {
        return Ok(Values::new());
    }
    let home = shared.data.home(id);
    let sealed = shared.blocking(move |_| home.secrets()).await?;
    let sealed = sealed.ok_or_else(|| wrong("their file is missing from the sandbox's home"))?;
    shared.network.seal.open(id, &sealed).await
}
