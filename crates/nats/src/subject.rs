//! The subjects of events: `<prefix>.events.<organization>.<project>.<kind>`.
//!
//! An organization or a project may be any text, a word of a subject may not. Letters, digits, `-` and `_` stay as they
//! are; every other byte becomes `%` and two digits (hexadecimal, upper case), and an empty text becomes `%`. So different
//! texts never share a word, and nobody can name a word that the server takes for a wildcard or a boundary.

use std::fmt::Write;

use sandkeep_core::event::Event;

/// The last word under which missing events are reported, where an organization would be.
const GAP: &str = "gap";

/// One word of a subject.
pub fn word(text: &str) -> String {
    if text.is_empty() {
        return "%".to_owned();
    }
    let mut word = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => word.push(byte.into()),
            _ => write!(word, "%{byte:02X}").expect("a String can be written to"),
        }
    }
    word
}

pub fn of_event(prefix: &str, event: &Event) -> String {
    let owner = &event.subject.owner;
    let (organization, project) = (word(&owner.organization), word(&owner.project));
    format!("{prefix}.events.{organization}.{project}.{}", event.kind.name())
}

pub fn of_gap(prefix: &str) -> String {
    format!("{prefix}.events.{GAP}")
}

/// What a stream of all events subscribes to.
pub fn of_all(prefix: &str) -> String {
    format!("{prefix}.events.>")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_word_has_nothing_that_a_server_understands() {
        for text in ["a.b", "*", ">", "a b", "\t", "\r\n", "ä", "%", "", "\0", "$SYS", "a\u{a0}b"]
        {
            let word = word(text);
            let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '%');
            assert!(!word.is_empty() && word.chars().all(fine), "{text:?}: {word:?}");
        }
        assert_eq!(word("Acme-1_x"), "Acme-1_x");
        assert_eq!(word("a.b"), "a%2Eb");
    }

    #[test]
    fn different_texts_have_different_words() {
        let parts = ["", "a", ".", "%", "2E", "%2E", "\0", "00", " ", "ä"];
        let texts: BTreeSet<String> = parts
            .iter()
            .flat_map(|a| parts.iter().flat_map(move |b| parts.map(|c| format!("{a}{b}{c}"))))
            .collect();
        let words: BTreeSet<String> = texts.iter().map(|text| word(text)).collect();
        assert_eq!(words.len(), texts.len());
    }
}
