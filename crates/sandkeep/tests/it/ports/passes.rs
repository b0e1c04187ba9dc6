//! Signed URLs.

use std::os::unix::process::CommandExt;
use std::process::Command;

use serde_json::{Value, json};

use super::{PORT, Site, seen};
use crate::daemon;
use crate::support::{Patience, Raw, until};

/// A user other than the one who runs the daemon.
const STRANGER: u32 = 65_534;

/// Opens a URL as another user of this machine; the status, and the body.
fn as_stranger(address: &str, host: &str, target: &str) -> (u16, String) {
    const CLIENT: &str = "import http.client, sys\n\
        c = http.client.HTTPConnection(sys.argv[1])\n\
        c.request('GET', sys.argv[3], headers={'Host': sys.argv[2]})\n\
        r = c.getresponse(); print(r.status); print(r.read().decode())";
    let mut command = Command::new("python3");
    command.args(["-c", CLIENT, address, host, target]).uid(STRANGER).current_dir("/");
    let output = command.output().expect("python3 runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let (status, body) = said.split_once('\n').unwrap_or_else(|| panic!("{output:?}"));
    (status.parse().expect("a status"), body.to_owned())
}

impl Site<'_> {
    fn sign(&self, body: &Value) -> Value {
        self.daemon.expect(200, "POST", &self.path("/url"), body)
    }

    /// The target of a signed URL, which is for this host.
    fn signed(&self, body: &Value) -> String {
        let url = self.sign(body)["url"].as_str().expect("a URL").to_owned();
        let rest = url.strip_prefix(&format!("http://{}", self.host(PORT)));
        rest.unwrap_or_else(|| panic!("{url} is not on the port's host")).to_owned()
    }
}

#[test]
fn a_signed_url_lets_anybody_in_and_nothing_else_does() {
    let daemon = daemon!();
    let site = Site::open(&daemon);
    let (address, host) = (daemon.address().to_string(), site.host(PORT));
    let (status, body) = as_stranger(&address, &host, "/");
    assert_eq!(status, 403, "{body}");
    assert!(body.contains("foreign_peer"), "{body}");
    let target = site.signed(&json!({}));
    let (status, body) = as_stranger(&address, &host, &format!("{target}&x=1"));
    assert_eq!(status, 200, "{body}");
    assert!(body.contains(r#""target": "/?x=1""#) && !body.contains("sandkeep_token"), "{body}");
    let elsewhere = site.host(PORT + 1);
    assert_eq!(as_stranger(&address, &elsewhere, &target).0, 403, "it is for one port");
    let api = format!("/api/v1/sandboxes{target}");
    assert_eq!(as_stranger(&address, &address, &api).0, 403, "and not for the API");
    daemon.destroy(&site.id);
    assert_eq!(as_stranger(&address, &host, &target).0, 404, "it dies with the sandbox");
}

#[test]
fn a_browser_exchanges_a_signed_url_for_a_cookie_of_that_host() {
    let daemon = daemon!();
    let site = Site::open(&daemon);
    let token = site.signed(&json!({ "expires_secs": 600 })).split_off(2);
    let accept = "Accept: text/html\r\n";
    let moved = site.get(PORT, &format!("//evil.example/a?x=1&{token}"), accept);
    assert_eq!(moved.status, 303);
    let there = format!("http://{}//evil.example/a?x=1", site.host(PORT));
    assert_eq!(
        moved.header("location"),
        Some(there.as_str()),
        "on the same host, without the token"
    );
    let cookie = moved.header("set-cookie").expect("a cookie").to_owned();
    for part in ["; HttpOnly", "; SameSite=Lax", "; Path=/", "; Max-Age="] {
        assert!(cookie.contains(part), "{cookie}");
    }
    assert!(!cookie.to_lowercase().contains("domain"), "{cookie}");
    let kept = cookie.split(';').next().expect("a pair").to_owned();

    // As another user, for whom nothing but the cookie speaks.
    let ask = |host: &str, cookie: &str, more: &str| {
        let script = "import http.client, sys\n\
            c = http.client.HTTPConnection(sys.argv[1])\n\
            h = {'Host': sys.argv[2], 'Cookie': sys.argv[3]}\n\
            if sys.argv[4]: h['Origin'] = sys.argv[4]\n\
            c.request('GET', '/', headers=h)\n\
            r = c.getresponse(); print(r.status); print(r.read().decode())";
        let mut command = Command::new("python3");
        command.args(["-c", script, &daemon.address().to_string(), host, cookie, more]);
        let output = command.uid(STRANGER).current_dir("/").output().expect("python3 runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let said = ask(&site.host(PORT), &format!("a=1; {kept}"), "");
    assert!(said.starts_with("200") && said.contains(r#"["cookie", "a=1"]"#), "{said}");
    let tossed = format!("sandkeep_port=junk; {kept}");
    assert!(ask(&site.host(PORT), &tossed, "").starts_with("200"), "one good pass is enough");
    assert!(ask(&site.host(PORT + 1), &kept, "").starts_with("403"));
    assert!(ask(&daemon.address().to_string(), &kept, "").starts_with("403"));
    assert!(ask(&site.host(PORT), &kept, "http://evil.example").starts_with("403"));
}

#[test]
fn a_changed_or_expired_url_says_so() {
    let daemon = daemon!();
    let site = Site::open(&daemon);
    let target = site.signed(&json!({ "expires_secs": 1 }));
    let mut forged = target.clone();
    let last = if forged.pop() == Some('A') { 'B' } else { 'A' };
    forged.insert(forged.len() - 10, last);
    let reply = site.get(PORT, &forged, "");
    assert_eq!((reply.status, &reply.json()["code"]), (403, &"url_forged".into()));
    until("the URL expires", Patience::Short, || {
        site.get(PORT, &target, "").json()["code"] == "url_expired"
    });
    let page = site.get(PORT, &target, "Accept: text/html\r\n");
    assert!(page.status == 403 && page.text().contains("expired"), "{}", page.text());
    for wrong in [json!({ "expires_secs": 0 }), json!({ "expires_secs": 604_801 })] {
        let refused = daemon.expect(400, "POST", &site.path("/url"), &wrong);
        assert_eq!(refused["code"], "invalid_field");
    }
}

#[test]
fn a_signed_url_outlives_the_daemon() {
    let mut daemon = daemon!();
    let (id, token) = {
        let site = Site::open(&daemon);
        (site.id.clone(), site.signed(&json!({})))
    };
    daemon.kill_9();
    daemon.start_again(&crate::support::Setup::default());
    let site = Site { daemon: &daemon, id };
    let mut raw = Raw::open(daemon.address());
    let head = format!("GET {token} HTTP/1.1\r\nHost: {}\r\n\r\n", site.host(PORT));
    let reply = raw.send(head.as_bytes()).reply("GET");
    assert_eq!(seen(&reply, "host"), [site.host(PORT)]);
}
