//! The result of an attempt, and the usual ways to judge it.

use std::io;

use probe::Verdict;

use crate::sys::Errno;

#[derive(Clone, Debug)]
pub struct Finding {
    pub verdict: Verdict,
    pub detail: String,
}

pub fn held(detail: impl Into<String>) -> Finding {
    Finding { verdict: Verdict::Held, detail: detail.into() }
}

pub fn leaked(detail: impl Into<String>) -> Finding {
    Finding { verdict: Verdict::Leaked, detail: detail.into() }
}

pub fn not_applicable(reason: impl Into<String>) -> Finding {
    Finding { verdict: Verdict::NotApplicable, detail: reason.into() }
}

/// How one call is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judge {
    /// Only a success is a leak.
    BySuccess,
    /// Its arguments make it fail in any case. If the error is not about permission, the kernel went as far as checking
    /// them, and valid ones would have worked.
    ByRefusal,
}

/// Several ways to the same goal: a leak by any of them is a leak.
pub struct Ways {
    judge: Judge,
    refusals: Vec<String>,
    leaks: Vec<String>,
}

impl Ways {
    pub fn judged(judge: Judge) -> Self {
        Self { judge, refusals: Vec::new(), leaks: Vec::new() }
    }

    /// Records the result of one way, and returns its value on success, for cleaning up.
    pub fn note<T, E: Into<Errno>>(&mut self, way: &str, result: Result<T, E>) -> Option<T> {
        match result {
            Ok(value) => {
                self.leaks.push(format!("{way} succeeded"));
                Some(value)
            }
            Err(error) => {
                let errno = error.into();
                if self.judge == Judge::BySuccess || errno.is_refusal() {
                    self.refusals.push(format!("{way}: {errno}"))
                } else {
                    self.leaks.push(format!("{way} was not refused: {errno}"))
                }
                None
            }
        }
    }

    /// Records a leak that is not the result of a call.
    pub fn leak(&mut self, what: impl Into<String>) {
        self.leaks.push(what.into());
    }

    /// Whether it is decided: what waits for an answer does not have to wait again.
    pub fn has_leak(&self) -> bool {
        !self.leaks.is_empty()
    }

    pub fn refuse(&mut self, what: impl Into<String>) {
        self.refusals.push(what.into());
    }

    pub fn finding(self) -> Finding {
        const SHOWN_MAX: usize = 4;
        let told = |all: &[String]| {
            let mut text = all.iter().take(SHOWN_MAX).cloned().collect::<Vec<_>>().join(", ");
            if all.len() > SHOWN_MAX {
                text += &format!(" and {} more", all.len() - SHOWN_MAX);
            }
            text
        };
        if self.leaks.is_empty() { held(told(&self.refusals)) } else { leaked(told(&self.leaks)) }
    }
}

impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Self {
        Self::new(error.raw_os_error().unwrap_or(libc::EIO))
    }
}
