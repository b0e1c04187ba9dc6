use proptest::prelude::*;

use super::*;
use crate::tools::refusal::Nearest;

fn call(old: &str, new: &str, replace_all: ReplaceAll) -> EditFile {
    EditFile {
        path: "file".to_owned(),
        old_string: old.to_owned(),
        new_string: new.to_owned(),
        replace_all,
    }
}

fn once(content: &[u8], old: &str, new: &str) -> Result<Vec<u8>, Refusal> {
    edited(&call(old, new, ReplaceAll::No), content.to_vec()).map(|edited| edited.content)
}

fn nearest_of(content: &str, old: &str) -> Option<Nearest> {
    match once(content.as_bytes(), old, "new") {
        Err(Refusal::Text(TextRefusal::NoMatch { nearest, .. })) => nearest,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_text_that_is_there_once_is_replaced() {
    assert_eq!(once("aä b c".as_bytes(), "ä b", "€").unwrap(), "a€ c".as_bytes());
    assert_eq!(once(b"a\nb\n", "a\nb\n", "").unwrap(), b"");
}

#[test]
fn a_text_that_is_there_twice_needs_replace_all() {
    let refused = once(b"x = 1\ny\nx = 1\n", "x = 1", "x = 2").unwrap_err();
    let expected = TextRefusal::NotUnique { path: "file".to_owned(), count: 2, lines: vec![1, 3] };
    assert_eq!(refused, Refusal::Text(expected));
    let all =
        edited(&call("x = 1", "x = 2", ReplaceAll::Yes), b"x = 1\ny\nx = 1\n".to_vec()).unwrap();
    assert_eq!(all.content, b"x = 2\ny\nx = 2\n");
    assert_eq!(all.places.len(), 2);
}

#[test]
fn a_file_keeps_its_line_endings() {
    let windows = b"one\r\ntwo\r\nthree\r\n";
    assert_eq!(once(windows, "one\ntwo", "1\n2\n2b").unwrap(), b"1\r\n2\r\n2b\r\nthree\r\n");
    assert_eq!(once(windows, "one\r\ntwo", "1").unwrap(), b"1\r\nthree\r\n");
    assert_eq!(once(windows, "three", "3\n4").unwrap(), b"one\r\ntwo\r\n3\r\n4\r\n");
    let mixed = b"a\nb\r\nc\nd";
    assert_eq!(once(mixed, "b", "b\nB").unwrap(), b"a\nb\r\nB\r\nc\nd");
    assert_eq!(once(mixed, "a", "a\r\nA").unwrap(), b"a\nA\nb\r\nc\nd");
    assert_eq!(once(mixed, "d", "d\ne").unwrap(), b"a\nb\r\nc\nd\ne");
    assert_eq!(once(b"lone\rreturn\r\n", "lone\rreturn", "x").unwrap(), b"x\r\n");
}

#[test]
fn bytes_that_are_no_text_stay_as_they_are() {
    assert_eq!(once(b"caf\xe9 = 1\n", "= 1", "= 2").unwrap(), b"caf\xe9 = 2\n");
}

#[test]
fn nothing_to_do_is_refused() {
    assert_eq!(once(b"a\r\n", "a\n", "a\r\n").unwrap_err(), TextRefusal::NothingChanges.into());
    assert_eq!(
        edit_file(&call("", "x", ReplaceAll::No)).unwrap_err(),
        TextRefusal::NothingToReplace.into()
    );
}

#[test]
fn the_nearest_text_is_shown_when_none_fits() {
    let file = "fn a() {\n    let x = 1;\n}\n\nfn b() {\n    println!(\"hello {}\", name);\n    done();\n}\n";
    let near = nearest_of(file, "    println!(\"hello\", name);\n    done();").unwrap();
    assert_eq!(near.line, 6);
    assert!(near.percent > 80, "{near:?}");
    assert!(near.difference.contains("-    println!(\"hello\", name);"), "{near:?}");
    assert!(near.difference.contains("+    println!(\"hello {}\", name);"), "{near:?}");
    let tabs = nearest_of("if x:\n\treturn y\n", "if x:\n    return y").unwrap();
    assert_eq!((tabs.line, tabs.percent < 100), (1, true));
    assert_eq!(nearest_of(file, "quite another text"), None);
    assert_eq!(nearest_of("", "x y"), None);
    assert_eq!(nearest_of("a\n", "a\nb\nc\nd"), None);
}

#[test]
fn the_nearest_text_is_found_in_a_moment_in_a_large_file() {
    let line = |at: usize| format!("value_{at} = compute(value_{}, common, words, here)\n", at / 2);
    let file: String = (0..100_000).map(line).collect();
    let near =
        nearest_of(&file, "value_70000 = compute(value_35000, common, wrods, here)").unwrap();
    assert_eq!(near.line, 70_001);
}

proptest! {
    /// Everything but the replaced text is unchanged, byte for byte.
    #[test]
    fn all_but_the_replaced_text_stays(
        before in "[a-c\\r\\n]{0,20}",
        after in "[a-c\\r\\n]{0,20}",
        new in "[a-cä€\\n]{0,10}",
    ) {
        // A line feed after the text would be a part of what ends before it.
        let content = format!("{before}<old>{after}");
        let edited = once(content.as_bytes(), "<old>", &new).unwrap();
        prop_assert!(edited.starts_with(before.as_bytes()));
        prop_assert!(edited.ends_with(after.as_bytes()));
        let middle = &edited[before.len()..edited.len() - after.len()];
        prop_assert_eq!(unix(middle), new.as_bytes());
        let foreign = |ending: &[u8]| memchr::memmem::find(content.as_bytes(), ending).is_none();
        if foreign(b"\r\n") {
            prop_assert_eq!(middle, new.as_bytes());
        }
    }

    #[test]
    fn line_endings_can_be_taken_away_and_put_back(text in "[ab\\r\\n]{0,60}") {
        let (endings, plain) = (Endings::of(text.as_bytes()), unix(text.as_bytes()));
        prop_assert_eq!(endings.restore(&plain, 0..plain.len()), text.as_bytes());
    }
}
