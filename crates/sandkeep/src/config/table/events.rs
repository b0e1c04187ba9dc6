//! The rows about what events say.

use super::{Setting, Shape, json, value};

pub(super) static EVENTS: &[Setting] = &[Setting::new(
    "events.commands",
    Shape::Switch,
    "BOOL",
    "Include command lines in exec.started events",
    set!(event_commands, value::switch),
    show!(event_commands),
)];
