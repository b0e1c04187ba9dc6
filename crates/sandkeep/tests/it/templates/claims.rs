//! Layers are stored once for all owners, but cannot be obtained by naming them: an owner without a template that
//! contains the layer has to supply its bytes.

use std::path::{Path, PathBuf};
use std::process::Command;

use sandkeep_tree::digest::Digest;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::images::{self, Image};
use super::owners::{ask, import_as};
use super::{STORAGES, layers, on};
use crate::keys::{create_key, key_of, with_admin};
use crate::registry::fake::{Asked, Content, Fake, status};
use crate::registry::images::{Made, archive, noise};
use crate::skip_if;
use crate::support::{Daemon, Patience, binary, until};

const TEMPLATES: &str = "/api/v1/templates";

fn key(daemon: &Daemon, organization: &str) -> String {
    key_of(&create_key(&daemon.data_dir(), organization, "someone", &[])).to_owned()
}

/// What an owner has, without what is everybody's.
fn own(daemon: &Daemon, key: &str) -> Vec<String> {
    let (status, listing) = ask(daemon, key, "GET", TEMPLATES, &Value::Null);
    assert_eq!(status, 200, "{listing}");
    let items = listing["items"].as_array().expect("items").iter();
    let own = items.filter(|item| item["source"] != "built-in");
    own.map(|item| item["name"].as_str().expect("a name").to_owned()).collect()
}

/// An archive of docker save, taken apart.
struct Saved(TempDir);

impl Saved {
    fn of(archive: &Path) -> Self {
        let saved = Self(tempfile::tempdir().expect("a directory"));
        let dir = saved.0.path().join("saved");
        std::fs::create_dir(&dir).expect("a directory");
        let unpacked = Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(&dir).status();
        assert!(unpacked.expect("tar runs").success());
        saved
    }

    /// Packs it again, without the lowest layer or with another one in its place, as its config says nothing of.
    fn again(&self, lowest: Option<&[u8]>) -> PathBuf {
        let dir = self.0.path().join("saved");
        match lowest {
            Some(bytes) => std::fs::write(dir.join("0.tar"), bytes).expect("a file"),
            None => std::fs::remove_file(dir.join("0.tar")).expect("it was there"),
        }
        let path = self.0.path().join("again.tar");
        let packed =
            Command::new("tar").arg("-cf").arg(&path).arg("-C").arg(&dir).arg(".").status();
        assert!(packed.expect("tar runs").success());
        path
    }
}

#[test]
fn a_layer_of_another_owner_is_not_had_by_naming_it() {
    skip_if!(images::obstacle());
    let image = Image::busybox();
    for storage in STORAGES {
        let daemon = with_admin(&on(storage));
        let (ann, bob) = (key(&daemon, "ann"), key(&daemon, "bob"));
        let archive_of_ann = image.docker_archive();
        let made = import_as(&daemon, &ann, &archive_of_ann, "mine", &[]);
        assert_eq!(made.code, 0, "{made:?}");
        let before = layers(&daemon, storage);
        let saved = Saved::of(&archive_of_ann);
        for (lowest, clue) in [
            (Some(archive(&[("x", b"other")])), "not the one that was announced"),
            (None, "missing"),
        ] {
            let forged = saved.again(lowest.as_deref());
            let refused = import_as(&daemon, &bob, &forged, "stolen", &[]);
            assert_ne!(refused.code, 0, "{storage}: {refused:?}");
            assert!(refused.stderr.contains(clue), "{storage}: {refused:?}");
            assert_eq!(own(&daemon, &bob), [""; 0], "{storage}");
        }
        until("nothing is left of it", Patience::Short, || layers(&daemon, storage) == before);
        // With the very bytes it is his own, and there once.
        let made = import_as(&daemon, &bob, &archive_of_ann, "own", &["--json"]);
        assert_eq!(made.code, 0, "{storage}: {made:?}\n{}", daemon.said());
        let shown: Value = serde_json::from_str(&made.stdout).expect(&made.stdout);
        assert!(shown["bytes"].as_u64().expect("a size") > 500_000, "{shown}");
        assert_eq!(layers(&daemon, storage), before, "{storage}: a layer is kept once");
        // It is no longer Ann's alone, so it stays when hers goes.
        assert_eq!(ask(&daemon, &ann, "DELETE", &format!("{TEMPLATES}/mine"), &Value::Null).0, 204);
        let spec = json!({ "template": "own" });
        let (status, view) = ask(&daemon, &bob, "POST", "/api/v1/sandboxes", &spec);
        assert_eq!(status, 201, "{view}");
        let id = view["id"].as_str().expect("an id");
        assert_eq!(daemon.exec(id, &json!({})).ok(), "hello from the image", "{storage}");
    }
}

