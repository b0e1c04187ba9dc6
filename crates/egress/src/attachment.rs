//! The gateway's end of one sandbox.

use std::net::IpAddr;

use sandkeep_core::network::{Choice, Entry, NetworkUsage, PendingRequest, Policy};

use crate::rules::Rules;

/// Why nothing can be asked, or decided.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    #[error("the policy of this sandbox does not ask: its on_deny is not \"ask\"")]
    DoesNotAsk,
    #[error("{0} is allowed already")]
    Allowed(String),
    #[error("{host}: {reason}; nobody can allow it for this sandbox")]
    Denied { host: String, reason: String },
    #[error("too many requests wait for a decision, or were made within a minute; try again later")]
    TooMany,
    #[error("there is no request {0}; it was decided, or nobody decided in time")]
    Unknown(u64),
}

/// The network of a sandbox, while it is open. Dropping it closes every socket and connection.
pub struct Attachment {}

impl Attachment {
    /// Puts other rules in force: for new connections at once. Open connections that are no longer allowed end.
    pub fn replace(&self, rules: Rules) {
        let _ = rules;
    }

    pub fn usage(&self) -> NetworkUsage {
        NetworkUsage::default()
    }

    /// What waits for the owner's decision, oldest first.
    pub fn requests(&self) -> Vec<PendingRequest> {
        Vec::new()
    }

    /// Asks for a destination before a connection does, with a reason for the owner. If one waits already, it gets the
    /// reason.
    pub fn request(&self, host: &str, port: u16, why: &str) -> Result<PendingRequest, AskError> {
        let _ = (host, port, why);
        Err(AskError::DoesNotAsk)
    }

    /// The owner's decision. After `Always` the entry is in force here; the caller adds it to the stored policy.
    pub fn decide(&self, request: u64, choice: Choice) -> Result<Option<Entry>, AskError> {
        let _ = choice;
        Err(AskError::Unknown(request))
    }

    /// The smallest policy that covers everything that was used since the attachment was opened.
    pub fn suggest(&self) -> Policy {
        Policy::default()
    }

    /// The name that has this address in the sandbox.
    pub fn name_of(&self, address: IpAddr) -> Option<String> {
        let _ = address;
        None
    }
}
