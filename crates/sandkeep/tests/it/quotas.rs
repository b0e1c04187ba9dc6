//! Quotas and rate limits of a caller, pages of a list, profiles, and resource usage.

use serde_json::{Value, json};

use crate::skip_if;
use crate::support::{Daemon, Setup, obstacle};

const SANDBOXES: &str = "/api/v1/sandboxes";

#[test]
fn what_is_over_a_quota_is_refused_with_the_numbers_and_room_is_given_back() {
    skip_if!(obstacle());
    let setup = Setup::default()
        .env("SANDKEEP_QUOTAS_USER_SANDBOXES", "2")
        .env("SANDKEEP_QUOTAS_ORGANIZATION_MEMORY_MB", "300");
    let mut daemon = Daemon::start_with(&setup);
    let small = json!({ "resources": { "memory_mb": 64 } });
    let first = daemon.create_with(&small);
    let large = json!({ "resources": { "memory_mb": 256 } });
    let problem = daemon.expect(429, "POST", SANDBOXES, &large);
    assert_eq!(problem["code"], "quota_exceeded");
    let detail = problem["detail"].as_str().expect("a detail");
    for word in ["organization", "memory_mb", "300", "64", "256"] {
        assert!(detail.contains(word), "{detail} does not say {word}");
    }
    daemon.create_with(&small);
    let (status, head, _) = daemon.request_head(&[], "POST", SANDBOXES, &small).expect("an answer");
    assert_eq!(status, 429);
    assert!(head.contains("retry-after:"), "{head}");
    daemon.kill_9();
    daemon.start_again(&setup);
    daemon.expect(429, "POST", SANDBOXES, &small);
    daemon.destroy(&first);
    daemon.create_with(&small);
}

#[test]
fn too_many_requests_are_told_when_to_come_back() {
    skip_if!(obstacle());
    let setup = Setup::default().env("SANDKEEP_QUOTAS_USER_REQUESTS_PER_SECOND", "0.001");
    let mut daemon = Daemon::start_with(&setup);
    daemon.expect(200, "GET", SANDBOXES, &Value::Null);
    daemon.expect(200, "GET", "/healthz", &Value::Null);
    let (status, head, problem) =
        daemon.request_head(&[], "GET", SANDBOXES, &Value::Null).expect("an answer");
    assert_eq!((status, &problem["code"]), (429, &json!("rate_limited")));
    let seconds = head.lines().find_map(|line| line.strip_prefix("retry-after: ")).expect(&head);
    assert!(seconds.trim().parse::<u64>().expect("seconds") > 1, "{head}");
    assert!(daemon.stop().success());
    daemon.start_again(&Setup::default());
}

#[test]
fn a_list_comes_in_pages_and_only_what_was_asked_for() {
    let daemon = crate::daemon!();
    let (one, two) = (
        daemon.create_with(&json!({ "labels": { "a": "1", "b": "2" } })),
        daemon.create_with(&json!({ "labels": { "a": "1" }, "project": "web" })),
    );
    let list =
        |query: &str| daemon.expect(200, "GET", &format!("{SANDBOXES}?{query}"), &Value::Null);
    let page = list("limit=1");
    assert_eq!(
        (page["items"].as_array().map(Vec::len), &page["items"][0]["id"]),
        (Some(1), &json!(one))
    );
    let next = page["next_cursor"].as_str().expect("there is more");
    let page = list(&format!("limit=1&cursor={next}"));
    assert_eq!(page["items"][0]["id"], json!(two));
    assert!(page.get("next_cursor").is_none(), "{page}");
    assert_eq!(list("label=a=1&label=b=2")["items"].as_array().map(Vec::len), Some(1));
    assert_eq!(list("project=web&state=running")["items"][0]["id"], json!(two));
    assert_eq!(list("state=stopped")["items"], json!([]));
    daemon.expect(200, "POST", &format!("{SANDBOXES}/{two}/stop"), &Value::Null);
    let ids = |query: &str| -> Vec<Value> {
        let items = list(query)["items"].take();
        items.as_array().expect("a list").iter().map(|item| item["id"].clone()).collect()
    };
    for both in ["state=running&state=stopped", "state=running,stopped", "sort=created_at"] {
        assert_eq!(ids(both), [json!(one), json!(two)], "{both}");
    }
    assert_eq!(ids("state=paused,stopped"), [json!(two)]);
    assert_eq!(ids("sort=-created_at"), [json!(two), json!(one)]);
    let page = list("limit=1&sort=-created_at");
    assert_eq!(page["items"][0]["id"], json!(two));
    let next = page["next_cursor"].as_str().expect("there is more");
    assert_eq!(ids(&format!("limit=1&sort=-created_at&cursor={next}")), [json!(one)]);
    let mixed = format!("{SANDBOXES}?sort=created_at&cursor={next}");
    let problem = daemon.expect(400, "GET", &mixed, &Value::Null);
    assert!(problem["detail"].as_str().expect("a detail").contains("other order"), "{problem}");
    for wrong in [
        "limit=0",
        "cursor=x",
        "state=asleep",
        "state=running,",
        "sort=id",
        "label=a",
        "colour=blue",
    ] {
        let problem = daemon.expect(400, "GET", &format!("{SANDBOXES}?{wrong}"), &Value::Null);
        let name = wrong.split('=').next().expect("a name");
        assert!(problem["detail"].as_str().expect("a detail").contains(name), "{problem}");
    }
}

