use super::*;
use crate::tools::call::Gitignore;
use crate::tools::tests::Tree;

fn asked(tree: &Tree, pattern: &str) -> Grep {
    Grep {
        pattern: pattern.to_owned(),
        path: Some(tree.path("")),
        glob: None,
        max_results: crate::tools::GREP_RESULTS_DEFAULT,
        gitignore: Gitignore::Disregarded,
    }
}

fn found(tree: &Tree, call: &Grep) -> String {
    tree.relative(&grep(call, &mut |_| {}).unwrap())
}

#[test]
fn matches_come_by_name_with_their_lines() {
    let tree = Tree::of(&[("b.txt", "x\nneedle 2\n"), ("a/c.txt", "needle 1\r\n"), ("d", "none")]);
    assert_eq!(found(&tree, &asked(&tree, r"needle \d")), "a/c.txt:1:needle 1\nb.txt:2:needle 2\n");
    assert_eq!(found(&tree, &asked(&tree, "NEEDLE")), "no match in 3 files\n");
    assert_eq!(found(&tree, &asked(&tree, "(?i)NEEDLE 2")), "b.txt:2:needle 2\n");
    let one = Grep { path: Some(tree.path("b.txt")), ..asked(&tree, "needle") };
    assert_eq!(found(&tree, &one), "b.txt:2:needle 2\n");
}

#[test]
fn a_glob_names_the_files_that_are_searched() {
    let tree = Tree::of(&[("a.rs", "hit"), ("src/deep/b.rs", "hit"), ("c.md", "hit")]);
    let only = |glob: &str| Grep { glob: Some(glob.to_owned()), ..asked(&tree, "hit") };
    assert_eq!(found(&tree, &only("*.rs")), "a.rs:1:hit\nsrc/deep/b.rs:1:hit\n");
    assert_eq!(found(&tree, &only("src/**/*.rs")), "src/deep/b.rs:1:hit\n");
    assert_eq!(found(&tree, &only("!*.rs")), "c.md:1:hit\n");
    let refused = grep(&only("[a"), &mut |_| {}).unwrap_err().said();
    assert_eq!(refused.code, "bad_glob");
}

#[test]
fn binaries_git_and_on_request_ignored_files_are_left_out() {
    let tree = Tree::of(&[
        (".git/config", "hit"),
        (".gitignore", "target/\n"),
        ("bin", "hit\0hit"),
        ("target/x", "hit"),
        (".hidden", "hit"),
    ]);
    assert_eq!(found(&tree, &asked(&tree, "hit")), ".hidden:1:hit\ntarget/x:1:hit\n");
    let respecting = Grep { gitignore: Gitignore::Respected, ..asked(&tree, "hit") };
    assert_eq!(found(&tree, &respecting), ".hidden:1:hit\n");
    let inside = Grep { path: Some(tree.path(".git")), ..asked(&tree, "hit") };
    assert_eq!(found(&tree, &inside), ".git/config:1:hit\n");
}

#[test]
fn answers_are_bounded_and_say_so() {
    let tree = Tree::of(&[("many", &"hit\n".repeat(250))]);
    let all = found(&tree, &asked(&tree, "hit"));
    assert_eq!(all.lines().filter(|line| line.starts_with("many:")).count(), 100);
    assert!(all.ends_with("narrower]\n"), "{all}");
    let few = Grep { max_results: 2, ..asked(&tree, "hit") };
    assert_eq!(found(&tree, &few).lines().count(), 3);
    let exact = Tree::of(&[("many", &"hit\n".repeat(100))]);
    assert!(!found(&exact, &asked(&exact, "hit")).contains("more"));
}

#[test]
fn a_long_line_is_shown_around_its_match() {
    let tree = Tree::of(&[("long", &format!("{}needle{}", "ä".repeat(9_000), "b".repeat(9_000)))]);
    let line = found(&tree, &asked(&tree, "needle"));
    assert!(line.contains("needle"), "{line}");
    let shown = line.trim_start_matches("long:1:…").split('…').next().unwrap();
    assert_eq!(shown.chars().count(), GREP_MATCH_MAX_CHARS);
}

#[test]
fn a_pattern_that_is_none_is_refused_with_its_problem() {
    let tree = Tree::of(&[]);
    let refused = grep(&asked(&tree, "(a"), &mut |_| {}).unwrap_err().said();
    assert_eq!(refused.code, "bad_pattern");
    assert!(refused.what.contains("unclosed group"), "{}", refused.what);
    let nowhere = Grep { path: Some(tree.path("nowhere")), ..asked(&tree, "a") };
    assert_eq!(grep(&nowhere, &mut |_| {}).unwrap_err().said().code, "not_found");
}

#[test]
fn pipes_and_links_are_not_followed() {
    let tree = Tree::of(&[("a", "hit")]);
    tree.fifo("pipe");
    tree.link("a", "link");
    tree.link(".", "loop");
    assert_eq!(found(&tree, &asked(&tree, "hit")), "a:1:hit\n");
}
