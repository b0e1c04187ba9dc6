//! The rows about the lifetimes of sandboxes.

use serde_json::json;

use super::{Setting, Shape, value};

pub static TIMEOUTS: &[Setting] = &[
    Setting::new(
        "timeouts.default_timeout_secs",
        Shape::Integer,
        "SECS",
        "Lifetime of a sandbox that does not set one; 0 is unlimited",
        set!(timeouts.default_timeout, value::seconds),
        |of| json!(of.timeouts.default_timeout.map(|d| d.as_secs())),
    ),
    Setting::new(
        "timeouts.default_idle_timeout_secs",
        Shape::Integer,
        "SECS",
        "Idle timeout of a sandbox that does not set one; 0 is unlimited",
        set!(timeouts.default_idle_timeout, value::seconds),
        |of| json!(of.timeouts.default_idle_timeout.map(|d| d.as_secs())),
    ),
    Setting::new(
        "timeouts.max_timeout_secs",
        Shape::Integer,
        "SECS",
        "Maximum lifetime that a sandbox can request, and the lifetime of those that request none; 0 is unlimited",
        set!(timeouts.max_timeout, value::seconds),
        |of| json!(of.timeouts.max_timeout.map(|d| d.as_secs())),
    ),
];
