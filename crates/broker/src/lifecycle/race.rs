//! race: forks of a sandbox each try something, a judge gives each a number, and the files of the best become the
//! sandbox's, as a turn.
//!
//! ```text
//!  row: racing ─▶ forks ─▶ in each: patch, command, judge ─▶ turn, as it was ─▶ row: keeping ─▶ files of the winner
//!                              │                                                                        │
//!                              └── all are out, or the caller left ─▶ forks gone ─▶ row gone ◀── turn ◀─ row: sealing
//! ```
//!
//! The row names all forks before any of them is final. A daemon that finds it in `racing` removes them, because their
//! caller never got an answer; from `keeping` on it finishes what was begun. If the winner's files cannot become the
//! sandbox's, its fork stays, and the sandbox is as it was.

mod keep;
mod lane;
mod row;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::warn;

use super::activity::Busy;
use super::fork::{For, ForkDraft, Forked, Unmade, check_count, unmake};
use super::handle::Handle;
use super::snapshot::refuse_if_full;
use super::supervisor::denied_error;
use crate::Broker;
use crate::error::Error;
use crate::policy::slots::Slot;
use crate::shared::Shared;
use lane::Lane;
use sandkeep_core::api::{RaceResult, Racer, RacerState};
use sandkeep_core::{
    Principal, SandboxId, SnapshotName, Trigger, Verb, apply, failpoint, limits, with_causes,
};

pub(crate) use row::{Row, sweep};

/// A race request.
#[derive(Clone, Debug)]
pub struct RaceDraft {
    pub racers: Vec<RacerDraft>,
    pub judge: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub cwd: Option<String>,
    pub timeout: Option<Duration>,
    pub judge_timeout: Duration,
    /// The present, if left out.
    pub snapshot: Option<SnapshotName>,
}

/// What one racer tries: a patch, a command, or both in this order.
#[derive(Clone, Debug, Default)]
pub struct RacerDraft {
    pub patch: Option<Bytes>,
    pub argv: Option<Vec<String>>,
}

/// A race under way. Dropping it gives the race up and removes its forks, unless a winner is being kept already.
pub struct Race {
    told: mpsc::Receiver<RaceTold>,
    _leaves: DropGuard,
}

/// What a race tells.
#[derive(Debug)]
pub enum RaceTold {
    Started(Vec<Racer>),
    Racer(Racer),
    /// The last one.
    Done(Result<RaceResult, Error>),
}

impl Race {
    /// `None` after `Done`, or if the daemon ended the race.
    pub async fn next(&mut self) -> Option<RaceTold> {
        self.told.recv().await
    }

    /// Waits for the end.
    pub async fn done(mut self) -> Result<RaceResult, Error> {
        loop {
            match self.next().await {
                Some(RaceTold::Done(done)) => return done,
                Some(RaceTold::Started(_) | RaceTold::Racer(_)) => {}
                None => return Err(Error::ShuttingDown),
            }
        }
    }
}

impl Broker {
    /// Makes the forks of a race and starts it.
    pub async fn race(
        &self,
        who: &Principal,
        id: &SandboxId,
        draft: RaceDraft,
    ) -> Result<Race, Error> {
        check_count(draft.racers.len())?;
        let shared = &self.shared;
        let handle = shared.find(who, id)?;
        let slot = shared.races.take(&who.organization)?;
        admit(shared, &handle)?;
        let broker = self.clone();
        // A caller that disconnects meanwhile drops the race, and so gives it up.
        let flight = async move { broker.begin_race(handle, draft, slot).await };
        shared.tasks.spawn(flight).await.unwrap_or(Err(Error::ShuttingDown))
    }

    async fn begin_race(
        &self,
        handle: Arc<Handle>,
        draft: RaceDraft,
        slot: Slot,
    ) -> Result<Race, Error> {
        let shared = &self.shared;
        let held = handle.activity.hold();
        let forks = ForkDraft {
            snapshot: draft.snapshot.clone(),
            count: draft.racers.len(),
            labels: BTreeMap::new(),
            name: None,
        };
        let runtime = shared.runtime_label(Some(handle.meta().spec.runtime()));
        let forked = self.fork_all(handle, forks, For::Race);
        let forked = shared.telemetry.verbs().measure(Verb::Fork, runtime, forked).await?;
        failpoint!("race.after_forks");
        let Forked { handles, race } = forked;
        let row = race.expect("forks for a race have its row");
        // Room for everything that is told, so that nobody waits for a slow reader.
        let room = limits::RACE_EVENTS_PER_RACER * handles.len() + 2;
        let (tell, told) = mpsc::channel(room);
        let left = CancellationToken::new();
        let race = Race { told, _leaves: left.clone().drop_guard() };
        let draft = Arc::new(draft);
        let lanes: Vec<Lane> = handles
            .iter()
            .enumerate()
            .map(|(at, handle)| Lane::new(shared, at, Arc::clone(handle), &draft, tell.clone()))
            .collect();
        let racing = Racing {
            shared: Arc::clone(shared),
            row,
            handles,
            tell,
            left,
            _held: held,
            _slot: slot,
        };
        shared.tasks.spawn(racing.run(lanes));
        Ok(race)
    }
}

