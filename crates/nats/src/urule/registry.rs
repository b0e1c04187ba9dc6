//! The entries of this daemon's runtimes in Urule's registry.
//!
//! ```text
//!   for each workspace and each usable runtime:  known id ──▶ GET ──▶ there: leave it · gone: POST
//!                                                no id ─────▶ POST ──▶ save the id
//! ```
//!
//! The registry gives every entry an id and cannot replace one. So the ids are kept in the data directory, and a daemon that
//! starts again adds no second entry. Failures are logged when they begin, and tried again later and later.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use reqwest::{Method, RequestBuilder, StatusCode, Url};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use sandkeep_broker::{Broker, RuntimeView};
use sandkeep_core::{limits, with_causes};
use sandkeep_outgoing::{BodyError, Chosen, Outgoing, OutgoingError};
use sandkeep_runtime::Usable;

/// Where the registry is, and what it is told.
#[derive(Clone)]
pub struct RegistryOptions {
    pub url: String,
    pub token: Option<String>,
    /// An entry belongs to one workspace.
    pub workspaces: Vec<String>,
    pub profile: String,
    pub outgoing: Outgoing,
    /// Where the ids of our entries are kept.
    pub saved: PathBuf,
}

#[derive(Debug, thiserror::Error)]
enum RegistryError {
    #[error(transparent)]
    Outgoing(#[from] OutgoingError),
    #[error("the registry cannot be reached")]
    Unreachable(#[source] reqwest::Error),
    #[error("the registry answered {status}: {said}")]
    Refused { status: StatusCode, said: String },
    #[error("the registry's answer cannot be read")]
    Unreadable,
    #[error("cannot save the ids of the entries")]
    Unsaved(#[source] io::Error),
}

/// Keeps the entries until it is stopped.
pub struct Registration {
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Registration {
    pub fn start(broker: &Broker, options: RegistryOptions) -> Self {
        sandkeep_outgoing::crypto::provide();
        let stop = CancellationToken::new();
        let (broker, stopped) = (broker.clone(), stop.clone());
        let task = tokio::spawn(async move {
            tokio::select! {
                () = stopped.cancelled() => {}
                () = keep(broker, options) => {}
            }
        });
        Self { stop, task }
    }

    /// Entries stay: the registry has no way to remove one.
    pub async fn stop(self) {
        self.stop.cancel();
        let _ = self.task.await;
    }
}

async fn keep(broker: Broker, options: RegistryOptions) {
    let mut failures = 0_u32;
    loop {
        let pause = match refresh(&broker, &options).await {
            Ok(()) if failures > 0 => {
                failures = 0;
                info!("the runtimes are registered with Urule again");
                limits::URULE_REFRESH
            }
            Ok(()) => limits::URULE_REFRESH,
            Err(error) => {
                if failures == 0 {
                    warn!("cannot register with Urule; trying again: {}", with_causes(&error));
                }
                failures = failures.saturating_add(1);
                retry_after(failures)
            }
        };
        tokio::time::sleep(pause).await;
    }
}

fn retry_after(failures: u32) -> Duration {
    (limits::URULE_RETRY_FIRST * (1 << failures.min(16).saturating_sub(1)))
        .min(limits::URULE_RETRY_MAX)
}

/// The ids of our entries by workspace and runtime.
type Entries = BTreeMap<String, BTreeMap<String, String>>;

async fn refresh(broker: &Broker, options: &RegistryOptions) -> Result<(), RegistryError> {
    let saved = fs::read(&options.saved).ok();
    let mut entries: Entries =
        saved.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
    let runtimes = broker.runtimes();
    let usable = || runtimes.iter().filter(|runtime| runtime.usable == Usable::Yes);
    for workspace in &options.workspaces {
        for runtime in usable() {
            let known = entries.get(workspace).and_then(|entries| entries.get(runtime.name));
            if let Some(id) = known
                && is_there(options, id).await?
            {
                continue;
            }
            let id = register(options, workspace, runtime).await?;
            info!(workspace, runtime = runtime.name, id, "registered with Urule");
            entries.entry(workspace.clone()).or_default().insert(runtime.name.to_owned(), id);
            save(options, &entries).map_err(RegistryError::Unsaved)?;
        }
    }
    Ok(())
}

fn save(options: &RegistryOptions, entries: &Entries) -> io::Result<()> {
    let new = options.saved.with_extension("new");
    fs::write(&new, serde_json::to_vec(entries)?)?;
    fs::rename(&new, &options.saved)
}

async fn is_there(options: &RegistryOptions, id: &str) -> Result<bool, RegistryError> {
    let (status, said) = ask(options, Method::GET, &format!("api/v1/runtimes/{id}"), None).await?;
    match status {
        StatusCode::NOT_FOUND => Ok(false),
        status if status.is_success() => Ok(true),
        status => Err(refused(status, &said)),
    }
}

async fn register(
    options: &RegistryOptions,
    workspace: &str,
    runtime: &RuntimeView,
) -> Result<String, RegistryError> {
    #[derive(Deserialize)]
    struct Entry {
        id: String,
    }
    let has = &runtime.abilities;
    let body = json!({
        "workspaceId": workspace,
        "provider": runtime.name,
        "profile": options.profile,
        "capabilities": {
            "hasGpu": has.has_gpu,
            "hasBrowser": has.has_browser,
            "hasNetwork": has.has_network,
            "maxConcurrentTasks": has.max_concurrent_tasks,
        },
    });
    let (status, said) = ask(options, Method::POST, "api/v1/runtimes", Some(body)).await?;
    if !status.is_success() {
        return Err(refused(status, &said));
    }
    let entry: Entry = serde_json::from_slice(&said).map_err(|_| RegistryError::Unreadable)?;
    // It becomes part of a path.
    let is_plain = |id: &str| id.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
    if (1..=limits::URULE_ID_MAX_BYTES).contains(&entry.id.len()) && is_plain(&entry.id) {
        Ok(entry.id)
    } else {
        Err(RegistryError::Unreadable)
    }
}

fn refused(status: StatusCode, said: &[u8]) -> RegistryError {
    let said = String::from_utf8_lossy(said);
    let said: String = said.chars().filter(|c| !c.is_control()).take(200).collect();
    RegistryError::Refused { status, said }
}

async fn ask(
    options: &RegistryOptions,
    method: Method,
    path: &str,
    body: Option<Value>,
) -> Result<(StatusCode, Vec<u8>), RegistryError> {
    let base = sandkeep_outgoing::url(&options.url)?;
    let not_a_url = || OutgoingError::NotAUrl { url: sandkeep_outgoing::shown(&base).to_string() };
    let url = format!("{}/{path}", base.as_str().trim_end_matches('/'));
    let url: Url = url.parse().map_err(|_| not_a_url())?;
    // The administrator chose it.
    let client = options.outgoing.admit(&url, Chosen::ByUs).await?.client()?;
    let request = client.request(method, url).timeout(limits::URULE_ANSWER);
    let with_token = |request: RequestBuilder| match &options.token {
        Some(token) => request.bearer_auth(token),
        None => request,
    };
    let request = match &body {
        Some(body) => with_token(request).json(body),
        None => with_token(request),
    };
    let unreachable = |error: reqwest::Error| RegistryError::Unreachable(error.without_url());
    let response = request.send().await.map_err(unreachable)?;
    let status = response.status();
    match sandkeep_outgoing::body(response, limits::URULE_ANSWER_MAX_BYTES).await {
        Ok(body) => Ok((status, body)),
        Err(BodyError::TooLarge) => Err(RegistryError::Unreadable),
        Err(BodyError::Broken(error)) => Err(unreachable(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_are_further_and_further_apart_up_to_a_bound() {
        let pauses: Vec<Duration> = (1..40).map(retry_after).collect();
        assert_eq!(pauses[0], limits::URULE_RETRY_FIRST);
        assert!(pauses.is_sorted() && pauses.last() == Some(&limits::URULE_RETRY_MAX));
    }
}
