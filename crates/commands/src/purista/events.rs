//! What happens to the service's sandboxes, as custom messages: `SandboxDestroyed`, `TurnCompleted`. They come from the event
//! log while the daemon runs, at most once; the log itself is published elsewhere.

use std::collections::HashMap;
use std::sync::Arc;

use sandkeep_broker::{Broker, Delivery, Filter};
use sandkeep_core::event::{Event, EventKind};
use sandkeep_core::{Principal, SandboxId};
use serde_json::{Map, Value};

use super::service::Service;
use super::{envelope, owner};

/// A new sandbox; also one that runs again.
pub const STARTED: &str = "SandboxStarted";
/// In whose name events are sent that no command asked for.
const TARGET: &str = "events";

/// Tells for as long as events can be read.
pub async fn tell(service: Arc<Service>, broker: Broker) {
    let mut events = broker.events(None);
    let mut known = known(&broker).await;
    loop {
        match events.next().await {
            Ok(Delivery::Event(event)) => {
                if let Some((name, message)) = message(&service, &broker, &mut known, &event).await
                {
                    service.publish_event(TARGET, &name, &message).await;
                }
            }
            Ok(Delivery::Gap { oldest, .. }) => {
                tracing::warn!(%oldest, "events came faster than they could be told");
            }
            Err(error) => {
                tracing::warn!(%error, "events cannot be read; none are told any more");
                return;
            }
        }
    }
}

/// The service's sandboxes, described: of one that is gone nobody can ask.
async fn known(broker: &Broker) -> HashMap<SandboxId, Value> {
    let all = Filter { limit: usize::MAX, ..Filter::default() };
    let views = broker.list(&Principal::local(), &all).await.map(|page| page.items);
    let ours = views.unwrap_or_default().into_iter().filter(owner::is_ours);
    ours.map(|view| (view.id.clone(), owner::described(&view))).collect()
}

async fn message(
    service: &Service,
    broker: &Broker,
    known: &mut HashMap<SandboxId, Value>,
    event: &Event,
) -> Option<(String, Value)> {
    let id = event.subject.sandbox.as_ref()?;
    if let EventKind::SandboxCreated { .. } = event.kind {
        let view = broker.get(&Principal::local(), id).await.ok().filter(owner::is_ours)?;
        known.insert(id.clone(), owner::described(&view));
        // Whoever made it was told.
        return None;
    }
    let described = match event.kind {
        EventKind::SandboxDestroyed { .. } => known.remove(id)?,
        _ => known.get(id)?.clone(),
    };
    let kind = serde_json::to_value(&event.kind).ok()?;
    let name = name_of(kind["kind"].as_str()?)?;
    let mut payload: Map<String, Value> = described.as_object()?.clone();
    payload.extend(kind["data"].as_object().cloned().unwrap_or_default());
    let mut message = envelope::event(&service.instance, TARGET, &name, Value::Object(payload));
    message["tenantId"] = event.subject.owner.organization.clone().into();
    message["principalId"] = event.subject.owner.user.clone().into();
    Some((name, message))
}

/// `sandbox.rolled_back` is `SandboxRolledBack`. Commands of a sandbox are told to nobody.
fn name_of(kind: &str) -> Option<String> {
    if kind.starts_with("exec.") {
        return None;
    }
    let words = kind.split(['.', '_']).map(|word| {
        let mut letters = word.chars();
        let first = letters.next().map(|first| first.to_ascii_uppercase());
        first.into_iter().chain(letters).collect::<String>()
    });
    Some(words.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_have_the_names_that_purista_gives_its_own() {
        assert_eq!(name_of("sandbox.rolled_back").as_deref(), Some("SandboxRolledBack"));
        assert_eq!(name_of("sandbox.started").as_deref(), Some(STARTED));
        assert_eq!(name_of("turn.completed").as_deref(), Some("TurnCompleted"));
        assert_eq!(name_of("exec.started"), None);
    }
}
