//! The mock keeps every promise, and deliberately broken runtimes are detected by the promise that they break.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::mpsc;

use super::{Bench, PROMISE_MAX, PROMISES, keeps, promise_tests, run_all, runtime_conformance};
use crate::{
    Capabilities, Death, Files, FoundSandbox, Lifetime, MockRuntime, Plan, PlannedFiles, Runtime,
    RuntimeError, Stats,
};
use sandkeep_core::{ExecId, Labels, Owner, Privilege, Resources, SandboxId};
use sandkeep_guestlink::{
    ByteStream, ExecEnd, ExecEvent, ExecLimits, ExecRequest, Execution, Guest, GuestError, Input,
    KnownExec, Offsets, Outcome, OutputStream,
};

runtime_conformance!(async { Some(MockBench::new(Fault::None)) });

/// Long enough to be sure of what never comes to an end.
const HANGS: Duration = Duration::from_secs(2);

/// What is wrong with a runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    ExitCodeAlwaysZero,
    StderrInStdout,
    DestroyForgetsToRemove,
    WaitNeverResolves,
    LabelsLost,
    OthersListed,
    FreezeDoesNothing,
    TimeoutIgnored,
    AttachFromTheStart,
    DeadButListedAsRunning,
    EveryPortAnswers,
    TerminalIsPipes,
    EndOnlyAsks,
    LimitsIgnored,
}

struct MockBench {
    mock: MockRuntime,
    fault: Fault,
}

impl MockBench {
    fn new(fault: Fault) -> Self {
        Self { mock: MockRuntime::new("ours").keeping(Files::Remote), fault }
    }

    fn plan_of(instance: &str, resources: Resources) -> Plan {
        let id = SandboxId::random();
        Plan {
            files: PlannedFiles::Remote,
            home: PathBuf::from("/nowhere"),
            labels: Labels { instance: instance.to_owned(), owner: Owner::local() },
            id,
            resources,
            privilege: Privilege::None,
            lifetime: Lifetime::Detached,
            network: false,
            mounts: Vec::new(),
        }
    }
}

#[async_trait]
impl Bench for MockBench {
    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::new(Faulty { mock: self.mock.clone(), fault: self.fault })
    }

    fn neighbour(&self) -> Arc<dyn Runtime> {
        Arc::new(self.mock.neighbour("theirs"))
    }

    async fn plan(&self, resources: Resources) -> Plan {
        Self::plan_of("ours", resources)
    }

    async fn neighbour_plan(&self, resources: Resources) -> Plan {
        Self::plan_of("theirs", resources)
    }

    async fn kill_from_outside(&self, id: &SandboxId) {
        self.mock.kill(id);
    }

    async fn discard(&self, _plan: &Plan) {}

    fn patience(&self) -> Duration {
        match self.fault {
            Fault::WaitNeverResolves | Fault::TimeoutIgnored | Fault::EndOnlyAsks => HANGS,
            _ => PROMISE_MAX,
        }
    }
}

/// The mock with a fault.
struct Faulty {
    mock: MockRuntime,
    fault: Fault,
}

#[async_trait]
impl Runtime for Faulty {
    fn name(&self) -> &'static str {
        self.mock.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.mock.capabilities()
    }

    fn files(&self) -> Files {
        Files::Remote
    }

    async fn create(&self, plan: &Plan) -> Result<(), RuntimeError> {
        self.mock.create(plan).await
    }

    async fn start(&self, plan: &Plan) -> Result<(), RuntimeError> {
        self.mock.start(plan).await
    }

    async fn stop(&self, id: &SandboxId, grace: Duration) -> Result<(), RuntimeError> {
        self.mock.stop(id, grace).await
    }

    async fn freeze(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        match self.fault {
            Fault::FreezeDoesNothing => Ok(()),
            _ => self.mock.freeze(id).await,
        }
    }

    async fn thaw(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        self.mock.thaw(id).await
    }

    async fn destroy(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        match self.fault {
            Fault::DestroyForgetsToRemove => self.mock.stop(id, Duration::ZERO).await,
            _ => self.mock.destroy(id).await,
        }
    }

    async fn wait(&self, id: &SandboxId) -> Death {
        match self.fault {
            Fault::WaitNeverResolves => std::future::pending().await,
            _ => self.mock.wait(id).await,
        }
    }

    async fn list(&self) -> Result<Vec<FoundSandbox>, RuntimeError> {
        let mut found = self.mock.list().await?;
        match self.fault {
            Fault::LabelsLost => {
                found.iter_mut().for_each(|found| found.labels.owner.user.clear());
            }
            Fault::OthersListed => found.extend(self.mock.neighbour("theirs").list().await?),
            Fault::DeadButListedAsRunning => {
                found.iter_mut().for_each(|found| found.running = true);
            }
            _ => {}
        }
        Ok(found)
    }

    async fn stats(&self, id: &SandboxId) -> Result<Stats, RuntimeError> {
        self.mock.stats(id).await
    }

    async fn connect(&self, id: &SandboxId) -> Result<Arc<dyn Guest>, RuntimeError> {
        let guest = self.mock.connect(id).await?;
        Ok(Arc::new(FaultyGuest { guest, fault: self.fault }))
    }
}

struct FaultyGuest {
    guest: Arc<dyn Guest>,
    fault: Fault,
}

