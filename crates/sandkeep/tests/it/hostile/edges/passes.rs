//! Port tokens and responses of servers in sandboxes, and how long signed URLs last.

use std::io::{ErrorKind, Read as _};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use serde_json::json;

use crate::keys::{create_key, key_of, keys, with_admin};
use crate::ports::{PORT, Site, keyed};
use crate::support::{Ran, Raw, Setup, binary, obstacle};
use crate::{daemon, skip_if, tls};

const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: swap\r\n";

/// Begins a request to the host of a port.
fn begin(site: &Site<'_>, target: &str, lines: &str) -> Raw {
    let mut raw = Raw::open(site.daemon.address());
    let host = site.host(PORT);
    raw.send(format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n{lines}\r\n").as_bytes());
    raw
}

/// Whether the other side ends the connection; else it is only silent.
fn is_cut(raw: &mut Raw) -> bool {
    let mut buffer = [0; 1024];
    loop {
        match raw.stream.read(&mut buffer) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => {
                return !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
            }
        }
    }
}

#[test]
fn a_change_of_protocol_is_cleaned_like_any_answer() {
    let daemon = daemon!();
    let site = Site::open(&daemon);
    let mut by_host = begin(&site, "/switch?loud", UPGRADE);
    let head = by_host.head();
    assert_eq!((head.status, head.header("upgrade")), (101, Some("swap")));
    assert_eq!(head.all("set-cookie"), ["mine=1; Path=/"], "for its own host, and none of ours");
    let mut by_path = Raw::open(daemon.address());
    let (target, host) = (site.path("/switch?loud"), daemon.address());
    by_path.send(format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n{UPGRADE}\r\n").as_bytes());
    let path_head = by_path.head();
    assert_eq!((path_head.status, path_head.all("set-cookie")), (101, vec![]));
    for head in [head, path_head] {
        for name in ["clear-site-data", "strict-transport-security"] {
            assert_eq!(head.header(name), None, "{name}");
        }
    }
    for raw in [&mut by_host, &mut by_path] {
        assert_eq!(raw.send(b"Hello").exactly(5), b"hELLO");
    }
}

#[test]
fn a_signed_url_ends_with_the_key_that_signed_it() {
    skip_if!(obstacle());
    let daemon = with_admin(&Setup::default());
    let site = keyed::site(&daemon);
    let made = create_key(&daemon.data_dir(), "ops", "root", &[]);
    let bearer = format!("Authorization: Bearer {}\r\n", key_of(&made));
    let mut raw = Raw::open(daemon.address());
    let (target, address) = (site.path("/url"), daemon.address());
    raw.send(
        format!("POST {target} HTTP/1.1\r\nHost: {address}\r\n{bearer}Content-Length: 0\r\n\r\n")
            .as_bytes(),
    );
    let signed = raw.reply("POST").json();
    let url = signed["url"].as_str().expect("a URL");
    let target =
        url.strip_prefix(&format!("http://{}", site.host(PORT))).expect("its host").to_owned();
    let token = target.strip_prefix("/?").expect("a token").to_owned();
    assert_eq!(site.get(PORT, &target, "").status, 200);
    let page = site.get(PORT, &target, "Accept: text/html\r\n");
    let cookie =
        page.header("set-cookie").expect("a cookie").split(';').next().expect("a pair").to_owned();
    let cookie = format!("Cookie: {cookie}\r\n");
    let mut open = [
        begin(&site, &format!("/switch?{token}"), UPGRADE),
        begin(&site, "/switch", &format!("{UPGRADE}{cookie}")),
    ];
    for raw in &mut open {
        assert_eq!(raw.head().status, 101);
        assert_eq!(raw.send(b"Hello").exactly(5), b"hELLO");
    }
    let id = made["id"].as_str().expect("an id");
    assert_eq!(keys(&daemon.data_dir(), &["revoke", id]).code, 0);
    for lines in ["", "Accept: text/html\r\n"] {
        let refused = site.get(PORT, &target, lines);
        assert_eq!(refused.status, 403, "{}", refused.text());
        assert!(refused.text().contains("revoked"), "{}", refused.text());
    }
    assert_eq!(site.get(PORT, "/", &cookie).json()["code"], "url_expired");
    for raw in &mut open {
        assert!(is_cut(raw), "it outlives the key");
    }
}

#[test]
fn what_was_opened_with_a_signed_url_ends_when_it_expires() {
    let daemon = daemon!();
    let site = Site::open(&daemon);
    let signed = daemon.expect(200, "POST", &site.path("/url"), &json!({ "expires_secs": 5 }));
    let token = signed["url"].as_str().and_then(|url| url.split_once('?')).expect("a URL").1;
    let mut socket = begin(&site, &format!("/switch?{token}"), UPGRADE);
    assert_eq!(socket.head().status, 101);
    let mut stream = begin(&site, &format!("/stream?{token}"), "");
    assert_eq!(stream.head().status, 200);
    assert_eq!(stream.chunk().as_deref(), Some(&b"data: one\n\n"[..]));
    // Neither server inside ever ends by itself.
    assert!(is_cut(&mut socket) && is_cut(&mut stream), "they outlive the URL");
}

/// A user other than the one who runs the daemon.
const STRANGER: u32 = 65_534;

#[test]
fn over_tls_only_a_cookie_that_the_host_set_itself_counts() {
    skip_if!(obstacle());
    let daemon = tls::Daemon::start(&["--tls-dev", "--enable-mock"]);
    let (url, ca) = (format!("https://{}", daemon.address), daemon.own_certificate());
    let call = |arguments: &[&str]| {
        let mut command = binary();
        command.args(["--url", &url, "--ca-file"]).arg(&ca).args(arguments);
        let ran: Ran = command.output().expect("the binary runs").into();
        assert_eq!(ran.code, 0, "{ran:?}");
        ran.stdout.trim().to_owned()
    };
    let id = call(&["create", "--runtime", "mock"]);
    let signed = call(&["port", &id, "80", "--sign"]);
    // Somebody for whom nothing but the cookie speaks. Nobody listens on the port, which is found out after it was let in.
    let ask = |url: &str, lines: &[&str]| {
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--insecure", "--include", url]);
        command.args(lines.iter().flat_map(|line| ["--header", *line]));
        let ran: Ran = command.uid(STRANGER).current_dir("/").output().expect("curl runs").into();
        assert_eq!(ran.code, 0, "{ran:?}");
        ran.stdout.to_ascii_lowercase()
    };
    let (bare, _) = signed.split_once('?').expect("a token");
    assert!(ask(bare, &[]).contains("foreign_peer"));
    let page = ask(&signed, &["Accept: text/html"]);
    let said = page.lines().find_map(|line| line.strip_prefix("set-cookie: ")).expect("a cookie");
    assert!(said.starts_with("__host-sandkeep_port=") && said.contains("; secure"), "{said}");
    let (_, token) = signed.split_once('=').expect("a token");
    let ours = format!("Cookie: __Host-sandkeep_port={token}");
    assert!(!ask(bare, &[&ours]).contains("foreign_peer"));
    let tossed = format!("Cookie: sandkeep_port={token}");
    assert!(ask(bare, &[&tossed]).contains("foreign_peer"), "any page of the domain could set it");
}
