//! What happens to the service's sandboxes, as custom messages: `SandboxDestroyed`, `TurnCompleted`. They come from the event
//! log, from a durable position that moves when they were handed to the server: a daemon that dies tells some of them
//! again, with the same id.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use ring::digest::{SHA256, digest};
use sandkeep_broker::{Broker, Consumer, Delivery, Filter, StartAt};
use sandkeep_core::event::{Event, EventKind};
use sandkeep_core::limits::NATS_LOG_RETRY;
use sandkeep_core::{Principal, SandboxId};
use serde_json::{Map, Value};

use super::service::Service;
use super::{envelope, owner};

/// A new sandbox; also one that runs again.
pub const STARTED: &str = "SandboxStarted";
/// In whose name events are sent that no command asked for.
const TARGET: &str = "events";
/// The name of the position in the log.
const CONSUMER: &str = "purista";

/// Tells for as long as it is wanted.
pub async fn tell(service: Arc<Service>, broker: Broker) {
    let mut events = match broker.event_consumer(CONSUMER, StartAt::Newest) {
        Ok(events) => events,
        Err(error) => {
            tracing::warn!(%error, "events cannot be read; PURISTA hears of none");
            return;
        }
    };
    let mut known = known(&broker).await;
    loop {
        let delivery = match events.poll().await {
            Ok(Some(delivery)) => Ok(delivery),
            Ok(None) => {
                save(&service, &mut events).await;
                events.next().await
            }
            Err(error) => Err(error),
        };
        match delivery {
            Ok(Delivery::Event(event)) => {
                if let Some((name, message)) = message(&service, &broker, &mut known, &event).await
                {
                    service.publish_event(TARGET, &name, &message).await;
                }
            }
            Ok(Delivery::Gap { oldest, .. }) => {
                tracing::warn!(%oldest, "events were not kept long enough to be told to PURISTA");
            }
            Err(error) => {
                tracing::warn!(%error, "cannot read the events; trying again");
                tokio::time::sleep(NATS_LOG_RETRY).await;
            }
        }
    }
}

/// Everything that was published is with the server, or on its way in one piece.
async fn save(service: &Service, events: &mut Consumer) {
    if let Err(error) = service.client.flush().await {
        tracing::debug!(%error, "messages are not with the server yet");
        return;
    }
    if let Err(error) = events.acknowledge(events.position()) {
        tracing::debug!(%error, "cannot save how far events are told");
    }
}

/// The service's sandboxes.
async fn known(broker: &Broker) -> HashSet<SandboxId> {
    let all = Filter { limit: usize::MAX, ..Filter::default() };
    let views = broker.list(&Principal::local(), &all).await.map(|page| page.items);
    let ours = views.unwrap_or_default().into_iter().filter(owner::is_ours);
    ours.map(|view| view.id).collect()
}

async fn message(
    service: &Service,
    broker: &Broker,
    known: &mut HashSet<SandboxId>,
    event: &Event,
) -> Option<(String, Value)> {
    let id = event.subject.sandbox.as_ref()?;
    let is_ours = match &event.kind {
        EventKind::SandboxCreated { .. } => {
            let view = broker.get(&Principal::local(), id).await.ok();
            if view.as_ref().is_some_and(owner::is_ours) {
                known.insert(id.clone());
            }
            // Its creator has the answer to its request.
            false
        }
        EventKind::SandboxDestroyed { labels, .. } => known.remove(id) || is_marked(labels),
        EventKind::SandboxFailed { labels, .. } => known.contains(id) || is_marked(labels),
        _ => known.contains(id),
    };
    if !is_ours {
        return None;
    }
    let kind = serde_json::to_value(&event.kind).ok()?;
    let name = name_of(kind["kind"].as_str()?)?;
    let described = owner::described(id, &event.subject.owner);
    let mut payload: Map<String, Value> = described.as_object()?.clone();
    let mut data = kind["data"].as_object().cloned().unwrap_or_default();
    // It is for us.
    data.remove("labels");
    payload.extend(data);
    let mut message = envelope::event(&service.instance, TARGET, &name, Value::Object(payload));
    message["id"] = id_of(broker.instance(), event).into();
    message["tenantId"] = event.subject.owner.organization.clone().into();
    message["principalId"] = event.subject.owner.user.clone().into();
    Some((name, message))
}

fn is_marked(labels: &BTreeMap<String, String>) -> bool {
    labels.contains_key(owner::EVENT_LABEL)
}

/// The same for each attempt, and no other event's.
fn id_of(instance: &str, event: &Event) -> String {
    let digest = digest(&SHA256, format!("{instance}-{}", event.seq).as_bytes());
    hex::encode(&digest.as_ref()[..16])
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
