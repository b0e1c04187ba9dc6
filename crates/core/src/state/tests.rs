use proptest::prelude::*;

use super::*;

const VERBS: [Verb; 12] = [
    Verb::Create,
    Verb::Start,
    Verb::Stop,
    Verb::Pause,
    Verb::Resume,
    Verb::Destroy,
    Verb::Exec,
    Verb::Amend,
    Verb::Capture,
    Verb::Snapshot,
    Verb::Fork,
    Verb::Revert,
];
const OPERATIONS: [Operation; 8] = [
    Operation::Create,
    Operation::Start,
    Operation::Stop,
    Operation::Pause,
    Operation::Resume,
    Operation::Snapshot,
    Operation::Rollback,
    Operation::Destroy,
];

fn any_trigger() -> impl Strategy<Value = Trigger> {
    prop_oneof![
        4 => proptest::sample::select(&VERBS[..]).prop_map(Trigger::Begin),
        4 => proptest::sample::select(&OPERATIONS[..]).prop_map(Trigger::Done),
        2 => proptest::sample::select(&OPERATIONS[..])
            .prop_map(|operation| Trigger::Failed(operation, "no luck".to_owned())),
        1 => Just(Trigger::RollBack(snapshot())),
        1 => Just(Trigger::CalledOff(Operation::Snapshot)),
        1 => Just(Trigger::CalledOff(Operation::Rollback)),
        1 => Just(Trigger::Died("killed".to_owned())),
        1 => Just(Trigger::Found(Liveness::Running)),
        1 => Just(Trigger::Found(Liveness::NotRunning)),
        1 => Just(Trigger::HostRebooted),
        1 => Just(Trigger::Expired(Expiry::Idle, AtExpiry::Stop)),
        1 => Just(Trigger::Expired(Expiry::Timeout, AtExpiry::Pause)),
        1 => Just(Trigger::Missing("its volume".to_owned())),
    ]
}

fn snapshot() -> SnapshotId {
    format!("{}{}", SnapshotId::PREFIX, "a".repeat(26)).parse().expect("an id")
}

/// The record as a daemon that starts after a crash reads it.
fn reread(status: &Status) -> Status {
    let text = serde_json::to_vec(status).expect("a status is JSON");
    serde_json::from_slice(&text).expect("and can be read again")
}

/// Random walk from creation; `visit` sees every allowed step, or the denial.
fn walk(
    triggers: Vec<Trigger>,
    mut visit: impl FnMut(&Status, &Trigger, &Result<(Status, Next), Denied>),
) {
    let mut status = Status::creating();
    for trigger in triggers {
        let result = apply(&status, trigger.clone());
        visit(&status, &trigger, &result);
        match result {
            Ok((_, Next::Forget)) => return,
            Ok((after, _)) => status = reread(&after),
            Err(_) => {}
        }
    }
}

fn is_consistent(status: &Status) -> bool {
    if status.rollback_to.is_some() != (status.operation == Some(Operation::Rollback)) {
        return false;
    }
    match (status.state, status.operation) {
        (State::Creating, operation) => operation == Some(Operation::Create),
        (State::Destroying, operation) => operation == Some(Operation::Destroy),
        (_, Some(Operation::Create | Operation::Destroy)) => false,
        (_, None | Some(Operation::Snapshot | Operation::Rollback)) => true,
        (State::Stopped | State::Failed, Some(operation)) => operation == Operation::Start,
        (State::Running, Some(operation)) => {
            matches!(operation, Operation::Stop | Operation::Pause)
        }
        (State::Paused, Some(operation)) => {
            matches!(operation, Operation::Stop | Operation::Resume)
        }
    }
}

