//! Generators of clients read the description of the API whole.

use std::path::PathBuf;
use std::process::Command;

use crate::skip_if;
use crate::support::{Daemon, obstacle, top};

/// Where `./test` installs it.
fn program() -> PathBuf {
    top().join("target/openapi-client/bin/openapi-python-client")
}

fn missing() -> Option<&'static str> {
    (!program().exists())
        .then_some("openapi-python-client is not installed; ./test does it from PyPI")
}

#[test]
fn a_python_client_is_generated_of_all_that_there_is() {
    skip_if!(obstacle());
    skip_if!(missing());
    let daemon = Daemon::start();
    let place = tempfile::tempdir().expect("a temp dir");
    let mut connection = daemon.connection().expect("it listens");
    let answer = connection.request("GET", "/openapi.json", "").expect("an answer");
    let description = place.path().join("openapi.json");
    std::fs::write(&description, &answer.body).expect("it can be written");
    let ran = Command::new(program())
        .current_dir(place.path())
        .args(["generate", "--meta", "none", "--output-path", "client", "--path"])
        .arg(&description)
        .arg("--config")
        .arg(top().join("tests/openapi-client/config.yml"))
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&ran.stdout) + String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}");
    for complaint in ["WARNING", "Warning", "Unable", "omitted"] {
        assert!(!said.contains(complaint), "{said}");
    }
    // What it could not read it would leave out.
    for file in ["api/snapshots/race_sandbox.py", "models/sandbox.py", "models/event_exec_ended.py"]
    {
        assert!(place.path().join("client").join(file).exists(), "{file}: {said}");
    }
}
