use std::collections::BTreeMap;
use std::time::Duration;

use super::world::{LONG, World, create, me, reaches};
use crate::error::Error;
use crate::{Broker, ExecDraft, ExecLimits, Running};
use sandkeep_core::{ExecId, Principal, SandboxId, Scope, Scopes, SpecDraft, State, Verb, limits};
use sandkeep_guestlink::{
    ExecEvent, Outcome, OutputStream,
    journal::{Follow, From, StdinSource},
};

fn draft(argv: &[&str]) -> ExecDraft {
    ExecDraft { argv: argv.iter().map(|word| (*word).to_owned()).collect(), ..Default::default() }
}

async fn collect(mut running: Running) -> (String, String, Outcome) {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    loop {
        let event = tokio::time::timeout(LONG, running.next()).await.expect("it ends");
        match event.expect("an end comes before the end") {
            ExecEvent::Started | ExecEvent::Gap { .. } => {}
            ExecEvent::Output { stream: OutputStream::Stdout, data, .. } => stdout.extend(data),
            ExecEvent::Output { stream: OutputStream::Stderr, data, .. } => stderr.extend(data),
            ExecEvent::Ended(end) => {
                assert_eq!(running.next().await, None, "nothing comes after the end");
                let text = |bytes| String::from_utf8(bytes).expect("text");
                return (text(stdout), text(stderr), end.outcome);
            }
        }
    }
}

async fn exec(broker: &Broker, id: &SandboxId, draft: ExecDraft) -> (String, String, Outcome) {
    collect(broker.exec(&me(), id, draft).await.expect("it starts")).await
}

#[tokio::test]
async fn a_command_gives_its_output_and_exit_code() {
    let world = World::new();
    let broker = world.open().await;
    let id = create(&broker).await.id;
    let script = draft(&["sh", "-c", "echo out; echo err >&2; exit 3"]);
    let (stdout, stderr, outcome) = exec(&broker, &id, script).await;
    assert_eq!((stdout.as_str(), stderr.as_str()), ("out\n", "err\n"));
    assert_eq!(outcome, Outcome::Exited(3));
}

#[tokio::test]
async fn the_environment_is_built_from_nothing() {
    let world = World::new();
    let broker = world.open().await;
    let map = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    let env = map(&[("A", "sandbox"), ("B", "sandbox")]);
    let spec = SpecDraft { env: Some(env), ..SpecDraft::default() };
    let id = broker.create(&me(), spec).await.expect("a sandbox").id;
    let draft = ExecDraft { env: map(&[("B", "exec")]), ..draft(&["env"]) };
    let (stdout, ..) = exec(&broker, &id, draft).await;
    let mut lines: Vec<&str> = stdout.lines().collect();
    lines.sort_unstable();
    let path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    assert_eq!(lines, ["A=sandbox", "B=exec", "LANG=C.UTF-8", path]);
}

#[tokio::test]
async fn stdin_reaches_the_command() {
    let world = World::new();
    let broker = world.open().await;
    let id = create(&broker).await.id;
    let draft = ExecDraft { stdin: StdinSource::Given, ..draft(&["cat"]) };
    let running = broker.exec(&me(), &id, draft).await.expect("it starts");
    running.input.write(b"hello").await.expect("taken");
    running.input.close().await.expect("closed");
    let (stdout, _, outcome) = collect(running).await;
    assert_eq!((stdout.as_str(), outcome), ("hello", Outcome::Exited(0)));
}

#[tokio::test]
async fn a_timeout_a_cancel_and_a_signal_are_told_apart() {
    let world = World::new();
    let broker = world.open().await;
    let id = create(&broker).await.id;
    let timed = ExecDraft { timeout: Some(Duration::from_millis(10)), ..draft(&["sleep", "600"]) };
    assert_eq!(exec(&broker, &id, timed).await.2, Outcome::TimedOut);
    let running = broker.exec(&me(), &id, draft(&["sleep", "600"])).await.expect("it starts");
    running.cancel().await.expect("canceled");
    assert_eq!(collect(running).await.2, Outcome::Canceled);
    let running = broker.exec(&me(), &id, draft(&["sleep", "600"])).await.expect("it starts");
    running.signal(10).await.expect("signaled");
    assert_eq!(collect(running).await.2, Outcome::Signaled(10));
}

