//! Templates: images become sandboxes, and sandboxes templates, on each storage. An image's settings for users,
//! directories, variables and commands apply; a template in use cannot be removed, and other owners' templates are
//! invisible.

mod claims;
pub mod images;
#[cfg(feature = "failpoints")]
mod killed;
pub mod owners;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::skip_if;
use crate::support::{Daemon, Ran, Setup, binary};
use images::Image;

#[cfg(feature = "failpoints")]
pub use killed::points as killed_at;

const STORAGES: [&str; 2] = ["btrfs", "local"];

fn on(storage: &str) -> Setup {
    Setup::default().argument("--storage").argument(storage)
}

/// `sandkeep template …` against a daemon.
fn template(daemon: &Daemon, arguments: &[&str]) -> Ran {
    let mut command = binary();
    command.arg("template").args(arguments).env("SANDKEEP_URL", daemon.url());
    command.output().expect("the binary runs").into()
}

/// Imports a file or directory by the command line; the template as it is shown.
pub fn import(daemon: &Daemon, path: &Path, name: &str) -> Value {
    let path = path.to_str().expect("text");
    let ran = template(daemon, &["import", path, "--name", name, "--json"]);
    assert_eq!(ran.code, 0, "{ran:?}\n{}", daemon.said());
    serde_json::from_str(&ran.stdout).unwrap_or_else(|e| panic!("{e}: {ran:?}"))
}

fn create(daemon: &Daemon, template: &str) -> String {
    daemon.create_with(&json!({ "template": template }))
}

/// All names that there are, but for those that are built in.
fn names(daemon: &Daemon) -> Vec<String> {
    let listing = daemon.expect(200, "GET", "/api/v1/templates", &Value::Null);
    let items = listing["items"].as_array().expect("items").iter();
    let own = items.filter(|item| item["source"] != "built-in");
    own.map(|item| item["name"].as_str().expect("a name").to_owned()).collect()
}

/// The layers that a storage has, and those that it was making.
fn layers(daemon: &Daemon, storage: &str) -> Vec<PathBuf> {
    let storages = daemon.data_dir().join("storage");
    let places = match storage {
        "btrfs" => vec![storages.join("btrfs/layers")],
        _ => vec![storages.join("local/.layers"), storages.join("local/.drafts")],
    };
    let entries =
        places.into_iter().flat_map(|place| std::fs::read_dir(place).into_iter().flatten());
    let mut found: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    found.sort();
    found
}

/// A sandbox of the busybox image is what its config says.
fn assert_runs_as_configured(daemon: &Daemon, id: &str) {
    assert_eq!(daemon.get(id)["privilege"], "root");
    let said = daemon.sh(id, "id; pwd; echo $GREETING $HOME $USER; cat greeting");
    let expected = "uid=1001(app) gid=1002(app) groups=50(staff),1002(app)\n/srv/data\nhello /home/app app\n\
                    hello from the image";
    assert_eq!(said.ok(), expected);
    let own = daemon.exec(id, &json!({}));
    assert_eq!(own.ok(), "hello from the image", "its own command");
    assert_eq!(own.answer["outcome"], "exited");
    assert_eq!(daemon.sh(id, "ls /etc/old").exit_code, Some(1), "a whiteout hides it");
    assert!(daemon.sh(id, "cat /etc/hosts").ok().contains("localhost"));
    let as_root = daemon.exec(id, &json!({ "argv": ["id"], "user": "root", "cwd": "/" }));
    assert!(as_root.ok().starts_with("uid=0(root) gid=0(root) groups=0(root)"), "{as_root:?}");
    daemon.root_sh(id, "echo mine > /srv/data/greeting; chmod 600 /srv/data/greeting").ok();
    assert_eq!(daemon.sh(id, "cat greeting").exit_code, Some(1), "root's file is root's");
}

