//! `run` with a daemon, and what `create` takes.

use std::io::Write;

use super::{call, ok};
use crate::daemon;
use crate::support::{Ran, binary, run_with_stdin};

#[test]
fn a_run_with_a_daemon_passes_everything_through_and_leaves_nothing() {
    let daemon = daemon!();
    let mut command = binary();
    let script = "tr a-z A-Z; echo $WHO >&2; exit 5";
    command.env("SANDKEEP_URL", daemon.url());
    command.args(["run", "-e", "WHO=me", "--", "sh", "-c", script]);
    let ran = run_with_stdin(&mut command, b"shout");
    assert_eq!((ran.code, &*ran.stdout, &*ran.stderr), (5, "SHOUT", "me\n"));
    assert_eq!(daemon.ids(), [""; 0]);
    assert_eq!(call(&daemon, &["run", "--timeout", "300ms", "--", "sleep", "1000"]).code, 124);
    assert_eq!(daemon.ids(), [""; 0]);
}

#[test]
fn a_run_may_keep_its_sandbox_under_a_name() {
    let daemon = daemon!();
    let ran = call(&daemon, &["run", "--keep", "--name", "kept", "--", "touch", "f"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.complaint().contains("kept"), "{ran:?}");
    assert_eq!(ok(&daemon, &["exec", "kept", "--", "ls"]), "f");
}

#[test]
fn a_run_whose_daemon_does_not_answer_fails_and_runs_nothing_here() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", free.local_addr().expect("bound"));
    drop(free);
    let output = binary().args(["--url", &url, "run", "--", "echo", "here"]).output();
    let ran: Ran = output.expect("the binary runs").into();
    assert_eq!((ran.code, &*ran.stdout), (125, ""), "{ran:?}");
    assert!(ran.complaint().contains("no daemon answers"), "{ran:?}");
    let output = binary().args(["run", "--keep", "--", "true"]).output();
    let ran: Ran = output.expect("the binary runs").into();
    assert_eq!(ran.code, 125, "{ran:?}");
    assert!(ran.complaint().contains("--keep needs a daemon"), "{ran:?}");
}

#[test]
fn create_reads_variables_from_a_file_and_opens_ports() {
    let daemon = daemon!();
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    writeln!(file, "# names\nA=from the file\nB=1").expect("it can be written");
    let path = file.path().to_str().expect("UTF-8");
    let ran = call(&daemon, &["create", "--env-file", path, "-e", "B=2", "--port", "8000"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.complaint().contains("port 8000: 127.0.0.1:"), "{ran:?}");
    let id = ran.stdout.trim();
    assert_eq!(ok(&daemon, &["exec", id, "--", "sh", "-c", "echo $A $B"]), "from the file 2");
    let ports = ok(&daemon, &["port", id]);
    assert!(ports.contains("8000") && ports.contains("127.0.0.1:"), "{ports}");
}
