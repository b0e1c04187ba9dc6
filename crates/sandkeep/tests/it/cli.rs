//! The commands as a person types them.

mod answers;
mod processes;
mod runs;
mod several;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use serde_json::Value;

use crate::daemon;
use crate::support::{Daemon, Patience, Ran, Setup, binary, run_with_stdin, until};

fn call(daemon: &Daemon, arguments: &[&str]) -> Ran {
    let output = binary().env("SANDKEEP_URL", daemon.url()).args(arguments).output();
    let ran: Ran = output.expect("the binary runs").into();
    ran.assert_no_panic();
    ran
}

/// It worked; its stdout without the last line end.
fn ok(daemon: &Daemon, arguments: &[&str]) -> String {
    let ran = call(daemon, arguments);
    assert_eq!(ran.code, 0, "{arguments:?}: {ran:?}");
    ran.stdout.trim_end().to_owned()
}

fn json(daemon: &Daemon, arguments: &[&str]) -> Value {
    let text = ok(daemon, arguments);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn a_sandbox_lives_its_whole_life_by_commands() {
    let daemon = daemon!();
    let id = ok(&daemon, &["create", "--label", "task=7", "--memory-mb", "256"]);
    assert_eq!(daemon.ids(), [id.as_str()]);
    assert!(ok(&daemon, &["ls"]).contains(&id));
    let shown = ok(&daemon, &["show", &id]);
    assert!(shown.contains("running") && shown.contains("task=7"), "{shown}");
    assert_eq!(ok(&daemon, &["exec", &id, "--", "sh", "-c", "echo kept > ~/f; cat ~/f"]), "kept");
    ok(&daemon, &["stop", &id]);
    assert!(ok(&daemon, &["ls"]).contains("stopped"));
    ok(&daemon, &["start", &id]);
    assert_eq!(ok(&daemon, &["exec", &id, "cat", "/home/user/f"]), "kept");
    ok(&daemon, &["rm", &id]);
    assert_eq!(daemon.ids(), [""; 0]);
}

#[test]
fn every_answer_can_be_had_as_json() {
    let daemon = daemon!();
    let created = json(&daemon, &["create", "--json"]);
    let id = created["id"].as_str().expect("an id");
    assert_eq!(json(&daemon, &["show", "--json", id]), daemon.get(id));
    assert_eq!(json(&daemon, &["ls", "--json"])["items"][0]["id"], id);
    assert_eq!(json(&daemon, &["exec", "--json", id, "--", "echo", "hi"])["stdout"], "hi\n");
    assert_eq!(json(&daemon, &["stop", "--json", id])["state"], "stopped");
    assert_eq!(json(&daemon, &["start", "--json", id])["state"], "running");
    assert_eq!(json(&daemon, &["runtimes", "--json"])["runtimes"][0]["name"], "native");
    json(&daemon, &["rm", "--json", id]);
}

#[test]
fn the_list_of_runtimes_fits_a_terminal_and_shows_capabilities_when_asked() {
    let daemon = daemon!();
    let narrow = ok(&daemon, &["runtimes"]);
    assert!(narrow.lines().all(|line| line.chars().count() <= 100), "{narrow}");
    assert!(!narrow.contains("exec_limits"), "{narrow}");
    assert!(ok(&daemon, &["runtimes", "--wide"]).contains("exec_limits"));
}

#[test]
fn the_beginning_of_an_id_is_enough_but_nothing_is_not() {
    let daemon = daemon!();
    let id = daemon.create();
    assert_eq!(ok(&daemon, &["exec", &id[..10], "--", "echo", "hi"]), "hi");
    assert_eq!(call(&daemon, &["show", "sbzzzz"]).code, 1);
    // An unset variable in a script must not destroy the one sandbox that there is.
    assert_eq!(call(&daemon, &["rm", ""]).code, 2);
    for too_short in ["s", "sb", "sb2"] {
        assert_eq!(call(&daemon, &["rm", too_short]).code, 1, "{too_short:?} is nobody's name");
    }
    assert_eq!(daemon.ids(), [id]);
}

#[test]
fn what_looks_like_an_option_is_one_until_two_dashes() {
    let daemon = daemon!();
    let id = daemon.create();
    assert_eq!(call(&daemon, &["exec", &id, "--bogus", "--", "true"]).code, 2);
    assert_eq!(ok(&daemon, &["exec", &id, "echo", "-n", "hi"]), "hi");
    assert_eq!(ok(&daemon, &["exec", &id, "--", "echo", "--json"]), "--json");
}

#[test]
fn exec_passes_everything_through() {
    let daemon = daemon!();
    let id = daemon.create();
    let ran = call(&daemon, &["exec", &id, "--", "sh", "-c", "echo out; echo err >&2; exit 9"]);
    assert_eq!((ran.code, &*ran.stdout, &*ran.stderr), (9, "out\n", "err\n"));
    assert_eq!(call(&daemon, &["exec", &id, "--", "no-such-command"]).code, 127);
    assert_eq!(call(&daemon, &["exec", &id, "--", "/etc/passwd"]).code, 126);
    assert_eq!(call(&daemon, &["exec", &id, "--", "sh", "-c", "kill -15 $$"]).code, 143);
    assert_eq!(
        call(&daemon, &["exec", "--timeout", "300ms", &id, "--", "sleep", "1000"]).code,
        124
    );
    assert_eq!(
        ok(
            &daemon,
            &[
                "exec",
                "-e",
                "A=b",
                "--cwd",
                "/",
                "-u",
                "root",
                &id,
                "--",
                "sh",
                "-c",
                "echo $A; pwd; id -u"
            ]
        ),
        "b\n/\n0"
    );
    let mut command = binary();
    command.env("SANDKEEP_URL", daemon.url()).args(["exec", "-i", &id, "--", "tr", "a-z", "A-Z"]);
    assert_eq!(run_with_stdin(&mut command, b"shout").stdout, "SHOUT");
    let gone = call(&daemon, &["exec", "sbzzzz", "--", "true"]);
    assert_eq!(gone.code, 125, "not to be mistaken for the command's own: {gone:?}");
}

/// `exec -i` of a command, and both ends of it.
fn piped(
    daemon: &Daemon,
    id: &str,
    command: &[&str],
) -> (Child, ChildStdin, BufReader<ChildStdout>) {
    let mut exec = binary();
    exec.env("SANDKEEP_URL", daemon.url()).args(["exec", "-i", id, "--"]).args(command);
    let mut child =
        exec.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the binary runs");
    let stdin = child.stdin.take().expect("it is piped");
    let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
    (child, stdin, stdout)
}

#[test]
fn exec_i_passes_stdin_on_as_it_comes_and_any_amount_of_it() {
    let daemon = daemon!();
    let id = daemon.create();
    let (mut child, mut stdin, mut stdout) = piped(&daemon, &id, &["sh", "-c", "cat; exit 4"]);
    for line in ["one\n", "two\n", "three\n"] {
        stdin.write_all(line.as_bytes()).expect("it takes stdin");
        let mut echoed = String::new();
        stdout.read_line(&mut echoed).expect("it answers");
        assert_eq!(echoed, line);
    }
    drop(stdin);
    assert_eq!(child.wait().expect("it ends").code(), Some(4));

    let much = vec![b'x'; 12 << 20];
    let mut command = binary();
    command.env("SANDKEEP_URL", daemon.url()).args(["exec", "-i", &id, "--", "wc", "-c"]);
    let ran = run_with_stdin(&mut command, &much);
    assert_eq!((ran.code, ran.stdout.trim()), (0, much.len().to_string().as_str()), "{ran:?}");
    // A reader that stops early is not held up by the rest, nor by a stream that never ends.
    command = binary();
    command.env("SANDKEEP_URL", daemon.url()).args(["exec", "-i", &id, "--", "head", "-c", "3"]);
    assert_eq!(run_with_stdin(&mut command, &much).stdout, "xxx");
    let (mut child, stdin, _stdout) = piped(&daemon, &id, &["sh", "-c", "exit 6"]);
    assert_eq!(child.wait().expect("it ends").code(), Some(6));
    drop(stdin);
}

#[test]
fn an_exec_i_whose_output_nobody_reads_ends_and_so_does_its_command() {
    let daemon = daemon!();
    let id = daemon.create();
    let (mut child, mut stdin, mut stdout) = piped(&daemon, &id, &["cat"]);
    stdin.write_all(b"heard\n").expect("it takes stdin");
    let mut line = String::new();
    stdout.read_line(&mut line).expect("it answers");
    drop(stdout);
    stdin.write_all(b"not heard\n").expect("it takes stdin");
    assert_eq!(child.wait().expect("it ends").code(), Some(141), "as of SIGPIPE");
    until("the command sees the end of its stdin", Patience::Short, || {
        daemon.sh(&id, "pgrep -cx cat || :").ok() == "0"
    });
}

#[test]
fn ctrl_c_at_an_exec_leaves_the_command_running() {
    let daemon = daemon!();
    let id = daemon.create();
    let mut exec = binary();
    exec.env("SANDKEEP_URL", daemon.url());
    exec.args(["exec", &id, "--", "sh", "-c", "echo up; exec sleep 1001"]);
    exec.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = exec.spawn().expect("the binary runs");
    let mut stdout = BufReader::new(child.stdout.take().expect("it is piped"));
    let mut line = String::new();
    stdout.read_line(&mut line).expect("it has begun");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it runs");
    let ended = child.wait_with_output().expect("it ends");
    // A script that is interrupted ends as well.
    assert_eq!(ended.status.signal(), Some(2));
    let said = String::from_utf8_lossy(&ended.stderr);
    let begun = json(&daemon, &["ps", &id, "--json"]);
    let follow =
        format!("sandkeep logs -f {id} {}", begun["items"][0]["exec_id"].as_str().unwrap());
    assert!(said.contains(&follow), "{said}");
    assert_eq!(daemon.sh(&id, "pgrep -cx sleep").ok(), "1");
}

#[test]
fn the_command_of_an_exec_i_that_is_killed_sees_the_end_of_its_stdin() {
    let daemon = daemon!();
    let id = daemon.create();
    let script = "echo up; cat; echo over > ended";
    let (mut child, stdin, mut stdout) = piped(&daemon, &id, &["sh", "-c", script]);
    let mut line = String::new();
    stdout.read_line(&mut line).expect("it has begun");
    child.kill().expect("it runs");
    child.wait().expect("it is over");
    until("the command has seen the end", Patience::Short, || {
        daemon.sh(&id, "cat ended 2>/dev/null").stdout_text() == "over\n"
    });
    drop(stdin);
}

#[test]
fn a_shell_keeps_its_state_from_command_to_command() {
    let mut daemon = daemon!();
    let id = daemon.create();
    let shell = ok(&daemon, &["shells", "open", &id, "--shell", "sh", "-e", "A=b", "-u", "root"]);
    let exec = |daemon: &Daemon, words: &[&str]| {
        call(daemon, &[&["shells", "exec", &id, &shell[..8], "--"], words].concat())
    };
    let ran = exec(&daemon, &["cd", "/tmp;", "x=$A$A;", "echo warm >&2;", "(exit 5)"]);
    assert_eq!((ran.code, &*ran.stdout, &*ran.stderr), (5, "", "warm\n"));
    daemon.kill_9();
    daemon.start_again(&Setup::default());
    assert_eq!(exec(&daemon, &["pwd; echo $x"]).stdout, "/tmp\nbb\n");
    let listed = json(&daemon, &["shells", "ls", &id, "--json"]);
    let seen = &listed["items"][0];
    assert_eq!((&seen["user"], &seen["state"]), (&"root".into(), &"ready".into()), "{listed}");
    let execs = json(&daemon, &["ps", &id, "--json"]);
    assert_eq!(execs["items"][1]["user"], "root", "{execs}");

    let mut fed = binary();
    fed.env("SANDKEEP_URL", daemon.url());
    fed.args(["shells", "exec", "-i", &id, &shell, "--", "read y; cat"]);
    assert_eq!(run_with_stdin(&mut fed, b"one\ntwo\n").stdout, "two\n");
    let late = call(&daemon, &["shells", "exec", "--timeout", "300ms", &id, &shell, "sleep 1000"]);
    assert_eq!(late.code, 124, "{late:?}");
    assert_eq!(exec(&daemon, &["echo $y"]).stdout, "one\n");
    let ran = exec(&daemon, &["exit 7"]);
    assert_eq!(ran.code, 7);
    assert!(ran.complaint().contains("the shell has ended"), "{ran:?}");
    assert_eq!(exec(&daemon, &["true"]).code, 125, "not to be mistaken for the command's own");
    assert_eq!(ok(&daemon, &["shells", "close", &id, &shell]), shell);
    assert_eq!(json(&daemon, &["shells", "ls", &id, "--json"])["items"], Value::Array(vec![]));
}

#[test]
fn without_a_daemon_a_command_says_how_to_get_one() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", free.local_addr().expect("bound"));
    drop(free);
    let output = binary().args(["ls", "--url", &url]).output();
    let ran: Ran = output.expect("the binary runs").into();
    assert_eq!(ran.assert_no_panic().code, 1, "{ran:?}");
    assert!(ran.complaint().contains("sandkeep serve"), "{ran:?}");
    let output = binary().args(["no-such-command"]).output();
    assert_eq!(Ran::from(output.expect("the binary runs")).code, 2);
}