#[test]
fn an_image_that_docker_saved_runs_as_it_says_on_every_storage() {
    skip_if!(images::obstacle());
    let image = Image::busybox();
    for storage in STORAGES {
        let daemon = Daemon::start_with(&on(storage));
        let shown = import(&daemon, &image.docker_archive(), "test/image:1");
        assert_eq!((&shown["name"], &shown["shared"]), (&json!("test/image:1"), &json!(false)));
        assert_eq!(shown["layers"].as_array().map(Vec::len), Some(2), "{shown}");
        assert!(shown["bytes"].as_u64().expect("a size") > 500_000, "{shown}");
        assert_eq!(shown["config"]["user"], "app", "{shown}");
        let id = create(&daemon, "test/image:1");
        assert_runs_as_configured(&daemon, &id);
        // The second sandbox has nothing of the first.
        let other = create(&daemon, "test/image:1");
        assert_eq!(daemon.sh(&other, "cat greeting").ok(), "hello from the image", "{storage}");
        daemon.verb(&id, "stop");
        daemon.verb(&id, "start");
        assert_eq!(daemon.root_sh(&id, "cat /srv/data/greeting").ok(), "mine", "{storage}");
    }
}

#[test]
fn a_layout_a_tar_and_a_directory_become_templates_too() {
    skip_if!(images::obstacle());
    let image = Image::busybox();
    for storage in STORAGES {
        let daemon = Daemon::start_with(&on(storage));
        let shown = import(&daemon, &image.oci_layout(), "layout");
        assert_runs_as_configured(&daemon, &create(&daemon, "layout"));
        let saved = import(&daemon, &image.docker_archive(), "saved");
        assert_eq!(shown["layers"], saved["layers"], "one image, one set of layers");
        for (path, name) in [(image.plain_tar(), "tar"), (image.directory(), "dir")] {
            import(&daemon, &path, name);
            let id = create(&daemon, name);
            let said = daemon.sh(&id, "id -u; pwd; cat /etc/old").ok();
            assert_eq!(said, "0\n/\nbelow", "{name} on {storage}: without a config root is at /");
        }
    }
}

#[test]
fn ports_are_listed_where_no_program_of_the_image_could_tell_them() {
    skip_if!(images::obstacle());
    let daemon = Daemon::start();
    import(&daemon, &Image::busybox().docker_archive(), "image");
    let id = create(&daemon, "image");
    let serve = "/bin/busybox httpd -p 127.0.0.1:8123 -h /tmp && /bin/busybox rm /bin/cat";
    daemon.root_sh(&id, serve).ok();
    let target = format!("/api/v1/sandboxes/{id}/ports");
    let listing = daemon.expect(200, "GET", &target, &Value::Null);
    let ports = listing["items"].as_array().expect("items");
    let found =
        ports.iter().find(|item| item["port"] == 8123).unwrap_or_else(|| panic!("{listing}"));
    assert_eq!(found["open"], true, "{listing}");
}

#[test]
fn users_are_those_of_the_image_by_name_or_number() {
    skip_if!(images::obstacle());
    let daemon = Daemon::start();
    import(&daemon, &Image::busybox().docker_archive(), "image");
    let id = create(&daemon, "image");
    for (user, expected) in [
        ("app", "uid=1001(app) gid=1002(app) groups=50(staff),1002(app)"),
        ("1001", "uid=1001(app) gid=1002(app) groups=50(staff),1002(app)"),
        ("app:wheel", "uid=1001(app) gid=10(wheel)"),
        ("1001:50", "uid=1001(app) gid=50(staff)"),
        ("4242", "uid=4242 gid=0(root)"),
        ("4242:4343", "uid=4242 gid=4343"),
    ] {
        let said = daemon.exec(&id, &json!({ "argv": ["id"], "user": user, "cwd": "/" })).ok();
        assert!(said.starts_with(expected), "{user}: {said}");
    }
    let home = json!({ "command": "echo $HOME", "user": "4242", "cwd": "/" });
    assert_eq!(daemon.exec(&id, &home).ok(), "/", "whom nobody knows is at home in the root");
    for (user, clue) in [("nobody", "/etc/passwd"), ("app:nogroup", "/etc/group")] {
        let refused = daemon.exec(&id, &json!({ "argv": ["id"], "user": user }));
        assert_eq!(refused.exit_code, Some(126), "{refused:?}");
        let error = refused.answer["error"].as_str().expect("words");
        assert!(error.contains(clue) && error.contains("give a"), "{error}");
    }
    let shell = daemon.expect(201, "POST", &format!("/api/v1/sandboxes/{id}/shells"), &json!({}));
    assert_eq!((&shell["user"], &shell["shell"]), (&json!("app"), &json!("sh")), "{shell}");
}

