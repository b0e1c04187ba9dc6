//! Rules that mounts alone keep, and honest refusals of all others.

use serde_json::{Value, json};

use super::{call, make, read, with_codebase, write};
use crate::skip_if;
use crate::support::{Daemon, obstacle};

#[test]
fn a_read_only_codebase_is_read_and_not_written() {
    skip_if!(obstacle());
    let daemon = Daemon::start();
    make(&daemon, "code");
    write(&daemon, "code", "kept", "as it was");
    let spec = json!({ "codebase": "code", "rules": "read-only", "privilege": "root" });
    let sandbox = daemon.create_with(&spec);
    let attempts = "(echo x > kept) || (echo x > new) || rm kept || mv kept gone || chmod 777 kept || \
                    sudo -n sh -c 'echo x > kept' || mount -o remount,rw /workspace || cat kept";
    let said = daemon.sh(&sandbox, attempts);
    assert!(said.stdout.ends_with(b"as it was"), "{}", String::from_utf8_lossy(&said.stdout));
    assert_eq!(read(&daemon, "code", "kept").as_deref(), Ok("as it was"));
    let rules =
        daemon.expect(200, "GET", &format!("/api/v1/sandboxes/{sandbox}/rules"), &Value::Null);
    assert_eq!(rules, json!({ "rules": { "preset": "read-only" }, "served": "bind" }));
}

#[test]
fn a_directory_is_writable_in_a_codebase_that_is_read() {
    skip_if!(obstacle());
    let daemon = Daemon::start();
    make(&daemon, "code");
    write(&daemon, "code", "output/first", "1");
    write(&daemon, "code", "src/a", "a");
    let rules = json!([
        { "pattern": "**/*", "permission": "read" },
        { "pattern": "output", "permission": "write" },
    ]);
    let sandbox = daemon.create_with(&json!({ "codebase": "code", "rules": rules }));
    let tried = "echo 2 > output/second; (echo x > src/b) 2>/dev/null; (echo x > top) 2>/dev/null; \
                 mv output gone 2>/dev/null; ls . output src";
    assert_eq!(
        daemon.sh(&sandbox, tried).ok(),
        ".:\noutput\nsrc\n\noutput:\nfirst\nsecond\n\nsrc:\na"
    );
    assert_eq!(read(&daemon, "code", "output/second").as_deref(), Ok("2\n"));
    let checked = call(&daemon, &["codebase", "check", &sandbox, "output/x", "src/a"]);
    assert!(checked.stdout.contains("output/x") && checked.stdout.contains("write"), "{checked:?}");
    // What is to be written has to be a directory, and no link to one.
    let other = with_codebase(&daemon, "code");
    daemon.sh(&other, "rm -rf output && ln -s /etc output").ok();
    let spec = json!({ "codebase": "code", "rules": rules });
    let refused = daemon.request("POST", "/api/v1/sandboxes", &spec);
    assert_eq!((refused.0, &refused.1["code"]), (400, &json!("rules_not_served")), "{refused:?}");
}

#[test]
fn rules_that_mounts_cannot_keep_are_refused_before_anything_is_made() {
    skip_if!(obstacle());
    let daemon = Daemon::start();
    make(&daemon, "code");
    for rules in [
        json!("view-only"),
        json!("development"),
        json!([{ "pattern": "**/secrets/**", "permission": "none", "priority": 9 },
               { "pattern": "**/*", "permission": "read" }]),
        json!([{ "pattern": "**/*", "permission": "write" }, { "pattern": "kept", "permission": "read" }]),
    ] {
        let spec = json!({ "codebase": "code", "rules": rules });
        let refused = daemon.request("POST", "/api/v1/sandboxes", &spec);
        assert_eq!(
            (refused.0, &refused.1["code"]),
            (400, &json!("rules_not_served")),
            "{refused:?}"
        );
    }
    let spec = json!({ "codebase": "code", "rules": "no-such-preset" });
    daemon.expect(400, "POST", "/api/v1/sandboxes", &spec);
    assert_eq!(daemon.ids(), [""; 0]);
    // They can be judged all the same.
    let request = json!({ "paths": ["src/.env", "src/a"], "rules": "development" });
    let said = daemon.expect(200, "POST", "/api/v1/codebases/code/check", &request);
    assert_eq!(said["items"][0]["permission"], "none");
    assert_eq!(said["items"][1]["permission"], "write");
    assert!(
        said["items"][0]["rule"].as_str().is_some_and(|rule| rule.contains("**/.env*")),
        "{said}"
    );
}

#[test]
fn rules_of_a_stopped_sandbox_are_replaced() {
    skip_if!(obstacle());
    let daemon = Daemon::start();
    make(&daemon, "code");
    let sandbox = with_codebase(&daemon, "code");
    let rules = format!("/api/v1/sandboxes/{sandbox}/rules");
    daemon.sh(&sandbox, "echo 1 > f").ok();
    let busy = daemon.expect(409, "PUT", &rules, &json!({ "rules": "read-only" }));
    assert_eq!(busy["code"], "wrong_state");
    daemon.verb(&sandbox, "stop");
    daemon.expect(200, "PUT", &rules, &json!({ "rules": "read-only" }));
    daemon.verb(&sandbox, "start");
    assert_eq!(daemon.sh(&sandbox, "(echo 2 > f) 2>/dev/null; cat f").ok(), "1");
    let plain = daemon.create();
    daemon.expect(400, "GET", &format!("/api/v1/sandboxes/{plain}/rules"), &Value::Null);
}
