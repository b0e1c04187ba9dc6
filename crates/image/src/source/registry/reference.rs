//! Image names: `python:3.12`, `ghcr.io/org/tool@sha256:…`, `localhost:5000/a/b:c`.
//!
//! The rules are Docker's. The part before the first slash is a host if it looks like one (a dot, a colon, or
//! `localhost`); otherwise the image is on Docker Hub, below `library/` if its name has one part. A digest identifies
//! an image exactly; a tag beside it is only informative.

use std::fmt;
use std::str::FromStr;

use sandkeep_core::limits::{IMAGE_NAME_MAX_BYTES, IMAGE_TAG_MAX_BYTES};
use sandkeep_tree::digest::{Digest, NotADigest};

pub const DOCKER_HUB: &str = "docker.io";
const DOCKER_HUB_API: &str = "registry-1.docker.io";
const DOCKER_HUB_OFFICIAL: &str = "library";
const TAG_DEFAULT: &str = "latest";

/// A complete image reference.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reference {
    /// Lower case, including the port if any.
    host: String,
    repository: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

#[derive(Debug, thiserror::Error)]
pub enum InvalidReference {
    #[error("the name of the image is empty; write it like python:3.12")]
    Empty,
    #[error(
        "{text:?} has a scheme; write the image without it, as in registry.example/team/image:tag"
    )]
    Scheme { text: String },
    #[error("{host:?} is not a host, as in registry.example:5000/team/image:tag")]
    Host { host: String },
    #[error("{repository:?} is not the name of an image: it must be lower case")]
    UpperCase { repository: String },
    #[error(
        "{repository:?} is not the name of an image: parts of a-z and 0-9, which . _ __ or - may \
         join, are separated by /"
    )]
    Repository { repository: String },
    #[error("the name of the image is longer than {IMAGE_NAME_MAX_BYTES} bytes")]
    TooLong,
    #[error(
        "{tag:?} is not a tag: at most {IMAGE_TAG_MAX_BYTES} letters, digits, _ . and -, and the first \
         is neither . nor -"
    )]
    Tag { tag: String },
    #[error(transparent)]
    Digest(#[from] NotADigest),
}

impl Reference {
    /// The registry's host in the usual notation: `docker.io`, `localhost:5000`.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The host of the registry's API.
    pub(super) fn api_host(&self) -> &str {
        match self.host.as_str() {
            DOCKER_HUB => DOCKER_HUB_API,
            host => host,
        }
    }

    pub fn repository(&self) -> &str {
        &self.repository
    }

    pub fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }

    /// What to request: the digest if there is one, otherwise the tag.
    pub(super) fn wanted(&self) -> String {
        match (&self.digest, &self.tag) {
            (Some(digest), _) => digest.to_string(),
            (None, Some(tag)) => tag.clone(),
            (None, None) => TAG_DEFAULT.to_owned(),
        }
    }

    /// In the usual short notation: without Docker Hub's defaults.
    pub fn familiar(&self) -> String {
        let name = match self.repository.split_once('/') {
            Some((DOCKER_HUB_OFFICIAL, name)) if self.is_on_hub() && !name.contains('/') => name,
            // Without the host before it, this would be taken for one.
            Some((first, _)) if self.is_on_hub() && !looks_like_host(first) => &self.repository,
            _ => return self.to_string(),
        };
        format!("{name}{}", self.version())
    }

    fn is_on_hub(&self) -> bool {
        self.host == DOCKER_HUB
    }

    fn version(&self) -> String {
        let tag = self.tag.as_ref().map(|tag| format!(":{tag}")).unwrap_or_default();
        let digest = self.digest.as_ref().map(|digest| format!("@{digest}")).unwrap_or_default();
        format!("{tag}{digest}")
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}{}", self.host, self.repository, self.version())
    }
}

impl FromStr for Reference {
    type Err = InvalidReference;

