//! The rows about the audit log.

use super::{Setting, Shape, json, limits, value};
use crate::config::audit::when_full;

pub(super) static AUDIT: &[Setting] = &[
    Setting::new(
        "audit.on_full",
        Shape::Text,
        "WHAT",
        "What happens to changes while the audit log cannot be written: refuse, or continue, which counts the missing records and reports them in the log",
        set!(audit.on_full, when_full),
        show!(audit.on_full),
    ),
    Setting::new(
        "audit.reads",
        Shape::Switch,
        "BOOL",
        "Also record requests that only read",
        set!(audit.reads, value::switch),
        show!(audit.reads),
    ),
    Setting::new(
        "audit.max_mb",
        Shape::Integer,
        "MIB",
        "Maximum size of the audit log, in MiB; the oldest records are removed first",
        set!(audit.max_mb, |text| value::within(text, limits::AUDIT_MIN_MB..=limits::DISK_MAX_MB)),
        show!(audit.max_mb),
    ),
    Setting::new(
        "audit.max_days",
        Shape::Integer,
        "DAYS",
        "Maximum age of audit records, in days",
        set!(audit.max_days, |text| value::within(text, 1..=limits::AUDIT_MAX_DAYS)),
        show!(audit.max_days),
    ),
];