#[test]
fn a_registry_is_asked_for_every_layer_that_the_owner_does_not_have() {
    skip_if!(images::obstacle());
    let base = archive(&[("etc/base", &noise(100_000))]);
    let first = Made::of(&[base.clone(), archive(&[("etc/first", b"1")])]);
    let second = Made::of(&[base, archive(&[("etc/second", b"2")])]);
    let layer_of = |place: usize| format!("/blobs/{}", Digest::of(&first.layers[place]));
    let (base, top) = (layer_of(0), layer_of(1));
    let (has_first, has_second) = (Content::of(&first), Content::of(&second));
    let withheld = [base.clone(), top.clone()];
    let fake = Fake::answering(move |asked: &Asked| {
        let missing = match asked.path.split('/').nth(2) {
            Some("bare") => &withheld[..],
            Some("half") => &withheld[1..],
            _ => &[],
        };
        match missing.iter().any(|layer| asked.path.ends_with(layer)) {
            true => status(404),
            false if asked.path.contains("/second/") => has_second.answer(asked),
            false => has_first.answer(asked),
        }
    });
    let asked_for_base = |image: &str| {
        let path = format!("/v2/{image}{base}");
        fake.asked().iter().filter(|asked| asked.path == path).count()
    };
    for storage in STORAGES {
        let daemon = with_admin(&on(storage).argument("--outgoing-allow").argument("127.0.0.0/8"));
        let (ann, bob) = (key(&daemon, "ann"), key(&daemon, "bob"));
        let pull = |key: &str, image: &str| {
            let reference = format!("{}/{image}:it", fake.address);
            let body = json!({ "name": image, "source": { "registry": reference } });
            ask(&daemon, key, "POST", TEMPLATES, &body)
        };
        let refused = |key: &str, image: &str| {
            let (status, problem) = pull(key, image);
            assert_eq!(
                (status, &problem["code"]),
                (502, &json!("source_unavailable")),
                "{storage}"
            );
            until("nothing is left of it", Patience::Short, || layers(&daemon, storage).is_empty());
        };
        let pulled = |key: &str, image: &str| {
            let before = asked_for_base(image);
            let (status, view) = pull(key, image);
            assert_eq!(status, 201, "{storage} {image}: {view}\n{}", daemon.said());
            asked_for_base(image) - before
        };
        // Bob cannot use the remains of Ann's pull in the spool either.
        refused(&ann, "half");
        refused(&bob, "bare");
        // Of this one she may have the base from before.
        pulled(&ann, "second");
        assert_eq!(pulled(&ann, "first"), 0, "{storage}: she has the base");
        let before = layers(&daemon, storage);
        let (status, problem) = pull(&bob, "bare");
        assert_eq!((status, &problem["code"]), (502, &json!("source_unavailable")), "{storage}");
        assert_eq!(own(&daemon, &bob), [""; 0], "{storage}");
        assert_eq!(pulled(&bob, "first"), 1, "{storage}: he has to bring it");
        assert_eq!(layers(&daemon, storage), before, "{storage}: a layer is kept once");
        assert_eq!(pulled(&bob, "second"), 0, "{storage}: now he has it");
    }
}

#[test]
fn builds_of_one_owner_tell_another_nothing() {
    skip_if!(images::obstacle());
    let image = Image::busybox().config(&json!({ "Env": ["PATH=/bin"] }));
    let context = tempfile::tempdir().expect("a directory");
    let write = |text: &str| {
        std::fs::write(context.path().join("Dockerfile"), text).expect("a file");
    };
    for storage in STORAGES {
        let daemon = with_admin(&on(storage));
        let (ann, bob) = (key(&daemon, "ann"), key(&daemon, "bob"));
        let build = |key: &str, name: &str| {
            let mut command = binary();
            command.args(["template", "build", "-t", name]).arg(context.path());
            command.env("SANDKEEP_URL", daemon.url()).env("SANDKEEP_API_KEY", key);
            crate::support::Ran::from(command.output().expect("the binary runs"))
        };
        for key in [&ann, &bob] {
            let made = import_as(&daemon, key, &image.docker_archive(), "base", &[]);
            assert_eq!(made.code, 0, "{storage}: {made:?}");
        }
        write("FROM base\nCOPY Dockerfile /file\nRUN cat /proc/sys/kernel/random/uuid > /once\n");
        for (key, cached) in [(&ann, 0), (&ann, 2), (&bob, 0), (&bob, 2)] {
            let built = build(key, "secret");
            assert_eq!(built.code, 0, "{storage}: {built:?}");
            assert_eq!(built.stderr.matches("] CACHED ").count(), cached, "{storage}: {built:?}");
        }
        let once = |key: &str| {
            let spec = json!({ "template": "secret" });
            let (status, view) = ask(&daemon, key, "POST", "/api/v1/sandboxes", &spec);
            assert_eq!(status, 201, "{view}");
            daemon.root_sh(view["id"].as_str().expect("an id"), "cat /once").ok()
        };
        assert_ne!(once(&ann), once(&bob), "{storage}: the command ran for each of them");
        // Another's template is as if it were not there, by whichever way it is asked for.
        let made = import_as(&daemon, &ann, &image.docker_archive(), "no-such.invalid/hers", &[]);
        assert_eq!(made.code, 0, "{made:?}");
        for text in [
            "FROM no-such.invalid/hers\nRUN true\n",
            "FROM base\nCOPY --from=no-such.invalid/hers /etc/passwd /x\n",
        ] {
            write(text);
            let refused = build(&bob, "taken");
            assert_ne!(refused.code, 0, "{refused:?}");
            assert!(refused.stderr.contains("no such template here"), "{refused:?}");
            assert_eq!(own(&daemon, &bob).len(), 2, "{storage}");
            let allowed = build(&ann, "taken");
            assert_eq!(allowed.code, 0, "{allowed:?}");
        }
        let archive = context.path().join("context.tar");
        let packed = Command::new("tar")
            .arg("-cf")
            .arg(&archive)
            .arg("-C")
            .arg(context.path())
            .arg("Dockerfile")
            .status();
        assert!(packed.expect("tar runs").success());
        let sent = Command::new("curl")
            .args(["--silent", "--show-error", "-w", "\n%{http_code}", "-H"])
            .arg(format!("x-api-key: {bob}"))
            .args(["-H", "content-type: application/octet-stream", "--data-binary"])
            .arg(format!("@{}", archive.display()))
            .arg(format!("{}{TEMPLATES}/taken/build", daemon.url()))
            .output()
            .expect("curl runs");
        let said = String::from_utf8_lossy(&sent.stdout);
        assert!(said.ends_with("\n404") && said.contains("template_not_found"), "{said}");
        std::fs::remove_file(&archive).expect("it was made");
    }
}