#[test]
fn an_image_of_one_program_runs_it_and_says_that_it_has_no_shell() {
    skip_if!(images::obstacle());
    for storage in STORAGES {
        let daemon = Daemon::start_with(&on(storage));
        import(&daemon, &Image::one_program().docker_archive(), "tool");
        let id = create(&daemon, "tool");
        assert_eq!(daemon.exec(&id, &json!({})).ok(), "from nothing", "{storage}");
        let ids = json!({ "argv": ["/busybox", "id"], "user": "77" });
        assert_eq!(daemon.exec(&id, &ids).ok(), "uid=77 gid=0");
        let named = daemon.exec(&id, &json!({ "argv": ["/busybox", "id"], "user": "root" }));
        let error = named.answer["error"].as_str().expect("words");
        assert!(error.contains("the sandbox has no /etc/passwd"), "{error}");
        let shells = format!("/api/v1/sandboxes/{id}/shells");
        let refused = daemon.expect(400, "POST", &shells, &json!({}));
        let detail = refused["detail"].as_str().expect("words");
        assert!(detail.contains("neither bash nor sh"), "{refused}");
        let command = daemon.sh(&id, "true");
        assert_eq!(command.exit_code, Some(127), "{command:?}");
    }
}

#[test]
fn a_sandbox_becomes_a_template_running_or_stopped() {
    skip_if!(images::obstacle());
    for storage in STORAGES {
        let daemon = Daemon::start_with(&on(storage));
        import(&daemon, &Image::busybox().docker_archive(), "base");
        for base in ["host", "base"] {
            let id = create(&daemon, base);
            daemon
                .sh(&id, "echo kept > ~/note; (while :; do touch ~/beat; done) >/dev/null 2>&1 &")
                .ok();
            let running = template(&daemon, &["from", &id, "--name", "taken/running"]);
            assert_eq!(running.code, 0, "{running:?}\n{}", daemon.said());
            daemon.verb(&id, "stop");
            let stopped = json!({ "name": "taken/stopped", "source": { "sandbox": id } });
            daemon.expect(201, "POST", "/api/v1/templates", &stopped);
            let before = daemon.get(&id);
            daemon.destroy(&id);
            for name in ["taken/running", "taken/stopped"] {
                let copy = create(&daemon, name);
                assert_eq!(
                    daemon.sh(&copy, "cat ~/note").ok(),
                    "kept",
                    "{name} of {base} on {storage}"
                );
                let user = daemon.sh(&copy, "id -un").ok();
                assert_eq!(user, if base == "host" { "user" } else { "app" });
                assert_eq!(daemon.get(&copy)["privilege"], before["privilege"]);
                daemon.destroy(&copy);
            }
        }
    }
}

