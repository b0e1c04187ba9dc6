//! One task per sandbox. It carries out lifecycle verbs one after the other, waits for the sandbox's death, and is the
//! only writer of its state, in the registry and in `meta.json`.
//!
//! A caller only waits for the answer: an accepted verb is finished whether or not the caller still listens. Reads and
//! execs do not come here; they use the published state.

mod steps;
pub(crate) mod telling;

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{mpsc, watch};
use tracing::{Instrument, debug, info, warn};

use super::activity::Activity;
use super::handle::Handle;
use super::request::{Command, Reply, Request, answer};
use super::snapshot::SnapshotIndex;
use super::volume::Volume;
use crate::error::Error;
use crate::execs::{Execs, processes::Processes};
use crate::network::NetworkRoom;
use crate::ports::Ports;
use crate::shared::Shared;
use crate::stats::Space;
use sandkeep_core::{Denied, Next, SandboxId, State, Status, Trigger, apply, limits};
use sandkeep_guestlink::{Guest, journal::JournalLimits};
use sandkeep_home::{Home, Meta};
use sandkeep_runtime::{Death, Runtime};
use sandkeep_store::Revision;
use sandkeep_traces::{Step, step, within};
use telling::PublishedState;

/// Resolves when the sandbox is dead.
type End = Pin<Box<dyn Future<Output = Death> + Send>>;

/// State that others can read at any time.
#[derive(Clone)]
pub(crate) struct Published {
    pub status: Status,
    /// The connection to the guest, while it runs.
    pub guest: Option<Arc<dyn Guest>>,
    pub meta: Arc<Meta>,
    /// How often this daemon has seen it stop.
    pub stops: u64,
}

impl Published {
    /// Whether it runs, is reachable, and no operation is in progress.
    pub fn is_at_work(&self) -> bool {
        self.status.state() == State::Running
            && self.status.operation().is_none()
            && self.guest.is_some()
    }
}

pub(crate) struct Supervisor {
    pub(crate) shared: Arc<Shared>,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) home: Home,
    pub(crate) meta: Arc<Meta>,
    /// The row's revision; `None` before the first write.
    pub(crate) revision: Option<Revision>,
    pub(crate) published: watch::Sender<Published>,
    pub(crate) activity: Arc<Activity>,
    pub(crate) execs: Arc<Execs>,
    pub(crate) snapshots: Arc<SnapshotIndex>,
    pub(crate) volume: Volume,
    pub(crate) network: Arc<NetworkRoom>,
    pub(super) told: PublishedState,
    inbox: mpsc::Receiver<Request>,
    destroys: watch::Receiver<usize>,
    death_watch: DeathWatch,
}

/// Whether the sandbox's death is unexpected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeathWatch {
    /// It was just launched again: the end of what ran before is expected.
    Begun,
    /// It runs, and is meant to.
    Kept,
    /// It does not run, or is being ended.
    Off,
}

/// Whether there is still something to supervise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Lives,
    Gone,
}

/// A sandbox's journals are limited to the size of its own disk; one exec is always allowed.
fn journal_limits(usual: JournalLimits, meta: &Meta) -> JournalLimits {
    let disk_mb = meta.spec.resources().disk_mb;
    let disk = disk_mb.map_or(u64::MAX, |mb| mb.saturating_mul(limits::MIB));
    let max_bytes = usual.max_bytes.min(disk.max(usual.max_bytes_per_exec));
    JournalLimits { max_bytes, ..usual }
}

impl Supervisor {
    /// A supervisor and its handle.
    pub fn new(
        shared: &Arc<Shared>,
        runtime: Arc<dyn Runtime>,
        meta: Meta,
        status: Status,
        revision: Option<Revision>,
    ) -> (Self, Arc<Handle>) {
        let (sender, inbox) = mpsc::channel(limits::SUPERVISOR_QUEUE_MAX);
        let meta = Arc::new(meta);
        let (published, receiver) =
            watch::channel(Published { status, guest: None, meta: Arc::clone(&meta), stops: 0 });
        let none_waits: usize = 0;
        let (waiting, destroys) = watch::channel(none_waits);
        let activity = Arc::new(Activity::new(
            &meta.id,
            Arc::clone(&shared.clock),
            (shared.data.boot_id(), meta.began.clone()),
            shared.policy.max_concurrent_tasks,
        ));
        let home = shared.data.home(&meta.id);
        let handle = Arc::new(Handle {
            id: meta.id.clone(),
            inbox: sender,
            published: receiver,
            destroys: waiting,
            execs: Arc::new(Execs::new(
                &home,
                journal_limits(shared.journal, &meta),
                shared.held.open(&meta.owner),
                Arc::clone(&activity),
                telling::subject(&meta),
            )),
            snapshots: Arc::default(),
            volume: Volume::of(shared, &meta),
            activity,
            space: Space::default(),
            ports: Ports::default(),
            processes: Processes::default(),
            network: Arc::default(),
            ended_because: Mutex::default(),
            served: Mutex::default(),
        });
        let supervisor = Self {
            shared: Arc::clone(shared),
            runtime,
            home,
            meta,
            revision,
            published,
            activity: Arc::clone(&handle.activity),
            execs: Arc::clone(&handle.execs),
            snapshots: Arc::clone(&handle.snapshots),
            volume: handle.volume.clone(),
            network: Arc::clone(&handle.network),
            told: PublishedState::Hushed,
            inbox,
            destroys,
            death_watch: DeathWatch::Off,
        };
        (supervisor, handle)
    }

