//! Subjects of PURISTA: a prefix and twelve tokens.

use super::snake::snake;
use super::{Command, SERVICE, SERVICE_VERSION};

/// What stands for a name that is not there.
const EMPTY: &str = "empty";

/// Where commands of one kind come in, whoever sends them.
pub fn commands(prefix: &str, command: Command) -> String {
    let [service, version, target] = [SERVICE, SERVICE_VERSION, command.name()].map(snake);
    format!("{prefix}.command.*.*.*.*.*.*.*.*.{service}.{version}.{target}")
}

/// The queue group of everybody who answers them, ours and PURISTA's own.
pub fn queue(prefix: &str, command: Command) -> String {
    format!("{prefix}_queue_{SERVICE}_{SERVICE_VERSION}_{}", command.name()).to_ascii_uppercase()
}

/// A message that nobody in particular gets.
pub struct Published<'a> {
    pub message_type: &'a str,
    pub principal: Option<&'a str>,
    pub tenant: Option<&'a str>,
    pub instance: &'a str,
    pub target: &'a str,
    pub event: Option<&'a str>,
}

impl Published<'_> {
    pub fn subject(&self, prefix: &str) -> String {
        let empty = Some(EMPTY);
        let tokens = [
            Some(self.message_type),
            self.principal,
            self.tenant,
            Some(self.instance),
            Some(SERVICE),
            Some(SERVICE_VERSION),
            Some(self.target),
            self.event,
            empty,
            empty,
            empty,
            empty,
        ];
        let tokens = tokens.map(|name| token(name.unwrap_or(EMPTY)));
        format!("{prefix}.{}", tokens.join("."))
    }
}

/// A name as one token. One that would not be one is left out: who it is is in the message.
fn token(name: &str) -> String {
    let token = snake(name);
    let breaks = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '.' | '*' | '>');
    if token.is_empty() || token.contains(breaks) { EMPTY.to_owned() } else { token }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_and_queue_groups_are_those_of_purista() {
        let command = Command::CreateSandbox;
        let filter = "purista.command.*.*.*.*.*.*.*.*.sandbox.1.create_sandbox";
        assert_eq!(commands("purista", command), filter);
        assert_eq!(filter.split('.').count(), 13);
        assert_eq!(queue("purista", command), "PURISTA_QUEUE_SANDBOX_1_CREATESANDBOX");
    }

    #[test]
    fn no_identity_breaks_a_subject() {
        let subject = |principal, tenant| {
            Published {
                message_type: "customMessage",
                principal: Some(principal),
                tenant: Some(tenant),
                instance: "ab",
                target: "createSandbox",
                event: Some("SandboxStarted"),
            }
            .subject("purista")
        };
        assert_eq!(
            subject("Ann", "Acme"),
            "purista.custom_message.ann.acme.ab.sandbox.1.create_sandbox.sandbox_started.empty.empty.empty.empty"
        );
        for odd in ["日 本", " ", "日.本", "..", "*", ">", "", "\u{7}", "a.b"] {
            let subject = subject(odd, odd);
            assert_eq!(subject.split('.').count(), 13, "{subject}");
            assert!(!subject.contains([' ', '*', '>', '\u{7}']), "{subject}");
        }
    }
}
