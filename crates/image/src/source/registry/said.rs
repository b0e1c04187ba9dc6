//! A registry's error messages, sanitized: they come from another party.

use serde::Deserialize;

use sandkeep_core::limits::REGISTRY_SAID_SHOWN;

#[derive(Deserialize)]
struct Errors {
    errors: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    code: String,
    #[serde(default)]
    message: String,
}

/// The first error of an answer; `None` if it has none.
pub fn in_words(body: &[u8]) -> Option<String> {
    let errors: Errors = serde_json::from_slice(body).ok()?;
    let first = errors.errors.into_iter().next()?;
    let text = match (first.code.is_empty(), first.message.is_empty()) {
        (true, true) => return None,
        (false, true) => first.code,
        (true, false) => first.message,
        (false, false) => format!("{}: {}", first.code, first.message),
    };
    Some(plain(text.as_bytes()))
}

/// A text on one line without control characters, shortened.
pub fn plain(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let shown = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    shown.take(REGISTRY_SAID_SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_error_is_told_in_one_short_line() {
        let body = br#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"not\n\u001b[31mthere","detail":{}},{"code":"B"}]}"#;
        assert_eq!(in_words(body).expect("an error"), "MANIFEST_UNKNOWN: not  [31mthere");
        assert_eq!(in_words(b"<html>"), None);
        assert_eq!(in_words(br#"{"errors":[]}"#), None);
        let long = format!(r#"{{"errors":[{{"message":"{}"}}]}}"#, "x".repeat(5000));
        assert_eq!(in_words(long.as_bytes()).expect("an error").len(), REGISTRY_SAID_SHOWN);
    }
}
