//! Ports of a daemon with keys.

use serde_json::{Value, json};

use super::{APP, PORT, Site, seen};
use crate::keys::{create_key, key_of, keys, with_admin};
use crate::skip_if;
use crate::support::{Daemon, Raw, Setup};

/// A sandbox of the admin, whose server runs as a process.
pub fn site(daemon: &Daemon) -> Site<'_> {
    let id = daemon.create();
    daemon.exec(&id, &json!({ "command": "cat > app.py", "stdin": APP })).ok();
    let body = json!({
        "argv": ["python3", "app.py", PORT.to_string()],
        "port": PORT,
        "ready": { "http_path": "/", "timeout_secs": 60 },
    });
    let target = format!("/api/v1/sandboxes/{id}/processes");
    let process = daemon.expect(201, "POST", &target, &body);
    assert_eq!(process["status"], "running", "{process:#}");
    assert!(process.get("address").is_none(), "raw ports are for daemons without keys");
    Site { daemon, id }
}

#[test]
fn with_keys_a_port_is_for_those_whose_key_may_see_the_sandbox() {
    skip_if!(crate::support::obstacle());
    let daemon = with_admin(&Setup::default());
    let site = site(&daemon);
    let key = |user: &str, scope: &str| {
        let made = create_key(&daemon.data_dir(), "ops", user, &["--scope", scope]);
        format!("Authorization: Bearer {}\r\n", key_of(&made))
    };
    let nobody = site.get(PORT, "/docs", "");
    assert_eq!((nobody.status, &nobody.json()["code"]), (401, &"unauthenticated".into()));
    assert!(nobody.header("www-authenticate").is_some());
    assert_eq!(site.get(PORT, "/", "X-API-Key: sk_nonsense\r\n").status, 401);
    assert_eq!(site.get(PORT, "/", &key("stranger", "write")).status, 404);
    let owner = key("root", "write");
    let reply = site.get(PORT, "/", &format!("{owner}Origin: https://any.example\r\n"));
    assert_eq!(seen(&reply, "authorization"), Vec::<String>::new());
    let reader = key("root", "read");
    assert_eq!(site.get(PORT, "/", &reader).status, 200);
    let more = format!("{reader}Content-Length: 0\r\n");
    let refused = site.ask("POST", &site.host(PORT), "/", &more);
    assert_eq!((refused.status, &refused.json()["code"]), (403, &"forbidden".into()));

    let raw = daemon.expect(403, "POST", &site.path("/listen"), &Value::Null);
    assert_eq!(raw["code"], "local_only");
    let signed = daemon.expect(200, "POST", &site.path("/url"), &Value::Null);
    let url = signed["url"].as_str().expect("a URL");
    let target = url.strip_prefix(&format!("http://{}", site.host(PORT))).expect("its host");
    assert_eq!(site.get(PORT, target, "").status, 200, "a signed URL needs no key");
}

#[test]
fn a_revoked_key_ends_its_streams_through_ports() {
    skip_if!(crate::support::obstacle());
    let daemon = with_admin(&Setup::default());
    let site = site(&daemon);
    let ways = [(site.host(PORT), "/stream".to_owned()), {
        (daemon.address().to_string(), site.path("/stream"))
    }];
    for (host, target) in ways {
        let made = create_key(&daemon.data_dir(), "ops", "root", &["--scope", "read"]);
        let mut raw = Raw::open(daemon.address());
        let bearer = format!("Authorization: Bearer {}", key_of(&made));
        raw.send(format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n{bearer}\r\n\r\n").as_bytes());
        assert_eq!(raw.head().status, 200, "{target}");
        assert_eq!(raw.chunk().as_deref(), Some(&b"data: one\n\n"[..]));
        let id = made["id"].as_str().expect("an id");
        assert_eq!(keys(&daemon.data_dir(), &["revoke", id]).code, 0);
        assert_eq!(raw.rest(), b"", "{target}: it is cut, not ended");
    }
}