    fn from_str(text: &str) -> Result<Self, InvalidReference> {
        if text.is_empty() {
            return Err(InvalidReference::Empty);
        }
        if text.contains("://") {
            return Err(InvalidReference::Scheme { text: text.to_owned() });
        }
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest.parse()?)),
            None => (text, None),
        };
        let (host, path) = split_host(rest);
        let (repository, tag) = match path.rsplit_once(':') {
            Some((repository, tag)) => (repository, Some(self::tag(tag)?)),
            None => (path, None),
        };
        let host = self::host(host)?;
        // A host that only its upper case distinguishes from a name would be displayed as another image.
        if !looks_like_host(&host) {
            return Err(InvalidReference::UpperCase { repository: rest.to_owned() });
        }
        let repository = match host.as_str() {
            DOCKER_HUB if !repository.contains('/') => {
                format!("{DOCKER_HUB_OFFICIAL}/{repository}")
            }
            _ => repository.to_owned(),
        };
        check_repository(&repository)?;
        if host.len() + 1 + repository.len() > IMAGE_NAME_MAX_BYTES {
            return Err(InvalidReference::TooLong);
        }
        // Without either it is the default tag, so that equivalent references are equal.
        let usual = || digest.is_none().then(|| TAG_DEFAULT.to_owned());
        Ok(Self { host, repository, tag: tag.or_else(usual), digest })
    }
}

fn split_host(text: &str) -> (&str, &str) {
    match text.split_once('/') {
        Some((first, rest)) if looks_like_host(first) => (first, rest),
        _ => (DOCKER_HUB, text),
    }
}

fn looks_like_host(first: &str) -> bool {
    let upper = first.chars().any(|c| c.is_ascii_uppercase());
    first.contains(['.', ':']) || first == "localhost" || upper
}

/// A host with or without a port, in lower case. Docker Hub has had several names.
fn host(text: &str) -> Result<String, InvalidReference> {
    let invalid = || InvalidReference::Host { host: text.to_owned() };
    let lower = text.to_ascii_lowercase();
    let (name, port) = match lower.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
        _ => (lower.as_str(), None),
    };
    let good_port = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0));
    let inner = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    let good_name = match inner {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => name.split('.').all(is_label),
    };
    match lower.as_str() {
        "index.docker.io" | DOCKER_HUB_API => Ok(DOCKER_HUB.to_owned()),
        _ if good_name && good_port => Ok(lower),
        _ => Err(invalid()),
    }
}

fn is_label(label: &str) -> bool {
    let fine = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let ends = label.starts_with('-') || label.ends_with('-');
    (1..=63).contains(&label.len()) && label.chars().all(fine) && !ends
}

fn check_repository(repository: &str) -> Result<(), InvalidReference> {
    if repository.chars().any(|c| c.is_ascii_uppercase()) {
        return Err(InvalidReference::UpperCase { repository: repository.to_owned() });
    }
    if repository.split('/').all(is_part) {
        Ok(())
    } else {
        Err(InvalidReference::Repository { repository: repository.to_owned() })
    }
}

/// Letters and digits, joined by one dot, one or two underscores, or any number of dashes.
fn is_part(part: &str) -> bool {
    let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_joint = |joint: &str| {
        matches!(joint, "." | "_" | "__") || (!joint.is_empty() && joint.chars().all(|c| c == '-'))
    };
    part.starts_with(is_word)
        && part.ends_with(is_word)
        && part.split(is_word).filter(|joint| !joint.is_empty()).all(is_joint)
}