#[test]
fn the_doctor_tells_what_belongs_to_whom() {
    let daemon = daemon!();
    let id = daemon.create();
    let (clean, said) = crate::support::doctor(&daemon.data_dir());
    assert!(clean, "{said:#}");
    let found = said["found"].as_array().expect("found");
    for kind in ["process", "cgroup", "volume", "socket", "row", "home", "namespace"] {
        let owned =
            found.iter().any(|thing| thing["kind"] == kind && thing["owner"] == id.as_str());
        assert!(owned, "no {kind} of {id}: {said:#}");
    }
    assert!(said["counts"].is_object(), "{said:#}");
}

#[test]
fn the_doctor_finds_what_belongs_to_nobody() {
    let daemon = daemon!();
    daemon.create();
    let stray =
        daemon.data_dir().join("sandboxes").join(sandkeep_core::SandboxId::random().as_str());
    std::fs::create_dir(&stray).expect("root writes anywhere");
    let (clean, said) = crate::support::doctor(&daemon.data_dir());
    // The daemon may have cleared it away meanwhile.
    let _ = std::fs::remove_dir(&stray);
    assert!(!clean, "a stray home was not seen: {said:#}");
}

#[test]
fn the_doctor_finds_volumes_that_nobody_goes_on_removing() {
    let data = tempfile::tempdir().expect("a temp dir");
    let trashed = data.path().join("storage/local/.trash/halfgone");
    std::fs::create_dir_all(&trashed).expect("it is ours");
    let (clean, said) = crate::support::doctor(data.path());
    assert!(!clean, "{said:#}");
    assert_eq!(said["found"][0]["kind"], "volume");
    assert_eq!(said["found"][0]["name"], "halfgone");
    std::fs::remove_dir(&trashed).expect("it is ours");
    assert!(crate::support::doctor(data.path()).0);
}