proptest! {
    #[test]
    fn every_state_reached_is_one_of_the_diagram(triggers in prop::collection::vec(any_trigger(), 0..60)) {
        walk(triggers, |_, _, result| {
            if let Ok((after, _)) = result {
                assert!(is_consistent(after), "{after:?}");
            }
        });
    }

    #[test]
    fn destroying_leads_only_to_gone(triggers in prop::collection::vec(any_trigger(), 0..60)) {
        walk(triggers, |before, trigger, result| {
            if let (State::Destroying, Ok((after, next))) = (before.state, result) {
                assert_eq!(after.state, State::Destroying, "{trigger:?}");
                assert_eq!(*next == Next::Forget, *trigger == Trigger::Done(Operation::Destroy));
            }
        });
    }

    #[test]
    fn an_operation_is_never_forgotten(triggers in prop::collection::vec(any_trigger(), 0..60)) {
        walk(triggers, |before, trigger, result| {
            let (Some(operation), Ok((after, next))) = (before.operation, result) else { return };
            let dropped = after.operation != Some(operation);
            let has_an_end = matches!(
                trigger,
                Trigger::Done(_) | Trigger::Failed(..) | Trigger::CalledOff(_) | Trigger::Died(_) | Trigger::Found(_)
                    | Trigger::HostRebooted | Trigger::Missing(_) | Trigger::Begin(Verb::Destroy)
            );
            assert!(!dropped || has_an_end, "{before:?} lost {operation} by {trigger:?}");
            // Its replacement is written or carried out, never only remembered.
            assert!(!dropped || *next != Next::Stay, "{before:?} {trigger:?}");
        });
    }

    #[test]
    fn an_end_without_a_beginning_is_denied(triggers in prop::collection::vec(any_trigger(), 0..60)) {
        walk(triggers, |before, trigger, result| {
            let operation = match trigger {
                Trigger::Done(operation)
                | Trigger::Failed(operation, _)
                | Trigger::CalledOff(operation) => *operation,
                _ => return,
            };
            assert_eq!(result.is_ok(), before.operation == Some(operation), "{before:?} {trigger:?}");
        });
    }

    #[test]
    fn after_a_crash_anywhere_destroy_succeeds(triggers in prop::collection::vec(any_trigger(), 0..60)) {
        walk(triggers, |_, _, result| {
            let Ok((after, next)) = result else { return };
            if *next == Next::Forget {
                return;
            }
            let (status, next) =
                apply(&reread(after), Trigger::Begin(Verb::Destroy)).expect("destroy is always legal");
            assert_eq!(next, Next::Carry(Operation::Destroy));
            let (_, next) = apply(&status, Trigger::Done(Operation::Destroy)).expect("it ends");
            assert_eq!(next, Next::Forget);
        });
    }

    #[test]
    fn what_a_new_daemon_finds_settles_every_record(
        triggers in prop::collection::vec(any_trigger(), 0..60),
        liveness in prop_oneof![Just(Liveness::Running), Just(Liveness::NotRunning)],
    ) {
        walk(triggers, |_, _, result| {
            let Ok((after, next)) = result else { return };
            if *next == Next::Forget {
                return;
            }
            let (settled, next) =
                apply(&reread(after), Trigger::Found(liveness)).expect("a look is never denied");
            // Either nothing is under way any more, or it is carried on.
            match settled.operation {
                None => assert!(!matches!(next, Next::Carry(_))),
                Some(operation) => assert_eq!(next, Next::Carry(operation)),
            }
        });
    }

    #[test]
    fn a_denial_names_a_verb_that_is_legal_then(triggers in prop::collection::vec(any_trigger(), 0..60)) {
        walk(triggers, |before, _, result| {
            if let Err(Denied::WrongState { helps: Some(helps), .. }) = result {
                assert!(apply(before, Trigger::Begin(*helps)).is_ok(), "{before:?}: {helps}");
            }
        });
    }
}

fn status_after(triggers: &[Trigger]) -> Status {
    triggers.iter().fold(Status::creating(), |status, trigger| {
        apply(&status, trigger.clone()).unwrap_or_else(|denied| panic!("{trigger:?}: {denied}")).0
    })
}

fn running() -> Status {
    status_after(&[Trigger::Done(Operation::Create)])
}

fn stopped() -> Status {
    status_after(&[
        Trigger::Done(Operation::Create),
        Trigger::Begin(Verb::Stop),
        Trigger::Done(Operation::Stop),
    ])
}

#[test]
fn exec_on_a_stopped_sandbox_says_that_start_helps() {
    let denied = apply(&stopped(), Trigger::Begin(Verb::Exec)).expect_err("nothing runs");
    let expected =
        Denied::WrongState { state: State::Stopped, verb: Verb::Exec, helps: Some(Verb::Start) };
    assert_eq!(denied, expected);
}

#[test]
fn a_repeated_verb_is_no_error() {
    assert_eq!(apply(&running(), Trigger::Begin(Verb::Start)), Ok((running(), Next::Stay)));
    assert_eq!(apply(&stopped(), Trigger::Begin(Verb::Stop)), Ok((stopped(), Next::Stay)));
}

