//! Unavailable sources: a clear error, and nothing is left of the sandbox.

use serde_json::{Value, json};

use super::{Project, SANDBOXES, no_git, on, upload};
use crate::keys::{create_key, key_of, with_admin};
use crate::skip_if;
use crate::support::{Daemon, Setup, obstacle};

fn refused(daemon: &Daemon, status: u16, code: &str, source: &Value) -> String {
    let problem = daemon.expect(status, "POST", SANDBOXES, &json!({ "source": source }));
    assert_eq!(problem["code"], code, "{problem:#}");
    assert!(daemon.ids().is_empty(), "{source} left a sandbox");
    problem["detail"].as_str().expect("a detail").to_owned()
}

#[test]
fn a_source_that_cannot_be_had_is_said_before_anything_is_made() {
    skip_if!(no_git());
    let (daemon, project) = (Daemon::start(), Project::new());
    let path = project.path();
    let bad = |source: Value| refused(&daemon, 400, "invalid_field", &source);
    bad(json!({}));
    bad(json!({ "dir": path, "git": project.url() }));
    assert!(bad(json!({ "dir": path, "path": "/etc" })).contains("source.path"));
    assert!(bad(json!({ "dir": "app" })).contains("absolute"));
    refused(&daemon, 400, "source_invalid", &json!({ "dir": path.join("none") }));
    let said = refused(&daemon, 400, "source_invalid", &json!({ "dir": path.join("notes") }));
    assert!(said.contains("no directory"), "{said}");
    let said = refused(&daemon, 400, "source_invalid", &json!({ "git": project.url() }));
    assert!(said.contains("no git repository"), "{said}");
    for git in ["ssh://example.org/a", "http://example.org/a", "https://me:pw@example.org/a"] {
        refused(&daemon, 400, "malformed_body", &json!({ "git": git }));
    }
    project.commit();
    let missing = json!({ "git": format!("{}#nowhere", project.url()) });
    let said = refused(&daemon, 404, "reference_not_found", &missing);
    assert!(said.contains("nowhere"), "{said}");
    project.git(&["worktree", "add", "--quiet", "../other", "feature"]);
    let worktree = format!("file://{}", path.with_file_name("other").display());
    let said = refused(&daemon, 400, "source_invalid", &json!({ "git": worktree }));
    assert!(said.contains("worktree"), "{said}");
    let garbage = path.join("notes");
    let sent = upload(&daemon, &garbage);
    refused(&daemon, 400, "source_invalid", &json!({ "upload": sent["id"] }));
    daemon.assert_no_leaks();
}

#[test]
fn a_workspace_that_does_not_fit_the_disk_leaves_nothing() {
    skip_if!(obstacle());
    let (daemon, project) = (Daemon::start_with(&on("btrfs")), Project::new());
    let bytes: Vec<u8> = (0..24_u32 << 18).flat_map(u32::to_le_bytes).collect();
    std::fs::write(project.path().join("large"), bytes).expect("a file");
    let archive = project.tar("");
    let sent = upload(&daemon, &archive);
    for source in [json!({ "dir": project.path() }), json!({ "upload": sent["id"] })] {
        let spec = json!({ "resources": { "disk_mb": 8 }, "source": source });
        let problem = daemon.expect(507, "POST", SANDBOXES, &spec);
        assert_eq!(problem["code"], "no_space", "{problem:#}");
        assert!(daemon.ids().is_empty());
    }
    daemon.assert_no_leaks();
    daemon.create_with(&json!({ "source": { "dir": project.path() } }));
}

#[test]
fn paths_of_the_host_are_for_its_own_user_or_beneath_the_roots() {
    skip_if!(no_git());
    let (open, closed) = (Project::new(), Project::new());
    open.commit();
    closed.commit();
    std::os::unix::fs::symlink(closed.path(), open.path().join("out")).expect("a link");
    let root = open.path();
    let root = root.to_str().expect("text");
    let daemon = with_admin(&Setup::default().argument("--source-roots").argument(root));
    let out = format!("{root}/out");
    for source in [
        json!({ "dir": closed.path() }),
        json!({ "dir": out }),
        json!({ "dir": format!("{root}/../x"), "path": "x" }),
        json!({ "git": closed.url() }),
        json!({ "git": format!("file://{out}"), "path": "x" }),
    ] {
        refused(&daemon, 403, "source_forbidden", &source);
    }
    for source in [json!({ "dir": open.path() }), json!({ "git": open.url() })] {
        let id = daemon.create_with(&json!({ "source": source }));
        assert_eq!(daemon.sh(&id, "cat ~/app/notes").ok(), "of the host");
    }
}

#[test]
fn an_upload_is_nobody_elses_and_counts() {
    skip_if!(obstacle());
    let daemon = with_admin(&Setup::default());
    let key = |user: &str| key_of(&create_key(&daemon.data_dir(), "acme", user, &[])).to_owned();
    let (ann, bob) = (key("ann"), key("bob"));
    let ask = |key: &str, method: &str, target: &str, body: &Value| {
        daemon.request_with(&[("x-api-key", key)], method, target, body).expect("an answer")
    };
    let (status, sent) = ask(&ann, "POST", "/api/v1/uploads", &json!("not yet looked at"));
    assert_eq!(status, 201, "{sent}");
    let spec = json!({ "source": { "upload": sent["id"] } });
    assert_eq!(ask(&bob, "POST", SANDBOXES, &spec).1["code"], "upload_not_found");
    let target = format!("/api/v1/uploads/{}", sent["id"].as_str().expect("an id"));
    assert_eq!(ask(&bob, "DELETE", &target, &Value::Null).0, 404);
    assert_eq!(ask(&ann, "POST", SANDBOXES, &spec).1["code"], "source_invalid");
    let more = |key: &str| ask(key, "POST", "/api/v1/uploads", &json!("x")).0;
    let kept = sandkeep_core::limits::UPLOADS_KEPT_PER_USER_MAX;
    assert!((1..kept).all(|_| more(&ann) == 201));
    assert_eq!((more(&ann), more(&bob)), (429, 201));
    assert_eq!(ask(&ann, "DELETE", &target, &Value::Null).0, 204);
    assert_eq!(more(&ann), 201);
}

#[test]
fn another_workspace_under_the_same_key_is_another_request() {
    skip_if!(obstacle());
    let (daemon, project) = (Daemon::start(), Project::new());
    let create = |path: &str| {
        let spec = json!({ "source": { "dir": project.path(), "path": path } });
        let key = [("Idempotency-Key", "one")];
        daemon.request_with(&key, "POST", SANDBOXES, &spec).expect("an answer")
    };
    let (status, first) = create("a");
    assert_eq!(status, 201, "{first}");
    assert_eq!(create("a").1["id"], first["id"]);
    assert_eq!(create("b").1["code"], "idempotency_mismatch");
}