#[test]
fn stats_and_space_are_what_was_really_used() {
    let daemon = crate::daemon!();
    let id = daemon.create_with(&json!({ "resources": { "memory_mb": 256, "pids": 64 } }));
    daemon.sh(&id, "head -c 8000000 /dev/urandom > ~/big; sync").ok();
    let target = format!("{SANDBOXES}/{id}/stats");
    let stats = daemon.expect(200, "GET", &target, &Value::Null);
    assert!(stats["disk"]["used_bytes"].as_u64().expect("bytes") >= 8_000_000, "{stats}");
    assert_eq!(stats["memory"]["limit_bytes"], 256 * 1024 * 1024);
    assert_eq!(stats["pids"]["limit"], 64);
    assert!(stats["cpu"]["usage_secs"].as_f64().expect("seconds") > 0.0, "{stats}");
    let used = daemon.get(&id)["space_used"].as_u64().expect("it was measured");
    assert!(used >= 8_000_000, "{used}");
    daemon.verb(&id, "stop");
    let stats = daemon.expect(200, "GET", &target, &Value::Null);
    assert!(stats.get("memory").is_none() && stats["disk"]["used_bytes"].is_u64(), "{stats}");
}

#[test]
fn a_profile_is_named_or_the_default_and_an_unknown_one_lists_those_there_are() {
    skip_if!(obstacle());
    let file = tempfile::NamedTempFile::new().expect("a file");
    let text = "default_profile = \"small\"\n\
                [profiles.small]\ntimeout_secs = 5000\n\
                [profiles.small.resources]\nmemory_mb = 64\n\
                [profiles.small.env]\nFROM = \"profile\"\n\
                [profiles.plain]\n";
    std::fs::write(file.path(), text).expect("written");
    let path = file.path().to_str().expect("UTF-8");
    let daemon = Daemon::start_with(&Setup::default().env("SANDKEEP_CONFIG", path));
    let id = daemon.create();
    let view = daemon.get(&id);
    assert_eq!((&view["profile"], &view["timeout_secs"]), (&json!("small"), &json!(5000)));
    assert_eq!(view["resources"]["memory_mb"], 64);
    assert_eq!(daemon.sh(&id, "echo $FROM").ok(), "profile");
    let own = json!({ "profile": "small", "timeout_secs": 7, "env": { "FROM": "me" } });
    let id = daemon.create_with(&own);
    assert_eq!(daemon.get(&id)["timeout_secs"], 7);
    assert_eq!(daemon.sh(&id, "echo $FROM").ok(), "me");
    let problem = daemon.expect(400, "POST", SANDBOXES, &json!({ "profile": "huge" }));
    assert_eq!(problem["code"], "unknown_profile");
    assert!(problem["detail"].as_str().expect("a detail").contains("plain, small"), "{problem}");
}
