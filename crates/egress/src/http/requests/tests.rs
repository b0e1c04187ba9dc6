use hyper::Request;
use proptest::prelude::*;

use super::*;

fn rule(json: serde_json::Value) -> Vec<Vec<Requests>> {
    let mut object = json;
    object["host"] = "api.example.com".into();
    let entry: sandkeep_core::network::Entry = serde_json::from_value(object).expect("an entry");
    vec![vec![entry.requests.expect("rules")]]
}

fn request(method: &str, target: &str, headers: &[(&str, &str)]) -> Parts {
    let mut request = Request::builder().method(method).uri(target);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(()).expect("a request").into_parts().0
}

fn passes(groups: &[Vec<Requests>], method: &str, target: &str) -> bool {
    check(groups, &request(method, target, &[])).is_ok()
}

#[test]
fn a_read_only_host_is_only_read() {
    let groups = rule(serde_json::json!({ "access": "read-only" }));
    for method in ["GET", "HEAD", "OPTIONS"] {
        assert!(passes(&groups, method, "/any//path;x/%2e%2e"), "{method}");
    }
    for method in ["POST", "PUT", "PATCH", "DELETE", "get", "TRACE", "PROPFIND", "CONNECT"] {
        assert!(!passes(&groups, method, "/"), "{method}");
    }
    for header in [
        ("x-http-method-override", "POST"),
        ("X-HTTP-Method", "POST"),
        ("x_http_method_override", "POST"),
        ("x-method-override", "DELETE"),
        ("x-original-url", "/admin"),
        ("content-type", "application/graphql"),
    ] {
        let refused = check(&groups, &request("GET", "/", &[header]));
        assert!(refused.is_err(), "{header:?}");
    }
    for target in ["/?_method=POST", "/?a=b&_METHOD=x", "/?%5fmethod=POST", "/graphql?query=x"] {
        assert!(!passes(&groups, "GET", target), "{target}");
    }
    let websocket = [("connection", "keep-alive, Upgrade"), ("upgrade", "websocket")];
    let refused = check(&groups, &request("GET", "/", &websocket)).expect_err("a write");
    assert!(refused.reason.contains("WebSocket"), "{refused:?}");
    let writable = rule(serde_json::json!({ "access": "read-write" }));
    assert_eq!(check(&writable, &request("GET", "/", &websocket)), Ok(()));
    assert!(passes(&writable, "POST", "/graphql") && !passes(&writable, "DELETE", "/x"));
}

#[test]
fn paths_are_matched_decoded_and_odd_ones_are_refused() {
    let groups =
        rule(serde_json::json!({ "paths": ["/repos/**", "/users/*/keys", "/a b/x*.json"] }));
    for target in [
        "/repos/a",
        "/repos/a/b/c",
        "/repos/a/",
        "/repos/%61",
        "/users/me/keys",
        "/a%20b/x1.json",
        "/repos/a?b=../..",
        "/repos/..a",
    ] {
        assert!(passes(&groups, "GET", target), "{target}");
    }
    for target in [
        "/",
        "/repos",
        "/repos/",
        "/Repos/a",
        "/users/me/you/keys",
        "/users//keys",
        "/repos/../admin",
        "/repos/./a",
        "/repos/%2e%2e/admin",
        "/repos/%2E./admin",
        "/repos/..%2fadmin",
        "/repos/a%2fb",
        "/repos//admin",
        "//repos/a",
        "/repos/..;/admin",
        "/repos/a;b",
        "/repos/a%3bb",
        "/repos/..%5cadmin",
        "/repos/%252e%252e/admin",
        "/repos/a%00",
        "/repos/%ff",
        "/repos/%c0%ae%c0%ae/admin",
        "/admin%3f/repos/a",
    ] {
        assert!(!passes(&groups, "GET", target), "{target}");
    }
}

#[test]
fn every_group_must_allow_a_request() {
    let mut groups = rule(serde_json::json!({ "access": "full" }));
    groups.extend(rule(serde_json::json!({ "access": "read-only" })));
    assert!(passes(&groups, "GET", "/") && !passes(&groups, "POST", "/"));
    let refused = check(&groups, &request("POST", "/", &[])).expect_err("the second");
    assert_eq!(refused.rule.as_deref(), Some("read-only"));
    assert!(passes(&[], "POST", "/a/../b"));
}

#[test]
fn many_wildcards_take_no_time() {
    let glob = format!("/{}x", "**/a*a*a*a/".repeat(60));
    let path = format!("/{}", "aaaaaaaaaaaaaaaaaaaa/".repeat(200));
    assert!(!matches(&glob, &path));
}

/// The same by trying everything.
fn matches_slowly(glob: &[&str], path: &[&str]) -> bool {
    match (glob, path) {
        ([], []) => true,
        (["**"], path) => !path.is_empty() && path != [""],
        (["**", rest @ ..], path) if !rest.is_empty() => {
            (0..=path.len()).any(|from| matches_slowly(rest, &path[from..]))
        }
        ([first, glob @ ..], [segment, path @ ..]) => {
            letters_match(first.as_bytes(), segment.as_bytes()) && matches_slowly(glob, path)
        }
        _ => false,
    }
}

fn letters_match(glob: &[u8], text: &[u8]) -> bool {
    match (glob, text) {
        ([], []) => true,
        ([b'*', glob @ ..], text) => {
            (0..=text.len()).any(|from| letters_match(glob, &text[from..]))
        }
        ([first, glob @ ..], [letter, text @ ..]) => first == letter && letters_match(glob, text),
        _ => false,
    }
}

proptest! {
    #[test]
    fn globs_match_as_their_definition_says(
        glob in proptest::collection::vec("(\\*\\*|[ab*]{1,3})", 1..5),
        path in proptest::collection::vec("[ab]{0,3}", 1..6),
    ) {
        let glob: Vec<String> = glob.into_iter().map(|segment| {
            // Two stars are a whole segment only.
            if segment == "**" { segment } else { segment.replace("**", "*").replace("**", "*") }
        }).collect();
        let found = segments_match(&glob, &path);
        let glob: Vec<&str> = glob.iter().map(String::as_str).collect();
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        prop_assert_eq!(found, matches_slowly(&glob, &path));
    }
}
