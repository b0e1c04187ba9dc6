//! Several sandboxes on one codebase, whose rules servers keep: what one changes, the others and the API see.

use serde_json::{Value, json};

use sandkeep_core::event::EventKind;

use super::rules::no_server;
use super::{call, make, read, write};
use crate::skip_if;
use crate::support::{Daemon, Patience, Setup, until};

fn with_rules(daemon: &Daemon, rules: &Value) -> String {
    daemon.create_with(&json!({ "codebase": "code", "rules": rules }))
}

fn served(daemon: &Daemon, sandbox: &str) -> String {
    daemon.get(sandbox)["codebase"]["served"].as_str().expect("a text").to_owned()
}

fn says(daemon: &Daemon, sandbox: &str, script: &str, expected: &str) {
    until(expected, Patience::Short, || daemon.sh(sandbox, script).ok() == expected);
}

/// The reviewer may see everything but secrets, and write its report.
fn reviewer() -> Value {
    json!([
        { "pattern": "**/*", "permission": "read" },
        { "pattern": "**/.env", "permission": "none", "priority": 10 },
        { "pattern": "report/**", "permission": "write", "priority": 5 },
    ])
}

#[test]
fn sandboxes_with_different_rules_work_on_one_codebase_at_once() {
    skip_if!(no_server());
    let daemon = Daemon::start();
    make(&daemon, "code");
    for (path, content) in [("src/a", "a"), ("src/.env", "secret"), ("report/first", "1")] {
        write(&daemon, "code", path, content);
    }
    let one = with_rules(&daemon, &json!("development"));
    let two = with_rules(&daemon, &reviewer());
    // It would be served by a mount if it were alone.
    let three = with_rules(&daemon, &json!("full-access"));
    let four = with_rules(&daemon, &json!("read-only"));
    assert_eq!(served(&daemon, &one), "fuse");
    assert_eq!(
        (served(&daemon, &two), served(&daemon, &three)),
        ("passthrough".into(), "passthrough".into())
    );
    assert_eq!(served(&daemon, &four), "bind");
    let all = [&one, &two, &three, &four];
    for sandbox in all {
        daemon.sh(sandbox, "cat src/a; ls -A src; ls src/new 2>/dev/null; true").ok();
    }
    daemon.sh(&one, "echo changed > src/a; echo n > src/new").ok();
    for sandbox in all {
        says(&daemon, sandbox, "cat src/a src/new 2>/dev/null; true", "changed\nn");
    }
    assert_eq!(read(&daemon, "code", "src/new").as_deref(), Ok("n\n"));
    daemon.sh(&two, "echo fine > report/second").ok();
    daemon.sh(&three, "rm report/first; mv src/new src/old").ok();
    for sandbox in all {
        says(
            &daemon,
            sandbox,
            "(cat report/second; ls report; ls src) 2>/dev/null; true",
            "fine\nsecond\na\nold",
        );
    }
    // What the API changes is seen at once, and everybody's own rules still hold.
    write(&daemon, "code", "src/by-api", "api");
    for sandbox in all {
        assert_eq!(daemon.sh(sandbox, "cat src/by-api").ok(), "api");
    }
    let tried =
        "cat src/.env 2>/dev/null || echo hidden; (echo x > src/a) 2>/dev/null || echo refused";
    assert_eq!(daemon.sh(&two, tried).ok(), "hidden\nrefused");
    assert_eq!(daemon.sh(&three, "cat src/.env").ok(), "secret");
    // New rules for one of them are not those of the others.
    let rules = format!("/api/v1/sandboxes/{two}/rules");
    let kept = daemon.expect(200, "PUT", &rules, &json!({ "rules": "view-only" }));
    assert_eq!((&kept["served"], &kept["effect"]), (&json!("passthrough"), &json!("next_open")));
    assert_eq!(daemon.sh(&two, "cat src/a 2>/dev/null || echo closed").ok(), "closed");
    assert_eq!(daemon.sh(&one, "cat src/a").ok(), "changed");
    for sandbox in all {
        daemon.destroy(sandbox);
    }
    daemon.assert_no_leaks();
}

