//! Shared parts of the conformance suites, which check the promises of every store, storage and runtime.

use std::fmt;

/// A broken promise.
#[derive(Debug)]
pub struct Violation {
    pub promise: &'static str,
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.promise, self.detail)
    }
}

/// The failure of one check.
pub struct Failure(pub String);

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(format!("unexpected answer {error}: {error:?}"))
    }
}

pub type Verdict = Result<(), Failure>;

/// Ends the check unless the condition holds.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($detail:tt)+) => {
        if !$condition {
            return Err($crate::promises::Failure(format!($($detail)+)));
        }
    };
}
pub use ensure;

/// A table of checks, each named after its promise.
#[macro_export]
macro_rules! checks {
    ($($module:ident::$check:ident),+ $(,)?) => {
        &[$((stringify!($check), |subject| Box::pin($module::$check(subject)))),+]
    };
}
pub use checks;