/// Passes an execution on with every event changed.
fn distorted(
    mut execution: Execution,
    change: impl Fn(ExecEvent) -> ExecEvent + Send + 'static,
) -> Execution {
    let (events, receiver) = mpsc::channel(1);
    let (stdin, mut typed) = mpsc::channel(1);
    let input = execution.input();
    tokio::spawn(async move {
        loop {
            tokio::select! {
                event = execution.next() => {
                    let Some(event) = event else { return };
                    if events.send(change(event)).await.is_err() {
                        return;
                    }
                }
                Some(typed) = typed.recv() => {
                    let _ = match typed {
                        Input::Bytes(bytes) => input.write(&Bytes::clone(&bytes)).await,
                        Input::End => input.close().await,
                    };
                }
            }
        }
    });
    Execution::from_channels(receiver, stdin)
}

#[async_trait]
impl Guest for FaultyGuest {
    async fn ping(&self) -> Result<(), GuestError> {
        self.guest.ping().await
    }

    async fn exec(&self, mut request: ExecRequest) -> Result<Execution, GuestError> {
        if self.fault == Fault::TimeoutIgnored {
            request.timeout = None;
        }
        if self.fault == Fault::LimitsIgnored {
            request.limits = ExecLimits::default();
        }
        if self.fault == Fault::TerminalIsPipes {
            request.terminal = None;
        }
        let execution = self.guest.exec(request).await?;
        let fault = self.fault;
        match fault {
            Fault::ExitCodeAlwaysZero => Ok(distorted(execution, |event| match event {
                ExecEvent::Ended(end) => {
                    ExecEvent::Ended(ExecEnd { outcome: Outcome::Exited(0), ..end })
                }
                event => event,
            })),
            Fault::StderrInStdout => Ok(distorted(execution, |event| match event {
                ExecEvent::Output { offset, data, .. } => {
                    ExecEvent::Output { stream: OutputStream::Stdout, offset, data }
                }
                event => event,
            })),
            _ => Ok(execution),
        }
    }

    async fn attach(&self, id: &ExecId, from: Offsets) -> Result<Execution, GuestError> {
        match self.fault {
            Fault::AttachFromTheStart => self.guest.attach(id, Offsets::default()).await,
            _ => self.guest.attach(id, from).await,
        }
    }

    async fn signal(&self, id: &ExecId, signal: i32) -> Result<(), GuestError> {
        self.guest.signal(id, signal).await
    }

    async fn cancel(&self, id: &ExecId) -> Result<(), GuestError> {
        self.guest.cancel(id).await
    }

    async fn end(&self, id: &ExecId, grace: Duration) -> Result<(), GuestError> {
        match self.fault {
            Fault::EndOnlyAsks => Ok(()),
            _ => self.guest.end(id, grace).await,
        }
    }

    async fn execs(&self) -> Result<Vec<KnownExec>, GuestError> {
        self.guest.execs().await
    }

    async fn terminate(&self, grace: Duration) -> Result<(), GuestError> {
        self.guest.terminate(grace).await
    }

    async fn dial(&self, port: u16) -> Result<Box<dyn ByteStream>, GuestError> {
        match self.fault {
            Fault::EveryPortAnswers => Ok(Box::new(tokio::io::empty())),
            _ => self.guest.dial(port).await,
        }
    }
}

#[tokio::test]
async fn every_broken_runtime_is_caught_by_the_promise_it_breaks() {
    let faults = [
        (Fault::ExitCodeAlwaysZero, "exec_gives_the_exit_code"),
        (Fault::StderrInStdout, "exec_keeps_stdout_and_stderr_apart"),
        (Fault::DestroyForgetsToRemove, "destroy_leaves_nothing_and_may_be_repeated"),
        (Fault::DestroyForgetsToRemove, "destroy_takes_what_is_half_made"),
        (Fault::WaitNeverResolves, "wait_resolves_on_stop"),
        (Fault::WaitNeverResolves, "wait_resolves_when_killed_from_outside"),
        (Fault::LabelsLost, "list_gives_back_the_full_labels"),
        (Fault::OthersListed, "another_instance_is_not_listed"),
        (Fault::FreezeDoesNothing, "pause_freezes_or_is_refused"),
        (Fault::TimeoutIgnored, "exec_that_takes_too_long_is_timed_out"),
        (Fault::AttachFromTheStart, "exec_left_alone_can_be_joined_at_an_offset"),
        (Fault::DeadButListedAsRunning, "stop_ends_everything_and_may_be_repeated"),
        (Fault::TerminalIsPipes, "a_terminal_is_the_users_own_and_has_its_size"),
        (Fault::EndOnlyAsks, "exec_can_be_ended"),
        (Fault::LimitsIgnored, "a_command_has_its_own_memory_limit_or_is_refused"),
        (Fault::LimitsIgnored, "a_command_has_its_own_limit_of_processes_or_is_refused"),
        (Fault::EveryPortAnswers, "a_closed_port_is_refused_at_once"),
    ];
    for (fault, promise) in faults {
        let violation = keeps(&MockBench::new(fault), promise).await;
        let violation = violation.expect_err(&format!("{fault:?} passes {promise}"));
        assert_eq!(violation.promise, promise);
    }
}

#[tokio::test]
async fn a_fault_breaks_no_promise_that_has_nothing_to_do_with_it() {
    let broken = run_all(&MockBench::new(Fault::LabelsLost)).await;
    let names: Vec<_> = broken.iter().map(|violation| violation.promise).collect();
    assert_eq!(names, ["list_gives_back_the_full_labels"], "{broken:?}");
    assert!(PROMISES.len() > names.len());
}
