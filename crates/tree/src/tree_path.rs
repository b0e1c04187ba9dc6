//! Paths in a tree or a layer, normalized before any lookup: relative to the root and without `.`, `..`, or empty
//! components. Links are handled by the code that looks them up.

use std::collections::VecDeque;
use std::io;

use sandkeep_core::limits;

/// Maximum length of one file name.
const PART_MAX_BYTES: usize = 255;

/// A path below the root, its components joined by single slashes; empty is the root itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TreePath(Vec<u8>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathProblem {
    #[error("its name or target is empty")]
    Empty,
    #[error("what should be its bytes is no base64")]
    Base64,
    #[error("its name or target holds a NUL")]
    Nul,
    #[error("its name or target, or a part of it, is too long")]
    TooLong,
    #[error("it leads through too many links")]
    Links,
    #[error("only a directory can be the root")]
    NotTheRoot,
    #[error("the root's owner is out of range")]
    RootOwner,
}

impl From<PathProblem> for io::Error {
    fn from(problem: PathProblem) -> Self {
        match problem {
            PathProblem::Links => rustix::io::Errno::LOOP.into(),
            other => Self::other(other),
        }
    }
}

/// The entry at a place on a path.
pub enum Met {
    Nothing,
    Something,
    /// To be followed.
    Link {
        target: Vec<u8>,
    },
}

impl TreePath {
    /// Normalizes a name from an archive. Absolute names are relative to the root, and `..` does not leave it.
    pub fn clean(name: &[u8]) -> Result<Self, PathProblem> {
        if name.is_empty() {
            return Err(PathProblem::Empty);
        }
        if name.contains(&0) {
            return Err(PathProblem::Nul);
        }
        let mut path = Self::default();
        for part in parts(name) {
            match part {
                b".." => path.pop(),
                part => path.push(part)?,
            }
        }
        Ok(path)
    }

    /// Whether it is this path, or below it.
    pub fn is_beneath(&self, top: &Self) -> bool {
        match self.0.strip_prefix(top.0.as_slice()) {
            Some(rest) => top.is_root() || rest.is_empty() || rest.starts_with(b"/"),
            None => false,
        }
    }

    /// The same relative to a directory; `None` if it is not in there.
    pub fn within(&self, top: &Self) -> Option<Self> {
        let rest = self.is_beneath(top).then(|| &self.0[top.0.len()..])?;
        Some(Self(rest.strip_prefix(b"/").unwrap_or(rest).to_vec()))
    }

    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn parts(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.0.split(|byte| *byte == b'/').filter(|part| !part.is_empty())
    }

    /// The parent directory, and the name in it; `None` for the root.
    pub fn split(&self) -> Option<(Self, &[u8])> {
        if self.is_root() {
            return None;
        }
        match self.0.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => Some((Self(self.0[..slash].to_vec()), &self.0[slash + 1..])),
            None => Some((Self::default(), &self.0)),
        }
    }

    /// Appends a component that is neither `..` nor empty.
    pub fn push(&mut self, part: &[u8]) -> Result<(), PathProblem> {
        let slash = usize::from(!self.is_root());
        if part.len() > PART_MAX_BYTES
            || self.0.len() + slash + part.len() > limits::LAYER_PATH_MAX_BYTES
        {
            return Err(PathProblem::TooLong);
        }
        self.0.extend_from_slice(&b"/"[..slash]);
        self.0.extend_from_slice(part);
        Ok(())
    }

    pub fn join(&self, part: &[u8]) -> Result<Self, PathProblem> {
        let mut joined = self.clone();
        joined.push(part)?;
        Ok(joined)
    }

    pub fn pop(&mut self) {
        let end = self.0.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        self.0.truncate(end);
    }

    /// A path with its links resolved within the tree: an absolute link starts at its root, and none leads outside.
    /// `meet` is called for each place on the way, with whether it is the last. `None` if there is no such entry.
    pub fn followed<E: From<PathProblem>>(
        &self,
        mut meet: impl FnMut(&Self, bool) -> Result<Met, E>,
    ) -> Result<Option<Self>, E> {
        let mut done = Self::default();
        let mut links = 0;
        let mut ahead: VecDeque<Vec<u8>> = self.parts().map(<[u8]>::to_vec).collect();
        while let Some(part) = ahead.pop_front() {
            if part == b".." {
                done.pop();
                continue;
            }
            let next = done.join(&part)?;
            match meet(&next, ahead.is_empty())? {
                Met::Nothing => return Ok(None),
                Met::Something => done = next,
                Met::Link { target } => {
                    links += 1;
                    if links > limits::LAYER_LINKS_MAX {
                        return Err(PathProblem::Links.into());
                    }
                    if target.starts_with(b"/") {
                        done = Self::default();
                    }
                    parts(&target).rev().for_each(|part| ahead.push_front(part.to_vec()));
                }
            }
        }
        Ok(Some(done))
    }

    /// For display.
    pub fn shown(&self) -> String {
        if self.is_root() { "/".to_owned() } else { String::from_utf8_lossy(&self.0).into_owned() }
    }
}

