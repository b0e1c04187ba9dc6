//! Builds: a RUN reaches what the policy of the build allows, and a template can have a policy for its sandboxes.

use serde_json::{Value, json};
use tempfile::TempDir;

use super::upstream::{Authority, Upstream, World};
use crate::skip_if;
use crate::support::{Daemon, Ran, binary, obstacle};

/// A directory with this build file.
fn context(file: &str) -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("Dockerfile"), file).expect("a file");
    dir
}

fn build(daemon: &Daemon, context: &TempDir, options: &[&str]) -> Ran {
    let mut build = binary();
    build.args(["template", "build", "-t", "app"]).args(options).arg(context.path());
    build.env("SANDKEEP_URL", daemon.url()).output().expect("the binary runs").into()
}

fn fetching(url: &str) -> TempDir {
    context(&format!("FROM host\nRUN curl -sS --max-time 20 {url} > /home/user/got\n"))
}

/// A build over the API, with these parameters besides its name.
fn posted(daemon: &Daemon, status: u16, context: &TempDir, query: &[(&str, &str)]) -> Value {
    let archive = context.path().join("context.tar");
    let packed = std::process::Command::new("tar")
        .arg("cf")
        .arg(&archive)
        .arg("-C")
        .arg(context.path())
        .arg("Dockerfile")
        .status()
        .expect("tar runs");
    assert!(packed.success());
    let mut curl = std::process::Command::new("curl");
    curl.args(["-sS", "-X", "POST", "--data-binary"]).arg(format!("@{}", archive.display()));
    curl.args(["-H", "content-type: application/octet-stream", "-w", "\n%{http_code}"]);
    let query: Vec<String> =
        query.iter().map(|(name, value)| format!("{name}={}", percent(value))).collect();
    curl.arg(format!("{}/api/v1/templates/app/build?{}", daemon.url(), query.join("&")));
    let answer = curl.output().expect("curl runs");
    let text = String::from_utf8(answer.stdout).expect("text");
    let (body, code) = text.rsplit_once('\n').expect("a status");
    assert_eq!(code, status.to_string(), "{body}");
    serde_json::from_str(body).expect("JSON")
}

fn percent(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02x}")).collect()
}

#[test]
fn a_step_reaches_what_the_policy_of_its_build_allows_and_nothing_else() {
    skip_if!(obstacle());
    let (server, world) = (Upstream::http(), World::new());
    let daemon = world.daemon();
    let fetch = fetching(&server.url("a.test"));
    let without = build(&daemon, &fetch, &[]);
    assert_ne!(without.code, 0, "{without:?}");
    assert!(server.requests().is_empty());
    let (a, b) = (server.entry("a.test"), server.entry("b.test"));
    let other = build(&daemon, &fetch, &["--allow", &b]);
    assert_ne!(other.code, 0, "{other:?}");
    assert!(other.stderr.contains("network: refused a.test"), "{other:?}");
    assert!(server.requests().is_empty());
    let allowed = build(&daemon, &fetch, &["--allow", &a]);
    assert_eq!(allowed.code, 0, "{allowed:?}\n{}", daemon.said());
    assert_eq!(server.requests().len(), 1);
    let id = daemon.create_with(&json!({ "template": "app" }));
    assert_eq!(daemon.sh(&id, "cat /home/user/got").ok(), "hello");
    assert!(!daemon.reaches(&id, &server.url("a.test")), "the policy was that of the build");
    // Another policy is another step; the same one is the same step.
    assert_eq!(build(&daemon, &fetch, &["--allow", &a]).code, 0);
    assert_eq!(server.requests().len(), 1, "a cached step was run again");
    assert_ne!(build(&daemon, &fetch, &[]).code, 0, "a step without a network had its result");
    let wide = build(&daemon, &fetch, &["--allow", "*.test", "--allow", &a, "--deny", "a.test"]);
    assert_ne!(wide.code, 0, "deny wins: {wide:?}");
    daemon.destroy(&id);
    daemon.assert_no_leaks();
}