#[tokio::test]
async fn a_command_in_a_sandbox_that_does_not_run_is_told_what_helps() {
    let world = World::new();
    let broker = world.open().await;
    let id = create(&broker).await.id;
    broker.stop(&me(), &id).await.expect("stops");
    let denied = broker.exec(&me(), &id, draft(&["true"])).await.err();
    let Some(Error::WrongState { state, verb, helps, .. }) = denied else { panic!("{denied:?}") };
    assert_eq!((state, verb, helps), (State::Stopped, Verb::Exec, Some(Verb::Start)));
}

#[tokio::test]
async fn a_command_ends_with_its_sandbox() {
    let world = World::new();
    let broker = world.open().await;
    let id = create(&broker).await.id;
    let running = broker.exec(&me(), &id, draft(&["sleep", "600"])).await.expect("it starts");
    world.runtime.kill(&id);
    assert_eq!(collect(running).await.2, Outcome::Lost);
    reaches(&broker, &id, State::Failed).await;
}

#[tokio::test]
async fn wrong_commands_are_refused_by_the_name_of_the_field() {
    let world = World::new();
    let broker = world.open().await;
    let id = create(&broker).await.id;
    let long = "x".repeat(limits::EXEC_STRINGS_MAX_BYTES);
    let cases = [
        ("argv", draft(&[])),
        ("argv", draft(&[""])),
        ("argv", draft(&["echo", "a\0b"])),
        ("argv", draft(&["echo", &long])),
        ("cwd", ExecDraft { cwd: Some("a\0b".to_owned()), ..draft(&["pwd"]) }),
        ("user", ExecDraft { user: Some(String::new()), ..draft(&["id"]) }),
        ("timeout_ms", ExecDraft { timeout: Some(Duration::ZERO), ..draft(&["true"]) }),
    ];
    for (expected, draft) in cases {
        match broker.exec(&me(), &id, draft).await.err() {
            Some(Error::InvalidField { field, .. }) => assert_eq!(field, expected),
            other => panic!("{expected}: {other:?}"),
        }
    }
    let env = BTreeMap::from([("A=B".to_owned(), String::new())]);
    let wrong = broker.exec(&me(), &id, ExecDraft { env, ..draft(&["true"]) }).await.err();
    assert!(
        matches!(&wrong, Some(Error::InvalidSpec(invalid)) if invalid.field == "env"),
        "{wrong:?}"
    );
}

#[tokio::test]
async fn an_exec_nobody_listens_to_still_ends_and_leaves_the_count() {
    let world = World::new();
    let broker = world.open().await;
    let id = create(&broker).await.id;
    let execs = broker.shared.find(&me(), &id).expect("it is there").activity.places();
    for _ in 0..limits::EXECS_PER_SANDBOX_MAX {
        // Dropped at once: the command continues and its output is drained.
        drop(broker.exec(&me(), &id, draft(&["echo", "unheard"])).await.expect("it starts"));
    }
    let over = broker.exec(&me(), &id, draft(&["true"])).await.err();
    assert!(matches!(over, Some(Error::LimitReached { .. })), "{over:?}");
    let all = u32::try_from(limits::EXECS_PER_SANDBOX_MAX).expect("small");
    let ended = tokio::time::timeout(LONG, execs.acquire_many(all)).await;
    ended.expect("all end").expect("the count stays open").forget();
}

#[test]
fn a_draft_shows_no_environment_value() {
    let env = BTreeMap::from([("TOKEN".to_owned(), "hush".to_owned())]);
    let text = format!("{:?}", ExecDraft { env, ..draft(&["true"]) });
    assert!(text.contains("TOKEN") && !text.contains("hush"), "{text}");
}

