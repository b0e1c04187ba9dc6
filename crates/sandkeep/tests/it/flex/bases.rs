//! What sessions begin with: templates, snapshots of sessions, and snapshots of datasets in the pool of zfs storage.

use std::process::Command;

use serde_json::{Value, json};

use super::rpc;
use crate::daemon;
use crate::support::{Daemon, Patience, Pool, Setup, until, zfs};

fn create(daemon: &Daemon, status: u16, base: &str, session: &str) -> Value {
    rpc(daemon, status, "CreateSession", json!({ "BaseSnapshot": base, "SessionID": session }))
}

fn cat(daemon: &Daemon, session: &str, path: &str) -> Value {
    let command = format!("cat {path}; stat -c %u {path}");
    let call = json!({
        "SessionID": session, "ToolCallID": "cat", "ToolName": "bash", "Params": { "cmd": command }
    });
    rpc(daemon, 200, "ExecuteTool", call)["Content"].clone()
}

#[test]
fn a_base_that_is_not_there_is_said_to_be_missing() {
    let daemon = daemon!();
    for (base, status, code) in [
        ("no-such-template", 400, "invalid_argument"),
        ("nobody@first", 404, "not_found"),
        ("tank/golden@v1", 403, "permission_denied"),
        ("tank/../golden@v1", 404, "not_found"),
    ] {
        let refused = create(&daemon, status, base, "");
        assert_eq!(refused["code"], code, "{base}: {refused}");
    }
    assert_eq!(daemon.ids(), Vec::<String>::new());
}

/// A dataset with a root file system in which a shell runs, and a snapshot of it.
fn golden(pool: &Pool, place: &std::path::Path) -> String {
    let dataset = format!("{}/golden", pool.name);
    let mountpoint = format!("mountpoint={}", place.display());
    zfs(&["create", "-o", &mountpoint, &dataset]);
    for directory in ["bin", "etc", "tmp", "home"] {
        std::fs::create_dir(place.join(directory)).expect("a directory");
    }
    std::fs::copy("/bin/busybox", place.join("bin/busybox")).expect("busybox is installed");
    for name in ["sh", "cat", "stat"] {
        std::os::unix::fs::symlink("busybox", place.join("bin").join(name)).expect("a link");
    }
    std::fs::write(place.join("etc/golden"), "gold\n").expect("a file");
    std::os::unix::fs::chown(place.join("etc/golden"), Some(7), Some(7)).expect("root may");
    let snapshot = format!("{dataset}@v1");
    zfs(&["snapshot", &snapshot]);
    std::fs::write(place.join("etc/golden"), "later\n").expect("a file");
    zfs(&["unmount", &dataset]);
    snapshot
}

/// Named after where the runner knows that only one test at a time has a pool.
mod on_datasets {
    use super::*;

    #[test]
    fn on_a_pool() {
        crate::skip_if!(crate::support::obstacle());
        let pool = match Pool::make() {
            Ok(pool) => pool,
            Err(reason) => return eprintln!("SKIP {}: {reason}", crate::test_name!()),
        };
        let busybox = Command::new("/bin/busybox").arg("true").status();
        crate::skip_if!(busybox.is_err().then_some("busybox is not installed"));
        a_session_begins_with_a_snapshot_of_a_dataset(&pool);
    }
}

fn a_session_begins_with_a_snapshot_of_a_dataset(pool: &Pool) {
    let place = tempfile::tempdir().expect("a directory");
    let snapshot = golden(pool, place.path());
    let sibling = format!("{}/other@v1", pool.name);
    let before = pool.contents();
    let setup = Setup::default().argument("--storage").argument(&format!("zfs:{}", pool.name));
    let setup = setup.argument("--source-datasets").argument(&format!("{}/golden", pool.name));
    let mut daemon = Daemon::start_with(&setup);
    for session in ["one", "two"] {
        let created = create(&daemon, 200, &snapshot, session);
        assert_eq!(created["Session"]["State"], "active", "{created}");
        assert_eq!(cat(&daemon, session, "/etc/golden"), "gold\n7\n");
    }
    // Nothing that the operator has not named, no snapshot that is not there, and no files of other sandboxes.
    assert_eq!(create(&daemon, 403, &sibling, "")["code"], "permission_denied");
    let missing = create(&daemon, 404, &format!("{}/golden@v2", pool.name), "");
    assert_eq!(missing["code"], "not_found", "{missing}");
    daemon.kill_9();
    daemon.start_again(&setup);
    assert_eq!(cat(&daemon, "one", "/etc/golden"), "gold\n7\n", "after a restart");
    for session in ["one", "two"] {
        rpc(&daemon, 200, "DestroySession", json!({ "SessionID": session }));
    }
    daemon.expect(
        204,
        "DELETE",
        &format!("/api/v1/templates/{}", snapshot.replace('/', "%2F")),
        &Value::Null,
    );
    until("the template's layer is gone", Patience::Long, || {
        !pool.contents().iter().any(|name| name.contains("/layers/"))
    });
    assert!(daemon.stop().success());
    assert_eq!(pool.contents(), before, "the pool is as it was");
    place.close().expect("nothing is mounted there");
}
