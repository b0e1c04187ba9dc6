//! The query of a file request. It has its own parser, because a path is bytes and need not be UTF-8.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use percent_encoding::percent_decode_str;
use toolbox::RawPath;

use super::shown::{checked, mode_of};
use crate::kit::Refusal;

pub struct Parameters(BTreeMap<String, Vec<u8>>);

impl Parameters {
    /// Accepts only known parameters, each at most once.
    pub fn read(query: Option<String>, known: &[&str]) -> Result<Self, Refusal> {
        let mut found = BTreeMap::new();
        let query = query.unwrap_or_default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = String::from_utf8_lossy(&decoded(name)).into_owned();
            if !known.contains(&name.as_str()) {
                return wrong(format!(
                    "there is no parameter {name:?}; there are: {}",
                    known.join(", ")
                ));
            }
            if found.insert(name.clone(), decoded(value)).is_some() {
                return wrong(format!("{name} is given twice"));
            }
        }
        Ok(Self(found))
    }

    pub fn text(&self, name: &str) -> Result<Option<&str>, Refusal> {
        let Some(value) = self.0.get(name) else { return Ok(None) };
        match std::str::from_utf8(value) {
            Ok(text) => Ok(Some(text)),
            Err(_) => wrong(format!("{name} is no text")),
        }
    }

    /// The path of the request.
    pub fn path(&self) -> Result<RawPath, Refusal> {
        match self.0.get("path") {
            Some(path) => Ok(checked("path", path.clone())?),
            None => wrong("path is missing".to_owned()),
        }
    }

    pub fn path_or(&self, usual: &str) -> Result<RawPath, Refusal> {
        if self.0.contains_key("path") { self.path() } else { Ok(RawPath::from(usual)) }
    }

    pub fn flag(&self, name: &str) -> Result<bool, Refusal> {
        match self.text(name)? {
            None | Some("false" | "0") => Ok(false),
            Some("true" | "1" | "") => Ok(true),
            Some(other) => wrong(format!("{name}: {other:?} is neither true nor false")),
        }
    }

    pub fn number(&self, name: &str) -> Result<Option<u64>, Refusal> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        match text.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => wrong(format!("{name}: {text:?} is no number")),
        }
    }

    pub fn mode(&self, name: &str) -> Result<Option<u32>, Refusal> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        match mode_of(text) {
            Some(mode) => Ok(Some(mode)),
            None => wrong(format!("{name}: {text:?} is no mode such as 0644")),
        }
    }
}

/// An optional number from 1 to `max`.
pub fn within(name: &str, number: Option<u64>, max: u64) -> Result<Option<u64>, Refusal> {
    match number {
        Some(number) if !(1..=max).contains(&number) => {
            wrong(format!("{name}: {number} is no number from 1 to {max}"))
        }
        number => Ok(number),
    }
}

pub fn cursor(text: &str) -> Result<RawPath, Refusal> {
    match URL_SAFE_NO_PAD.decode(text) {
        Ok(bytes) => Ok(checked("cursor", bytes)?),
        Err(_) => wrong(format!("cursor: {text:?} is no next_cursor of ours")),
    }
}

fn wrong<T>(problem: String) -> Result<T, Refusal> {
    Err(Refusal::QueryMalformed { problem })
}

/// Form decoding: `+` is a space, `%xx` a byte; an invalid escape is taken literally.
fn decoded(text: &str) -> Vec<u8> {
    percent_decode_str(&text.replace('+', " ")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(query: &str) -> Option<Vec<u8>> {
        let parameters = Parameters::read(Some(query.to_owned()), &["path", "limit"]).ok()?;
        Some(parameters.path().ok()?.as_bytes().to_vec())
    }

    #[test]
    fn a_path_is_any_bytes() {
        assert_eq!(path("path=/a%20b+c"), Some(b"/a b c".to_vec()));
        assert_eq!(path("limit=1&path=%ff%2Fx"), Some(b"\xff/x".to_vec()));
        assert_eq!(path("path=100%"), Some(b"100%".to_vec()));
        assert_eq!(path("path=%zz%+"), Some(b"%zz% ".to_vec()));
    }

    #[test]
    fn what_is_not_known_twice_there_or_no_path_is_refused() {
        let too_long = format!("path={}", "a".repeat(5000));
        for query in ["", "path=", "path=a&path=b", "path=a&x=1", "path=%00", &too_long] {
            assert_eq!(path(query), None, "{query:?}");
        }
    }

    #[test]
    fn numbers_and_flags_are_what_they_say() {
        let read =
            |query: &str| Parameters::read(Some(query.to_owned()), &["n", "f"]).expect("known");
        let number = |query: &str| within("n", read(query).number("n")?, 9);
        assert_eq!(number("n=7").expect("a number"), Some(7));
        assert_eq!(number("").expect("none"), None);
        for query in ["n=0", "n=10", "n=x", "n=", "n=-1"] {
            assert!(number(query).is_err(), "{query}");
        }
        assert!(read("f=true").flag("f").expect("a flag") && read("f").flag("f").expect("a flag"));
        assert!(!read("f=false").flag("f").expect("a flag") && read("f=no").flag("f").is_err());
    }
}
