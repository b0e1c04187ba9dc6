//! Calls with a `tool_call_id`: executed once, however many callers repeat them, and answered the same for a while.
//! Failures are not kept, so that they can be retried.
//!
//! ```text
//!   (none) ──▶ in progress ──▶ kept ──▶ (none)   after five minutes, or when there are too many
//!     ▲            │
//!     └────────────┘ failed: waiting callers get the error, or retry themselves
//! ```

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use super::Scene;
use super::answer::{ToolAnswer, size};
use super::work::Work;
use crate::error::Error;
use sandkeep_core::{
    ToolCallId,
    limits::{TOOL_ANSWERS_KEPT, TOOL_ANSWERS_MAX, TOOL_ANSWERS_MAX_BYTES},
};
use sandkeep_store::Key;

/// The id of a call, and its owner.
pub struct Call {
    pub id: ToolCallId,
    pub organization: String,
    pub key: Key,
    pub print: [u8; 32],
}

type Answered = Option<Arc<ToolAnswer>>;

/// The calls with an id, of all sandboxes.
#[derive(Default)]
pub(crate) struct Calls {
    book: Mutex<Book>,
}

#[derive(Default)]
struct Book {
    entries: HashMap<Key, Entry>,
    /// Total size of the kept answers.
    bytes: usize,
}

struct Entry {
    /// Its owner.
    organization: String,
    print: [u8; 32],
    stage: Stage,
}

enum Stage {
    /// Receives the answer; closed without one if the call failed.
    UnderWay(watch::Receiver<Answered>),
    Kept {
        answer: Arc<ToolAnswer>,
        at: Duration,
    },
}

/// The state of a key.
enum KeptState {
    /// Nothing: the caller executes the call, and sends the result here.
    Mine(watch::Sender<Answered>),
    UnderWay(watch::Receiver<Answered>),
    Kept(Arc<ToolAnswer>),
}

/// Answers a call that may have been executed already. The call continues if this is dropped.
pub async fn once(scene: Scene, work: Work, call: Call) -> Result<Arc<ToolAnswer>, Error> {
    let mut work = Some(work);
    loop {
        let now = scene.shared.clock.uptime();
        match scene.shared.calls.look(&call, now)? {
            KeptState::Kept(answer) => return Ok(answer),
            KeptState::UnderWay(mut told) => {
                if let Ok(answer) = told.wait_for(Option::is_some).await {
                    return Ok(Arc::clone(answer.as_ref().expect("it was waited for")));
                }
            }
            KeptState::Mine(tell) => {
                let work = work.take().expect("whose it is makes it, and is done");
                return make(scene, work, call, tell).await;
            }
        }
    }
}

/// Executes the call in a separate task.
async fn make(
    scene: Scene,
    work: Work,
    call: Call,
    tell: watch::Sender<Answered>,
) -> Result<Arc<ToolAnswer>, Error> {
    let shared = Arc::clone(&scene.shared);
    let task = shared.tasks.clone().spawn(async move {
        let mut settling = Settling { scene: &scene, key: &call.key, answer: None, tell };
        let done = tokio::select! {
            () = scene.shared.closing.cancelled() => Err(Error::ShuttingDown),
            done = work.carry_out(&scene) => done.map(Arc::new),
        };
        settling.answer = done.as_ref().ok().cloned();
        done
    });
    // A task that panicked has been logged, and left nothing under its key.
    task.await.unwrap_or(Err(Error::ShuttingDown))
}

/// Records the result of a call, however it ends.
struct Settling<'a> {
    scene: &'a Scene,
    key: &'a Key,
    answer: Answered,
    tell: watch::Sender<Answered>,
}

impl Drop for Settling<'_> {
    fn drop(&mut self) {
        let now = self.scene.shared.clock.uptime();
        let good = self.answer.clone().filter(|answer| !answer.is_error);
        self.scene.shared.calls.settle(self.key, good, now);
        if self.answer.is_some() {
            self.tell.send_replace(self.answer.take());
        }
    }
}

