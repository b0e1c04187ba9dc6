//! The examples, run as their readers would.

use std::path::PathBuf;
use std::process::Command;

use crate::support::{Daemon, obstacle};

fn example(name: &str) -> Command {
    let binary = PathBuf::from(env!("CARGO_BIN_EXE_sandkeep"));
    Command::new(binary.with_file_name("examples").join(name))
}

fn said(mut command: Command) -> String {
    let output = command.output().expect("cargo builds the examples beside the tests");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn a_broker_runs_inside_another_program_and_leaves_nothing() {
    crate::skip_if!(obstacle());
    let place = tempfile::tempdir().expect("a directory");
    let mut embed = example("embed");
    embed.env("TMPDIR", place.path());
    assert_eq!(said(embed), "hello from a sandbox\nit exited\n");
    assert_eq!(std::fs::read_dir(place.path()).expect("it is there").count(), 0);
}

#[test]
fn a_runtime_of_ones_own_is_offered_by_its_name_and_keeps_every_promise() {
    crate::skip_if!(obstacle());
    let place = tempfile::tempdir().expect("a directory");
    let mut own_runtime = example("own_runtime");
    own_runtime.env("TMPDIR", place.path());
    let said = said(own_runtime);
    assert!(said.starts_with("hello from process "), "{said}");
    assert!(said.ends_with(" promises kept\n"), "{said}");
    assert_eq!(std::fs::read_dir(place.path()).expect("it is there").count(), 0);
}

#[test]
fn the_typed_client_creates_runs_and_destroys() {
    crate::skip_if!(obstacle());
    let daemon = Daemon::start();
    let mut client = example("client");
    client.env("SANDKEEP_URL", format!("http://{}", daemon.address()));
    assert_eq!(said(client), "hello\nas it comes\nexit code Some(3)\n");
}
