//! Start commands of templates: a create is answered when the command is ready, or fails and leaves nothing.

use serde_json::json;

use super::{STORAGES, build, built, context, on, sandbox};
use crate::skip_if;
use crate::support::{Daemon, obstacle};

#[test]
fn what_a_template_starts_is_up_when_its_sandbox_is_made() {
    skip_if!(obstacle());
    for storage in STORAGES {
        let daemon = Daemon::start_with(&on(storage));
        for (ready, look) in [
            (
                "http 8000 /page",
                "python3 -c 'import urllib.request as u; print(u.urlopen(\"http://localhost:8000/page\").read().decode())'",
            ),
            ("port 8000", "cat /home/user/page"),
            ("run test -e /home/user/page", "cat /home/user/page"),
        ] {
            let file = format!(
                "FROM host AS starting\nWORKDIR /home/user\n\
                 LABEL sandkeep.start='sleep 0.3; echo up > page; exec python3 -m http.server 8000'\n\
                 LABEL sandkeep.ready='{ready}'\nFROM starting\n"
            );
            let context = context(&[("Dockerfile", file.as_str())]);
            built(&daemon, context.path(), &["-t", "server"]);
            let id = sandbox(&daemon, "server");
            assert_eq!(daemon.sh(&id, look).ok().trim(), "up", "{ready} on {storage}");
            let processes = format!("/api/v1/sandboxes/{id}/processes");
            let listed = daemon.expect(200, "GET", &processes, &json!(null));
            assert_eq!(listed["items"][0]["status"], "running", "{listed}");
            daemon.verb(&id, "stop");
            daemon.verb(&id, "start");
            assert_eq!(daemon.sh(&id, look).ok().trim(), "up", "{ready} again");
            daemon.destroy(&id);
        }
    }
}

#[test]
fn a_sandbox_whose_start_fails_is_not_made() {
    skip_if!(obstacle());
    let daemon = Daemon::start();
    let file =
        "FROM host\nLABEL sandkeep.start='echo no luck; exit 3' sandkeep.ready='port 8000'\n";
    let context = context(&[("Dockerfile", file)]);
    built(&daemon, context.path(), &["-t", "broken"]);
    let create = json!({ "template": "broken" });
    let refused = daemon.expect(422, "POST", "/api/v1/sandboxes", &create);
    assert_eq!(refused["code"], "start_up_failed", "{refused}");
    let detail = refused["detail"].as_str().expect("words");
    assert!(detail.contains("no luck") && detail.contains("before it was ready"), "{detail}");
    assert!(daemon.ids().is_empty());
    let lone = "FROM host\nLABEL sandkeep.ready='port 8000'\n";
    let lone = super::context(&[("Dockerfile", lone)]);
    let ran = build(&daemon, lone.path(), &["-t", "lone"]);
    assert!(ran.stderr.contains("ready is about what sandkeep.start begins"), "{ran:?}");
}
