//! When a sandbox was last used, and whether it is in use now. An exec holds a [`Busy`] for as long as it
//! runs; whatever else uses a sandbox [`touch`](Activity::touch)es it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::clock::Clock;
use crate::error::Error;
use sandkeep_core::{Moment, limits};

pub(crate) struct Activity {
    clock: Arc<dyn Clock>,
    boot_id: String,
    last: Mutex<Last>,
    /// One permit for each exec that may still begin.
    places: Arc<Semaphore>,
    execs_max: usize,
    /// One permit for each process that may still begin.
    process_places: Arc<Semaphore>,
    execs: AtomicUsize,
    /// How many of them are commands that somebody may wait for, and not processes.
    commands: watch::Sender<usize>,
}

struct Last {
    at: Moment,
    noted: Noted,
    /// How much later it may have been: an earlier daemon may have ended before it noted it down.
    slack: Duration,
}

/// Whether the last activity is written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Noted {
    Yes,
    No,
}

/// A use of a sandbox that goes on; its beginning and its end are activity.
pub(crate) struct Busy {
    activity: Arc<Activity>,
    kind: Kind,
    _place: Option<OwnedSemaphorePermit>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Command,
    Process,
}

impl Activity {
    pub fn new(clock: Arc<dyn Clock>, boot_id: &str, at: Moment, execs_max: usize) -> Self {
        Self {
            clock,
            boot_id: boot_id.to_owned(),
            last: Mutex::new(Last { at, noted: Noted::Yes, slack: Duration::ZERO }),
            places: Arc::new(Semaphore::new(execs_max)),
            execs_max,
            process_places: Arc::new(Semaphore::new(limits::PROCESSES_PER_SANDBOX_MAX)),
            execs: AtomicUsize::new(0),
            commands: watch::Sender::new(0),
        }
    }

    /// A lock is held for a look or an assignment.
    fn last(&self) -> MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn now(&self) -> Moment {
        moment(self.clock.as_ref(), &self.boot_id)
    }

    /// Says that the sandbox was used just now.
    pub fn touch(&self) {
        let at = self.now();
        *self.last() = Last { at, noted: Noted::No, slack: Duration::ZERO };
    }

    /// Goes on from what an earlier daemon noted down.
    pub fn restore(&self, at: Moment) {
        *self.last() = Last { at, noted: Noted::Yes, slack: limits::REAPER_INTERVAL };
    }

    /// Takes the place of one more exec, unless there are as many as there may be.
    pub fn begin_exec(self: &Arc<Self>) -> Result<Busy, Error> {
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|_| {
            Error::LimitReached { what: "execs in this sandbox", limit: self.execs_max }
        })?;
        self.touch();
        Ok(self.busy(Kind::Command, Some(place)))
    }

    /// The same for an exec that an earlier daemon began. It runs, so it counts, whether or not so many
    /// may by now.
    pub fn resume_exec(self: &Arc<Self>) -> Busy {
        self.busy(Kind::Command, Arc::clone(&self.places).try_acquire_owned().ok())
    }

    /// Takes the place of one more process.
    pub fn begin_process(self: &Arc<Self>) -> Result<Busy, Error> {
        let place = Arc::clone(&self.process_places).try_acquire_owned().map_err(|_| {
            let limit = limits::PROCESSES_PER_SANDBOX_MAX;
            Error::LimitReached { what: "processes in this sandbox", limit }
        })?;
        self.touch();
        Ok(self.busy(Kind::Process, Some(place)))
    }

    /// The same for a process that an earlier daemon began.
    pub fn resume_process(self: &Arc<Self>) -> Busy {
        self.busy(Kind::Process, Arc::clone(&self.process_places).try_acquire_owned().ok())
    }

    fn busy(self: &Arc<Self>, kind: Kind, place: Option<OwnedSemaphorePermit>) -> Busy {
        self.execs.fetch_add(1, Ordering::Relaxed);
        if kind == Kind::Command {
            self.commands.send_modify(|commands| *commands += 1);
        }
        Busy { activity: Arc::clone(self), kind, _place: place }
    }

    /// How many commands run, processes not counted.
    pub fn commands(&self) -> usize {
        *self.commands.borrow()
    }

    /// Resolves when no command runs.
    pub fn commands_ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut commands = self.commands.subscribe();
        async move {
            // An error says that the sandbox is gone, and they with it.
            let _ = commands.wait_for(|commands| *commands == 0).await;
        }
    }

    /// How many execs run.
    pub fn execs(&self) -> usize {
        self.execs.load(Ordering::Relaxed)
    }

    fn is_busy(&self) -> bool {
        self.execs() > 0
    }

    /// For how long nothing has used the sandbox.
    pub fn idle_for(&self, now: &Moment) -> Duration {
        let last = self.last();
        match self.is_busy() {
            true => Duration::ZERO,
            false => last.at.elapsed(now).saturating_sub(last.slack),
        }
    }

    /// The last activity, as it is shown: without a look at the clock it is the same for everybody.
    pub fn shown(&self) -> jiff::Timestamp {
        self.last().at.wall
    }

    /// The last activity if it is not written down yet; whoever asks writes it.
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
    /// Those who wait for them know when execs have ended.
    pub(crate) fn places(&self) -> Arc<Semaphore> {
        Arc::clone(&self.places)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.activity.touch();
        self.activity.execs.fetch_sub(1, Ordering::Relaxed);
        if self.kind == Kind::Command {
            self.activity.commands.send_modify(|commands| *commands -= 1);
        }
    }
}

/// This very moment.
pub(crate) fn moment(clock: &dyn Clock, boot_id: &str) -> Moment {
    let uptime_ms = sandkeep_core::millis(clock.uptime());
    Moment { wall: clock.wall(), boot_id: boot_id.to_owned(), uptime_ms }
}
