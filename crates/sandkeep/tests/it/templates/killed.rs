//! The daemon is killed at every failpoint of creating and removing a template. A template is complete or does not
//! exist, a sandbox being captured continues, and unused layers are removed.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use serde_json::{Value, json};

use super::images::{self, Image};
use super::{STORAGES, create, import, layers, names, on};
use crate::skip_if;
use crate::support::{Daemon, Patience, until};

/// What brings the daemon to a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    Import,
    Capture,
    CaptureSnapshot,
    Remove,
}

const POINTS: [(Deed, &[&str]); 4] = [
    (
        Deed::Import,
        &[
            "template.after_intent",
            "template.after_image",
            "template.after_draft",
            "template.after_applied",
            "template.after_kept",
            "template.after_record",
            "template.after_outcome",
        ],
    ),
    (Deed::Capture, &["template.after_freeze", "template.after_layer", "template.after_capture"]),
    (
        Deed::CaptureSnapshot,
        &[
            "template.after_intent",
            "template.after_capture",
            "template.after_record",
            "template.after_outcome",
        ],
    ),
    (Deed::Remove, &["template.after_forgotten", "template.after_layer_removed"]),
];

/// All points that are tried here.
pub fn points() -> impl Iterator<Item = &'static str> {
    POINTS.into_iter().flat_map(|(_, points)| points.iter().copied())
}

impl Deed {
    /// Asks for it. The daemon dies of it, before or after its answer.
    fn ask(self, daemon: &Daemon, archive: &Path, witness: &str) -> std::io::Result<(u16, Value)> {
        let post = |source: Value| {
            let body = json!({ "name": "subject", "source": source });
            daemon.try_request("POST", "/api/v1/templates", &body)
        };
        match self {
            Self::Import => post(json!({ "docker_archive": archive })),
            Self::Capture => post(json!({ "sandbox": witness })),
            Self::CaptureSnapshot => post(json!({ "sandbox": witness, "snapshot": "then" })),
            Self::Remove => daemon.try_request("DELETE", "/api/v1/templates/subject", &Value::Null),
        }
    }
}

fn survives(storage: &str) {
    let image = Image::busybox();
    let archive = image.docker_archive();
    let mut daemon = Daemon::start_with(&on(storage));
    import(&daemon, &Image::one_program().docker_archive(), "bystander");
    let witness = daemon.create();
    daemon.sh(&witness, "echo kept > ~/note; sleep 100000 >/dev/null 2>&1 &").ok();
    let snapshots = format!("/api/v1/sandboxes/{witness}/snapshots");
    daemon.expect(201, "POST", &snapshots, &json!({ "name": "then" }));
    daemon.sh(&witness, "echo later > ~/later").ok();
    let before = layers(&daemon, storage).len();
    for (deed, points) in POINTS {
        for point in points {
            eprintln!("killing at {point} on {storage}");
            if deed == Deed::Remove {
                import(&daemon, &archive, "subject");
            }
            daemon.kill_9();
            daemon.start_again(&on(storage).env("SANDKEEP_FAILPOINT", point));
            let answer = deed.ask(&daemon, &archive, &witness);
            let status = daemon.wait_for_end();
            assert_eq!(status.signal(), Some(9), "{point} was never passed: {answer:?}");
            daemon.start_again(&on(storage));
            let acknowledged = answer.is_ok_and(|(status, _)| (200..300).contains(&status));
            let there = names(&daemon).contains(&"subject".to_owned());
            match deed {
                Deed::Import | Deed::Capture | Deed::CaptureSnapshot => {
                    assert!(there || !acknowledged, "{point}: it is lost")
                }
                Deed::Remove => assert!(!there, "{point}: its record went first"),
            }
            assert_eq!(daemon.sh(&witness, "cat ~/note ~/later").ok(), "kept\nlater", "{point}");
            let kept = daemon.expect(200, "GET", &format!("{snapshots}/then"), &Value::Null);
            assert_eq!(kept["name"], "then", "{point}: a snapshot is lost");
            if there {
                let id = create(&daemon, "subject");
                match deed {
                    Deed::CaptureSnapshot => {
                        let held = daemon.sh(&id, "test ! -e ~/later && cat ~/note").ok();
                        assert_eq!(held, "kept", "{point}: what the snapshot has, and no more");
                    }
                    _ => drop(daemon.sh(&id, "cat ~/note || cat greeting").ok()),
                }
                daemon.destroy(&id);
                daemon.expect(204, "DELETE", "/api/v1/templates/subject", &Value::Null);
            }
            until("layers that nobody needs are gone", Patience::Short, || {
                layers(&daemon, storage).len() == before
            });
            let id = create(&daemon, "bystander");
            assert_eq!(daemon.exec(&id, &json!({})).ok(), "from nothing", "{point}");
            daemon.destroy(&id);
        }
    }
}

#[test]
fn making_and_removing_templates_survives_kill_9_at_every_step() {
    skip_if!(images::obstacle());
    for storage in STORAGES {
        survives(storage);
    }
}
