//! The findings of all users combined. A missing result counts as a leak.

use std::collections::BTreeMap;

use probe::{Attempt, END, Report};

use super::subject::{Ran, Who};
use sandkeep_guestlink::Outcome;
use sandkeep_home::{Attempted, Verdict};

/// The worst finding for each attempt, and its user; of equal ones, the first.
#[derive(Debug, Default)]
pub struct Tally(BTreeMap<Attempt, (Verdict, String)>);

impl Tally {
    pub fn note(&mut self, attempt: Attempt, verdict: Verdict, detail: String) {
        match self.0.get(&attempt) {
            Some((worst, _)) if *worst >= verdict => {}
            Some(_) | None => drop(self.0.insert(attempt, (verdict, detail))),
        }
    }

    /// The output lines of one run of the probe.
    pub fn take(&mut self, who: Who, ran: &Ran) {
        self.take_some(who, ran, |_| true);
    }

    /// The same where only some were to be made.
    pub fn take_some(&mut self, who: Who, ran: &Ran, asked: impl Fn(Attempt) -> bool) {
        if could_not_be(who, ran) {
            return;
        }
        let reports: Vec<Report> = ran.stdout.lines().filter_map(Report::parse).collect();
        for Report { attempt, verdict, detail } in &reports {
            let verdict = match verdict {
                probe::Verdict::Held => Verdict::Held,
                probe::Verdict::Leaked => Verdict::Leaked,
                probe::Verdict::NotApplicable => Verdict::NotApplicable,
            };
            self.note(*attempt, verdict, format!("{}: {detail}", who.name()));
        }
        let whole = ran.stdout.lines().last() == Some(END);
        let silent = from_inside()
            .filter(|attempt| asked(*attempt))
            .filter(|attempt| !whole || !reports.iter().any(|report| report.attempt == *attempt));
        for attempt in silent {
            let detail = format!("{}: not judged: {:?}", who.name(), ran.end.outcome);
            self.note(attempt, Verdict::Leaked, detail);
        }
    }

    pub fn attempts(&self) -> Vec<Attempted> {
        let attempted = |attempt: Attempt| {
            let never = || (Verdict::Leaked, "not judged: nobody tried it".to_owned());
            let (verdict, detail) = self.0.get(&attempt).cloned().unwrap_or_else(never);
            Attempted { name: attempt.name().to_owned(), verdict, detail }
        };
        Attempt::ALL.into_iter().map(attempted).collect()
    }
}

/// A sandbox with a single user has no root; a user that cannot exist cannot escape.
fn could_not_be(who: Who, ran: &Ran) -> bool {
    who != Who::User && ran.end.outcome == Outcome::Exited(126) && ran.end.error.is_some()
}

fn from_inside() -> impl Iterator<Item = Attempt> {
    Attempt::ALL.into_iter().filter(|attempt| attempt.scope() != probe::Scope::Share)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use sandkeep_guestlink::ExecEnd;

    fn ran(outcome: Outcome, error: Option<&str>, stdout: &str) -> Ran {
        let error = error.map(str::to_owned);
        let end = ExecEnd { error, ..ExecEnd::new(outcome, Duration::ZERO) };
        Ran { stdout: stdout.to_owned(), end }
    }

    fn lines(verdict: probe::Verdict) -> String {
        let line = |attempt| Report { attempt, verdict, detail: "x".to_owned() }.line();
        from_inside().map(line).chain([END.to_owned()]).collect::<Vec<_>>().join("\n")
    }

    fn of(tally: &Tally, attempt: Attempt) -> Attempted {
        let found = tally.attempts().into_iter().find(|found| found.name == attempt.name());
        found.expect("every attempt is told")
    }

    #[test]
    fn one_who_gets_out_is_enough() {
        let mut tally = Tally::default();
        tally.take(Who::User, &ran(Outcome::Exited(0), None, &lines(probe::Verdict::Held)));
        assert_eq!(of(&tally, Attempt::Mount).verdict, Verdict::Held);
        tally.take(Who::Root, &ran(Outcome::Exited(0), None, &lines(probe::Verdict::Leaked)));
        tally.take(
            Who::PrivilegedRoot,
            &ran(Outcome::Exited(0), None, &lines(probe::Verdict::Held)),
        );
        let found = of(&tally, Attempt::Mount);
        assert_eq!((found.verdict, found.detail.as_str()), (Verdict::Leaked, "root: x"));
    }

    #[test]
    fn an_attempt_that_one_could_make_and_another_not_is_the_ones() {
        let mut tally = Tally::default();
        tally.take(Who::User, &ran(Outcome::Exited(0), None, &lines(probe::Verdict::Held)));
        tally
            .take(Who::Root, &ran(Outcome::Exited(0), None, &lines(probe::Verdict::NotApplicable)));
        assert_eq!(of(&tally, Attempt::SetuidCall).verdict, Verdict::Held);
    }

    #[test]
    fn silence_is_a_leak() {
        let all = lines(probe::Verdict::Held);
        let cut = all.rsplit_once('\n').expect("several lines").0;
        for said in ["", cut, END, "nonsense\nend"] {
            let mut tally = Tally::default();
            tally.take(Who::User, &ran(Outcome::Signaled(9), None, said));
            let found = of(&tally, Attempt::Mount);
            assert_eq!(found.verdict, Verdict::Leaked, "{said:?}");
        }
        assert!(Tally::default().attempts().iter().all(|a| a.verdict == Verdict::Leaked));
    }

    #[test]
    fn whoever_cannot_be_inside_does_not_count() {
        let mut tally = Tally::default();
        tally.take(Who::User, &ran(Outcome::Exited(0), None, &lines(probe::Verdict::Held)));
        tally.take(Who::Root, &ran(Outcome::Exited(126), Some("no such user"), ""));
        assert_eq!(of(&tally, Attempt::Mount).verdict, Verdict::Held);
        tally.take(Who::Root, &ran(Outcome::Exited(126), None, ""));
        assert_eq!(of(&tally, Attempt::Mount).verdict, Verdict::Leaked);
    }
}
