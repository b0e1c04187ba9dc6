//! A port under a path of the API: for programs, and without privileges for pages.

use super::{PORT, Site, seen};
use crate::daemon;
use crate::support::Raw;

#[test]
fn a_server_inside_is_reached_by_a_path_of_the_api() {
    let daemon = daemon!();
    let site = Site::open(&daemon);
    let reply = site.api("GET", &site.path("/a%2Fb//c?x=%20"), "Cookie: a=1\r\nX-API-Key: k\r\n");
    assert_eq!(reply.json()["target"], "/a%2Fb//c?x=%20");
    assert_eq!(seen(&reply, "cookie"), Vec::<String>::new());
    assert_eq!(seen(&reply, "x-api-key"), Vec::<String>::new());
    assert_eq!(seen(&reply, "host"), [site.host(PORT)], "so that its links lead there");
    assert_eq!(seen(&reply, "x-forwarded-prefix"), [site.path("")]);
    assert_eq!(site.api("GET", &site.path("/"), "").json()["target"], "/");
    let bare = site.api("GET", &site.path(""), "");
    assert_eq!((bare.status, bare.header("location")), (307, Some(site.path("/").as_str())));
    for (method, rest) in [("PUT", "/x"), ("PROPFIND", "/x"), ("GET", "/url"), ("PUT", "/listen")] {
        let reply = site.api(method, &site.path(rest), "Content-Length: 0\r\n");
        assert_eq!(
            (&reply.json()["method"], &reply.json()["target"]),
            (&method.into(), &rest.into())
        );
    }
    let closed = site.path("/").replace(&format!("/{PORT}/"), "/9/");
    assert_eq!(site.api("GET", &closed, "").json()["code"], "port_closed");
    for port in ["0", "99999", "http", "080"] {
        let target = site.path("/").replace(&format!("/{PORT}/"), &format!("/{port}/"));
        assert_eq!(site.api("GET", &target, "").json()["code"], "port_not_found", "{port}");
    }
}

#[test]
fn a_page_on_the_origin_of_the_api_has_no_power_there() {
    let daemon = daemon!();
    let site = Site::open(&daemon);
    let reply = site.api("GET", &site.path("/cookies"), "");
    assert_eq!(reply.all("content-security-policy"), ["sandbox"]);
    assert_eq!(reply.all("set-cookie"), Vec::<&str>::new());
    assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
    let redirected = site.api("GET", &site.path("/redirect"), "");
    assert_eq!(redirected.header("location"), Some(site.path("/echo").as_str()));

    let there = format!("http://{}/a?b", site.host(PORT));
    for lines in [
        "Sec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\nAccept: text/html\r\n",
        "Accept: text/html,*/*\r\n",
    ] {
        let moved = site.api("GET", &site.path("/a?b"), lines);
        assert_eq!((moved.status, moved.header("location")), (307, Some(there.as_str())));
    }
    // In a frame it is shown where it is, as the powerless page that it is.
    let framed = "Sec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: iframe\r\nAccept: text/html\r\n";
    let reply = site.api("GET", &site.path("/"), framed);
    assert_eq!((reply.status, reply.all("content-security-policy")), (200, vec!["sandbox"]));
    let worker = site.api("GET", &site.path("/sw.js"), "Service-Worker: script\r\n");
    assert_eq!((worker.status, &worker.json()["code"]), (403, &"service_worker_refused".into()));
}

#[test]
fn streams_and_other_protocols_go_by_the_path_too() {
    let daemon = daemon!();
    let site = Site::open(&daemon);
    let mut raw = Raw::open(daemon.address());
    raw.send(
        format!(
            "GET {} HTTP/1.1\r\nHost: {}\r\nConnection: Upgrade\r\nUpgrade: swap\r\n\r\n",
            site.path("/switch"),
            daemon.address()
        )
        .as_bytes(),
    );
    assert_eq!(raw.head().status, 101);
    raw.send(b"Hello");
    assert_eq!(raw.exactly(5), b"hELLO");
    let big = site.api("GET", &site.path("/flood/5000000"), "");
    assert_eq!(big.body.len(), 5_000_000);
}