#[test]
fn where_no_daemon_ever_came_to_run_nothing_is_leaked() {
    let data = tempfile::tempdir().expect("a temp dir");
    let (clean, said) = crate::support::doctor(&data.path().join("never-made"));
    assert!(clean, "{said:#}");
    // What a daemon leaves that is killed in its first start.
    std::fs::write(data.path().join("registry.sqlite3"), "").expect("it is ours");
    let (clean, said) = crate::support::doctor(data.path());
    assert!(clean, "{said:#}");
}

#[test]
fn an_exec_whose_daemon_dies_says_that_the_command_goes_on() {
    let mut daemon = daemon!();
    let id = daemon.create();
    for options in [&[][..], &["--json"]] {
        let following = binary()
            .env("SANDKEEP_URL", daemon.url())
            .arg("exec")
            .args(options)
            .args([&id, "--", "sh", "-c", "echo > up; exec sleep 100000"])
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .expect("the binary runs");
        until("the command runs", Patience::Short, || {
            daemon.sh(&id, "rm up 2>/dev/null && echo up").stdout_text().contains("up")
        });
        daemon.kill_9();
        let ran: Ran = following.wait_with_output().expect("it ends").into();
        assert_eq!(ran.assert_no_panic().code, 125, "{ran:?}");
        let said = ran.complaint();
        assert!(said.contains("lost the connection") && said.contains("continues"), "{ran:?}");
        daemon.start_again(&Setup::default());
    }
}