#[test]
fn a_build_reads_requests_where_its_policy_has_rules_and_leaves_no_certificate() {
    skip_if!(obstacle());
    let authority = Authority::new();
    let (server, world) = (authority.https(&["api.test"]), World::new().trusting(&authority));
    let daemon = world.daemon();
    let url = format!("https://{}/", server.entry("api.test"));
    let file = format!(
        "FROM host\nRUN curl -fsS --max-time 20 {url} > /home/user/got && test -s \"$SSL_CERT_FILE\" && \
         ! curl -fsS --max-time 20 -X POST {url}\n"
    );
    let rule = json!({ "allow": [{ "host": server.entry("api.test"), "access": "read-only" }] });
    posted(&daemon, 201, &context(&file), &[("network", &rule.to_string())]);
    let got: Vec<String> = server.requests();
    assert!(got.len() == 1 && got[0].starts_with("GET "), "{got:?}");
    let id = daemon.create_with(&json!({ "template": "app" }));
    assert_eq!(daemon.sh(&id, "cat /home/user/got").ok(), "hello");
    assert_eq!(daemon.root_sh(&id, "ls -A /run/sandkeep 2>/dev/null || echo gone").ok(), "gone");
}

#[test]
fn what_a_build_cannot_have_is_refused_before_it_begins() {
    skip_if!(obstacle());
    let world = World::new();
    let ceiling = r#"--egress-ceiling={"allow":["*.test"]}"#;
    let daemon = Daemon::start_with(&world.setup.clone().argument(ceiling));
    let file = context("FROM host\nRUN true\n");
    let refuse = |status: u16, code: &str, words: &str, query: &[(&str, &str)]| {
        let problem = posted(&daemon, status, &file, query);
        assert_eq!(problem["code"], code, "{problem}");
        assert!(problem["detail"].as_str().is_some_and(|text| text.contains(words)), "{problem}");
    };
    refuse(400, "invalid_field", "ask", &[("network", r#"{"allow":[],"on_deny":"ask"}"#)]);
    refuse(403, "network_over_ceiling", "*", &[("network", "open")]);
    refuse(403, "network_over_ceiling", "*", &[("default_network", "open")]);
    refuse(400, "invalid_query", "network", &[("network", "some")]);
    refuse(400, "invalid_field", "presets are", &[("network", r#"{"allow":["pyton"]}"#)]);
    let listed = daemon.expect(200, "GET", "/api/v1/templates", &Value::Null);
    assert!(!listed.to_string().contains("\"app"), "{listed}");
}

#[test]
fn a_template_has_the_policy_that_its_creator_chose_and_never_a_secret() {
    skip_if!(obstacle());
    let (server, world) = (Upstream::http(), World::new());
    let mut daemon = world.daemon();
    let (a, b) = (server.entry("a.test"), server.entry("b.test"));
    let source = daemon.create_with(&json!({
        "network": { "allow": [a, b] },
        "secrets": { "TOKEN": { "hosts": [b], "value": "hush-of-the-source" } },
    }));
    daemon.sh(&source, "printf %s \"$TOKEN\" > /tmp/was").ok();
    let make = |status: u16, name: &str, network: Option<Value>| {
        let mut body = json!({ "name": name, "source": { "sandbox": source } });
        if let Some(network) = network {
            body["network"] = network;
        }
        daemon.expect(status, "POST", "/api/v1/templates", &body)
    };
    let plain = make(201, "plain", None);
    assert!(plain.get("network").is_none(), "{plain}");
    let with = make(201, "with", Some(json!({ "allow": [a] })));
    assert_eq!(with["network"], json!({ "allow": [a] }));
    make(400, "wrong", Some(json!({ "allow": ["pyton"] })));
    daemon.kill_9();
    daemon.start_again(&world.setup);
    let id = daemon.create_with(&json!({ "template": "plain" }));
    assert_eq!(daemon.network(&id)["policy"], "none", "the policy of the source stays with it");
    let id = daemon.create_with(&json!({ "template": "with" }));
    assert!(daemon.reaches(&id, &server.url("a.test")));
    assert!(!daemon.reaches(&id, &server.url("b.test")));
    let network = daemon.network(&id);
    assert_eq!(network["secrets"], json!({}), "{network}");
    assert_eq!(daemon.sh(&id, "printf %s \"${TOKEN-none}\"").ok(), "none");
    let own = json!({ "template": "with", "network": "none" });
    let none = daemon.create_with(&own);
    assert!(!daemon.reaches(&none, &server.url("a.test")), "what the request says wins");
    let found = std::process::Command::new("grep")
        .args(["-rlaF", "hush-of-the-source"])
        .arg(daemon.data_dir())
        .output()
        .expect("grep runs");
    assert_eq!(String::from_utf8_lossy(&found.stdout), "");
    // The same on the command line.
    let option = format!("--default-network={a}");
    let built = build(&daemon, &context("FROM host\nRUN true\n"), &[&option]);
    assert_eq!(built.code, 0, "{built:?}");
    let id = daemon.create_with(&json!({ "template": "app" }));
    assert!(daemon.reaches(&id, &server.url("a.test")));
}