/// What can be refused before anything is done. A winner that could not be kept would be a surprise after an hour.
fn admit(shared: &Shared, handle: &Handle) -> Result<(), Error> {
    let status = handle.published.borrow().status.clone();
    apply(&status, Trigger::Begin(Verb::Revert))
        .map_err(|denied| denied_error(handle.id.clone(), denied))?;
    handle.volume.with_snapshots()?;
    refuse_if_full(shared, handle)
}

/// A race whose forks exist.
struct Racing {
    shared: Arc<Shared>,
    row: Row,
    handles: Vec<Arc<Handle>>,
    tell: mpsc::Sender<RaceTold>,
    /// Nobody waits for the result any more.
    left: CancellationToken,
    /// The sandbox is not idle while it waits for its winner.
    _held: Busy,
    _slot: Slot,
}

impl Racing {
    async fn run(mut self, lanes: Vec<Lane>) {
        self.say(RaceTold::Started(lanes.iter().map(|lane| lane.view().clone()).collect()));
        let (left, detaching) = (self.left.clone(), self.shared.detaching.clone());
        let racers = tokio::select! {
            biased;
            () = left.cancelled() => None,
            () = detaching.cancelled() => None,
            racers = join_all(lanes.into_iter().map(Lane::run)) => Some(racers),
        };
        let done = match racers {
            Some(racers) => {
                failpoint!("race.after_judged");
                Ok(self.decide(racers).await)
            }
            None => Err(Error::ShuttingDown),
        };
        let kept = done.as_ref().ok().and_then(|result| result.kept.clone());
        self.clear(kept.as_ref()).await;
        self.say(RaceTold::Done(done));
    }

    /// Keeps the files of the best, if there is one.
    async fn decide(&mut self, racers: Vec<Racer>) -> RaceResult {
        let mut result = RaceResult {
            winner: None,
            before: None,
            turn: None,
            kept: None,
            problem: None,
            racers,
        };
        let Some(best) = best(&result.racers) else {
            result.problem = Some("no racer got a score".to_owned());
            return result;
        };
        result.winner = Some(best.racer);
        let score = best.score.unwrap_or_default();
        let note = format!("race: racer {} of {}, score {score}", best.racer, result.racers.len());
        let winner = Arc::clone(&self.handles[best.racer - 1]);
        match keep::begin(&self.shared, &mut self.row, &winner, note).await {
            Ok(before) => {
                result.before = Some(before.as_ref().into());
                match keep::finish(&self.shared, &mut self.row).await {
                    keep::KeepOutcome::Turn(turn) => result.turn = Some(turn.as_ref().into()),
                    keep::KeepOutcome::Unsealed(error) => {
                        result.problem = Some(with_causes(&error))
                    }
                    keep::KeepOutcome::Fork(error) => self.stays(&mut result, &winner, &error),
                }
            }
            Err(error) => self.stays(&mut result, &winner, &error),
        }
        result
    }

    fn stays(&self, result: &mut RaceResult, winner: &Handle, error: &Error) {
        warn!(id = %winner.id, %error, "the winner of a race stays a fork");
        (result.kept, result.problem) = (Some(winner.id.clone()), Some(with_causes(error)));
    }

    /// Removes the forks, but for one, and the row last.
    async fn clear(&self, kept: Option<&SandboxId>) {
        let gone = |handle: &&Arc<Handle>| Some(&handle.id) != kept;
        let handles: Vec<_> = self.handles.iter().filter(gone).cloned().collect();
        clear(&self.shared, &self.row, &handles).await;
    }

    /// There is room for everything.
    fn say(&self, told: RaceTold) {
        let _ = self.tell.try_send(told);
    }
}

/// Removes forks, and then the row that names them.
async fn clear(shared: &Shared, row: &Row, handles: &[Arc<Handle>]) {
    let unmade = unmake(shared, handles).await;
    failpoint!("race.after_removed");
    // Otherwise the next daemon removes the rest.
    if unmade == Unmade::All
        && let Err(error) = row.over(shared).await
    {
        warn!(%error, "cannot remove the record of a race");
    }
    failpoint!("race.after_outcome");
}

/// The highest score; of equal ones the first.
fn best(racers: &[Racer]) -> Option<&Racer> {
    let judged = racers.iter().filter(|racer| racer.state == RacerState::Judged);
    let score = |racer: &Racer| racer.score.unwrap_or(f64::NEG_INFINITY);
    judged.reduce(|best, other| if score(other) > score(best) { other } else { best })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn racer(number: usize, score: Option<f64>) -> Racer {
        Racer {
            racer: number,
            sandbox: SandboxId::random(),
            state: if score.is_some() { RacerState::Judged } else { RacerState::Out },
            status: None,
            exit_code: None,
            duration_ms: None,
            score,
            problem: None,
            output: String::new(),
            judge_output: String::new(),
        }
    }

    #[test]
    fn the_highest_score_wins_and_of_equal_ones_the_first() {
        let winner = |scores: &[Option<f64>]| {
            let racers: Vec<Racer> =
                scores.iter().enumerate().map(|(at, score)| racer(at + 1, *score)).collect();
            best(&racers).map(|best| best.racer)
        };
        assert_eq!(winner(&[Some(1.0), Some(3.5), Some(2.0)]), Some(2));
        assert_eq!(winner(&[None, Some(-4.0), Some(-4.0), None]), Some(2));
        assert_eq!(winner(&[Some(-1.0), None]), Some(1));
        assert_eq!(winner(&[None, None]), None);
    }
}