#[test]
fn a_log_that_one_keeps_open_is_read_by_the_others_as_it_grows() {
    skip_if!(no_server());
    for serving in ["auto", "fuse", "passthrough"] {
        let daemon =
            Daemon::start_with(&Setup::default().env("SANDKEEP_CODEBASE_SERVING", serving));
        make(&daemon, "code");
        let writer = with_rules(&daemon, &json!("development"));
        let reader = with_rules(&daemon, &reviewer());
        let modes = match serving {
            "auto" => ["fuse", "passthrough"],
            other => [other; 2],
        };
        assert_eq!([served(&daemon, &writer), served(&daemon, &reader)], modes);
        let script = "exec 3>log; echo one >&3; while [ ! -e go ]; do sleep 0.02; done; echo two >&3; \
                      while [ ! -e stop ]; do sleep 0.02; done";
        let going = format!("({script}) >/dev/null 2>&1 &");
        daemon.sh(&writer, &going).ok();
        says(&daemon, &reader, "cat log; stat -c %s log; true", "one\n4");
        write(&daemon, "code", "go", "");
        says(&daemon, &reader, "cat log; stat -c %s log; true", "one\ntwo\n8");
        write(&daemon, "code", "stop", "");
    }
}

#[test]
fn a_sandbox_that_writes_through_a_mount_is_seen_by_those_that_come_to_it() {
    skip_if!(no_server());
    let daemon = Daemon::start();
    make(&daemon, "code");
    write(&daemon, "code", "src/a", "a");
    let direct = with_rules(&daemon, &json!("full-access"));
    assert_eq!(served(&daemon, &direct), "bind");
    let agent = with_rules(&daemon, &json!("agent-safe"));
    assert_eq!(served(&daemon, &agent), "passthrough");
    assert_eq!(
        daemon.sh(&agent, "cat src/a; ls src; cat src/b 2>/dev/null || echo none").ok(),
        "aa\nnone"
    );
    daemon.sh(&direct, "echo longer > src/a; echo b > src/b; echo secret > .env").ok();
    // At once: nothing has to be told.
    assert_eq!(
        daemon.sh(&agent, "cat src/a src/b; ls -A; stat -c %s src/a").ok(),
        "longer\nb\nsrc\n7"
    );
    daemon.sh(&direct, "rm src/b").ok();
    assert_eq!(daemon.sh(&agent, "ls src").ok(), "a");
}

#[test]
fn servers_go_on_telling_each_other_without_a_daemon_and_after_it() {
    skip_if!(no_server());
    let mut daemon = Daemon::start();
    make(&daemon, "code");
    write(&daemon, "code", "a", "a");
    let one = with_rules(&daemon, &json!("development"));
    let two = with_rules(&daemon, &json!("development"));
    says(&daemon, &two, "cat a; cat ping 2>/dev/null; true", "a");
    // Each waits for what the other writes, daemon or no daemon.
    for (sandbox, own, other) in [(&one, "ping", "pong"), (&two, "pong", "ping")] {
        let script = format!(
            "n=0; while [ ! -e stop ]; do echo $n > {own}.new; mv {own}.new {own}; \
             while [ ! -e stop ] && [ \"$(cat {other} 2>/dev/null || echo -1)\" -lt $n ]; do sleep 0.01; done; n=$((n + 1)); done"
        );
        daemon.sh(sandbox, &format!("({script}) >/dev/null 2>&1 &")).ok();
    }
    let round = |daemon: &Daemon| -> u64 {
        read(daemon, "code", "ping").ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    };
    until("they have begun", Patience::Short, || round(&daemon) > 5);
    daemon.kill_9();
    daemon.start_again(&Setup::default());
    let before = round(&daemon);
    until("they go on", Patience::Short, || round(&daemon) > before + 5);
    write(&daemon, "code", "stop", "");
    // The next daemon knows of both: a third one shares with them.
    let three = with_rules(&daemon, &json!("development"));
    assert_eq!(
        [served(&daemon, &one), served(&daemon, &two), served(&daemon, &three)],
        ["fuse", "passthrough", "passthrough"]
    );
    daemon.sh(&three, "echo third > a").ok();
    for sandbox in [&one, &two] {
        says(&daemon, sandbox, "cat a", "third");
    }
    daemon.sh(&one, "echo first > a").ok();
    says(&daemon, &three, "cat a", "first");
    for sandbox in [&one, &two, &three] {
        daemon.destroy(sandbox);
    }
    daemon.assert_no_leaks();
}

#[test]
fn the_end_of_one_is_not_that_of_the_others() {
    skip_if!(no_server());
    let daemon = Daemon::start();
    make(&daemon, "code");
    write(&daemon, "code", "a", "a");
    let one = with_rules(&daemon, &json!("development"));
    let two = with_rules(&daemon, &json!("development"));
    daemon.sh(&two, "exec 3>>a; sleep 1000 >/dev/null 2>&1 &").ok();
    daemon.destroy(&two);
    daemon.sh(&one, "echo b > a").ok();
    let three = with_rules(&daemon, &json!("development"));
    says(&daemon, &three, "cat a", "b");
    // A fork has the codebase, too, and runs beside the first.
    let forked = daemon.expect(201, "POST", &format!("/api/v1/sandboxes/{one}/fork"), &json!({}));
    let forked = forked["sandboxes"][0]["id"].as_str().expect("an id").to_owned();
    daemon.sh(&forked, "echo forked > a").ok();
    for sandbox in [&one, &three] {
        says(&daemon, sandbox, "cat a", "forked");
    }
    daemon.verb(&one, "stop");
    daemon.verb(&one, "start");
    assert_eq!(served(&daemon, &one), "passthrough");
    says(&daemon, &one, "cat a", "forked");
    for sandbox in [&one, &three, &forked] {
        daemon.destroy(sandbox);
    }
    daemon.assert_no_leaks();
}

