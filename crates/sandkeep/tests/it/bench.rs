//! The benchmark runs and reports; its figures are not tested.

use serde_json::Value;

use crate::support::{Ran, binary, obstacle};

#[test]
fn the_bench_measures_what_it_says_and_leaves_nothing() {
    crate::skip_if!(obstacle());
    let place = tempfile::tempdir().expect("a temp dir");
    let output = binary()
        .env("TMPDIR", place.path())
        .env("SANDKEEP_STORAGE_SIZE_MB", "512")
        .args(["bench", "--rounds", "3", "--json"])
        .args(["--transfer-mb", "2", "--grep-files", "250"])
        .output();
    let ran: Ran = output.expect("the binary runs").into();
    assert_eq!(ran.assert_no_panic().code, 0, "{ran:?}");
    let report: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    let measures = report["measures"].as_array().expect("measures");
    for name in ["spawn", "cold", "exec", "destroy"] {
        let figures = measures.iter().find(|m| m["measure"] == name).expect(name);
        assert_eq!(figures["n"], 3, "{figures}");
        assert!(figures["p50_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{figures}");
        assert!(figures["times_spawn"].is_number(), "{figures}");
    }
    let runtimes = report["runtimes"].as_array().expect("runtimes");
    let native = runtimes.iter().find(|r| r["runtime"] == "native").expect("native");
    for figure in ["cold", "exec", "destroy"] {
        assert!(native[figure]["p50_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{native}");
    }
    assert!(native["idle_kib"].is_number(), "{native}");
    for rate in report["rates"].as_array().expect("rates") {
        let measured = rate["times"].as_f64().is_some_and(|times| times > 0.0);
        let missing = rate["reason"] == "wrk is not installed";
        assert!(measured || missing, "{rate}");
    }
    let rates = report["rates"].as_array().expect("rates");
    let names: Vec<_> = rates.iter().filter_map(|rate| rate["name"].as_str()).collect();
    assert_eq!(names, ["stream", "proxy", "egress", "egress_stream"]);
    let tools = report["tools"].as_array().expect("tools");
    let names: Vec<_> = tools.iter().filter_map(|tool| tool["name"].as_str()).collect();
    let transfers = ["upload", "download", "grep"];
    let calls = ["network", "tool", "mcp", "flex_read", "flex_bash"];
    assert_eq!(names, [&transfers[..], &calls].concat());
    for tool in tools {
        let measured = tool["times"].as_f64().is_some_and(|times| times > 0.0);
        assert!(measured || tool["reason"] == "rg is not installed", "{tool}");
    }
    assert_storages(&report);
    assert_eq!(report["regime"], "back_to_back");
    let left = std::fs::read_dir(place.path()).expect("it is there").count();
    assert_eq!(left, 0, "the bench left its data directory: {}", ran.stderr);
}

/// Every storage was measured with every tree, and held against the first of them.
fn assert_storages(report: &Value) {
    let storages = report["storages"].as_array().expect("storages");
    for (storage, tree) in [("btrfs", "1MB"), ("btrfs", "1000files"), ("local", "4MB")] {
        let same = |found: &&Value| found["storage"] == storage && found["tree"] == tree;
        let figures = storages.iter().find(same).expect(tree);
        let made = ["copy", "import", "first_create", "create", "workspace"];
        let synced = ["snapshot", "diff", "fork", "rollback"];
        let dirty = ["snapshot_dirty", "diff_dirty", "fork_dirty", "rollback_dirty"];
        for operation in made.into_iter().chain(synced).chain(dirty) {
            let operations = figures["operations"].as_array().expect("operations");
            let found = operations.iter().find(|found| found["operation"] == operation);
            let found = found.unwrap_or_else(|| panic!("{operation} of {figures}"));
            for ratio in ["p50_ms", "times_smallest", "times_copy"] {
                assert!(found[ratio].as_f64().is_some_and(|times| times > 0.0), "{found}");
            }
        }
    }
}
