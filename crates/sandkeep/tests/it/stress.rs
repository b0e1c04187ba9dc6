//! Many execs with much output, and a daemon that is killed in the middle of it.

use ring::digest::{Context, SHA256};
use serde_json::{Value, json};

use crate::support::{Daemon, Patience, Setup, obstacle, until};

/// How much is asked of the daemon.
#[derive(Clone, Copy)]
struct Load {
    execs: usize,
    lines: usize,
    sandboxes: usize,
}

#[derive(Debug, PartialEq, Eq)]
struct Account {
    bytes: u64,
    hash: Vec<u8>,
    exit_code: u64,
}

fn hash(bytes: &[u8]) -> Vec<u8> {
    let mut context = Context::new(&SHA256);
    context.update(bytes);
    context.finish().as_ref().to_vec()
}

/// Every line of every exec is its own, so that none can stand in for another. Some wait half-way for a
/// sign, so that they are under way whenever the daemon dies.
fn command(exec: usize, lines: usize) -> String {
    let say = |from: usize, to: usize| format!("seq -f 'exec {exec} says line %.0f' {from} {to}");
    let half = lines / 2;
    let wait =
        if exec.is_multiple_of(4) { "while ! [ -e /tmp/go ]; do sleep 0.1; done" } else { "true" };
    let (first, second) = (say(1, half), say(half + 1, lines));
    format!("{first}; {wait}; {second}; exit {}", exec % 200)
}

fn expected(exec: usize, lines: usize) -> Account {
    let text: String = (1..=lines).map(|line| format!("exec {exec} says line {line}\n")).collect();
    let bytes = text.len() as u64;
    Account { bytes, hash: hash(text.as_bytes()), exit_code: (exec % 200) as u64 }
}

/// What the daemon says of an exec, waited for to its end.
fn account(daemon: &Daemon, sandbox: &str, exec: &str) -> Account {
    let path = daemon.exec_path(sandbox, exec);
    let target = format!("{path}/output?stream=stdout&follow=true");
    let (status, bytes) =
        daemon.fetch(&target, "application/octet-stream").expect("all of its output");
    assert_eq!(status, 200);
    let view = daemon.exec_view(sandbox, exec);
    assert_eq!((&view["status"], &view["truncated"]), (&json!("exited"), &json!(false)), "{view}");
    assert_eq!(view["stdout_bytes"], bytes.len());
    let exit_code = view["exit_code"].as_u64().expect("an exit code");
    Account { bytes: bytes.len() as u64, hash: hash(&bytes), exit_code }
}

fn said(daemon: &Daemon, sandbox: &str) -> u64 {
    let target = format!("/api/v1/sandboxes/{sandbox}/execs?limit=1000");
    let list = daemon.expect(200, "GET", &target, &Value::Null);
    let items = list["items"].as_array().expect("items");
    items.iter().filter_map(|view| view["stdout_bytes"].as_u64()).sum()
}

fn every_byte_is_accounted_for(load: Load) {
    let mut daemon = Daemon::start();
    let sandboxes: Vec<String> = (0..load.sandboxes).map(|_| daemon.create()).collect();
    let place = |exec: usize| sandboxes[exec % load.sandboxes].as_str();
    let begun: Vec<String> = (0..load.execs)
        .map(|exec| daemon.begin(place(exec), &json!({ "command": command(exec, load.lines) })))
        .collect();
    // About a third of it.
    let enough = expected(0, load.lines).bytes * load.execs as u64 / 3;
    until("much of it is said", Patience::Long, || {
        sandboxes.iter().map(|sandbox| said(&daemon, sandbox)).sum::<u64>() > enough
    });
    daemon.kill_9();
    daemon.start_again(&Setup::default());
    let running = begun
        .iter()
        .enumerate()
        .filter(|(exec, id)| daemon.exec_view(place(*exec), id)["status"] == "running")
        .count();
    eprintln!("{running} of {} were under way", load.execs);
    assert!(running >= load.execs / 4, "those that wait for the sign have not ended");
    for sandbox in &sandboxes {
        daemon.sh(sandbox, "touch /tmp/go").ok();
    }
    for (exec, id) in begun.iter().enumerate() {
        assert_eq!(account(&daemon, place(exec), id), expected(exec, load.lines), "exec {exec}");
    }
    daemon.assert_no_leaks();
}

#[test]
fn a_flood_of_execs_loses_no_byte_to_kill_9() {
    crate::skip_if!(obstacle());
    every_byte_is_accounted_for(Load { execs: 40, lines: 80_000, sandboxes: 2 });
}

#[test]
#[ignore = "slow: ./test --full runs it"]
fn soak_two_hundred_execs_of_ten_megabytes_lose_no_byte_to_kill_9() {
    crate::skip_if!(obstacle());
    every_byte_is_accounted_for(Load { execs: 200, lines: 440_000, sandboxes: 4 });
}
