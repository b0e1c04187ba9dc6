//! Which subjects are answered. A server lets us publish what the sender of a message may not, so an answer goes only to
//! a subject that is made for answers.

use sandkeep_nats::async_nats::{Message, Subject};

/// The first tokens of subjects that are made for answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inboxes(Vec<String>);

impl Inboxes {
    /// `_INBOX` is that of clients, `_R_` that of requests from other accounts.
    pub const DEFAULT: [&str; 2] = ["_INBOX", "_R_"];

    pub fn new(prefixes: impl IntoIterator<Item = String>) -> Self {
        Self(prefixes.into_iter().collect())
    }

    /// Where to answer a message; `None` if nowhere.
    pub fn of(&self, message: &Message) -> Option<Subject> {
        let reply = message.reply.clone()?;
        let inbox = self.0.iter().any(|prefix| is_within(&reply, prefix));
        if !inbox {
            tracing::debug!(%reply, subject = %message.subject, "a message wants its answer where none goes");
        }
        inbox.then_some(reply)
    }
}

impl Default for Inboxes {
    fn default() -> Self {
        Self::new(Self::DEFAULT.map(str::to_owned))
    }
}

/// Whether a subject can be published to and begins with these tokens.
fn is_within(subject: &str, prefix: &str) -> bool {
    let mut tokens = subject.split('.');
    let plain = |token: &str| {
        !token.is_empty()
            && !token.contains(['*', '>'])
            && !token.contains(|c: char| c.is_whitespace() || c.is_control())
    };
    let starts = prefix.split('.').all(|wanted| tokens.next() == Some(wanted));
    starts && tokens.next().is_some() && subject.split('.').all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_inboxes_are_answered() {
        let answers = |subject: &str, prefix: &str| is_within(subject, prefix);
        assert!(answers("_INBOX.abc", "_INBOX"));
        assert!(answers("_INBOX.abc.1", "_INBOX"));
        assert!(answers("my.inbox.7", "my.inbox"));
        for bad in [
            "_INBOX",
            "_INBOX.",
            "_INBOXES.a",
            "sandkeep.v1.destroy",
            "_INBOX.*",
            "_INBOX.a b",
            "_INBOX.>",
            "_INBOX..a",
            "_INBOX.a\r",
            "$JS.API.STREAM.DELETE.x",
            "",
        ] {
            assert!(!answers(bad, "_INBOX"), "{bad}");
        }
    }

    #[test]
    fn a_message_that_wants_its_answer_elsewhere_is_not_answered() {
        let answered = |reply: Option<&str>| {
            let message = Message {
                subject: "sandkeep.v1.create".into(),
                reply: reply.map(Subject::from),
                payload: "{}".into(),
                headers: None,
                status: None,
                description: None,
                length: 2,
            };
            Inboxes::default().of(&message)
        };
        assert_eq!(answered(Some("_INBOX.abc.1")), Some(Subject::from("_INBOX.abc.1")));
        assert_eq!(answered(Some("_R_.abc")), Some(Subject::from("_R_.abc")));
        for none in [None, Some("other.subject"), Some("sandkeep.v1.list"), Some("_INBOX.*")] {
            assert_eq!(answered(none), None, "{none:?}");
        }
    }
}
