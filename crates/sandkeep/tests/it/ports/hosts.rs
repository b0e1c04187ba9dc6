//! The host name of a port.

use serde_json::Value;

use super::{PORT, Site, seen};
use crate::daemon;
use crate::support::Raw;

#[test]
fn a_server_inside_is_reached_by_the_host_name_of_its_port() {
    let daemon = daemon!();
    let site = Site::open(&daemon);
    let reply = site.get(PORT, "/a%2Fb/../c?x=%20&y", "X-Mine: 1\r\nCookie: session=1\r\n");
    assert_eq!(reply.json()["target"], "/a%2Fb/../c?x=%20&y", "byte for byte");
    assert_eq!(seen(&reply, "host"), [site.host(PORT)]);
    assert_eq!(seen(&reply, "x-mine"), ["1"]);
    assert_eq!(seen(&reply, "cookie"), ["session=1"], "a site has its own login");
    for method in ["PUT", "DELETE", "PATCH", "OPTIONS", "PROPFIND"] {
        let reply = site.ask(method, &site.host(PORT), "/", "Content-Length: 0\r\n");
        assert_eq!(reply.json()["method"], method);
    }
    let without_port = format!("{PORT}-{}.localhost", site.id);
    assert_eq!(site.ask("GET", &without_port, "/", "").status, 200);
}

#[test]
fn nothing_of_ours_reaches_the_server_and_nobody_can_lie_about_where_they_come_from() {
    let daemon = daemon!();
    let site = Site::open(&daemon);
    let reply = site.get(
        PORT,
        "/",
        "Authorization: Bearer sk\r\nX-API-Key: sk\r\nX-Forwarded-For: 6.6.6.6\r\nForwarded: for=6\r\n\
         X-Real-IP: 6.6.6.6\r\nX-Forwarded-Host: evil\r\nConnection: X-Hop\r\nX-Hop: 1\r\n\
         Cookie: a=1; sandkeep_port=x; b=2\r\n",
    );
    for gone in ["authorization", "x-api-key", "forwarded", "x-real-ip", "x-hop"] {
        assert_eq!(seen(&reply, gone), Vec::<String>::new(), "{gone}");
    }
    assert_eq!(seen(&reply, "x-forwarded-for"), ["127.0.0.1"]);
    assert_eq!(seen(&reply, "x-forwarded-host"), [site.host(PORT)]);
    assert_eq!(seen(&reply, "x-forwarded-proto"), ["http"]);
    assert_eq!(seen(&reply, "cookie"), ["a=1; b=2"]);
}

#[test]
fn a_cookie_of_a_site_is_for_its_own_host_alone() {
    let daemon = daemon!();
    let site = Site::open(&daemon);
    let reply = site.get(PORT, "/cookies", "");
    assert_eq!(reply.all("set-cookie"), ["mine=1; Path=/", "plain=2"]);
    assert_eq!(reply.header("content-security-policy"), Some("script-src *"));
}

#[test]
fn answers_without_a_body_stay_what_they_are() {
    let daemon = daemon!();
    let site = Site::open(&daemon);
    let mut raw = Raw::open(daemon.address());
    let host = site.host(PORT);
    // All on one connection: a body too many or too few would be taken for the next answer.
    for (method, target, status, length) in [
        ("HEAD", "/status/200", 200, Some("9")),
        ("GET", "/status/204", 204, None),
        ("GET", "/status/304", 304, None),
        // That one writes its body whatever the method; nothing of it may come through.
        ("HEAD", "/flood/1000000", 200, Some("1000000")),
        ("GET", "/status/500", 500, Some("9")),
        ("GET", "/status/200", 200, Some("9")),
    ] {
        raw.send(format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes());
        let reply = raw.reply(method);
        assert_eq!(reply.status, status, "{method} {target}");
        assert_eq!(reply.header("content-length"), length, "{method} {target}");
    }
}

#[test]
fn a_body_streams_in_both_directions_and_is_not_held() {
    let daemon = daemon!();
    let site = Site::open(&daemon);
    let mut events = Raw::open(daemon.address());
    let head = format!("GET /stream HTTP/1.1\r\nHost: {}\r\n\r\n", site.host(PORT));
    events.send(head.as_bytes());
    assert_eq!(events.head().header("content-type"), Some("text/event-stream"));
    assert_eq!(events.chunk().expect("an event"), b"data: one\n\n");
    // The second one comes only now, so the first was not held back for it.
    assert_eq!(site.get(PORT, "/release", "").status, 200);
    assert_eq!(events.chunk().expect("an event"), b"data: two\n\n");
    assert_eq!(events.chunk(), None);

    let big = site.get(PORT, "/flood/20000000", "");
    assert_eq!(big.body.len(), 20_000_000);
    let right = |(at, byte): (usize, &u8)| *byte == (at % 256) as u8;
    assert!(big.body.iter().enumerate().all(right), "the bytes are not those that were sent");
}