#[test]
fn one_in_use_stays_and_what_nobody_needs_goes() {
    skip_if!(images::obstacle());
    for storage in STORAGES {
        let daemon = Daemon::start_with(&on(storage));
        let image = Image::busybox();
        import(&daemon, &image.docker_archive(), "a/b:1");
        let id = create(&daemon, "a/b:1");
        let target = "/api/v1/templates/a%2Fb:1";
        let refused = daemon.expect(409, "DELETE", target, &Value::Null);
        assert_eq!(refused["code"], "template_in_use", "{refused}");
        assert!(refused["detail"].as_str().expect("words").contains(&id), "{refused}");
        // Another image under the same name: the sandbox stays what it was made as.
        import(&daemon, &Image::one_program().docker_archive(), "a/b:1");
        daemon.verb(&id, "stop");
        daemon.verb(&id, "start");
        assert_eq!(daemon.exec(&id, &json!({})).ok(), "hello from the image", "{storage}");
        daemon.expect(204, "DELETE", target, &Value::Null);
        daemon.expect(404, "GET", target, &Value::Null);
        daemon.verb(&id, "stop");
        daemon.verb(&id, "start");
        assert_eq!(daemon.exec(&id, &json!({})).ok(), "hello from the image", "{storage}");
        let unknown =
            daemon.expect(400, "POST", "/api/v1/sandboxes", &json!({ "template": "a/b:1" }));
        assert_eq!(unknown["code"], "unknown_template", "{unknown}");
        assert!(unknown["detail"].as_str().expect("words").contains("host"), "{unknown}");
    }
}

#[test]
fn an_import_tells_how_far_it_is() {
    skip_if!(images::obstacle());
    let daemon = Daemon::start();
    let body = json!({
        "name": "watched",
        "source": { "docker_archive": Image::busybox().docker_archive() },
    });
    // The archive is gone by now: what was wrong is told by the last event.
    let connection = daemon.connection().expect("it listens");
    let (status, lines) =
        connection.stream("POST", "/api/v1/templates?stream=true", &body.to_string()).expect("it");
    let said: Vec<String> = lines.map_while(Result::ok).collect();
    assert_eq!(status, 400, "{said:?}");
    let image = Image::busybox();
    let body = json!({ "name": "watched", "source": { "docker_archive": image.docker_archive() } });
    let connection = daemon.connection().expect("it listens");
    let (status, lines) =
        connection.stream("POST", "/api/v1/templates?stream=true", &body.to_string()).expect("it");
    assert_eq!(status, 200);
    let events: Vec<Value> =
        lines.map_while(Result::ok).map(|line| serde_json::from_str(&line).expect(&line)).collect();
    let last = events.last().expect("an event");
    assert_eq!((&last["type"], &last["template"]["name"]), (&json!("done"), &json!("watched")));
    assert!(
        events[..events.len() - 1].iter().all(|event| event["type"] == "progress"),
        "{events:?}"
    );
    assert_eq!(names(&daemon), ["watched"]);
}

#[test]
fn what_is_no_image_is_refused_and_leaves_nothing() {
    skip_if!(images::obstacle());
    let daemon = Daemon::start();
    let place = tempfile::tempdir().expect("a directory");
    let nonsense = place.path().join("nonsense.tar");
    std::fs::write(&nonsense, vec![7; 10_000]).expect("a file");
    let archive = Image::busybox().docker_archive();
    let image = Image::busybox();
    let whole = std::fs::read(image.docker_archive()).expect("an archive");
    let cut = place.path().join("cut.tar");
    std::fs::write(&cut, &whole[..whole.len() / 2]).expect("a file");
    for path in [&nonsense, &cut] {
        let ran = template(&daemon, &["import", path.to_str().expect("text"), "--name", "bad"]);
        assert_ne!(ran.code, 0, "{ran:?}");
    }
    assert!(!archive.exists(), "it went with its image");
    let ran = template(&daemon, &["import", archive.to_str().expect("text"), "--name", "bad"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    for (name, clue) in [("host", "built in"), ("../x", "name")] {
        let body = json!({ "name": name, "source": { "dir": "/" } });
        let refused = daemon.expect(400, "POST", "/api/v1/templates", &body);
        assert!(refused["detail"].as_str().expect("words").contains(clue), "{refused}");
    }
    assert!(names(&daemon).is_empty());
}