impl Calls {
    /// The lock is held for a few lookups.
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look(&self, call: &Call, now: Duration) -> Result<KeptState, Error> {
        let mut book = self.book();
        book.forget_old(now);
        if let Some(entry) = book.entries.get(&call.key) {
            if entry.print != call.print {
                return Err(Error::ToolCallMismatch { id: call.id.clone() });
            }
            return Ok(match &entry.stage {
                Stage::UnderWay(told) => KeptState::UnderWay(told.clone()),
                Stage::Kept { answer, .. } => KeptState::Kept(Arc::clone(answer)),
            });
        }
        let (tell, told) = watch::channel(None);
        let (organization, stage) = (call.organization.clone(), Stage::UnderWay(told));
        let entry = Entry { organization, print: call.print, stage };
        book.entries.insert(call.key.clone(), entry);
        Ok(KeptState::Mine(tell))
    }

    /// The call has ended; its answer replaces it if it is to be kept.
    fn settle(&self, key: &Key, answer: Option<Arc<ToolAnswer>>, now: Duration) {
        let mut book = self.book();
        let Some(entry) = book.entries.remove(key) else { return };
        let Some(answer) = answer else { return };
        book.bytes += size(&answer);
        let stage = Stage::Kept { answer, at: now };
        book.entries.insert(key.clone(), Entry { stage, ..entry });
        book.forget_too_many();
    }
}

/// The kept answers of one organization.
#[derive(Default)]
struct OfOne<'a> {
    bytes: usize,
    answers: Vec<(Duration, &'a Key, usize)>,
}

impl Book {
    fn forget_old(&mut self, now: Duration) {
        let is_old = |entry: &Entry| match entry.stage {
            Stage::UnderWay(_) => false,
            Stage::Kept { at, .. } => now.saturating_sub(at) > TOOL_ANSWERS_KEPT,
        };
        let old: Vec<Key> = self
            .entries
            .iter()
            .filter(|(_, entry)| is_old(entry))
            .map(|(key, _)| key.clone())
            .collect();
        old.iter().for_each(|key| self.forget(key));
    }

    /// Evicts the oldest answers of the organization that has the most: a flood from one evicts nothing of another.
    fn forget_too_many(&mut self) {
        if self.entries.len() <= TOOL_ANSWERS_MAX && self.bytes <= TOOL_ANSWERS_MAX_BYTES {
            return;
        }
        let mut of_each: HashMap<&str, OfOne<'_>> = HashMap::new();
        for (key, entry) in &self.entries {
            let Stage::Kept { answer, at } = &entry.stage else { continue };
            let of_one = of_each.entry(&entry.organization).or_default();
            of_one.bytes += size(answer);
            of_one.answers.push((*at, key, size(answer)));
        }
        let mut of_each: Vec<OfOne<'_>> = of_each.into_values().collect();
        // Oldest last, from where they are removed.
        of_each.iter_mut().for_each(|of_one| of_one.answers.sort_by_key(|(at, ..)| Reverse(*at)));
        let mut left: usize = of_each.iter().map(|of_one| of_one.answers.len()).sum();
        let (mut bytes, mut gone) = (self.bytes, Vec::new());
        while left > TOOL_ANSWERS_MAX || bytes > TOOL_ANSWERS_MAX_BYTES {
            let many = left > TOOL_ANSWERS_MAX;
            let has =
                |of_one: &&mut OfOne<'_>| if many { of_one.answers.len() } else { of_one.bytes };
            let Some(most) = of_each.iter_mut().max_by_key(has) else { break };
            let Some((_, key, size)) = most.answers.pop() else { break };
            (left, bytes, most.bytes) = (left - 1, bytes - size, most.bytes - size);
            gone.push(key.clone());
        }
        gone.iter().for_each(|key| self.forget(key));
    }

