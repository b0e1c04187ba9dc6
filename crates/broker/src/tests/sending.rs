//! Commands whose guest does not answer, or whose caller does not wait.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use tokio::sync::mpsc;

use super::world::{LONG, World, create, me};
use crate::Broker;
use crate::execs::pump::{PendingExec, Pump};
use crate::execs::sending::watch_over;
use crate::lifecycle::handle::Handle;
use sandkeep_core::{ExecId, Privilege, limits};
use sandkeep_guestlink::{
    ExecEnd, ExecEvent, ExecLimits, ExecRequest, Execution, Guest, GuestError, KnownExec, Offsets,
    Outcome, Stdin,
    journal::{Description, Keep, StdinSource},
};

/// How the first answer is missing.
#[derive(Clone, Copy)]
enum Silence {
    Endless,
    TimedOut,
    Cut,
    Refused,
}

/// A guest that accepts a command without answering.
struct SilentGuest {
    silence: Silence,
    calls: Mutex<Vec<&'static str>>,
    attached: mpsc::UnboundedSender<mpsc::Sender<ExecEvent>>,
}

impl SilentGuest {
    fn note(&self, call: &'static str) {
        self.calls.lock().expect("no test panics with it").push(call);
    }

    fn calls(&self) -> Vec<&'static str> {
        self.calls.lock().expect("no test panics with it").clone()
    }
}

#[async_trait]
impl Guest for SilentGuest {
    async fn ping(&self) -> Result<(), GuestError> {
        Ok(())
    }

    async fn exec(&self, _: ExecRequest) -> Result<Execution, GuestError> {
        match self.silence {
            Silence::Endless => std::future::pending().await,
            Silence::TimedOut => Err(GuestError::TimedOut { after: Duration::ZERO }),
            Silence::Cut => Err(GuestError::Unreachable(io::ErrorKind::UnexpectedEof.into())),
            Silence::Refused => Err(GuestError::Refused { reason: "no".to_owned() }),
        }
    }

    async fn attach(&self, _: &ExecId, _: Offsets) -> Result<Execution, GuestError> {
        self.note("attach");
        let (events, receiver) = mpsc::channel(1);
        self.attached.send(events).expect("the test listens");
        Ok(Execution::from_channels(receiver, mpsc::channel(1).0))
    }

    async fn signal(&self, _: &ExecId, _: i32) -> Result<(), GuestError> {
        Ok(())
    }

    async fn cancel(&self, _: &ExecId) -> Result<(), GuestError> {
        self.note("cancel");
        Ok(())
    }

    async fn end(&self, _: &ExecId, _: Duration) -> Result<(), GuestError> {
        Ok(())
    }

    async fn execs(&self) -> Result<Vec<KnownExec>, GuestError> {
        Ok(Vec::new())
    }

    async fn terminate(&self, _: Duration) -> Result<(), GuestError> {
        Ok(())
    }
}

fn request() -> ExecRequest {
    ExecRequest {
        id: ExecId::random(),
        argv: vec!["true".to_owned()],
        env: Vec::new(),
        cwd: None,
        user: "user".to_owned(),
        stdin: Stdin::Null,
        terminal: None,
        timeout: None,
        privilege: Privilege::None,
        limits: ExecLimits::default(),
    }
}

fn description(request: &ExecRequest) -> Description {
    Description {
        exec_id: request.id.clone(),
        argv: request.argv.clone(),
        cwd: None,
        user: request.user.clone(),
        started_at: jiff::Timestamp::now(),
        timeout_ms: None,
        stdin: StdinSource::None,
        terminal: false,
        keep: Keep::AmongTheLast,
        shell_id: None,
    }
}

/// A broker with a sandbox, and a guest that accepts commands without answering.
struct Scene {
    world: World,
    broker: Broker,
    handle: Arc<Handle>,
    silent: Arc<SilentGuest>,
    watchers: mpsc::UnboundedReceiver<mpsc::Sender<ExecEvent>>,
}

impl Scene {
    async fn new(silence: Silence) -> Self {
        let world = World::new();
        let broker = world.open().await;
        let id = create(&broker).await.id;
        let handle = broker.shared.find(&me(), &id).expect("it is there");
        let (attached, watchers) = mpsc::unbounded_channel();
        let silent = Arc::new(SilentGuest { silence, calls: Mutex::default(), attached });
        Self { world, broker, handle, silent, watchers }
    }

    async fn send(&self, request: ExecRequest) -> Result<Pump, GuestError> {
        let description = description(&request);
        let pending = PendingExec::begin(&self.broker.shared, &self.handle, &description);
        let guest = Arc::clone(&self.silent) as Arc<dyn Guest>;
        let answer = guest.exec(request);
        watch_over(&guest, &description.exec_id, answer, pending.expect("a journal")).await
    }

    /// How many execs count.
    fn counted(&self) -> usize {
        self.handle.execs.activity.execs()
    }
}

/// Sends a command, drops the call, and returns the guest's requests until the command had ended.
async fn left_alone(silence: Silence) -> Vec<&'static str> {
    let mut scene = Scene::new(silence).await;
    let request = request();
    let id = request.id.clone();
    // Polled once, then dropped, answered or not.
    let sent = scene.send(request).now_or_never();
    assert!(!matches!(sent, Some(Ok(_))), "it gives no answer");
    let watcher = tokio::time::timeout(LONG, scene.watchers.recv()).await;
    let events = watcher.expect("somebody attaches").expect("the guest is there");
    assert_eq!(scene.counted(), 1, "it counts for as long as it runs");
    let end = ExecEnd::new(Outcome::Exited(0), Duration::from_millis(1));
    for event in [ExecEvent::Started, ExecEvent::Ended(end)] {
        events.send(event).await.expect("somebody takes it");
    }
    let all = u32::try_from(limits::EXECS_PER_SANDBOX_MAX).expect("small");
    let freed =
        tokio::time::timeout(LONG, scene.handle.execs.activity.places().acquire_many_owned(all))
            .await;
    freed.expect("it leaves the count").expect("the count stays open").forget();
    let journal = scene.handle.execs.index.find(&id).expect("its journal is kept");
    let end = journal.end().expect("it has an end");
    assert_eq!(end.outcome, Outcome::Exited(0));
    scene.silent.calls()
}

#[tokio::test]
async fn a_command_whose_caller_left_before_the_answer_goes_on_and_is_journaled() {
    assert_eq!(left_alone(Silence::Endless).await, ["attach"]);
}

#[tokio::test]
async fn a_command_that_was_answered_with_an_error_is_canceled_if_it_began() {
    assert_eq!(left_alone(Silence::TimedOut).await, ["cancel", "attach"]);
    assert_eq!(left_alone(Silence::Cut).await, ["cancel", "attach"]);
}

#[tokio::test]
async fn a_refused_command_needs_no_cleaning_up() {
    let scene = Scene::new(Silence::Refused).await;
    let refused = scene.send(request()).await;
    assert!(matches!(refused, Err(GuestError::Refused { .. })));
    assert_eq!(scene.counted(), 0);
    assert!(scene.handle.execs.index.list().is_empty(), "what never began has no journal");
    scene.world.crash(scene.broker).await;
    assert_eq!(scene.silent.calls(), [""; 0]);
}
