//! Generators of clients read the description of the API whole.

use std::path::PathBuf;
use std::process::Command;

use crate::skip_if;
use crate::support::{Daemon, obstacle, top};

/// Where `./test` installs them.
fn program(name: &str) -> PathBuf {
    let home = match name {
        "openapi-generator-cli" => "openapi-generator",
        _ => "openapi-client",
    };
    top().join("target").join(home).join("bin").join(name)
}

fn missing(name: &str) -> Option<String> {
    (!program(name).exists()).then(|| format!("{name} is not installed; ./test does it from PyPI"))
}

/// The description, as a daemon serves it.
fn description() -> Vec<u8> {
    let daemon = Daemon::start();
    let mut connection = daemon.connection().expect("it listens");
    connection.request("GET", "/openapi.json", "").expect("an answer").body
}

/// What openapi-generator's validator says of a description, and whether it takes it.
fn validated(description: &[u8]) -> (bool, String) {
    let place = tempfile::tempdir().expect("a temp dir");
    let path = place.path().join("openapi.json");
    std::fs::write(&path, description).expect("it can be written");
    let ran = Command::new(program("openapi-generator-cli"))
        .args(["validate", "--input-spec"])
        .arg(&path)
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&ran.stdout) + String::from_utf8_lossy(&ran.stderr);
    (ran.status.success(), said.into_owned())
}

#[test]
fn a_strict_validator_finds_no_fault() {
    skip_if!(obstacle());
    skip_if!(missing("openapi-generator-cli"));
    let description = description();
    let (taken, said) = validated(&description);
    assert!(taken, "{said}");
    // It is strict: the same without one of its schemas is refused.
    let mut broken: serde_json::Value = serde_json::from_slice(&description).expect("JSON");
    let schemas = broken["components"]["schemas"].as_object_mut().expect("schemas");
    schemas.remove("Sandbox").expect("it is there");
    let (taken, said) = validated(broken.to_string().as_bytes());
    assert!(!taken, "{said}");
}

#[test]
fn a_python_client_is_generated_of_all_that_there_is() {
    skip_if!(obstacle());
    skip_if!(missing("openapi-python-client"));
    let place = tempfile::tempdir().expect("a temp dir");
    let answer = description();
    let description = place.path().join("openapi.json");
    std::fs::write(&description, answer).expect("it can be written");
    let ran = Command::new(program("openapi-python-client"))
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
    // The generator leaves out definitions that it cannot read.
    for file in ["api/snapshots/race_sandbox.py", "models/sandbox.py", "models/event_exec_ended.py"]
    {
        assert!(place.path().join("client").join(file).exists(), "{file}: {said}");
    }
}
