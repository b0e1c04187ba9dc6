//! Owners of templates: a template is private to its owner; a shared one is for all and only an admin may change it.

use serde_json::{Value, json};

use super::images::{self, Image};
use super::names;
use crate::keys::{create_key, key_of, with_admin};
use crate::skip_if;
use crate::support::{Daemon, Ran, Setup, binary};

pub fn import_as(
    daemon: &Daemon,
    key: &str,
    path: &std::path::Path,
    name: &str,
    more: &[&str],
) -> Ran {
    let mut command = binary();
    command.args(["template", "import"]).arg(path).args(["--name", name]).args(more);
    command.env("SANDKEEP_URL", daemon.url()).env("SANDKEEP_API_KEY", key);
    command.output().expect("the binary runs").into()
}

pub fn ask(daemon: &Daemon, key: &str, method: &str, target: &str, body: &Value) -> (u16, Value) {
    daemon.request_with(&[("x-api-key", key)], method, target, body).expect("an answer")
}

#[test]
fn templates_are_their_owners_or_everybodys() {
    skip_if!(images::obstacle());
    let daemon = with_admin(&Setup::default());
    let key = |organization: &str, more: &[&str]| {
        key_of(&create_key(&daemon.data_dir(), organization, "someone", more)).to_owned()
    };
    let (ann, bob, admin) = (key("ann", &[]), key("bob", &[]), key("ops", &["--scope", "admin"]));
    let (busybox, tool) = (Image::busybox(), Image::one_program());
    let made = import_as(&daemon, &ann, &busybox.docker_archive(), "mine", &[]);
    assert_eq!(made.code, 0, "{made:?}");
    // Another tenant sees nothing of it.
    assert_eq!(ask(&daemon, &bob, "GET", "/api/v1/templates/mine", &Value::Null).0, 404);
    assert_eq!(ask(&daemon, &bob, "DELETE", "/api/v1/templates/mine", &Value::Null).0, 404);
    let create = json!({ "template": "mine" });
    let (status, refused) = ask(&daemon, &bob, "POST", "/api/v1/sandboxes", &create);
    assert_eq!((status, &refused["code"]), (400, &json!("unknown_template")));
    assert!(!refused["detail"].as_str().expect("words").contains("mine\","), "{refused}");
    let (_, listing) = ask(&daemon, &bob, "GET", "/api/v1/templates", &Value::Null);
    assert!(!listing.to_string().contains("mine"), "{listing}");
    // Only an admin makes one for all.
    let refused = import_as(&daemon, &ann, &tool.docker_archive(), "all", &["--shared"]);
    assert!(refused.complaint().contains("admin"), "{refused:?}");
    let made = import_as(&daemon, &admin, &tool.docker_archive(), "all", &["--shared"]);
    assert_eq!(made.code, 0, "{made:?}");
    let (status, view) =
        ask(&daemon, &bob, "POST", "/api/v1/sandboxes", &json!({ "template": "all" }));
    assert_eq!(status, 201, "{view}");
    let (status, refused) = ask(&daemon, &bob, "DELETE", "/api/v1/templates/all", &Value::Null);
    assert_eq!((status, &refused["code"]), (403, &json!("template_shared")));
    let (status, refused) = ask(&daemon, &admin, "DELETE", "/api/v1/templates/all", &Value::Null);
    assert_eq!((status, &refused["code"]), (409, &json!("template_in_use")), "{refused}");
    // An own one of the same name comes first.
    let made = import_as(&daemon, &ann, &busybox.docker_archive(), "all", &[]);
    assert_eq!(made.code, 0, "{made:?}");
    let (_, shown) = ask(&daemon, &ann, "GET", "/api/v1/templates/all", &Value::Null);
    assert_eq!((&shown["shared"], &shown["config"]["user"]), (&json!(false), &json!("app")));
    let (_, shown) = ask(&daemon, &bob, "GET", "/api/v1/templates/all", &Value::Null);
    assert_eq!(shown["shared"], true);
    assert_eq!(names(&daemon).len(), 3, "an admin sees all of them");
}

#[test]
fn paths_of_the_host_are_for_its_own_user_or_beneath_the_roots() {
    skip_if!(images::obstacle());
    let (open, closed) = (Image::busybox(), Image::busybox());
    let (open, closed) = (open.docker_archive(), closed.docker_archive());
    let kept = Image::busybox();
    let archive = kept.docker_archive();
    let root = archive.parent().expect("a directory").to_str().expect("text");
    let daemon = with_admin(&Setup::default().argument("--source-roots").argument(root));
    let ask = |path: &std::path::Path| {
        let body = json!({ "name": "x", "source": { "docker_archive": path } });
        daemon.request("POST", "/api/v1/templates", &body)
    };
    for path in [&open, &closed] {
        let (status, refused) = ask(path);
        assert_eq!((status, &refused["code"]), (403, &json!("source_forbidden")), "{refused}");
    }
    let (status, made) = ask(&archive);
    assert_eq!(status, 201, "{made}");
}
