use super::*;
use crate::tools::call::Gitignore;
use crate::tools::tests::Tree;

fn asked(tree: &Tree, pattern: &str) -> Glob {
    Glob {
        pattern: pattern.to_owned(),
        path: Some(tree.path("")),
        gitignore: Gitignore::Disregarded,
    }
}

fn found(tree: &Tree, call: &Glob) -> String {
    tree.relative(&glob(call, &mut |_| {}).unwrap())
}

#[test]
fn paths_match_as_a_shell_would_have_them() {
    let tree = Tree::of(&[("a.rs", ""), ("src/b.rs", ""), ("src/x/c.rs", ""), ("src/d.ts", "")]);
    for (pattern, expected) in [
        ("*.rs", "a.rs\n"),
        ("**/*.rs", "a.rs\nsrc/b.rs\nsrc/x/c.rs\n"),
        ("src/*.{rs,ts}", "src/b.rs\nsrc/d.ts\n"),
        ("src/**/c.*", "src/x/c.rs\n"),
        ("./src/b.rs", "src/b.rs\n"),
        ("src/?.rs", "src/b.rs\n"),
    ] {
        assert_eq!(found(&tree, &asked(&tree, pattern)), expected, "{pattern}");
    }
    let absolute = asked(&tree, &tree.path("src/*.rs"));
    assert_eq!(found(&tree, &absolute), "src/b.rs\n");
    let none = found(&tree, &asked(&tree, "*.py"));
    assert!(none.contains("begin with **/"), "{none}");
    assert!(found(&tree, &asked(&tree, "nowhere/*.py")).starts_with("no file matches"));
}

#[test]
fn what_is_ignored_is_left_out_on_request() {
    let tree = Tree::of(&[(".gitignore", "*.log\n"), ("a.log", ""), ("b.txt", "")]);
    assert_eq!(found(&tree, &asked(&tree, "*.*")), ".gitignore\na.log\nb.txt\n");
    let respecting = Glob { gitignore: Gitignore::Respected, ..asked(&tree, "*.*") };
    assert_eq!(found(&tree, &respecting), ".gitignore\nb.txt\n");
}

#[test]
fn two_hundred_are_told_and_that_there_are_more() {
    let names: Vec<String> = (0..250).map(|at| format!("f{at:03}")).collect();
    let files: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "")).collect();
    let tree = Tree::of(&files);
    let all = found(&tree, &asked(&tree, "*"));
    assert_eq!(all.lines().count(), GLOB_RESULTS_MAX + 1);
    assert!(all.contains("f199\n[the first 200 files"), "{all}");
}

#[test]
fn a_glob_that_is_none_is_refused() {
    let tree = Tree::of(&[]);
    let refused = glob(&asked(&tree, "a{b"), &mut |_| {}).unwrap_err().said();
    assert_eq!(refused.code, "bad_glob");
}