#[test]
fn a_verb_during_another_one_is_busy() {
    let stopping = apply(&running(), Trigger::Begin(Verb::Stop)).expect("legal").0;
    let denied = apply(&stopping, Trigger::Begin(Verb::Exec)).expect_err("a stop is under way");
    assert_eq!(denied, Denied::Busy { verb: Verb::Exec, under_way: Verb::Stop });
}

#[test]
fn a_failed_create_is_rolled_back() {
    let failure = Trigger::Failed(Operation::Create, "no memory".to_owned());
    let (status, next) = apply(&Status::creating(), failure).expect("legal");
    assert_eq!(status.state(), State::Destroying);
    assert_eq!(next, Next::Carry(Operation::Destroy));
    let reason = status.reason().expect("the cause is kept").to_string();
    assert_eq!(reason, "create failed: no memory");
}

#[test]
fn a_death_is_a_failure_with_its_reason_and_start_leads_out() {
    let dead =
        apply(&running(), Trigger::Died("guest killed by signal 9".to_owned())).expect("ok").0;
    assert_eq!(dead.state(), State::Failed);
    assert_eq!(dead.reason().expect("why").to_string(), "died: guest killed by signal 9");
    let (starting, _) = apply(&dead, Trigger::Begin(Verb::Start)).expect("start leads out");
    let (status, _) = apply(&starting, Trigger::Done(Operation::Start)).expect("it started");
    assert_eq!((status.state(), status.reason()), (State::Running, None));
}

#[test]
fn a_reboot_stops_what_ran() {
    let (status, _) = apply(&running(), Trigger::HostRebooted).expect("never denied");
    assert_eq!(status.state(), State::Stopped);
    assert_eq!(status.reason().expect("why").to_string(), "host_rebooted");
}

/// A paused one has nothing left that could stand still; only what was stopped on purpose stays so.
#[test]
fn a_rollback_leads_to_a_running_sandbox_unless_it_was_stopped() {
    let paused = status_after(&[
        Trigger::Done(Operation::Create),
        Trigger::Begin(Verb::Pause),
        Trigger::Done(Operation::Pause),
    ]);
    let failed = apply(&running(), Trigger::Died("killed".to_owned())).expect("ok").0;
    let cases = [
        (running(), State::Running),
        (paused, State::Running),
        (failed, State::Running),
        (stopped(), State::Stopped),
    ];
    for (before, expected) in cases {
        let (rolling, next) = apply(&before, Trigger::RollBack(snapshot())).expect("legal");
        assert_eq!(next, Next::Carry(Operation::Rollback));
        assert_eq!(rolling.rollback_to(), Some(&snapshot()));
        for liveness in [Liveness::Running, Liveness::NotRunning] {
            let found = apply(&rolling, Trigger::Found(liveness)).expect("never denied");
            assert_eq!(found, (rolling.clone(), Next::Carry(Operation::Rollback)), "{before:?}");
        }
        let (after, _) = apply(&rolling, Trigger::Done(Operation::Rollback)).expect("it ends");
        assert_eq!((after.state(), after.rollback_to(), after.reason()), (expected, None, None));
    }
}

#[test]
fn after_a_reboot_a_rollback_still_brings_the_files_back() {
    let rolling = apply(&running(), Trigger::RollBack(snapshot())).expect("legal").0;
    let (found, next) = apply(&rolling, Trigger::HostRebooted).expect("never denied");
    assert_eq!(next, Next::Carry(Operation::Rollback));
    assert_eq!(found.rollback_to(), Some(&snapshot()));
    let (after, _) = apply(&found, Trigger::Done(Operation::Rollback)).expect("it ends");
    let reason = after.reason().map(ToString::to_string);
    assert_eq!((after.state(), reason.as_deref()), (State::Stopped, Some("host_rebooted")));
}

#[test]
fn commands_begin_while_a_snapshot_is_made() {
    let snapping = apply(&running(), Trigger::Begin(Verb::Snapshot)).expect("legal").0;
    assert_eq!(apply(&snapping, Trigger::Begin(Verb::Exec)), Ok((snapping.clone(), Next::Stay)));
    let failed = apply(&snapping, Trigger::Failed(Operation::Snapshot, "full".to_owned()));
    assert_eq!(failed, Ok((running(), Next::Record)), "it runs as before");
}

#[test]
fn states_and_operations_are_written_in_snake_case() {
    let text = serde_json::to_string(&Status::creating()).expect("JSON");
    assert_eq!(text, r#"{"state":"creating","operation":"create"}"#);
}