    pub fn id(&self) -> &SandboxId {
        &self.meta.id
    }

    /// The metadata, for changes; others see a change after the next [`Self::publish`].
    pub fn meta_mut(&mut self) -> &mut Meta {
        Arc::make_mut(&mut self.meta)
    }

    pub fn status(&self) -> Status {
        self.published.borrow().status.clone()
    }

    /// Carries out verbs until the sandbox is gone or the broker closes.
    pub async fn run(mut self) {
        let closing = self.shared.closing.clone();
        let mut end: Option<End> = None;
        loop {
            end = match self.death_watch {
                DeathWatch::Begun => {
                    self.death_watch = DeathWatch::Kept;
                    Some(self.end())
                }
                DeathWatch::Kept => end.or_else(|| Some(self.end())),
                DeathWatch::Off => None,
            };
            let request = tokio::select! {
                biased;
                () = closing.cancelled() => return,
                death = resolved(&mut end) => {
                    end = None;
                    self.died(death).await;
                    continue;
                }
                request = self.inbox.recv() => request,
            };
            let Some(Request { command, span, waiting }) = request else { return };
            drop(waiting);
            match self.carry_out(command).instrument(span).await {
                Fate::Lives => {}
                Fate::Gone => return,
            }
        }
    }

    /// Carries out a command and answers it.
    async fn carry_out(&mut self, command: Command) -> Fate {
        debug!(id = %self.id(), command = command.name(), "carrying out a command");
        let step = self.step(&command);
        let span = step.span().clone();
        // Work that follows the answer, such as writing metadata, belongs to it, too.
        self.done(command).instrument(span).await
    }

    fn step(&self, command: &Command) -> Step {
        let name = command.name();
        step!("supervisor", "otel.name" = %format_args!("supervisor {name}"), sandbox = %self.id())
    }

    async fn done(&mut self, command: Command) -> Fate {
        match command {
            Command::Create(creation, reply) => {
                let (fate, made) = self.create(*creation).await;
                self.conclude(fate, reply, made);
                if fate == Fate::Lives {
                    self.sync_meta().await;
                }
                return fate;
            }
            Command::Destroy(reply) => {
                let (fate, destroyed) = self.destroy().await;
                return self.conclude(fate, reply, destroyed);
            }
            Command::Expire(reply) => {
                let (fate, expired) = self.expire().await;
                return self.conclude(fate, reply, expired);
            }
            Command::Start(reply) => answer(reply, self.start().await),
            Command::Stop(reply) => answer(reply, self.stop().await),
            Command::Pause(in_flight, reply) => answer(reply, self.pause(in_flight).await),
            Command::Resume(reply) => answer(reply, self.resume().await),
            Command::Amend(amendment, reply) => answer(reply, self.amend(*amendment).await),
            Command::AmendNetwork(patch, reply) => answer(reply, self.amend_network(*patch).await),
            Command::Capture(layer, reply) => answer(reply, self.capture(&layer).await),
            Command::Snapshot(request, reply) => answer(reply, self.snapshot(*request).await),
            Command::DeleteSnapshot(id, reply) => answer(reply, self.delete_snapshot(&id).await),
            Command::Revert(request, reply) => answer(reply, self.revert(*request).await),
            Command::Rollback(request, reply) => answer(reply, self.rollback(request).await),
            Command::NoteActivity(last, reply) => answer(reply, self.note_activity(*last).await),
        }
        Fate::Lives
    }

    /// Answers a command after which the sandbox may be gone; in that case its id is released before the caller gets
    /// the answer.
    fn conclude<T>(&mut self, fate: Fate, reply: Reply<T>, result: Result<T, Error>) -> Fate {
        if fate == Fate::Gone {
            self.leave();
        }
        answer(reply, result);
        fate
    }

    /// Releases the id. Commands that are still queued find no sandbox, as intended by a destroy.
    fn leave(&mut self) {
        self.shared.release(&self.meta.id);
        self.inbox.close();
        while let Ok(request) = self.inbox.try_recv() {
            if let Command::Destroy(reply) = request.command {
                answer(reply, Ok(()));
            }
        }
    }