fn tag(text: &str) -> Result<String, InvalidReference> {
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    let good = (1..=IMAGE_TAG_MAX_BYTES).contains(&text.len())
        && text.chars().all(fine)
        && !text.starts_with(['.', '-']);
    if good { Ok(text.to_owned()) } else { Err(InvalidReference::Tag { tag: text.to_owned() }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn read(text: &str) -> Reference {
        text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    #[test]
    fn names_mean_what_docker_means_by_them() {
        for (text, full) in [
            ("python", "docker.io/library/python:latest"),
            ("python:3.12", "docker.io/library/python:3.12"),
            ("library/python", "docker.io/library/python:latest"),
            ("docker.io/python:3.12", "docker.io/library/python:3.12"),
            ("index.docker.io/org/tool", "docker.io/org/tool:latest"),
            ("registry-1.docker.io/python", "docker.io/library/python:latest"),
            ("org/tool", "docker.io/org/tool:latest"),
            ("ghcr.io/org/tool:v1", "ghcr.io/org/tool:v1"),
            ("localhost/tool", "localhost/tool:latest"),
            ("localhost:5000/a/b/c:d", "localhost:5000/a/b/c:d"),
            ("127.0.0.1:5000/tool", "127.0.0.1:5000/tool:latest"),
            ("[::1]:5000/tool", "[::1]:5000/tool:latest"),
            ("Registry.Example/tool", "registry.example/tool:latest"),
            ("a__b/c-d--e.f_g", "docker.io/a__b/c-d--e.f_g:latest"),
        ] {
            assert_eq!(read(text).to_string(), full, "{text}");
            assert_eq!(read(full), read(text), "{full} is itself");
        }
        assert_eq!(read("python").api_host(), "registry-1.docker.io");
        assert_eq!(read("ghcr.io/a/b").api_host(), "ghcr.io");
    }

    #[test]
    fn a_digest_wins_over_a_tag() {
        let both = read(&format!("python:3.12@{DIGEST}"));
        assert_eq!(both.wanted(), DIGEST);
        assert_eq!(both.to_string(), format!("docker.io/library/python:3.12@{DIGEST}"));
        let digest = read(&format!("localhost:5000/a@{DIGEST}"));
        assert_eq!((digest.wanted().as_str(), digest.tag), (DIGEST, None));
        assert_eq!(read("python").wanted(), "latest");
    }

    #[test]
    fn what_goes_without_saying_is_not_said_to_people() {
        for text in ["python:3.12", "org/tool:v1", "ghcr.io/org/tool:v1", "localhost:5000/a:b"] {
            assert_eq!(read(text).familiar(), text);
        }
        assert_eq!(read("docker.io/library/python").familiar(), "python:latest");
        for text in ["docker.io/localhost/a:b", "docker.io/a.b/c:d", "library/a/b:c"] {
            assert_eq!(read(text).familiar(), text);
        }
    }

    #[test]
    fn what_names_no_image_is_refused_with_the_part_that_is_wrong() {
        for (text, part) in [
            ("", "empty"),
            ("https://ghcr.io/a/b", "scheme"),
            ("Python", "lower case"),
            ("org/Tool", "lower case"),
            ("Org/tool", "lower case"),
            ("org//tool", "not the name"),
            ("-a", "not the name"),
            ("a..b", "not the name"),
            ("a___b", "not the name"),
            ("a b", "not the name"),
            ("../../etc/passwd", "not a host"),
            ("a/../b", "not the name"),
            ("ghcr.io/", "not the name"),
            ("python:", "not a tag"),
            ("python:.a", "not a tag"),
            ("python:a/b", "not a host"),
            ("host:x/a", "not a host"),
            ("host:0/a", "not a host"),
            ("ho_st.example/a", "not a host"),
            ("python@sha256:abc", "sha256"),
            ("python@md5:d41d8cd98f00b204e9800998ecf8427e", "md5"),
        ] {
            let refused = text.parse::<Reference>().expect_err(text).to_string();
            assert!(refused.contains(part), "{text}: {refused}");
        }
        let long = "a".repeat(IMAGE_NAME_MAX_BYTES);
        assert!(matches!(long.parse::<Reference>(), Err(InvalidReference::TooLong)));
        let tag = format!("a:{}", "b".repeat(IMAGE_TAG_MAX_BYTES + 1));
        assert!(matches!(tag.parse::<Reference>(), Err(InvalidReference::Tag { .. })));
    }

    proptest::proptest! {
        #[test]
        fn whatever_is_read_is_read_the_same_from_what_it_shows(text in "[a-zA-Z0-9.:/@_\\[\\]-]{0,40}") {
            if let Ok(reference) = text.parse::<Reference>() {
                proptest::prop_assert_eq!(read(&reference.to_string()), reference.clone());
                proptest::prop_assert_eq!(read(&reference.familiar()), reference);
            }
        }
    }
}
