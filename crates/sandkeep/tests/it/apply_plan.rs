//! Plans for `apply` over the API, for clients in any language.

use std::collections::BTreeMap;
use std::io::Read as _;

use serde_json::{Value, json};

use crate::support::Daemon;

const FILL: &str = "mkdir -p p/sub; cd p; echo base > both; echo base > theirs; echo base > gone; echo base > sub/x; \
    ln -s both link";
const CHANGE: &str = "cd p; echo there > both; echo there > theirs; rm gone; rm -r sub; ln -sf theirs link; echo new > new; \
    mkdir deep; echo y > deep/y";

/// `echo TEXT` as a digest.
fn digest(text: &str) -> String {
    format!("sha256:{}", sandkeep_tree::digest::Digest::of(format!("{text}\n").as_bytes()).hex())
}

fn file(path: &str, text: &str) -> Value {
    let bytes = text.len() + 1;
    json!({ "path": path, "type": "file", "mode": "0640", "bytes": bytes, "digest": digest(text) })
}

/// A sandbox with changes since the snapshot `first`.
fn changed(daemon: &Daemon) -> String {
    let id = daemon.create();
    daemon.sh(&id, FILL).ok();
    daemon.expect(201, "POST", &path(&id, "snapshots"), &json!({ "name": "first" }));
    daemon.sh(&id, CHANGE).ok();
    id
}

fn path(id: &str, what: &str) -> String {
    format!("/api/v1/sandboxes/{id}/{what}")
}

fn plan(daemon: &Daemon, id: &str, more: &Value) -> Value {
    let mut asked = json!({ "path": "p", "from": "first" });
    let all = asked.as_object_mut().expect("an object");
    all.extend(more.as_object().expect("an object").clone());
    daemon.expect(200, "POST", &path(id, "apply/plan"), &asked)
}

/// The actions of a plan, as `ACTION PATH`.
fn actions(plan: &Value) -> Vec<String> {
    let all = plan["actions"].as_array().expect("a list").iter();
    all.map(|one| format!("{} {}", one["action"], one["path"]).replace('"', "")).collect()
}

fn paths(list: &Value) -> Vec<&str> {
    list.as_array().expect("a list").iter().filter_map(|one| one["path"].as_str()).collect()
}

fn whole_directory() -> Value {
    json!([
        file("both", "mine"),
        file("theirs", "base"),
        file("gone", "base"),
        { "path": "sub", "type": "directory", "mode": "0755" },
        file("sub/x", "base"),
        file("sub/own", "mine"),
        { "path": "link", "type": "symlink", "target": "both" },
        file("own", "mine"),
    ])
}

#[test]
fn a_manifest_of_a_directory_is_answered_with_steps_and_conflicts() {
    let daemon = crate::daemon!();
    let id = changed(&daemon);
    let planned = plan(&daemon, &id, &json!({ "files": whole_directory() }));
    let steps = [
        "remove sub/x",
        "remove gone",
        "make_directory deep",
        "write deep/y",
        "link link",
        "write new",
        "write theirs",
    ];
    assert_eq!(actions(&planned), steps, "{planned}");
    assert_eq!(paths(&planned["conflicts"]), ["both"], "{planned}");
    assert_eq!(paths(&planned["kept"]), ["sub"], "it holds a file of the caller");
    let theirs = planned["actions"].as_array().expect("a list").last().expect("a step");
    assert_eq!(theirs["digest"], json!(digest("there")));
    assert_eq!(theirs["mode"], "0640", "the caller's, because the sandbox did not change it");
    assert_eq!(theirs["source"], "/home/user/p/theirs");
    let read =
        daemon.fetch(&path(&id, "files?path=/home/user/p/theirs"), "*/*").expect("an answer");
    assert_eq!(read, (200, b"there\n".to_vec()), "where the content is");

    let taken = json!({ "files": whole_directory(), "on_conflict": "theirs" });
    assert!(actions(&plan(&daemon, &id, &taken)).contains(&"write both".to_owned()));
    let mut decided = whole_directory();
    decided[0]["on_conflict"] = json!("ours");
    let kept = plan(&daemon, &id, &json!({ "files": decided }));
    assert_eq!(
        (paths(&kept["conflicts"]), actions(&kept)),
        (vec![], steps.map(str::to_owned).to_vec())
    );
    let mut applied = whole_directory();
    applied[0]["as_applied"] = json!(true);
    let again = plan(&daemon, &id, &json!({ "files": applied }));
    assert!(actions(&again).contains(&"write both".to_owned()), "an apply after an apply: {again}");
    let mut same = whole_directory();
    same[0] = file("both", "there");
    assert_eq!(paths(&plan(&daemon, &id, &json!({ "files": same }))["same"]), ["both"]);
}