    async fn died(&mut self, death: Death) {
        self.death_watch = DeathWatch::Off;
        let handle = self.shared.supervised(self.id());
        let ended = handle.and_then(|handle| {
            handle.ended_because.lock().unwrap_or_else(PoisonError::into_inner).take()
        });
        let reason = ended.unwrap_or(death.reason);
        info!(id = %self.id(), reason, "a sandbox died");
        self.end_server_or_warn().await;
        let (status, next) = self.next(Trigger::Died(reason)).expect("a death is never denied");
        if next == Next::Record {
            self.settle(status).await;
        }
    }

    /// The state machine's answer to a trigger in the current state.
    pub(crate) fn next(&self, trigger: Trigger) -> Result<(Status, Next), Error> {
        apply(&self.published.borrow().status, trigger)
            .map_err(|denied| denied_error(self.meta.id.clone(), denied))
    }

    /// The status after an operation that this supervisor itself started.
    pub(crate) fn after(&self, trigger: Trigger) -> Status {
        self.next(trigger).expect("only the supervisor ends what it began").0
    }

    /// Writes a status to the registry and then publishes it. An error leaves both unchanged.
    pub(crate) async fn record(&mut self, status: Status) -> Result<(), Error> {
        let revision = self.shared.registry.put(&self.meta, &status, self.revision).await?;
        self.revision = Some(revision);
        self.publish(status);
        Ok(())
    }

    /// Publishes an outcome even if it cannot be written, because it is true. The next write updates the row, and after
    /// a crash so does reconcile, with the runtime's information.
    pub(crate) async fn settle(&mut self, status: Status) {
        if let Err(error) = self.record(status.clone()).await {
            warn!(id = %self.id(), %error, state = %status.state(), "cannot record an outcome");
            self.publish(status);
        }
    }

    /// Publishes a status, and its event if it is an outcome. A sandbox that does not run has no guest connection.
    pub(crate) fn publish(&mut self, status: Status) {
        let before = self.status();
        if !matches!(status.state(), State::Creating | State::Running | State::Paused) {
            self.network.close();
        }
        self.published.send_modify(|published| {
            if !matches!(status.state(), State::Running | State::Paused) {
                published.guest = None;
                if matches!(published.status.state(), State::Running | State::Paused) {
                    published.stops += 1;
                }
            }
            published.status = status;
            published.meta = Arc::clone(&self.meta);
        });
        self.tell_state(&before);
    }

    /// Connects to the guest of a running sandbox, and watches for its death.
    pub(crate) async fn enter(&mut self) -> Result<Arc<dyn Guest>, Error> {
        let guest = within(step!("runtime.connect"), self.runtime.connect(self.id())).await?;
        self.published.send_modify(|published| published.guest = Some(Arc::clone(&guest)));
        self.death_watch = DeathWatch::Begun;
        Ok(guest)
    }

    /// No requests reach the guest until the next [`Self::enter`].
    pub(crate) fn forget_guest(&self) {
        self.published.send_modify(|published| published.guest = None);
    }

    fn end(&self) -> End {
        let (runtime, id) = (Arc::clone(&self.runtime), self.meta.id.clone());
        Box::pin(async move { runtime.wait(&id).await })
    }

    /// From now on its death is intended.
    pub(crate) fn expect_death(&mut self) {
        self.death_watch = DeathWatch::Off;
    }

    /// The number of callers that wait for this sandbox to be destroyed.
    pub(crate) fn destroys(&self) -> watch::Receiver<usize> {
        self.destroys.clone()
    }

    /// Resolves when a caller waits for this sandbox to be destroyed.
    pub(crate) fn destroy_awaited(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut destroys = self.destroys.clone();
        async move {
            if destroys.wait_for(|waiting| *waiting > 0).await.is_err() {
                // No handle is left to ask.
                std::future::pending().await
            }
        }
    }
}

impl Supervisor {
    /// Work on the volume that may take long. It is broken off when somebody waits for a destroy, which comes after it.
    pub(crate) async fn unless_destroyed<T>(
        &self,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let mut work = pin!(work);
        tokio::select! {
            done = &mut work => return done,
            () = self.destroy_awaited() => {}
        }
        // Work that waits for a thread cannot be broken off yet.
        let mut again = tokio::time::interval(limits::BREAK_OFF_EVERY);
        loop {
            tokio::select! {
                done = &mut work => return done,
                _ = again.tick() => self.volume.break_off(),
            }
        }
    }
}

/// Translates a denial of the state machine into a broker error.
pub(crate) fn denied_error(id: SandboxId, denied: Denied) -> Error {
    match denied {
        Denied::WrongState { state, verb, helps } => Error::WrongState { id, state, verb, helps },
        Denied::Busy { verb, under_way } => Error::Busy { id, verb, under_way },
        Denied::NotUnderWay(operation) => {
            let reason = format!("{operation} ended without having begun");
            Error::SandboxFailed { id, reason }
        }
    }
}

async fn resolved(end: &mut Option<End>) -> Death {
    match end {
        Some(end) => end.await,
        None => std::future::pending().await,
    }
}