#[test]
fn an_upload_arrives_whole_with_a_length_in_chunks_and_after_a_question() {
    let daemon = daemon!();
    let site = Site::open(&daemon);
    let body: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
    let chunked: Vec<u8> = body
        .chunks(70_001)
        .flat_map(|chunk| [format!("{:x}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat())
        .chain(*b"0\r\n\r\n")
        .collect();
    let length = format!("Content-Length: {}", body.len());
    let mut digests = Vec::new();
    for (how, sent) in [
        (length.as_str(), &body),
        ("Transfer-Encoding: chunked", &chunked),
        (&format!("{length}\r\nExpect: 100-continue"), &body),
    ] {
        let mut raw = Raw::open(daemon.address());
        let host = site.host(PORT);
        raw.send(format!("POST /up HTTP/1.1\r\nHost: {host}\r\n{how}\r\n\r\n").as_bytes());
        let said: Value = raw.send(sent).reply("POST").json();
        assert_eq!(said["size"], body.len(), "{how}");
        digests.push(said["sha256"].clone());
    }
    assert!(digests.iter().all(|digest| *digest == digests[0]), "{digests:?}");
}

#[test]
fn a_connection_can_change_its_protocol() {
    let daemon = daemon!();
    let site = Site::open(&daemon);
    let mut raw = Raw::open(daemon.address());
    raw.send(
        format!(
            "GET /switch HTTP/1.1\r\nHost: {}\r\nConnection: keep-alive, Upgrade\r\nUpgrade: swap\r\n\r\n",
            site.host(PORT)
        )
        .as_bytes(),
    );
    let head = raw.head();
    assert_eq!((head.status, head.header("upgrade")), (101, Some("swap")));
    for text in ["Hello", "wORLD"] {
        raw.send(text.as_bytes());
        let swapped = String::from_utf8(raw.exactly(text.len())).expect("text");
        assert_eq!(swapped.to_lowercase(), text.to_lowercase());
        assert_ne!(swapped, text);
    }
    raw.stream.shutdown(std::net::Shutdown::Write).expect("it is open");
    assert!(raw.rest().is_empty(), "the end of one side is told to the other");
    let plain = site.get(PORT, "/", "Upgrade: swap\r\n");
    assert_eq!(seen(&plain, "upgrade"), Vec::<String>::new(), "nobody asked the connection");
}

#[test]
fn a_closed_port_says_so_to_people_and_programs() {
    let daemon = daemon!();
    let site = Site::open(&daemon);
    let problem = site.get(9, "/", "Accept: */*\r\n");
    assert_eq!((problem.status, &problem.json()["code"]), (502, &"port_closed".into()));
    assert!(problem.json()["detail"].as_str().expect("text").contains("port 9"));
    let page = site.get(9, "/", "Accept: text/html,*/*;q=0.8\r\n");
    assert_eq!(page.status, 502);
    assert!(page.header("content-type").is_some_and(|t| t.starts_with("text/html")));
    assert!(page.text().contains("nothing listens on port 9"), "{}", page.text());
    assert_eq!(page.header("refresh"), Some("2"), "it looks again by itself");
    let broken = site.get(PORT, "/break", "");
    assert_eq!((broken.status, &broken.json()["code"]), (502, &"port_broke".into()));

    daemon.verb(&site.id, "stop");
    let stopped = site.get(PORT, "/", "");
    assert_eq!((stopped.status, &stopped.json()["code"]), (409, &"wrong_state".into()));
    assert!(stopped.json()["remediation"].as_str().expect("text").contains("start"));
    daemon.destroy(&site.id);
    assert_eq!(site.get(PORT, "/", "").status, 404);
}

#[test]
fn the_host_of_a_port_never_reaches_the_api_nor_the_api_a_port() {
    let daemon = daemon!();
    let site = Site::open(&daemon);
    let reply = site.get(PORT, "/api/v1/sandboxes", "");
    assert_eq!(reply.json()["target"], "/api/v1/sandboxes", "the server's own path");
    let address = daemon.address();
    let host = site.host(PORT);
    for (target, lines) in [
        (format!("http://{address}/api/v1/sandboxes"), format!("Host: {host}\r\n")),
        (format!("http://{host}/api/v1/sandboxes"), format!("Host: {address}\r\n")),
        ("/api/v1/sandboxes".to_owned(), format!("Host: {host}\r\nHost: {address}\r\n")),
        ("/api/v1/sandboxes".to_owned(), format!("Host: {address}\r\nHost: {host}\r\n")),
    ] {
        let mut raw = Raw::open(address);
        raw.send(format!("GET {target} HTTP/1.1\r\n{lines}\r\n").as_bytes());
        let reply = raw.reply("GET");
        assert_eq!(reply.status, 403, "{target} {lines}: {}", reply.text());
        assert_eq!(reply.json()["code"], "foreign_host");
    }
    let other = format!("8080-{}.example.com", site.id);
    assert_eq!(site.ask("GET", &other, "/", "").json()["code"], "foreign_host");
}

#[test]
fn a_page_of_another_origin_cannot_use_a_port_in_its_visitors_name() {
    let daemon = daemon!();
    let site = Site::open(&daemon);
    let own = format!("Origin: http://{}\r\n", site.host(PORT));
    assert_eq!(site.get(PORT, "/", &own).status, 200);
    let kin = format!("Origin: http://{}\r\n", site.host(3000));
    assert_eq!(site.get(PORT, "/", &kin).status, 200, "its front end on another port");
    let stranger = daemon.create();
    let strange = site.host(PORT).replace(&site.id, &stranger);
    for origin in [format!("http://{strange}"), daemon.url(), "null".to_owned()] {
        let reply = site.get(PORT, "/", &format!("Origin: {origin}\r\n"));
        assert_eq!((reply.status, &reply.json()["code"]), (403, &"foreign_origin".into()));
    }
}