#[test]
fn with_a_list_only_what_is_listed_is_planned() {
    let daemon = crate::daemon!();
    let id = changed(&daemon);
    let files = json!([
        file("theirs", "base"),
        { "path": "deep/y", "type": "absent" },
        { "path": "deep", "type": "absent", "context": true },
        { "path": "new", "type": "absent", "context": true },
    ]);
    let planned = plan(&daemon, &id, &json!({ "files": files, "scope": "listed" }));
    assert_eq!(actions(&planned), ["make_directory deep", "write deep/y", "write theirs"]);
    assert_eq!(planned["left_out"], 7, "{planned}");
}

#[test]
fn the_archive_of_a_plan_has_its_files_and_no_others() {
    let daemon = crate::daemon!();
    let id = changed(&daemon);
    let asked = json!({ "path": "p", "from": "first", "files": whole_directory() }).to_string();
    let target = path(&id, "apply/plan?format=tar");
    let mut connection = daemon.connection().expect("it listens");
    let answer = connection.request("POST", &target, &asked).expect("an answer");
    assert_eq!(answer.status, 200);
    let mut archive = tar::Archive::new(answer.body.as_slice());
    let mut names = Vec::new();
    let mut content = BTreeMap::new();
    for entry in archive.entries().expect("a tar") {
        let mut entry = entry.expect("an entry");
        let name = entry.path().expect("a path").display().to_string();
        let mut text = String::new();
        entry.read_to_string(&mut text).expect("text");
        names.push(name.clone());
        content.insert(name, text);
    }
    let files = ["home/user/p/deep/y", "home/user/p/new", "home/user/p/theirs"];
    assert_eq!(names[0], "sandkeep-plan.json");
    names.sort();
    assert_eq!(names[..3], files, "{names:?}");
    assert_eq!(content["home/user/p/theirs"], "there\n");
    let told: Value = serde_json::from_str(&content["sandkeep-plan.json"]).expect("a plan");
    assert_eq!(paths(&told["conflicts"]), ["both"]);
}

#[test]
fn wrong_manifests_are_refused_with_what_is_wrong() {
    let daemon = crate::daemon!();
    let id = changed(&daemon);
    let before = daemon.sh(&id, "ls p").ok();
    let no_digest = json!([{ "path": "theirs", "type": "file" }]);
    let no_target = json!([{ "path": "link", "type": "symlink" }]);
    let twice = json!([{ "path": "a", "type": "absent" }, { "path": "./a", "type": "absent" }]);
    for (files, expected) in [
        (no_digest, "the digest of theirs is needed"),
        (no_target, "the target of link is needed"),
        (twice, "a is listed twice"),
        (json!([{ "path": "a", "type": "file", "mode": "9" }]), "octal"),
        (json!([{ "path": "a\u{0}", "type": "absent" }]), "NUL"),
    ] {
        let asked = json!({ "path": "p", "from": "first", "files": files });
        let refused = daemon.expect(400, "POST", &path(&id, "apply/plan"), &asked);
        let detail = refused["detail"].as_str().expect("a text");
        assert!(detail.contains(expected), "{expected}: {refused}");
    }
    let file = json!({ "path": "p/theirs", "from": "first", "files": [] });
    let refused = daemon.expect(400, "POST", &path(&id, "apply/plan"), &file);
    assert!(refused["detail"].as_str().is_some_and(|text| text.contains("is not a directory")));
    daemon.expect(
        404,
        "POST",
        &path(&id, "apply/plan"),
        &json!({ "from": "nowhere", "files": [] }),
    );
    assert_eq!(daemon.sh(&id, "ls p").ok(), before, "a plan changes nothing");
}
