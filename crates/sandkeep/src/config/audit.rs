//! What the operator wants of the audit log.

use std::time::Duration;

use serde::{Serialize, Serializer};

use super::value::{self, Invalid};
use sandkeep_audit::{Bounds, OnFull, Options, Reads};
use sandkeep_core::limits;

const DAY_SECS: u64 = 24 * 60 * 60;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditSettings {
    pub reads: bool,
    pub on_full: WhenFull,
    pub max_mb: u64,
    pub max_days: u64,
}

/// What a full disk does to changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WhenFull(pub OnFull);

impl Serialize for WhenFull {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(match self.0 {
            OnFull::Refuse => "refuse",
            OnFull::Continue => "continue",
        })
    }
}

impl Default for AuditSettings {
    fn default() -> Self {
        Self {
            reads: false,
            on_full: WhenFull(OnFull::Refuse),
            max_mb: limits::AUDIT_DEFAULT_MB,
            max_days: limits::AUDIT_DEFAULT_DAYS,
        }
    }
}

impl AuditSettings {
    /// The options of the log, without what its owner adds.
    pub fn options(self) -> Options {
        let max_age = Duration::from_secs(self.max_days.saturating_mul(DAY_SECS));
        let bounds = Bounds { max_bytes: self.max_mb * limits::MIB, max_age };
        let reads = if self.reads { Reads::Record } else { Reads::Skip };
        Options { bounds, on_full: self.on_full.0, reads, ..Options::default() }
    }
}

pub fn when_full(text: &str) -> Result<WhenFull, Invalid> {
    let choices = [("refuse", OnFull::Refuse), ("continue", OnFull::Continue)];
    value::choice(text, &choices).map(WhenFull)
}