/// The meaningful components of a path, including `..`.
pub fn parts(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b"."))
}

/// Checks the text of a symbolic link. It is stored unchanged and may lead anywhere, because it is never followed here.
pub fn check_link(target: &[u8]) -> Result<(), PathProblem> {
    match target {
        [] => Err(PathProblem::Empty),
        target if target.contains(&0) => Err(PathProblem::Nul),
        target if target.len() > limits::LAYER_PATH_MAX_BYTES => Err(PathProblem::TooLong),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn clean(name: &str) -> String {
        TreePath::clean(name.as_bytes()).unwrap().shown()
    }

    #[test]
    fn names_are_taken_from_the_root_and_stay_beneath_it() {
        assert_eq!(clean("usr/bin/env"), "usr/bin/env");
        assert_eq!(clean("/etc/passwd"), "etc/passwd");
        assert_eq!(clean("./a//b/./c/"), "a/b/c");
        assert_eq!(clean("../../etc/shadow"), "etc/shadow");
        assert_eq!(clean("a/../../b"), "b");
        assert_eq!(clean("a/b/.."), "a");
        for root in ["/", ".", "./", "..", "a/.."] {
            assert_eq!(clean(root), "/", "{root}");
        }
    }

    #[test]
    fn names_that_no_file_can_have_are_refused() {
        assert_eq!(TreePath::clean(b""), Err(PathProblem::Empty));
        assert_eq!(TreePath::clean(b"a\0b"), Err(PathProblem::Nul));
        assert_eq!(TreePath::clean(&[b'a'; 256]), Err(PathProblem::TooLong));
        assert_eq!(
            TreePath::clean(&b"abc/".repeat(1024)),
            Ok(TreePath(b"abc/".repeat(1024)[..4095].to_vec()))
        );
        assert_eq!(TreePath::clean(&b"abc/".repeat(1025)), Err(PathProblem::TooLong));
    }

    #[test]
    fn a_path_is_split_into_a_directory_and_a_name() {
        let path = TreePath::clean(b"a/b/c").unwrap();
        let (parent, name) = path.split().unwrap();
        assert_eq!((parent.bytes(), name), (b"a/b".as_slice(), b"c".as_slice()));
        assert_eq!(parent.join(name), Ok(path));
        let top = TreePath::clean(b"a").unwrap();
        assert_eq!(top.split(), Some((TreePath::default(), b"a".as_slice())));
        assert_eq!(TreePath::default().split(), None);
    }

    proptest! {
        #[test]
        fn no_name_leads_out_of_the_root(name in proptest::collection::vec(
            prop_oneof![Just(b'/'), Just(b'.'), Just(b'a'), any::<u8>()], 0..64)
        ) {
            if let Ok(path) = TreePath::clean(&name) {
                prop_assert!(!path.bytes().starts_with(b"/") && !path.bytes().ends_with(b"/"));
                prop_assert!(path.bytes().is_empty() || path.bytes().split(|b| *b == b'/').all(
                    |part| !matches!(part, b"" | b"." | b"..")));
                prop_assert!(!path.bytes().contains(&0));
                prop_assert!(path.is_root() || TreePath::clean(path.bytes()) == Ok(path.clone()));
            } else {
                prop_assert!(name.is_empty() || name.contains(&0));
            }
        }

        #[test]
        fn a_cleaned_name_is_what_a_shell_would_come_to(parts in proptest::collection::vec(
            prop_oneof!["[a-c]", Just("..".to_owned()), Just(".".to_owned()), Just(String::new())], 1..12)
        ) {
            let name = format!("/{}", parts.join("/"));
            let mut stack: Vec<&str> = Vec::new();
            for part in &parts {
                match part.as_str() {
                    "" | "." => {}
                    ".." => drop(stack.pop()),
                    part => stack.push(part),
                }
            }
            let expected = stack.join("/").into_bytes();
            prop_assert_eq!(TreePath::clean(name.as_bytes()).unwrap().0, expected);
        }
    }
}
