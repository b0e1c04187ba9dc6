//! When a sandbox was last used, and whether it is in use now. An exec holds a [`Busy`] while it runs; every other use
//! [`touch`](Activity::touch)es the sandbox.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::clock::Clock;
use crate::error::Error;
use sandkeep_core::{Moment, SandboxId, Verb, limits};

pub(crate) struct Activity {
    id: SandboxId,
    clock: Arc<dyn Clock>,
    boot_id: String,
    last: Mutex<Last>,
    /// One permit for each further exec.
    places: Arc<Semaphore>,
    execs_max: usize,
    /// One permit for each further process.
    process_places: Arc<Semaphore>,
    execs: AtomicUsize,
    /// How many of them are commands that a client may wait for, and not processes.
    commands: watch::Sender<usize>,
    /// Whether new commands are kept out.
    shut: AtomicBool,
}

/// New commands are kept out for as long as it is there.
pub(crate) struct Shut(Arc<Activity>);

impl Drop for Shut {
    fn drop(&mut self) {
        self.0.shut.store(false, Ordering::SeqCst);
    }
}

struct Last {
    at: Moment,
    noted: Noted,
    /// The last use may be later by this much: an earlier daemon may have ended before recording it.
    slack: Duration,
}

/// Whether the last activity is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Noted {
    Yes,
    No,
}

/// A use of a sandbox in progress; its start and its end count as activity.
pub(crate) struct Busy {
    activity: Arc<Activity>,
    kind: ActivityKind,
    _place: Option<OwnedSemaphorePermit>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ActivityKind {
    Command,
    Process,
}

impl Activity {
    pub fn new(
        id: &SandboxId,
        clock: Arc<dyn Clock>,
        (boot_id, at): (&str, Moment),
        execs_max: usize,
    ) -> Self {
        Self {
            id: id.clone(),
            clock,
            boot_id: boot_id.to_owned(),
            last: Mutex::new(Last { at, noted: Noted::Yes, slack: Duration::ZERO }),
            places: Arc::new(Semaphore::new(execs_max)),
            execs_max,
            process_places: Arc::new(Semaphore::new(limits::PROCESSES_PER_SANDBOX_MAX)),
            execs: AtomicUsize::new(0),
            commands: watch::Sender::new(0),
            shut: AtomicBool::new(false),
        }
    }

    /// The lock is held for one read or assignment.
    fn last(&self) -> MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn now(&self) -> Moment {
        moment(self.clock.as_ref(), &self.boot_id)
    }

    /// Records a use of the sandbox.
    pub fn touch(&self) {
        let at = self.now();
        *self.last() = Last { at, noted: Noted::No, slack: Duration::ZERO };
    }

    /// Continues from what an earlier daemon recorded.
    pub fn restore(&self, at: Moment) {
        *self.last() = Last { at, noted: Noted::Yes, slack: limits::REAPER_INTERVAL };
    }

    /// Takes the slot of one more exec, if one is free.
    pub fn begin_exec(self: &Arc<Self>) -> Result<Busy, Error> {
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|_| {
            Error::LimitReached { what: "execs in this sandbox", limit: self.execs_max }
        })?;
        // It counts before it looks, and a pause shuts before it counts: one of both sees the other.
        let busy = self.busy(ActivityKind::Command, Some(place));
        if self.shut.load(Ordering::SeqCst) {
            let (id, verb, under_way) = (self.id.clone(), Verb::Exec, Verb::Pause);
            return Err(Error::Busy { id, verb, under_way });
        }
        self.touch();
        Ok(busy)
    }

    /// Keeps new commands out; those that run go on.
    pub fn shut(self: &Arc<Self>) -> Shut {
        self.shut.store(true, Ordering::SeqCst);
        Shut(Arc::clone(self))
    }

    /// The same for an exec that an earlier daemon started. It is running, so it counts even beyond the limit.
    pub fn resume_exec(self: &Arc<Self>) -> Busy {
        self.busy(ActivityKind::Command, Arc::clone(&self.places).try_acquire_owned().ok())
    }

    /// Takes the slot of one more process.
    pub fn begin_process(self: &Arc<Self>) -> Result<Busy, Error> {
        let place = Arc::clone(&self.process_places).try_acquire_owned().map_err(|_| {
            let limit = limits::PROCESSES_PER_SANDBOX_MAX;
            Error::LimitReached { what: "processes in this sandbox", limit }
        })?;
        self.touch();
        Ok(self.busy(ActivityKind::Process, Some(place)))
    }

    /// The same for a process that an earlier daemon started.
    pub fn resume_process(self: &Arc<Self>) -> Busy {
        self.busy(ActivityKind::Process, Arc::clone(&self.process_places).try_acquire_owned().ok())
    }

    /// A use that is no exec: while it is held, the sandbox is not idle.
    pub fn hold(self: &Arc<Self>) -> Busy {
        self.touch();
        self.busy(ActivityKind::Process, None)
    }

    fn busy(self: &Arc<Self>, kind: ActivityKind, place: Option<OwnedSemaphorePermit>) -> Busy {
        self.execs.fetch_add(1, Ordering::Relaxed);
        if kind == ActivityKind::Command {
            self.commands.send_modify(|commands| *commands += 1);
        }
        Busy { activity: Arc::clone(self), kind, _place: place }
    }

    /// The number of running commands, without processes.
    pub fn commands(&self) -> usize {
        *self.commands.borrow()
    }

    /// Resolves when no command runs.
    pub fn commands_ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut commands = self.commands.subscribe();
        async move {
            // An error means that the sandbox and its commands are gone.
            let _ = commands.wait_for(|commands| *commands == 0).await;
        }
    }

    /// The number of running execs.
    pub fn execs(&self) -> usize {
        self.execs.load(Ordering::Relaxed)
    }

    fn is_busy(&self) -> bool {
        self.execs() > 0
    }

    /// How long the sandbox has been idle.
    pub fn idle_for(&self, now: &Moment) -> Duration {
        let last = self.last();
        if self.is_busy() {
            Duration::ZERO
        } else {
            last.at.elapsed(now).saturating_sub(last.slack)
        }
    }

    /// The last activity, for display. It does not read the clock, so all callers see the same value.
    pub fn shown(&self) -> jiff::Timestamp {
        self.last().at.wall
    }

    /// The last activity if it is not recorded yet; the caller records it.
    pub fn take_unnoted(&self) -> Option<Moment> {
        if self.is_busy() {
            self.touch();
        }
        let mut last = self.last();
        let unnoted = last.noted == Noted::No;
        last.noted = Noted::Yes;
        unnoted.then(|| last.at.clone())
    }
}

#[cfg(test)]
impl Activity {
    /// Waiting for permits reveals when execs have ended.
    pub(crate) fn places(&self) -> Arc<Semaphore> {
        Arc::clone(&self.places)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.activity.touch();
        self.activity.execs.fetch_sub(1, Ordering::Relaxed);
        if self.kind == ActivityKind::Command {
            self.activity.commands.send_modify(|commands| *commands -= 1);
        }
    }
}

/// The current moment.
pub(crate) fn moment(clock: &dyn Clock, boot_id: &str) -> Moment {
    let uptime_ms = sandkeep_core::millis(clock.uptime());
    Moment { wall: clock.wall(), boot_id: boot_id.to_owned(), uptime_ms }
}
