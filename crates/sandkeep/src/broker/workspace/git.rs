//! Cloning a repository inside the sandbox, as `user`: whatever a repository can make git do, it does it there.
//! A repository of the host lies beside its clone for that moment.

use crate::broker::exec::{Place, Wanted};
use crate::broker::supervisor::Supervisor;
use crate::broker::workspace::opening::without_git;
use crate::error::Error;
use crate::guest::{ExecEvent, ExecRequest, Guest, LeafLimits, Outcome, Stdin};
use crate::limits;
use crate::sandbox::{ExecId, GitUrl, HOME, Privilege};

/// Who clones. By number, because an image may name nobody.
const USER: &str = "1000:1000";

/// How a command ends that is not there.
const NOT_FOUND: i32 = 127;

/// How a command ended, and the end of what it said.
struct Ended {
    outcome: Outcome,
    said: String,
}

impl Supervisor {
    pub(super) async fn clone_inside(
        &self,
        guest: &dyn Guest,
        url: &GitUrl,
        aside: &str,
        path: &str,
    ) -> Result<(), Error> {
        let run = |argv: &[&str]| {
            self.run_inside(guest, argv.iter().map(|&argument| argument.to_owned()).collect())
        };
        match url.reference() {
            None => run(&["git", "clone", "--quiet", "--", aside, path]).await?,
            Some(reference) => {
                run(&["git", "clone", "--quiet", "--no-checkout", "--", aside, path]).await?;
                // Of a branch it makes one that follows it, as a clone does; at all else it is detached.
                run(&["git", "-C", path, "checkout", "--quiet", reference, "--"]).await?;
            }
        }
        run(&["git", "-C", path, "remote", "set-url", "origin", url.url()]).await?;
        run(&["rm", "-rf", "--", aside]).await
    }

    /// Runs a command to its end, which must be a good one.
    async fn run_inside(&self, guest: &dyn Guest, argv: Vec<String>) -> Result<(), Error> {
        let env = [("HOME", HOME), ("GIT_TERMINAL_PROMPT", "0")];
        let wanted = Wanted {
            env: env.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            cwd: Some(HOME.to_owned()),
            user: Some(USER.to_owned()),
        };
        let Place { env, cwd, user } = Place::fill(&self.meta.spec, wanted)?;
        let what = argv.join(" ");
        let request = ExecRequest {
            id: ExecId::random(),
            argv,
            env,
            cwd,
            user,
            stdin: Stdin::Null,
            terminal: None,
            timeout: Some(limits::SOURCE_GIT),
            privilege: Privilege::None,
            limits: LeafLimits::NONE,
        };
        let ended = tokio::select! {
            ended = to_the_end(guest, request) => ended?,
            () = self.shared.closing.cancelled() => return Err(Error::ShuttingDown),
        };
        let problem = match ended.outcome {
            Outcome::Exited(0) => return Ok(()),
            Outcome::Exited(NOT_FOUND) => without_git(self.meta.spec.template()),
            outcome => format!("{what}, inside, {}: {}", how(&outcome), ended.said.trim()),
        };
        Err(Error::SourceInvalid { problem })
    }
}

async fn to_the_end(guest: &dyn Guest, request: ExecRequest) -> Result<Ended, Error> {
    let mut execution = guest.exec(request).await?;
    let mut said = Vec::new();
    while let Some(event) = execution.next().await {
        match event {
            ExecEvent::Started => {}
            ExecEvent::Output { data, .. } => {
                said.extend_from_slice(&data);
                let over = said.len().saturating_sub(limits::SOURCE_SAID_MAX_BYTES);
                said.drain(..over);
            }
            ExecEvent::Ended(end) => {
                let said = String::from_utf8_lossy(&said).into_owned();
                return Ok(Ended { outcome: end.outcome, said: end.error.unwrap_or(said) });
            }
        }
    }
    Ok(Ended { outcome: Outcome::Lost, said: String::new() })
}

fn how(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Exited(code) => format!("exited with {code}"),
        Outcome::Signaled(signal) => format!("was ended by signal {signal}"),
        Outcome::TimedOut => format!("took more than {} s", limits::SOURCE_GIT.as_secs()),
        Outcome::OomKilled => "ran out of memory".to_owned(),
        Outcome::Canceled | Outcome::Lost => "was cut off".to_owned(),
    }
}