    fn forget(&mut self, key: &Key) {
        if let Some(Entry { stage: Stage::Kept { answer, .. }, .. }) = self.entries.remove(key) {
            self.bytes -= size(&answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inside::tools::answer::ToolBlock;

    fn call(id: &str, print: u8) -> Call {
        // The test's id starts with the organization, followed by a colon, if it names one.
        let organization = id.split_once(':').map_or("acme", |(whose, _)| whose).to_owned();
        let (id, key) = (id.parse().expect("an id"), Key::new([id]));
        Call { id, organization, key, print: [print; 32] }
    }

    fn answer(text: &str) -> Arc<ToolAnswer> {
        Arc::new(ToolAnswer {
            content: vec![ToolBlock::text(text)],
            exit_code: None,
            is_error: false,
            duration_ms: 1,
            tier: 1,
            snapshot_id: None,
            exec_id: None,
            refusal: None,
        })
    }

    const NOW: Duration = Duration::from_secs(1_000);

    fn keep(calls: &Calls, id: &str, text: &str, at: Duration) {
        assert!(matches!(calls.look(&call(id, 1), at), Ok(KeptState::Mine(_))), "{id} is there");
        calls.settle(&Key::new([id]), Some(answer(text)), at);
    }

    #[test]
    fn an_answer_is_kept_for_five_minutes_and_for_its_own_call() {
        let calls = Calls::default();
        keep(&calls, "a", "one", NOW);
        let later = NOW + TOOL_ANSWERS_KEPT;
        assert!(
            matches!(calls.look(&call("a", 1), later), Ok(KeptState::Kept(kept)) if kept == answer("one"))
        );
        let other = calls.look(&call("a", 2), later);
        assert!(matches!(other, Err(Error::ToolCallMismatch { .. })));
        let too_late = later + Duration::from_secs(1);
        assert!(matches!(calls.look(&call("a", 2), too_late), Ok(KeptState::Mine(_))));
        assert_eq!(calls.book().bytes, 0);
    }

    #[test]
    fn what_failed_leaves_nothing_and_tells_those_who_wait() {
        let calls = Calls::default();
        let Ok(KeptState::Mine(tell)) = calls.look(&call("a", 1), NOW) else { panic!("it is new") };
        let Ok(KeptState::UnderWay(told)) = calls.look(&call("a", 1), NOW) else {
            panic!("it is made")
        };
        calls.settle(&Key::new(["a"]), None, NOW);
        drop(tell);
        assert!(told.has_changed().is_err(), "whoever waits finds that nobody will tell");
        assert!(matches!(calls.look(&call("a", 1), NOW), Ok(KeptState::Mine(_))));
    }

    #[test]
    fn answers_are_bounded_and_the_oldest_goes_first() {
        let calls = Calls::default();
        let large = "x".repeat(TOOL_ANSWERS_MAX_BYTES / 4);
        for at in 0..5u64 {
            keep(&calls, &format!("call-{at}"), &large, NOW + Duration::from_secs(at));
        }
        assert!(calls.book().bytes <= TOOL_ANSWERS_MAX_BYTES);
        assert!(matches!(calls.look(&call("call-4", 1), NOW), Ok(KeptState::Kept(_))));
        assert!(matches!(calls.look(&call("call-0", 1), NOW), Ok(KeptState::Mine(_))));
    }

    #[test]
    fn a_flood_of_one_organization_pushes_out_nothing_of_another() {
        let calls = Calls::default();
        keep(&calls, "other:1", "mine", NOW);
        let large = "x".repeat(TOOL_ANSWERS_MAX_BYTES / 4);
        for at in 1..8u64 {
            keep(&calls, &format!("flood:{at}"), &large, NOW + Duration::from_secs(at));
        }
        for at in 0..TOOL_ANSWERS_MAX as u64 + 10 {
            keep(
                &calls,
                &format!("flood:small {at}").replace(' ', "-"),
                "x",
                NOW + Duration::from_secs(10),
            );
        }
        assert!(calls.book().entries.len() <= TOOL_ANSWERS_MAX);
        assert!(matches!(calls.look(&call("other:1", 1), NOW), Ok(KeptState::Kept(_))));
        assert!(matches!(calls.look(&call("flood:1", 1), NOW), Ok(KeptState::Mine(_))));
    }
}
