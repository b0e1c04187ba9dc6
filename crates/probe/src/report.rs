//! One line per attempt: its name, the verdict and why, separated by tabs.

use crate::Attempt;

/// The last line. Without it the probe was interrupted.
pub const END: &str = "end";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The attempt was made and failed.
    Held,
    /// It succeeded.
    Leaked,
    /// A required resource does not exist here.
    NotApplicable,
}

impl Verdict {
    const ALL: [Self; 3] = [Self::Held, Self::Leaked, Self::NotApplicable];

    pub fn name(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Leaked => "leaked",
            Self::NotApplicable => "not_applicable",
        }
    }
}

/// The result of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    pub attempt: Attempt,
    pub verdict: Verdict,
    pub detail: String,
}

impl Report {
    pub fn line(&self) -> String {
        let detail: String =
            self.detail.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        format!("{}\t{}\t{detail}", self.attempt.name(), self.verdict.name())
    }

    /// `None` for any other line.
    pub fn parse(line: &str) -> Option<Self> {
        let mut parts = line.splitn(3, '\t');
        let attempt = Attempt::named(parts.next()?)?;
        let verdict = parts.next()?;
        let verdict = Verdict::ALL.into_iter().find(|known| known.name() == verdict)?;
        Some(Self { attempt, verdict, detail: parts.next()?.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_as_it_was_written() {
        for attempt in Attempt::ALL {
            for verdict in Verdict::ALL {
                let report = Report { attempt, verdict, detail: "a b: c".to_owned() };
                assert_eq!(Report::parse(&report.line()), Some(report));
            }
        }
    }

    #[test]
    fn what_is_no_line_is_nothing() {
        for line in ["", END, "mount", "mount\theld", "mount\tperhaps\tx", "nothing\theld\tx"] {
            assert_eq!(Report::parse(line), None, "{line:?}");
        }
        let torn = Report {
            attempt: Attempt::Mount,
            verdict: Verdict::Held,
            detail: "one\ntwo\tthree".to_owned(),
        };
        let read = Report::parse(&torn.line()).expect("one line");
        assert_eq!(read.detail, "one two three");
    }
}
