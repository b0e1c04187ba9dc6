//! A sandbox is the same whatever umask the daemon has: service managers give it a strict one.

use rustix::fs::Mode;
use serde_json::{Value, json};

use crate::skip_if;
use crate::support::{Daemon, Engine, Kind, Setup, obstacle};
use crate::tools::missing;

/// Everything that somebody inside can see, with modes and owners. Entries of the host and of the kernel are left out.
const LISTING: &str = r"
import os, stat
shown = []
for top, dirs, files in os.walk('/'):
    if top == '/':
        dirs[:] = [name for name in dirs if name not in ('proc', 'sys', 'usr', 'bin', 'sbin', 'lib', 'lib64')]
    for name in sorted(dirs + files):
        path = os.path.join(top, name)
        found = os.lstat(path)
        shown.append('%s %o %d %d' % (path, found.st_mode, found.st_uid, found.st_gid))
for path in ('/', '/proc', '/sys', '/usr', '/usr/local'):
    if os.path.exists(path):
        shown.append('%s %o' % (path, stat.S_IMODE(os.stat(path).st_mode)))
print('\n'.join(sorted(shown)))
";

/// What is seen in a sandbox of a daemon with this umask; `None` if the runtime is missing.
fn seen(umask: u32, runtime: &str, setup: &Setup) -> Option<Vec<String>> {
    let work = tempfile::tempdir().expect("a temporary directory");
    let project = work.path().join("project");
    std::fs::create_dir_all(project.join("shared")).expect("directories");
    std::fs::write(project.join("shared/file"), "x").expect("a file");
    let before = rustix::process::umask(Mode::from_raw_mode(umask));
    let daemon = Daemon::start_with(setup);
    rustix::process::umask(before);
    if let Some(reason) = missing(&daemon, runtime) {
        eprintln!("SKIP umask::{runtime}: {reason}");
        return None;
    }
    let source = json!({ "dir": project });
    let id = daemon.create_with(&json!({ "runtime": runtime, "source": source }));
    let files = format!("/api/v1/sandboxes/{id}/files");
    assert_eq!(daemon.put_bytes(&format!("{files}?path=sent/it&parents=true"), vec![7]).0, 201);
    let list = json!({ "argv": ["/usr/bin/python3", "-c", LISTING], "cwd": "/", "user": "user" });
    daemon.sh(&id, "touch made; mkdir made-too").ok();
    let listed = daemon.exec(&id, &list).ok().replace(&id, "<id>");
    // Commands of another user find what they need.
    daemon.root_sh(&id, "cd /usr/local && cd /opt && cd /var && cd /home/user").ok();
    daemon.expect(204, "DELETE", &format!("/api/v1/sandboxes/{id}"), &Value::Null);
    Some(listed.lines().map(str::to_owned).collect())
}

fn on(runtime: &str, setup: &Setup) {
    let (Some(strict), Some(usual)) = (seen(0o077, runtime, setup), seen(0o022, runtime, setup))
    else {
        return;
    };
    assert!(usual.len() > 20, "only {} lines", usual.len());
    let differ = |one: &[String], other: &[String]| -> Vec<String> {
        one.iter().filter(|line| !other.contains(line)).cloned().collect()
    };
    let (narrow, open) = (differ(&strict, &usual), differ(&usual, &strict));
    assert!(narrow.is_empty() && open.is_empty(), "with 077: {narrow:#?}, with 022: {open:#?}");
}

#[test]
fn a_strict_umask_changes_nothing_inside() {
    skip_if!(obstacle());
    for runtime in ["native", "bwrap", "crun", "runc", "gvisor"] {
        on(runtime, &Setup::default());
    }
}

#[test]
fn a_strict_umask_changes_nothing_on_local() {
    skip_if!(obstacle());
    on("native", &Setup::default().argument("--storage").argument("local"));
}

#[test]
fn a_strict_umask_changes_nothing_in_containers() {
    skip_if!(obstacle());
    for (kind, runtime, variable) in [
        (Kind::Docker, "docker", "SANDKEEP_DOCKER_HOST"),
        (Kind::Podman, "podman", "SANDKEEP_PODMAN_HOST"),
    ] {
        let engine = Engine::start(kind).unwrap_or_else(|reason| panic!("{kind:?}: {}", reason.0));
        on(runtime, &Setup::default().env(variable, &engine.host()));
    }
}