/// What a watcher of an exec sees to its end.
async fn watched(broker: &Broker, id: &SandboxId, exec: &ExecId) -> (String, Outcome) {
    let mut watch = broker.watch_exec(&me(), id, exec, From::start()).expect("it is kept");
    let mut text = Vec::new();
    loop {
        let told = tokio::time::timeout(LONG, watch.next(Follow::ToTheEnd)).await.expect("it ends");
        match told.expect("it can be read").expect("an end comes before the end") {
            ExecEvent::Output { data, .. } => text.extend(data),
            ExecEvent::Ended(end) => {
                return (String::from_utf8(text).expect("text"), end.outcome);
            }
            other @ (ExecEvent::Started | ExecEvent::Gap { .. }) => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn an_exec_goes_on_with_the_next_broker_and_keeps_what_it_said() {
    let world = World::new();
    let broker = world.open().await;
    let id = create(&broker).await.id;
    let ended = broker.exec(&me(), &id, draft(&["echo", "done"])).await.expect("it starts");
    let ended_id = ended.id.clone();
    collect(ended).await;
    let script = draft(&["sh", "-c", "echo before; sleep 600"]);
    let running = broker.exec(&me(), &id, script).await.expect("it starts");
    let exec = running.id.clone();
    drop(running);
    let broker = world.reopen(broker).await;
    assert_eq!(watched(&broker, &id, &ended_id).await, ("done\n".to_owned(), Outcome::Exited(0)));
    let kept = broker.exec_view(&me(), &id, &exec).await.expect("kept");
    assert_eq!(kept.status.as_str(), "running");
    broker.cancel_exec(&me(), &id, &exec).await.expect("canceled");
    broker.cancel_exec(&me(), &id, &exec).await.expect("once more changes nothing");
    assert_eq!(watched(&broker, &id, &exec).await, ("before\n".to_owned(), Outcome::Canceled));
    let denied = broker.signal_exec(&me(), &id, &exec, 15).await;
    assert!(matches!(denied, Err(Error::ExecEnded { .. })), "{denied:?}");
    let broker = world.reopen(broker).await;
    assert_eq!(watched(&broker, &id, &exec).await.1, Outcome::Canceled);
}

#[tokio::test]
async fn an_exec_whose_sandbox_died_unwatched_is_lost() {
    let world = World::new();
    let broker = world.open().await;
    let id = create(&broker).await.id;
    let running = broker.exec(&me(), &id, draft(&["sleep", "600"])).await.expect("it starts");
    let exec = running.id.clone();
    drop(running);
    world.crash(broker).await;
    world.runtime.kill(&id);
    let broker = world.open().await;
    assert_eq!(watched(&broker, &id, &exec).await, (String::new(), Outcome::Lost));
    let view = broker.exec_view(&me(), &id, &exec).await.expect("kept");
    assert!(view.error.is_some_and(|why| why.contains("no daemon")));
}

#[tokio::test]
async fn who_may_not_see_a_sandbox_sees_none_of_its_execs() {
    let world = World::new();
    let broker = world.open().await;
    let id = create(&broker).await.id;
    let running = broker.exec(&me(), &id, draft(&["echo", "x"])).await.expect("it starts");
    let exec = running.id.clone();
    let stranger = Principal {
        organization: "other".to_owned(),
        scopes: Scopes::from_iter([Scope::Write]),
        ..Principal::local()
    };
    let hidden = |error: Option<Error>| matches!(error, Some(Error::NotFound { .. }));
    assert!(hidden(broker.exec_view(&stranger, &id, &exec).await.err()));
    assert!(hidden(broker.execs(&stranger, &id, Default::default(), 9).await.err()));
    assert!(hidden(broker.watch_exec(&stranger, &id, &exec, From::start()).err()));
    assert!(hidden(broker.exec_stdin(&stranger, &id, &exec).await.err()));
    assert!(hidden(broker.signal_exec(&stranger, &id, &exec, 9).await.err()));
    assert!(hidden(broker.cancel_exec(&stranger, &id, &exec).await.err()));
}

#[tokio::test]
async fn limits_that_the_runtime_does_not_hold_are_refused_before_anything_is_begun() {
    let world = World::new();
    let broker = world.open().await;
    let id = create(&broker).await.id;
    let limits = ExecLimits { memory_mb: Some(16), ..ExecLimits::default() };
    let refused = broker.exec(&me(), &id, ExecDraft { limits, ..draft(&["true"]) }).await.err();
    let said = refused.expect("the mock limits nothing").to_string();
    assert_eq!(said, "runtime mock cannot hold memory_mb for a single command here");
    let (.., outcome) = exec(&broker, &id, draft(&["true"])).await;
    assert_eq!(outcome, Outcome::Exited(0));
}
