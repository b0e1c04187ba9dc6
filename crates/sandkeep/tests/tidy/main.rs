//! The tidy test: rules that can be checked in the source text. Every rule is a pure function over a file, and each has
//! a test that shows it refusing a bad sample.

mod layers;
mod promises;
mod prose;
mod rules;
mod source;

use std::fs;
use std::path::{Path, PathBuf};

use rules::Violation;
use source::Source;

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/sandkeep").to_owned()
}

fn read(path: &str) -> String {
    fs::read_to_string(top().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// All Rust files of all crates.
fn sources() -> Vec<Source> {
    let top = top();
    let mut pending = vec![top.join("crates")];
    let mut found = Vec::new();
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(&dir).expect("a readable directory") {
            let path = entry.expect("a readable entry").path();
            if path.is_dir() {
                pending.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let name = path.strip_prefix(&top).expect("beneath the top").to_string_lossy();
                found.push(Source::new(&name, &fs::read_to_string(&path).expect("UTF-8")));
            }
        }
    }
    assert!(
        found.len() > 20,
        "only {} files found: the test looks in the wrong place",
        found.len()
    );
    found
}

/// Every Markdown document that a person reads, by its path. The reference has what `--help` and errors say.
fn documents() -> Vec<(String, String)> {
    let top = top();
    let mut pending = vec![top.join("docs")];
    let mut found: Vec<_> =
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(String::from).into();
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(&dir).expect("a readable directory") {
            let path = entry.expect("a readable entry").path();
            if path.is_dir() {
                pending.push(path);
            } else if path.extension().is_some_and(|e| e == "md") {
                let name = path.strip_prefix(&top).expect("beneath the top").to_string_lossy();
                found.push(name.into_owned());
            }
        }
    }
    found.into_iter().map(|path| (path.clone(), read(&path))).collect()
}

/// The manifest of every crate, with the name of its directory.
fn manifests() -> Vec<(String, String)> {
    let crates = fs::read_dir(top().join("crates")).expect("the crates");
    let named = crates.map(|entry| entry.expect("a readable entry").file_name());
    named
        .map(|name| name.to_string_lossy().into_owned())
        .map(|name| (name.clone(), read(&format!("crates/{name}/Cargo.toml"))))
        .collect()
}

fn check(rule: fn(&Source) -> Vec<Violation>) {
    let found: Vec<String> = sources()
        .iter()
        .flat_map(rule)
        .map(|v| format!("{}:{}: {}", v.path, v.line, v.problem))
        .collect();
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

fn check_all(found: Vec<String>) {
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn names_say_what_is_inside() {
    check(rules::names_say_what_is_inside);
}

#[test]
fn unsafe_stays_in_its_rooms() {
    check(rules::unsafe_stays_in_its_rooms);
}

#[test]
fn files_are_small() {
    check(rules::files_are_small);
}

#[test]
fn functions_are_small() {
    check(rules::functions_are_small);
}

#[test]
fn nothing_is_left_half_done() {
    check(rules::nothing_is_left_half_done);
}

#[test]
fn nothing_dead_is_excused() {
    check(rules::nothing_dead_is_excused);
}

#[test]
fn errors_are_types() {
    check(rules::errors_are_types);
}

#[test]
fn waits_and_queues_have_their_bound_in_limits() {
    check(rules::waits_and_queues_have_their_bound_in_limits);
}

#[test]
fn tests_wait_for_conditions() {
    check(rules::tests_wait_for_conditions);
}

#[test]
fn rooms_keep_their_doors() {
    check(layers::rooms_keep_their_doors);
}

#[test]
fn crates_know_only_those_below_them() {
    check_all(layers::crates_know_only_those_below_them(&manifests()));
}

#[test]
fn failpoints_are_listed() {
    let path = "crates/core/src/failpoint.rs";
    let list = Source::new(path, &read(path));
    check_all(promises::failpoints_are_listed(&list, &sources()));
}

#[test]
fn commands_are_documented() {
    let guides = documents().into_iter().filter(|(path, _)| path.starts_with("docs/guides/"));
    let text: String = guides.map(|(_, text)| text).chain([read("README.md")]).collect();
    check_all(promises::commands_are_documented(&sources(), &text));
}

#[test]
fn links_lead_somewhere() {
    for (path, text) in documents() {
        let beside = top().join(&path);
        let beside = beside.parent().expect("a directory");
        let found = promises::links_lead_somewhere(&text, |target| beside.join(target).exists());
        check_all(found.into_iter().map(|problem| format!("{path}: {problem}")).collect());
    }
}

#[test]
fn documents_are_short_and_in_plain_english() {
    let documents = documents();
    assert!(documents.len() > 20, "only {} documents found", documents.len());
    check_all(documents.iter().flat_map(|(path, text)| prose::problems(path, text)).collect());
}

#[test]
fn fuzzers_try_what_ships() {
    let manifests: Vec<String> = manifests().into_iter().map(|(_, text)| text).collect();
    let (shipped, tried) = (read("Cargo.lock"), read("fuzz/Cargo.lock"));
    check_all(promises::fuzzers_try_what_ships(&shipped, &tried, &manifests));
}
