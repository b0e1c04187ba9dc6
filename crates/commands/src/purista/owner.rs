//! Whose a sandbox is, in PURISTA's words and in ours. The owner is the sandbox's own; the scope is a slot of that owner
//! and, for people and for recovery, two labels. Both are in the sandbox's metadata, so nothing else has to survive.

use std::collections::BTreeMap;

use ring::digest::{Context, SHA256};
use sandkeep_broker::View;
use sandkeep_core::{Owner, Principal, SandboxId, SlotName};
use serde_json::{Value, json};

use super::id::uuid_of;
use super::input::{Creation, ScopeInput};

/// What slots of these sandboxes begin with. A slot never changes, so this tells them from others.
const SLOT_PREFIX: &str = "purista.";

/// The slot of a scope. Its parts go in with their lengths, so that no two scopes have the same.
pub fn slot_of(scope: &ScopeInput) -> SlotName {
    let mut digest = Context::new(&SHA256);
    for part in [Some(&scope.kind), scope.key.as_ref()].into_iter().flatten() {
        digest.update(&(part.len() as u64).to_be_bytes());
        digest.update(part.as_bytes());
    }
    let digest = hex::encode(digest.finish().as_ref());
    let slot = format!("{SLOT_PREFIX}{}.{digest}", scope.kind);
    slot.parse().expect("the kinds of scopes and hex digits are plain, and short")
}

/// The label by which the end of a sandbox tells that it was made through this service: nobody can look at it then.
pub const EVENT_LABEL: &str = "purista.scope.kind";
const SCOPE_KIND: &str = "scope.kind";

pub fn labels_of(who: &Principal, creation: &Creation) -> BTreeMap<String, String> {
    let configured = if creation.git.is_some() { "true" } else { "false" };
    let scope = &creation.scope;
    let labels = [
        ("organizationId", Some(who.organization.clone())),
        ("userId", Some(who.user.clone())),
        ("projectId", Some(creation.project.clone())),
        ("gitConfigured", Some(configured.to_owned())),
        (SCOPE_KIND, Some(scope.kind.clone())),
        ("scope.key", scope.key.clone()),
    ];
    labels
        .into_iter()
        .filter_map(|(name, value)| Some((format!("purista.{name}"), value?)))
        .collect()
}

/// Whether a sandbox was made through this service.
pub fn is_ours(view: &View) -> bool {
    view.slot.as_ref().is_some_and(|slot| slot.as_str().starts_with(SLOT_PREFIX))
}

/// What events say of a sandbox.
pub fn described(id: &SandboxId, owner: &Owner) -> Value {
    json!({
        "sandboxId": uuid_of(id),
        "organizationId": owner.organization,
        "projectId": owner.project,
        "userId": owner.user,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sandbox_has_the_label_that_events_need() {
        let scope = ScopeInput { kind: "agent-run".to_owned(), key: None };
        let creation = Creation {
            project: "web".to_owned(),
            organization: None,
            user: None,
            scope,
            git: None,
        };
        let labels = labels_of(&Principal::local(), &creation);
        assert_eq!(labels.get(EVENT_LABEL).map(String::as_str), Some("agent-run"));
    }

    #[test]
    fn no_two_scopes_share_a_slot() {
        let scope = |kind: &str, key: Option<&str>| ScopeInput {
            kind: kind.to_owned(),
            key: key.map(str::to_owned),
        };
        let scopes = [
            scope("shared-project-user", None),
            scope("agent-run", Some("1")),
            scope("agent-run", Some("1 ")),
            scope("agent-run", Some("A")),
            scope("agent-run", Some("a")),
            scope("agent-run", Some("a:b")),
            scope("agent-run", Some("a\0b")),
            scope("conversation", Some("1")),
            scope("custom", Some("../..")),
        ];
        let slots: std::collections::HashSet<SlotName> = scopes.iter().map(slot_of).collect();
        assert_eq!(slots.len(), scopes.len());
        assert_eq!(slot_of(&scopes[1]), slot_of(&scopes[1].clone()));
    }
}
