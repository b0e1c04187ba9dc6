//! The tools on real files.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use super::*;

/// A directory with files.
pub struct Tree(tempfile::TempDir);

impl Tree {
    pub fn of(files: &[(&str, &str)]) -> Self {
        let tree = Self(tempfile::tempdir().unwrap());
        for (name, content) in files {
            let path = tree.path(name);
            fs::create_dir_all(Path::new(&path).parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        tree
    }

    pub fn path(&self, name: &str) -> String {
        match name {
            "" => self.0.path().display().to_string(),
            name => self.0.path().join(name).display().to_string(),
        }
    }

    /// The same text with relative paths.
    pub fn relative(&self, text: &str) -> String {
        text.replace(&format!("{}/", self.path("")), "")
    }

    pub fn fifo(&self, name: &str) {
        let mode = rustix::fs::Mode::from_raw_mode(0o644);
        rustix::fs::mkfifoat(rustix::fs::CWD, self.path(name), mode).unwrap();
    }

    pub fn link(&self, target: &str, name: &str) {
        symlink(target, self.path(name)).unwrap();
    }

    fn content(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    /// Its entries, including hidden files.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path("")).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn run_quietly(call: Call) -> Result<String, Refusal> {
    run(&call, &mut |_| {})
}

fn read(path: String, offset: u64, limit: Option<u64>) -> Result<String, Refusal> {
    run_quietly(Call::ReadFile(ReadFile { path, offset, limit }))
}

fn write(path: String, content: &str) -> Result<String, Refusal> {
    run_quietly(Call::WriteFile(WriteFile { path, content: content.to_owned() }))
}

fn edit(path: String, old: &str, new: &str) -> Result<String, Refusal> {
    let (old_string, new_string) = (old.to_owned(), new.to_owned());
    run_quietly(Call::EditFile(EditFile {
        path,
        old_string,
        new_string,
        replace_all: ReplaceAll::No,
    }))
}

fn code(answer: Result<String, Refusal>) -> &'static str {
    answer.unwrap_err().said().code
}

#[test]
fn lines_are_read_with_their_numbers_from_where_it_was_asked() {
    let tree = Tree::of(&[("f", "one\r\ntwo\nthree"), ("empty", "")]);
    assert_eq!(read(tree.path("f"), 0, None).unwrap(), "     1\tone\n     2\ttwo\n     3\tthree\n");
    let middle = read(tree.path("f"), 2, Some(1)).unwrap();
    assert_eq!(middle, "     2\ttwo\n[lines 2 to 2 of 3; read on with offset 3]\n");
    assert!(read(tree.path("empty"), 0, None).unwrap().ends_with("is empty"));
    assert_eq!(code(read(tree.path("f"), 4, None)), "beyond_end");
}

#[test]
fn two_thousand_lines_of_two_thousand_characters_are_read_at_once() {
    let tree = Tree::of(&[("many", &"x\n".repeat(2_500)), ("long", &"ä".repeat(2_100))]);
    let many = read(tree.path("many"), 0, Some(100_000)).unwrap();
    assert_eq!(many.lines().count(), READ_LINES_MAX + 1);
    assert!(many.ends_with("read on with offset 2001]\n"), "{many}");
    let long = read(tree.path("long"), 0, None).unwrap();
    assert_eq!(long.chars().filter(|c| *c == 'ä').count(), READ_LINE_MAX_CHARS);
    assert!(long.contains("[100 more characters]"), "{long}");
}

#[test]
fn what_cannot_be_read_is_refused_for_its_reason() {
    let tree = Tree::of(&[("main.rs", ""), ("bin", "a\0b"), ("d/x", "")]);
    tree.fifo("pipe");
    tree.link("loop", "loop");
    let large = fs::File::create(tree.path("large")).unwrap();
    large.set_len(READ_MAX_BYTES + 1).unwrap();
    let missing = read(tree.path("mian.rs"), 0, None).unwrap_err().to_string();
    assert!(missing.contains("did you mean") && missing.contains("main.rs"), "{missing}");
    for (name, expected) in [
        ("bin", "binary"),
        ("d", "is_directory"),
        ("pipe", "not_regular"),
        ("loop", "link_loop"),
        ("large", "too_large"),
        ("main.rs/x", "not_directory"),
        (&"n".repeat(300), "name_unusable"),
        ("a\0b", "name_unusable"),
    ] {
        assert_eq!(code(read(tree.path(name), 0, None)), expected, "{name:?}");
    }
}

#[test]
fn a_file_is_written_whole_with_its_directories() {
    let tree = Tree::of(&[("old", "before")]);
    let made = write(tree.path("a/b/new"), "x\ny\n").unwrap();
    assert!(made.starts_with("made ") && made.ends_with("2 lines, 4 bytes"), "{made}");
    assert!(write(tree.path("old"), "after").unwrap().starts_with("replaced "));
    assert_eq!((tree.content("a/b/new"), tree.content("old")), ("x\ny\n".into(), "after".into()));
    assert_eq!(tree.names(), ["a", "old"], "nothing is left beside them");
    assert_eq!(code(write(tree.path("a"), "")), "is_directory");
    assert_eq!(code(write(tree.path("old/x"), "")), "not_directory");
    tree.fifo("pipe");
    assert_eq!(code(write(tree.path("pipe"), "")), "not_regular");
}

#[test]
fn mode_and_links_outlive_an_edit() {
    let tree = Tree::of(&[("script", "echo old\n")]);
    fs::set_permissions(tree.path("script"), fs::Permissions::from_mode(0o750)).unwrap();
    tree.link("script", "link");
    tree.link("nothing-yet", "dangling");
    let said = edit(tree.path("link"), "old", "new").unwrap();
    assert!(said.contains("once") && said.contains("     1\techo new"), "{said}");
    assert_eq!(tree.content("script"), "echo new\n");
    assert_eq!(fs::metadata(tree.path("script")).unwrap().permissions().mode() & 0o7777, 0o750);
    assert!(fs::symlink_metadata(tree.path("link")).unwrap().is_symlink());
    write(tree.path("dangling"), "x").unwrap();
    assert_eq!(tree.content("nothing-yet"), "x");
    assert_eq!(tree.names(), ["dangling", "link", "nothing-yet", "script"]);
}

#[test]
fn a_refused_edit_changes_nothing() {
    let tree = Tree::of(&[("f", "a a\r\n"), ("bin", "a\0")]);
    for (name, old, expected) in [
        ("f", "a", "not_unique"),
        ("f", "b", "no_match"),
        ("bin", "a", "binary"),
        ("x", "a", "not_found"),
    ] {
        assert_eq!(code(edit(tree.path(name), old, "new")), expected);
    }
    assert_eq!(tree.content("f"), "a a\r\n");
    assert_eq!(tree.names(), ["bin", "f"]);
}

#[test]
fn a_directory_is_listed_by_name_and_kind() {
    let tree = Tree::of(&[("b", "1234"), ("a/x", ""), (".hidden", "")]);
    tree.link("b", "l");
    tree.fifo("p");
    let listed = run_quietly(Call::Ls(Ls { path: tree.path("") })).unwrap();
    let expected = ".hidden (0 bytes)\na/\nb (4 bytes)\nl -> b\np (pipe, socket or device)\n";
    assert_eq!(listed, expected);
    assert_eq!(code(run_quietly(Call::Ls(Ls { path: tree.path("b") }))), "not_directory");
    assert_eq!(code(run_quietly(Call::Ls(Ls { path: tree.path("q") }))), "not_found");
}
