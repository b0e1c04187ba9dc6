//! One racer: a patch, a command, and the judge, one after the other in its fork.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;

use super::{RaceDraft, RaceTold, RacerDraft};
use crate::error::Error;
use crate::execs::{self, ExecDraft};
use crate::lifecycle::handle::Handle;
use crate::shared::Shared;
use sandkeep_core::api::{Racer, RacerState};
use sandkeep_core::excerpt::Excerpt;
use sandkeep_core::{ExecId, Verb, limits, with_causes};
use sandkeep_guestlink::journal::StdinSource;
use sandkeep_guestlink::{ExecEnd, Outcome, OutputStream};

/// The racer's number, from 1, for what runs in its fork.
const RACER: &str = "SANDKEEP_RACER";

/// Git understands more of what its own diffs say; a template may have only `patch`, or neither.
const PATCH: &str = "if command -v git >/dev/null 2>&1; then exec git apply --whitespace=nowarn -; \
                     else exec patch -p1 --batch; fi";

pub(super) struct Lane {
    shared: Arc<Shared>,
    handle: Arc<Handle>,
    own: RacerDraft,
    common: Arc<RaceDraft>,
    view: Racer,
    tell: mpsc::Sender<RaceTold>,
}

/// Why a racer is out.
#[derive(Debug, thiserror::Error)]
enum Out {
    #[error("{}", ended(what, *how, error.as_deref()))]
    Ended { what: &'static str, how: Outcome, error: Option<String> },
    #[error("the judge printed nothing; it must print a number")]
    NoScore,
    #[error("the judge's last line is {line:?}; it must be a number")]
    NotANumber { line: String },
    #[error(transparent)]
    Refused(#[from] Error),
}

/// A command that has ended.
struct Ran {
    end: ExecEnd,
    /// The ends of what it printed to stdout, and to both in order of arrival.
    stdout: String,
    said: String,
}

impl Lane {
    pub fn new(
        shared: &Arc<Shared>,
        at: usize,
        handle: Arc<Handle>,
        common: &Arc<RaceDraft>,
        tell: mpsc::Sender<RaceTold>,
    ) -> Self {
        let view = Racer {
            racer: at + 1,
            sandbox: handle.id.clone(),
            state: RacerState::Waiting,
            status: None,
            exit_code: None,
            duration_ms: None,
            score: None,
            problem: None,
            output: String::new(),
            judge_output: String::new(),
        };
        let own = common.racers[at].clone();
        Self { shared: Arc::clone(shared), handle, own, common: Arc::clone(common), view, tell }
    }

    pub fn view(&self) -> &Racer {
        &self.view
    }

    /// Returns how it ended.
    pub async fn run(mut self) -> Racer {
        match self.attempt().await {
            Ok(score) => {
                self.view.score = Some(score);
                self.enter(RacerState::Judged);
            }
            Err(out) => {
                self.view.problem = Some(with_causes(&out));
                self.enter(RacerState::Out);
            }
        }
        self.view
    }

    /// Its score.
    async fn attempt(&mut self) -> Result<f64, Out> {
        let common = Arc::clone(&self.common);
        if let Some(patch) = self.own.patch.take() {
            self.enter(RacerState::Patching);
            let argv = ["/bin/sh", "-c", PATCH].map(str::to_owned).to_vec();
            let ran = self.exec(argv, Some(patch), common.timeout).await?;
            self.view.output.clone_from(&ran.said);
            ran.succeeded("the patch does not apply: git or patch")?;
        }
        if let Some(argv) = self.own.argv.take() {
            self.enter(RacerState::Running);
            let ran = self.exec(argv, None, common.timeout).await?;
            self.view.status = Some(ran.end.outcome.status());
            self.view.exit_code = ran.end.outcome.numbers().0;
            self.view.duration_ms = Some(sandkeep_core::millis(ran.end.duration));
            self.view.output.clone_from(&ran.said);
            ran.succeeded("its command")?;
        }
        self.enter(RacerState::Judging);
        let ran = self.exec(common.judge.clone(), None, Some(common.judge_timeout)).await?;
        self.view.judge_output.clone_from(&ran.said);
        ran.succeeded("the judge")?;
        score(&ran.stdout)
    }

    fn enter(&mut self, state: RacerState) {
        self.view.state = state;
        // There is room for every state.
        let _ = self.tell.try_send(RaceTold::Racer(self.view.clone()));
    }

    async fn exec(
        &self,
        argv: Vec<String>,
        stdin: Option<Bytes>,
        timeout: Option<Duration>,
    ) -> Result<Ran, Out> {
        let mut env = self.common.env.clone();
        env.insert(RACER.to_owned(), self.view.racer.to_string());
        let draft = ExecDraft {
            argv,
            env,
            cwd: self.common.cwd.clone(),
            stdin: if stdin.is_some() { StdinSource::Given } else { StdinSource::None },
            timeout,
            ..ExecDraft::default()
        };
        let runtime = self.shared.runtime_label(Some(self.handle.meta().spec.runtime()));
        let begun = execs::exec(&self.shared, &self.handle, draft, ExecId::random());
        let verbs = self.shared.telemetry.verbs();
        let running = verbs.measure(Verb::Exec, runtime, begun).await?;
        let input = running.input.clone();
        let feed = async {
            if let Some(bytes) = stdin
                // A command may end without reading everything.
                && input.write(&bytes).await.is_ok()
            {
                let _ = input.close().await;
            }
        };
        let tail = || Excerpt::within(0, limits::RACE_OUTPUT_TAIL_BYTES);
        let (mut stdout, mut both) = (tail(), tail());
        let take = |stream, _, data: Bytes| {
            both.push(&data);
            if stream == OutputStream::Stdout {
                stdout.push(&data);
            }
            std::future::ready(())
        };
        let (end, ()) = tokio::join!(running.collect(take), feed);
        let text = |excerpt: Excerpt| String::from_utf8_lossy(&excerpt.cut().bytes).into_owned();
        Ok(Ran { end, stdout: text(stdout), said: text(both) })
    }
}

impl Ran {
    fn succeeded(&self, what: &'static str) -> Result<(), Out> {
        match self.end.outcome {
            Outcome::Exited(0) => Ok(()),
            how => Err(Out::Ended { what, how, error: self.end.error.clone() }),
        }
    }
}

/// How a command ended, with what the guest says about it.
fn ended(what: &str, how: Outcome, error: Option<&str>) -> String {
    let said = match how {
        Outcome::Exited(code) => format!("{what} exited with {code}"),
        Outcome::Signaled(signal) => format!("{what} was ended by signal {signal}"),
        Outcome::TimedOut => format!("{what} timed out"),
        Outcome::Canceled => format!("{what} was canceled"),
        Outcome::OomKilled => format!("{what} was killed: out of memory"),
        Outcome::Lost => format!("the outcome of {what} is unknown"),
    };
    error.map_or(said.clone(), |error| format!("{said}: {error}"))
}

/// The number in the last line that is not empty.
fn score(stdout: &str) -> Result<f64, Out> {
    let last = stdout.lines().map(str::trim).rfind(|line| !line.is_empty());
    let last = last.ok_or(Out::NoScore)?;
    match last.parse::<f64>() {
        Ok(score) if score.is_finite() => Ok(score),
        Ok(_) | Err(_) => Err(Out::NotANumber { line: last.chars().take(80).collect() }),
    }
}

#[cfg(test)]
mod tests {
    use super::score;

    #[test]
    fn a_score_is_the_last_line_that_a_judge_prints() {
        assert_eq!(score("7").ok(), Some(7.0));
        assert_eq!(score("running\n12 passed\n -0.25 \n\n").ok(), Some(-0.25));
        for wrong in ["", "\n \n", "7 points", "1\nnan", "inf", "12\ndone"] {
            assert!(score(wrong).is_err(), "{wrong:?}");
        }
    }
}
