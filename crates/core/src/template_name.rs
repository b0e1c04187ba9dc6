//! Template names. Image references are names, too: `python:3.12` and `ghcr.io/acme/tools@sha256:…`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::limits;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TemplateName(String);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a template's name has up to {} letters, digits and `.`, `_`, `-`, `+`, `:`, `@`, in parts separated by `/` \
     that begin with a letter or digit",
    limits::TEMPLATE_NAME_MAX_BYTES
)]
pub struct InvalidTemplateName;

impl TemplateName {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name with the tag `latest`, which a name without a tag also means.
    pub fn latest(&self) -> Option<Self> {
        let last = self.0.rsplit('/').next().unwrap_or_default();
        if last.contains([':', '@']) { None } else { format!("{self}:latest").parse().ok() }
    }
}

impl FromStr for TemplateName {
    type Err = InvalidTemplateName;

    fn from_str(text: &str) -> Result<Self, InvalidTemplateName> {
        let fine = |c: char| c.is_ascii_alphanumeric() || "._-+:@".contains(c);
        let part = |part: &str| {
            part.starts_with(|c: char| c.is_ascii_alphanumeric()) && part.chars().all(fine)
        };
        if text.len() <= limits::TEMPLATE_NAME_MAX_BYTES && text.split('/').all(part) {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidTemplateName)
        }
    }
}

impl TryFrom<String> for TemplateName {
    type Error = InvalidTemplateName;

    fn try_from(text: String) -> Result<Self, InvalidTemplateName> {
        text.parse()
    }
}

impl From<TemplateName> for String {
    fn from(name: TemplateName) -> Self {
        name.0
    }
}

impl fmt::Display for TemplateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_images_are_names_of_templates() {
        let long = "x".repeat(limits::TEMPLATE_NAME_MAX_BYTES + 1);
        for good in ["python:3.12", "localhost:5000/a/b", "a", "ghcr.io/x/y@sha256:0f", "g++"] {
            assert_eq!(good.parse::<TemplateName>().map(String::from), Ok(good.to_owned()));
        }
        for bad in ["", "/a", "a/", "a//b", ".", "..", "a/../b", "a b", "-a", "ä", "a\0", &long] {
            assert_eq!(bad.parse::<TemplateName>(), Err(InvalidTemplateName), "{bad}");
        }
    }

    #[test]
    fn a_name_without_a_tag_also_means_the_latest() {
        let latest = |name: &str| name.parse::<TemplateName>().expect("valid").latest();
        assert_eq!(latest("localhost:5000/a").expect("one").as_str(), "localhost:5000/a:latest");
        assert_eq!((latest("a:1"), latest("a@sha256:0f")), (None, None));
    }
}