#[test]
fn what_rules_refuse_inside_is_an_event() {
    skip_if!(no_server());
    let daemon = Daemon::start();
    let code = make(&daemon, "code");
    write(&daemon, "code", "src/a", "a");
    let sandbox = with_rules(&daemon, &json!("development"));
    // Names that may not be made in a directory that may be written: the kernel asks the server.
    let tried =
        "for n in 1 2 3; do (echo x > src/.env) 2>/dev/null; done; mkdir secrets 2>/dev/null; true";
    daemon.sh(&sandbox, tried).ok();
    let found = |wanted: &str, done: &str| {
        crate::events::all(&daemon).iter().any(|event| match &event.kind {
            EventKind::CodebaseRefused { codebase, path, action, rule, count } => {
                codebase.as_str() == code
                    && path == wanted
                    && action.as_deref() == Some(done)
                    && rule.as_ref().is_some_and(|rule| !rule.is_empty())
                    && *count > 0
                    && event.subject.sandbox.as_ref().is_some_and(|id| id.as_str() == sandbox)
            }
            _ => false,
        })
    };
    until("the refusals are told", Patience::Short, || {
        found("src/.env", "create") && found("secrets", "create")
    });
    // Those of the last moment, too.
    daemon.sh(&sandbox, "mkdir src/late.key 2>/dev/null; true").ok();
    daemon.verb(&sandbox, "stop");
    until("the last refusal is told", Patience::Short, || found("src/late.key", "create"));
}

#[test]
fn processes_that_hold_what_new_rules_forbid_are_ended() {
    skip_if!(no_server());
    for serving in ["fuse", "passthrough"] {
        let setup = Setup::default().env("SANDKEEP_CODEBASE_SERVING", serving);
        let daemon = Daemon::start_with(&setup);
        make(&daemon, "code");
        for path in ["secret", "log", "other"] {
            write(&daemon, "code", path, path);
        }
        let sandbox = with_rules(&daemon, &json!("development"));
        let beside = with_rules(&daemon, &json!("development"));
        let hold = "hold() { sh -c \"echo \\$\\$ > /tmp/$1; exec sleep 1000 $2\" >/dev/null 2>&1 & }; \
                    hold reads-secret '3<secret'; hold reads-log '3<log'; hold writes-log '3>>log'; \
                    hold other '3<other'";
        for sandbox in [&sandbox, &beside] {
            daemon.sh(sandbox, hold).ok();
        }
        let alive = "for name in reads-secret reads-log writes-log other; do \
                     kill -0 $(cat /tmp/$name) 2>/dev/null && echo $name; done; true";
        says(&daemon, &sandbox, alive, "reads-secret\nreads-log\nwrites-log\nother");
        let stricter = json!([
            { "pattern": "**/*", "permission": "read" },
            { "pattern": "secret", "permission": "none", "priority": 1 },
        ]);
        let rules = format!("/api/v1/sandboxes/{sandbox}/rules");
        let kept = daemon.expect(200, "PUT", &rules, &json!({ "rules": stricter }));
        assert_eq!(kept["killed"], Value::Null);
        says(&daemon, &sandbox, alive, "reads-secret\nreads-log\nwrites-log\nother");
        let request = json!({ "rules": stricter, "revoke": "kill" });
        let kept = daemon.expect(200, "PUT", &rules, &request);
        assert_eq!(kept["killed"], 2, "{kept}");
        assert_eq!(daemon.sh(&sandbox, alive).ok(), "reads-log\nother");
        // The same files of another sandbox are another's.
        says(&daemon, &beside, alive, "reads-secret\nreads-log\nwrites-log\nother");
        let said = call(&daemon, &["codebase", "rules", &sandbox, "--set", "view-only", "--kill"]);
        assert!(said.stdout.contains("killed       2"), "{said:?}");
        assert_eq!(daemon.sh(&sandbox, alive).ok(), "");
        daemon.expect(400, "PUT", &rules, &json!({ "rules": stricter, "revoke": "politely" }));
    }
}
