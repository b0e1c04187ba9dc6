//! Real programs in a network namespace like a sandbox's, through the kernel's part of the way out.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, Output};
use std::sync::Arc;

use sandkeep_core::SandboxId;
use sandkeep_core::network::{DecisionKind, NetworkVerdict};
use sandkeep_sys::egress;
use serde_json::json;

use super::server::plain;
use super::world::*;
use crate::{Attachment, Recorder};

/// A network namespace, held by a process that does nothing else.
struct Inside {
    holder: std::process::Child,
    /// Beside the gateway's certificate.
    dir: tempfile::TempDir,
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

impl Inside {
    async fn new(world: &World, policy: serde_json::Value) -> (Self, Attachment) {
        // Its mounts are its own, so that it has its own list of resolvers.
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("resolv.conf"), "nameserver 198.18.0.1\n").expect("written");
        let bundle = world.gateway.bundle().expect("a bundle");
        std::fs::write(dir.path().join("bundle.pem"), bundle).expect("written");
        let script = "mount --bind \"$0/resolv.conf\" /etc/resolv.conf && touch \"$0/ready\" && exec sleep 600";
        let holder = Command::new("unshare")
            .args(["--net", "--mount", "sh", "-c", script])
            .arg(dir.path())
            .process_group(0)
            .spawn()
            .expect("unshare runs");
        let inside = Self { holder, dir };
        let ready = inside.dir.path().join("ready");
        until("the namespace is there", || ready.exists()).await;
        let of = format!("/proc/{}/ns/net", inside.holder.id());
        let network = std::fs::File::open(of).expect("its network");
        let sockets = egress::set_up(network.into()).await.expect("this kernel can");
        let log: Arc<dyn Recorder> = Arc::clone(&world.log) as _;
        let opened = world.gateway.open(SandboxId::random(), "acme", sockets, rules(policy), log);
        (inside, opened.expect("it opens"))
    }

    /// Runs a program inside.
    async fn run(&self, script: &str) -> Output {
        let mut command = Command::new("nsenter");
        command
            .args(["--net", "--mount", "--target", &self.holder.id().to_string()])
            .args(["timeout", "60", "sh", "-c", script])
            .env("SSL_CERT_FILE", self.dir.path().join("bundle.pem"))
            .env("CURL_CA_BUNDLE", self.dir.path().join("bundle.pem"));
        let ran = tokio::task::spawn_blocking(move || command.output());
        ran.await.expect("no panic").expect("nsenter runs")
    }

    async fn says(&self, script: &str) -> String {
        let ran = self.run(script).await;
        let (out, err) = (&ran.stdout, &ran.stderr);
        format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(err))
    }
}

#[tokio::test]
async fn programs_inside_reach_what_is_allowed_and_nothing_else() {
    let test = "programs_inside_reach_what_is_allowed_and_nothing_else";
    if !is_root(test) {
        return;
    }
    if let Err(lack) = egress::available() {
        return eprintln!("SKIP {test}: {lack}");
    }
    let hosts = [("a.example", 0), ("b.example", 1), ("ro.example", 2), ("c.example", 1)];
    let world = setup(json!({ "allow": [] }), &hosts).build();
    let _servers = (
        world.realm.https(0, "a.example", &["h2", "http/1.1"]).await,
        plain(1, 80).await,
        world.realm.https(2, "ro.example", &["h2", "http/1.1"]).await,
    );
    let policy = json!({ "allow": [
        "a.example", "b.example", { "host": "ro.example", "access": "read-only" },
    ] });
    let (inside, attachment) = Inside::new(&world, policy).await;
    for (script, part) in [
        ("curl -sS https://a.example/x", "GET https://a.example/x"),
        ("curl -sS --http1.1 https://a.example/x", "GET /x"),
        ("curl -sS http://b.example/x", "host: b.example"),
        ("curl -sS -6 http://b.example/x", "host: b.example"),
        ("curl -sS https://ro.example/x", "GET https://ro.example/x"),
        ("curl -sS -d hi https://ro.example/x", "read-only"),
        ("curl -sS -x http://198.18.0.1:3128 https://a.example/x", "GET https://a.example/x"),
        (
            "curl -sS -x http://198.18.0.1:3128 http://c.example/x",
            "no entry of the policy allows it",
        ),
        ("curl -sS http://c.example/", "curl: (6)"),
        ("curl -sS http://169.254.169.254/", "no entry of the policy allows it"),
        ("curl -sS -m 20 http://169.254.169.254:8080/", "curl: ("),
        ("curl -sS -m 20 --resolve x.example:443:1.1.1.1 https://x.example/", "curl: ("),
        ("curl -sS -m 20 http://198.18.0.1:61001/", "curl: ("),
        ("getent ahostsv4 a.example", "198.1"),
        ("getent ahosts c.example || echo none", "none"),
    ] {
        let said = inside.says(script).await;
        assert!(said.contains(part), "{script}: {said}");
    }
    let address = inside.says("getent ahostsv4 a.example").await;
    let address = address.split_whitespace().next().unwrap_or_default().to_owned();
    let name = attachment.name_of(address.parse().expect("an address"));
    assert_eq!(name.as_deref(), Some("a.example"), "{address}");
    let line = world.logged(DecisionKind::Name, NetworkVerdict::Denied, "").await;
    assert_eq!(line.name.as_deref(), Some("c.example"));
    let usage = attachment.usage();
    assert!(usage.queries > 0 && usage.connections > 0 && usage.refused > 0, "{usage:?}");
    // Without the gateway everything is refused at once.
    drop(attachment);
    let said = inside.says("curl -sS -m 20 http://1.2.3.4/").await;
    assert!(said.contains("curl: (7)"), "{said}");
}
