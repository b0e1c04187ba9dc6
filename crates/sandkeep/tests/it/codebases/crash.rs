//! The daemon is killed at every step of creating and deleting a codebase. It is whole afterwards or gone, and nothing
//! is left over.

use std::os::unix::process::ExitStatusExt;

use sandkeep_core::failpoint::ALL;
use serde_json::{Value, json};

use super::{CODEBASES, make, read, with_codebase, write};
use crate::skip_if;
use crate::support::{Daemon, Setup, obstacle};

const POINTS: &str = "codebase.";

pub fn killed_at() -> impl Iterator<Item = &'static str> {
    ALL.iter().copied().filter(|point| point.starts_with(POINTS))
}

fn deletes(point: &str) -> bool {
    point.starts_with("codebase.delete_")
}

#[test]
fn a_codebase_is_whole_or_gone_after_every_failpoint() {
    skip_if!(obstacle());
    let project = tempfile::Builder::new().prefix("skcb-").tempdir().expect("a directory");
    std::fs::write(project.path().join("file"), "content").expect("a file");
    let mut daemon = Daemon::start();
    make(&daemon, "witness");
    write(&daemon, "witness", "note", "unharmed");
    let sandbox = with_codebase(&daemon, "witness");
    for point in killed_at() {
        eprintln!("killing at {point}");
        let draft = json!({ "name": "subject", "source": { "dir": project.path() } });
        if deletes(point) {
            daemon.expect(201, "POST", CODEBASES, &draft);
        }
        daemon.kill_9();
        daemon.start_again(&Setup::default().env("SANDKEEP_FAILPOINT", point));
        let target = format!("{CODEBASES}/subject");
        let answer = if deletes(point) {
            daemon.try_request("DELETE", &target, &Value::Null)
        } else {
            daemon.try_request("POST", CODEBASES, &draft)
        };
        let status = daemon.wait_for_end();
        assert_eq!(status.signal(), Some(9), "{point} was never passed: {answer:?}");
        daemon.start_again(&Setup::default());
        let answered = answer.is_ok_and(|(status, _)| (200..300).contains(&status));
        let (found, view) = daemon.request("GET", &target, &Value::Null);
        match (deletes(point), found) {
            // Its deletion was recorded before the first point.
            (true, 404) => {}
            (false, 404) => assert!(!answered, "{point}: what was acknowledged is lost"),
            (false, 200) => {
                assert_eq!(view["state"], "ready", "{point}");
                assert_eq!(read(&daemon, "subject", "file").as_deref(), Ok("content"), "{point}");
                assert_eq!(point, "codebase.after_outcome");
            }
            _ => panic!("{point}: {found} {view}"),
        }
        daemon.assert_no_leaks();
        // Its name is free, or its own.
        if found == 404 {
            daemon.expect(201, "POST", CODEBASES, &draft);
        }
        daemon.expect(204, "DELETE", &target, &Value::Null);
        assert_eq!(daemon.sh(&sandbox, "cat note").ok(), "unharmed", "{point}");
        daemon.assert_no_leaks();
    }
}
