//! Commands whose guest does not answer, or whose caller does not wait for it.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use tokio::sync::{Semaphore, mpsc};

use super::world::{LONG, World};
use crate::broker::exec::sending::send;
use crate::guest::{
    ByteStream, ExecEnd, ExecEvent, ExecRequest, Execution, Guest, GuestError, KnownExec, Offsets,
    Outcome, Stdin,
};
use crate::sandbox::{ExecId, Privilege};

/// How the first answer fails to come.
#[derive(Clone, Copy)]
enum Silence {
    Endless,
    TimedOut,
    Cut,
    Refused,
}

/// A guest that takes a command and does not say so.
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

    async fn execs(&self) -> Result<Vec<KnownExec>, GuestError> {
        Ok(Vec::new())
    }

    async fn terminate(&self, _: Duration) -> Result<(), GuestError> {
        Ok(())
    }

    async fn dial(&self, port: u16) -> Result<Box<dyn ByteStream>, GuestError> {
        Err(GuestError::PortClosed { port })
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
        timeout: None,
        privilege: Privilege::None,
    }
}

/// Sends a command, leaves, and returns what the guest was asked until the command had ended.
async fn left_alone(silence: Silence) -> Vec<&'static str> {
    let world = World::new();
    let broker = world.open().await;
    let (attached, mut watchers) = mpsc::unbounded_channel();
    let silent = Arc::new(SilentGuest { silence, calls: Mutex::default(), attached });
    let guest = Arc::clone(&silent) as Arc<dyn Guest>;
    let count = Arc::new(Semaphore::new(1));
    let permit = Arc::clone(&count).try_acquire_owned().expect("one is free");
    // Polled once, then dropped, answered or not.
    let sent = send(&broker.shared, &guest, request(), permit).now_or_never();
    assert!(!matches!(sent, Some(Ok(_))), "it gives no answer");
    let events = tokio::time::timeout(LONG, watchers.recv()).await.expect("somebody attaches");
    let events = events.expect("the guest is there");
    assert_eq!(count.available_permits(), 0, "it counts for as long as it runs");
    let end =
        ExecEnd { outcome: Outcome::Exited(0), error: None, duration: Duration::from_millis(1) };
    for event in [ExecEvent::Started, ExecEvent::Ended(end)] {
        events.send(event).await.expect("somebody drains");
    }
    let freed = tokio::time::timeout(LONG, count.acquire()).await;
    freed.expect("it leaves the count").expect("the count stays open").forget();
    silent.calls()
}

#[tokio::test]
async fn a_command_whose_caller_left_before_the_answer_goes_on_and_is_drained() {
    assert_eq!(left_alone(Silence::Endless).await, ["attach"]);
}

#[tokio::test]
async fn a_command_that_was_answered_with_an_error_is_canceled_if_it_began() {
    assert_eq!(left_alone(Silence::TimedOut).await, ["cancel", "attach"]);
    assert_eq!(left_alone(Silence::Cut).await, ["cancel", "attach"]);
}

#[tokio::test]
async fn a_refused_command_needs_no_cleaning_up() {
    let world = World::new();
    let broker = world.open().await;
    let (attached, _watchers) = mpsc::unbounded_channel();
    let silence = Silence::Refused;
    let silent = Arc::new(SilentGuest { silence, calls: Mutex::default(), attached });
    let guest = Arc::clone(&silent) as Arc<dyn Guest>;
    let count = Arc::new(Semaphore::new(1));
    let permit = Arc::clone(&count).try_acquire_owned().expect("one is free");
    let refused = send(&broker.shared, &guest, request(), permit).await;
    assert!(matches!(refused, Err(GuestError::Refused { .. })));
    assert_eq!(count.available_permits(), 1);
    world.crash(broker).await;
    assert_eq!(silent.calls(), [""; 0]);
}
