//! What the rules of a codebase have refused inside, as events.
//!
//! A server keeps the newest refusals, and is asked at intervals and before it is ended. Equal ones of an interval are one
//! event, and an interval has few: an agent that tries the same thing ten thousand times is told of once.

use std::collections::BTreeMap;
use std::sync::Arc;

use tracing::debug;

use sandkeep_core::event::{EventKind, Subject};
use sandkeep_core::{CodebaseId, SandboxId, limits};
use sandkeep_rulefs::{Action, Refusal, Refusals};

use super::mounting::rules_of;
use super::serving::Served;
use crate::shared::Shared;

/// The path of the event that stands for all refusals without one of their own.
const FURTHER: &str = "*";

/// Emits what the server of a sandbox has refused since the last time.
pub(super) async fn emit(shared: &Arc<Shared>, id: &SandboxId, served: &Served) {
    let Some(handle) = shared.supervised(id) else { return };
    let meta = handle.meta();
    let Some(mounted) = meta.spec.codebase() else { return };
    let asked = tokio::time::timeout(limits::REFUSALS_ANSWER, served.server.refusals()).await;
    let refusals = match asked {
        Ok(Ok(refusals)) => refusals,
        // Its end is noticed elsewhere.
        Ok(Err(error)) => return debug!(%id, %error, "cannot ask for refusals"),
        Err(_) => return debug!(%id, "a server does not say what it has refused"),
    };
    if refusals.newest.is_empty() && refusals.omitted == 0 {
        return;
    }
    let Ok(rules) = rules_of(&meta.terms) else { return };
    let subject = Subject { owner: meta.owner.clone(), sandbox: Some(id.clone()) };
    let rule_of = |path: &[u8]| rules.decide(path).reason.rule().map(ToString::to_string);
    for kind in events(&mounted.codebase, &refusals, rule_of) {
        shared.emit(&subject, &kind);
    }
}

fn events(
    codebase: &CodebaseId,
    refusals: &Refusals,
    rule_of: impl Fn(&[u8]) -> Option<String>,
) -> Vec<EventKind> {
    let mut groups: BTreeMap<(&[u8], &str), u64> = BTreeMap::new();
    for Refusal { path, action, .. } in &refusals.newest {
        *groups.entry((path, word(*action))).or_default() += 1;
    }
    let event = |path: String, action: Option<&str>, rule, count| EventKind::CodebaseRefused {
        codebase: codebase.clone(),
        path,
        action: action.map(str::to_owned),
        rule,
        count,
    };
    let mut further = refusals.omitted;
    let mut events = Vec::new();
    for ((path, action), count) in groups {
        if events.len() == limits::REFUSAL_EVENTS_MAX {
            further += count;
            continue;
        }
        let shown = String::from_utf8_lossy(path).into_owned();
        events.push(event(shown, Some(action), rule_of(path), count));
    }
    if further > 0 {
        events.push(event(FURTHER.to_owned(), None, None, further));
    }
    events
}

fn word(action: Action) -> &'static str {
    match action {
        Action::Open => "open",
        Action::Read => "read",
        Action::Write => "write",
        Action::Create => "create",
        Action::Remove => "remove",
        Action::Rename => "rename",
        Action::Link => "link",
        Action::Attributes => "attributes",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandkeep_core::rules::Permission;

    fn refused(path: &str, action: Action) -> Refusal {
        Refusal { path: path.into(), action, permission: Permission::Read, pid: 0 }
    }

    #[test]
    fn equal_refusals_are_one_event_and_there_are_few() {
        let mut newest = vec![refused("a", Action::Write); 3];
        newest.push(refused("a", Action::Remove));
        newest.extend((0..20).map(|n| refused(&format!("b{n:02}"), Action::Create)));
        let refusals = Refusals { newest, omitted: 5 };
        let rule = |path: &[u8]| Some(format!("rule of {}", String::from_utf8_lossy(path)));
        let events = events(&CodebaseId::random(), &refusals, rule);
        assert_eq!(events.len(), limits::REFUSAL_EVENTS_MAX + 1);
        let told = |event: &EventKind| match event {
            EventKind::CodebaseRefused { path, action, rule, count, .. } => {
                (path.clone(), action.clone(), rule.clone(), *count)
            }
            other => panic!("{other:?}"),
        };
        let rule = Some("rule of a".to_owned());
        assert_eq!(told(&events[0]), ("a".to_owned(), Some("remove".to_owned()), rule.clone(), 1));
        assert_eq!(told(&events[1]), ("a".to_owned(), Some("write".to_owned()), rule, 3));
        let all: u64 = events.iter().map(|event| told(event).3).sum();
        assert_eq!(all, 3 + 1 + 20 + 5);
        assert_eq!(told(events.last().unwrap()).0, FURTHER);
    }
}
