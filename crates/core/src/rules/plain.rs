//! Rules that need no filesystem of their own, because mounts can keep them.

use super::{Permission, Rules};

/// One access to the whole codebase, apart from writable directories in a read-only one.
///
/// The opposite, a read-only directory in a writable one, is not plain: a directory above it could be renamed, and
/// then its path would be writable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plain {
    pub root: PlainAccess,
    /// Paths without a leading `/`, each before those below it; only if the root is read-only. The mounts keep the
    /// rules only if each of them is a directory (not a symbolic link) when the sandbox starts.
    pub writable: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlainAccess {
    Read,
    Write,
}

impl Rules {
    /// The same rules as mounts, if they can be.
    pub fn plain(&self) -> Option<Plain> {
        let mut subtrees = Vec::new();
        for rule in self.ordered() {
            if rule.permission < Permission::Read {
                return None;
            }
            subtrees.push(String::from_utf8(rule.pattern.subtree()?.join(&b'/')).ok()?);
        }
        // Any name that no rule mentions has the access of the whole tree.
        let unnamed = (0..).map(|n| format!("unnamed-{n}"));
        let unnamed = unnamed.into_iter().find(|name| {
            subtrees.iter().all(|path| path.split('/').next() != Some(name.as_str()))
        })?;
        let root = match self.decide(unnamed).permission {
            Permission::None | Permission::View => return None,
            Permission::Read => PlainAccess::Read,
            Permission::Write => PlainAccess::Write,
        };
        subtrees.retain(|path| !path.is_empty());
        subtrees.sort_unstable();
        subtrees.dedup();
        let mut writable: Vec<String> = Vec::new();
        for path in subtrees {
            let is_below = |above: &String| {
                path.strip_prefix(above.as_str()).is_some_and(|rest| rest.starts_with('/'))
            };
            let above_is_writable = root == PlainAccess::Write || writable.iter().any(is_below);
            match (self.decide(&path).permission, above_is_writable) {
                (Permission::Write, true) | (Permission::Read, false) => {}
                (Permission::Write, false) => writable.push(path),
                _ => return None,
            }
        }
        Some(Plain { root, writable })
    }
}
