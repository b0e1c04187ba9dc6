//! Schemathesis against the daemon: for every request derived from `/openapi.json`, valid or not, the answer is
//! documented and not an internal error.

use std::path::PathBuf;
use std::process::Command;

use crate::keys::{create_key, key_of, with_admin};
use crate::skip_if;
use crate::support::{Setup, obstacle, top};

/// What is asked of every answer. Not `positive_data_acceptance`: that an exec has either `command` or `argv`
/// is more than a schema says.
const CHECKS: [&str; 10] = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "missing_required_header",
    "unsupported_method",
    "allow_header_conformance",
    "use_after_free",
];

#[test]
fn no_request_finds_a_fault_or_an_undocumented_answer() {
    search("examples,coverage,fuzzing", 90);
}

#[test]
#[ignore = "slow: ./test --full runs it"]
fn soak_no_request_finds_a_fault_or_an_undocumented_answer() {
    // The coverage of the stateful phase depends on the machine's speed, so the short run has none.
    search("examples,coverage,fuzzing,stateful", 600);
}

/// Where `./test` installs it.
fn program() -> PathBuf {
    top().join("target/schemathesis/bin/schemathesis")
}

fn missing() -> Option<&'static str> {
    (!program().exists()).then_some("schemathesis is not installed; ./test does it from PyPI")
}

fn search(phases: &str, seconds: u32) {
    skip_if!(obstacle());
    skip_if!(missing());
    // As an admin, so that no operation is closed to it. It makes keys, which would end local mode half-way.
    let daemon = with_admin(&Setup::default().argument("--enable-mock"));
    let made = create_key(&daemon.data_dir(), "fuzz", "fuzz", &["--scope", "admin"]);
    let credential = format!("Authorization: Bearer {}", key_of(&made));
    // It leaves its own files where it runs.
    let place = tempfile::tempdir().expect("a temp dir");
    let ran = Command::new(program())
        .current_dir(place.path())
        .arg("--config-file")
        .arg(top().join("tests/schemathesis/schemathesis.toml"))
        .args(["run", &format!("{}/openapi.json", daemon.url()), "--url", &daemon.url()])
        .args(["--header", &credential])
        // It would find its own key in the list and revoke it.
        .args(["--exclude-operation-id", "revoke_key"])
        // It would have the daemon call registries by whatever name it thinks of.
        .args(["--exclude-operation-id", "create_template"])
        // The daemon would deliver to whatever address it thinks of.
        .args(["--exclude-operation-id", "create_webhook"])
        // Asked to follow, they never end.
        .args(["--exclude-operation-id", "list_events"])
        .args(["--exclude-operation-id", "read_audit"])
        .args(["--exclude-operation-id", "read_network_log"])
        // It takes every event of a stream for all of the text that the description says it is.
        .args(["--exclude-operation-id", "watch_files"])
        .args(["--checks", &CHECKS.join(",")])
        .args(["--phases", phases])
        .args(["--seed", "1", "--max-time", &seconds.to_string(), "--request-timeout", "30"])
        .args(["--continue-on-failure", "--no-color", "--warnings", "off"])
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{said}\n{}", String::from_utf8_lossy(&ran.stderr));
    assert!(said.contains("Tested:"), "it tested nothing: {said}");
    let own = format!("/api/v1/keys/{}", made["id"].as_str().expect("an id"));
    let (status, _) = daemon.request("DELETE", &own, &serde_json::Value::Null);
    assert_eq!(status, 204, "it revoked its own key, so that the rest was refused: {said}");
    assert!(!daemon.said().contains("panicked"), "{}", daemon.said());
}
