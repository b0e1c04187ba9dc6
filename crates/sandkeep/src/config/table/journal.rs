//! The rows about stored command output.

use super::{Setting, Shape, json, limits, value};

pub(super) static JOURNAL: &[Setting] = &[
    Setting::new(
        "journal.max_bytes_per_exec",
        Shape::Integer,
        "BYTES",
        "Maximum output kept per exec; beyond it the middle is dropped and reported as a gap",
        set!(journal.max_bytes_per_exec, |text| value::within(
            text,
            limits::JOURNAL_MIN_BYTES..=u64::MAX
        )),
        show!(journal.max_bytes_per_exec),
    ),
    Setting::new(
        "journal.max_execs",
        Shape::Integer,
        "N",
        "Maximum number of ended execs kept per sandbox; the oldest are deleted first",
        set!(journal.max_execs, |text| value::parsed(text, "a whole number")),
        show!(journal.max_execs),
    ),
    Setting::new(
        "journal.max_bytes",
        Shape::Integer,
        "BYTES",
        "Maximum output kept per sandbox, at most the size of its disk; the oldest ended execs are deleted first, and running ones keep the beginning and the end",
        set!(journal.max_bytes, |text| value::parsed(text, "a number of bytes")),
        show!(journal.max_bytes),
    ),
];
