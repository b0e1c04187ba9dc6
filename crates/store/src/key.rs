//! Keys: a path of segments, each of them an arbitrary string.
//!
//! Tenants choose their names, so the encoding must not depend on their content. Every segment is written with NUL
//! escaped as `00 FF` and terminated by `00 01`. Invariant: no encoded segment is a prefix of another, so different
//! paths never have the same encoding, and one encoding is a prefix of another only if its path is a prefix of the
//! other's, segment by segment. Encodings sort like paths, so a prefix is one range of keys.

use std::fmt;

const NUL: u8 = 0x00;
const ESCAPED: u8 = 0xFF;
const CLOSE: u8 = 0x01;
/// Greater than the first byte of any encoding, because UTF-8 has no byte `FF`.
const PAST_ALL: &[u8] = &[0xFF];

/// The name of one entry of the store.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Box<[u8]>);

/// All keys that start with these segments.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Prefix(Box<[u8]>);

impl Key {
    pub fn new<S: AsRef<str>>(segments: impl IntoIterator<Item = S>) -> Self {
        Self(encode(segments))
    }

    /// Its segments.
    pub fn segments(&self) -> Vec<String> {
        decode(&self.0).expect("a key is made only by `new` and `from_encoded`, which both check")
    }

    /// The stored bytes.
    pub(crate) fn encoded(&self) -> &[u8] {
        &self.0
    }

    /// A key from stored bytes; `None` if `new` could not have produced them.
    pub(crate) fn from_encoded(bytes: &[u8]) -> Option<Self> {
        decode(bytes).map(|_| Self(bytes.into()))
    }
}

impl Prefix {
    pub fn new<S: AsRef<str>>(segments: impl IntoIterator<Item = S>) -> Self {
        Self(encode(segments))
    }

    /// The prefix of every key.
    pub fn all() -> Self {
        Self(Box::default())
    }

    pub fn matches(&self, key: &Key) -> bool {
        key.0.starts_with(&self.0)
    }

    /// The smallest possible encoding under this prefix.
    pub(crate) fn start(&self) -> &[u8] {
        &self.0
    }

    /// The smallest encoding after every key under this prefix.
    pub(crate) fn end(&self) -> Box<[u8]> {
        let mut end = self.0.clone();
        match end.last_mut() {
            Some(last) => *last += 1,
            None => end = PAST_ALL.into(),
        }
        end
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Key").field(&self.segments()).finish()
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Prefix").field(&decode(&self.0)).finish()
    }
}

fn encode<S: AsRef<str>>(segments: impl IntoIterator<Item = S>) -> Box<[u8]> {
    let mut out = Vec::new();
    for segment in segments {
        for &byte in segment.as_ref().as_bytes() {
            out.push(byte);
            if byte == NUL {
                out.push(ESCAPED);
            }
        }
        out.extend([NUL, CLOSE]);
    }
    out.into_boxed_slice()
}

fn decode(bytes: &[u8]) -> Option<Vec<String>> {
    let mut segments = Vec::new();
    let mut segment = Vec::new();
    let mut rest = bytes.iter().copied();
    while let Some(byte) = rest.next() {
        if byte != NUL {
            segment.push(byte);
            continue;
        }
        match rest.next() {
            Some(ESCAPED) => segment.push(NUL),
            Some(CLOSE) => segments.push(String::from_utf8(std::mem::take(&mut segment)).ok()?),
            Some(_) | None => return None,
        }
    }
    segment.is_empty().then_some(segments)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Few letters, including all that are special in the encoding, so that near collisions are common.
    fn path() -> impl Strategy<Value = Vec<String>> {
        let nasty =
            vec(prop::sample::select(vec!['\0', '\u{1}', '/', 'a', 'ÿ', '\u{10FFFF}']), 0..4)
                .prop_map(String::from_iter);
        vec(prop_oneof![4 => nasty, 1 => any::<String>()], 0..4)
    }

    /// The key of a tenant's object, such as a slot, an idempotency key or a count: its kind, then the owner's
    /// organization, user and project, then its own name. The tenant chooses all but the kind.
    fn owned() -> impl Strategy<Value = [String; 5]> {
        let chosen = || {
            vec(prop::sample::select(vec!['\0', '\u{1}', '/', 'a']), 0..3)
                .prop_map(String::from_iter)
        };
        let kind = prop::sample::select(vec!["slots", "idempotency", "quotas"]);
        (kind, chosen(), chosen(), chosen(), chosen())
            .prop_map(|(kind, a, b, c, d)| [kind.to_owned(), a, b, c, d])
    }

    proptest! {
        #[test]
        fn different_paths_are_different_keys(a in path(), b in path()) {
            prop_assert_eq!(a == b, Key::new(&a) == Key::new(&b));
        }

        #[test]
        fn no_two_tenants_share_a_key(a in owned(), b in owned()) {
            let ([kind, organization, user, project, _], key) = (&a, Key::new(&b));
            prop_assert_eq!(a == b, Key::new(&a) == key.clone());
            let owner = Prefix::new([kind, organization, user, project]);
            prop_assert_eq!(a[..4] == b[..4], owner.matches(&key));
        }

        #[test]
        fn a_key_gives_back_its_segments(a in path()) {
            let key = Key::new(&a);
            prop_assert_eq!(Key::from_encoded(key.encoded()), Some(key.clone()));
            prop_assert_eq!(key.segments(), a);
        }

        #[test]
        fn a_prefix_matches_whole_segments_only(a in path(), b in path()) {
            prop_assert_eq!(b.starts_with(&a), Prefix::new(&a).matches(&Key::new(&b)));
        }

        #[test]
        fn a_prefix_is_one_range_of_keys(a in path(), b in path()) {
            let (prefix, key) = (Prefix::new(&a), Key::new(&b));
            let within = key.encoded() >= prefix.start() && key.encoded() < &*prefix.end();
            prop_assert_eq!(within, prefix.matches(&key));
        }

        #[test]
        fn keys_sort_like_their_paths(a in path(), b in path()) {
            prop_assert_eq!(a.cmp(&b), Key::new(&a).cmp(&Key::new(&b)));
        }

        #[test]
        fn foreign_bytes_never_panic(bytes in vec(any::<u8>(), 0..12)) {
            if let Some(key) = Key::from_encoded(&bytes) {
                prop_assert_eq!(Key::new(key.segments()), key);
            }
        }
    }

    #[test]
    fn moving_a_boundary_makes_another_key() {
        assert_ne!(Key::new(["ab", "c"]), Key::new(["a", "bc"]));
        assert_ne!(Key::new(["a/b"]), Key::new(["a", "b"]));
        assert_ne!(Key::new(["a", ""]), Key::new(["a"]));
        assert_ne!(Key::new(["a\0\u{1}b"]), Key::new(["a", "b"]));
        assert!(!Prefix::new(["a"]).matches(&Key::new(["a\0b"])));
        assert!(Prefix::all().matches(&Key::new(["\u{10FFFF}"])));
    }
}
