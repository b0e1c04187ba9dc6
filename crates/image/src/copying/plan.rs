//! Determines what goes where: finds a copy's sources, resolves its destination, and adds all directories in between.

use std::collections::BTreeSet;

use super::owner::Ids;
use super::{CopyError, Files, Seen, SeenKind};
use crate::recipe::{Archives, Copied, CopiedFrom, Pattern};
use sandkeep_core::limits;
use sandkeep_tree::{
    TreePath,
    archive::{Attributes, Entries, Moment, decoded},
};

const WHITEOUT: &[u8] = b".wh.";
const DIRECTORY_MODE: u32 = 0o755;
const FILE_MODE: u32 = 0o644;

/// Everything that a copy adds to the tree, directories before their contents.
#[derive(Debug, Default)]
pub struct Plan {
    pub(super) entries: Vec<Planned>,
    /// The owner of everything. Entries of archives have owners of their own, unless one is set.
    pub(super) owner: Option<Ids>,
}

#[derive(Debug)]
pub(super) struct Planned {
    /// Without links.
    pub to: TreePath,
    pub what: What,
    pub attributes: Attributes,
}

#[derive(Debug)]
pub(super) enum What {
    Directory,
    Symlink {
        target: Vec<u8>,
    },
    File {
        from: TreePath,
        size_bytes: u64,
    },
    Text(String),
    /// The content of an archive, unpacked into the directory.
    Unpacked {
        archive: TreePath,
    },
}

impl Plan {
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// Plans changes of a tree.
pub struct Planner<'a> {
    below: &'a dyn Files,
    mode: Option<u32>,
    made: BTreeSet<TreePath>,
    plan: Plan,
}

impl<'a> Planner<'a> {
    pub fn above(below: &'a dyn Files, owner: Option<Ids>, mode: Option<u32>) -> Self {
        let plan = Plan { entries: Vec::new(), owner };
        Self { below, mode, made: BTreeSet::new(), plan }
    }

    /// A directory and its missing parents.
    pub fn directory(mut self, path: &str) -> Result<Plan, CopyError> {
        self.settle(&clean(path)?)?;
        Ok(self.plan)
    }

    /// Everything that an instruction copies.
    pub fn copy(mut self, copied: &Copied, files: &dyn Files) -> Result<Plan, CopyError> {
        let to = clean(&copied.to)?;
        let mut found = Vec::new();
        for source in &copied.sources {
            match source {
                CopiedFrom::Path(path) => {
                    found.extend(sources(path, files)?.into_iter().map(Source::Path))
                }
                CopiedFrom::Inline { name, content } => found.push(Source::Text { name, content }),
            }
        }
        let into = if copied.to.ends_with('/') || self.is_directory(&to)? {
            Destination::Directory
        } else {
            Destination::Name
        };
        if found.len() > 1 && into == Destination::Name {
            return Err(CopyError::NotADirectory { to: copied.to.clone() });
        }
        for source in found {
            match source {
                Source::Text { name, content } => self.text(&to, into, name, content)?,
                Source::Path(path) => self.path(&to, into, &path, files, copied.archives)?,
            }
        }
        Ok(self.plan)
    }

    fn text(
        &mut self,
        to: &TreePath,
        into: Destination,
        name: &str,
        content: &str,
    ) -> Result<(), CopyError> {
        let to = self.place(to, into, name.as_bytes())?;
        let attributes = self.owned(Attributes { mode: FILE_MODE, ..Attributes::default() });
        self.leaf(to, What::Text(content.to_owned()), attributes)
    }

    fn path(
        &mut self,
        to: &TreePath,
        into: Destination,
        named: &TreePath,
        files: &dyn Files,
        archives: Archives,
    ) -> Result<(), CopyError> {
        let missing = || CopyError::Missing { path: named.shown() };
        let from = files.resolve(named).map_err(CopyError::reading(named))?.ok_or_else(missing)?;
        let seen = files.look(&from).map_err(CopyError::reading(&from))?.ok_or_else(missing)?;
        match seen.kind {
            SeenKind::Directory => {
                let to = self.settle_as(to, Some(&seen.attributes))?;
                self.tree(&to, &from, files)
            }
            SeenKind::File { .. }
                if archives == Archives::Unpacked && is_archive(files, &from)? =>
            {
                let to = self.settle(to)?;
                let attributes =
                    self.owned(Attributes { mode: DIRECTORY_MODE, ..Attributes::default() });
                self.push(Planned { to, what: What::Unpacked { archive: from }, attributes })
            }
            SeenKind::File { size_bytes } => {
                let name = named.split().map(|(_, name)| name.to_vec()).unwrap_or_default();
                let to = self.place(to, into, &name)?;
                let attributes = self.owned(seen.attributes);
                self.leaf(to, What::File { from, size_bytes }, attributes)
            }
            SeenKind::Symlink { .. } | SeenKind::Other => {
                Err(CopyError::NotAFile { path: named.shown() })
            }
        }
    }

    /// The content of a directory, recursively. Implemented without recursion, because it may be deep.
    fn tree(&mut self, to: &TreePath, from: &TreePath, files: &dyn Files) -> Result<(), CopyError> {
        let mut open = vec![(to.clone(), from.clone())];
        while let Some((to, from)) = open.pop() {
            for name in files.names(&from).map_err(CopyError::reading(&from))? {
                let source = join(&from, &name)?;
                let Some(seen) = files.look(&source).map_err(CopyError::reading(&source))? else {
                    continue;
                };
                let Seen { kind, attributes } = seen;
                let place = join(&to, &name)?;
                match kind {
                    SeenKind::Directory => {
                        open.push((self.settle_as(&place, Some(&attributes))?, source));
                    }
                    SeenKind::File { size_bytes } => {
                        let attributes = self.owned(attributes);
                        self.leaf(place, What::File { from: source, size_bytes }, attributes)?;
                    }
                    SeenKind::Symlink { target } => {
                        let attributes = self.owned(Attributes { mode: 0o777, ..attributes });
                        self.leaf(place, What::Symlink { target }, attributes)?;
                    }
                    SeenKind::Other => {}
                }
            }
        }
        Ok(())
    }

    /// The destination of a file, whose missing directories are created.
    fn place(
        &mut self,
        to: &TreePath,
        into: Destination,
        name: &[u8],
    ) -> Result<TreePath, CopyError> {
        let (directory, name) = match (into, to.split()) {
            (Destination::Name, Some((parent, own))) => (parent, own.to_vec()),
            (Destination::Directory, _) | (Destination::Name, None) => (to.clone(), name.to_vec()),
        };
        join(&self.settle(&directory)?, &name)
    }

    fn settle(&mut self, path: &TreePath) -> Result<TreePath, CopyError> {
        self.settle_as(path, None)
    }

    /// A directory by its path without links, created if missing: its parents with defaults, itself with the given
    /// attributes.
    fn settle_as(
        &mut self,
        path: &TreePath,
        own: Option<&Attributes>,
    ) -> Result<TreePath, CopyError> {
        let mut done = TreePath::default();
        let count = path.parts().count();
        for (index, part) in path.parts().enumerate() {
            let next = join(&done, part)?;
            if self.made.contains(&next) {
                done = next;
                continue;
            }
            let failed = || CopyError::reading(&next);
            if let Some(resolved) = self.below.resolve(&next).map_err(failed())? {
                match self.below.look(&resolved).map_err(failed())?.map(|seen| seen.kind) {
                    Some(SeenKind::Directory) => {
                        done = resolved;
                        continue;
                    }
                    Some(_) => return Err(in_the_way(&next, "something else", "a directory")),
                    None => {}
                }
            }
            let own = own.filter(|_| index + 1 == count).cloned();
            let plain = Attributes { mode: DIRECTORY_MODE, ..Attributes::default() };
            let attributes = match own {
                Some(own) => self.owned(own),
                None => Attributes { modified: Moment::default(), ..self.ids(plain) },
            };
            self.made.insert(next.clone());
            self.push(Planned { to: next.clone(), what: What::Directory, attributes })?;
            done = next;
        }
        Ok(done)
    }

    fn leaf(&mut self, to: TreePath, what: What, attributes: Attributes) -> Result<(), CopyError> {
        let there = self.below.look(&to).map_err(CopyError::reading(&to))?.map(|seen| seen.kind);
        if self.made.contains(&to) || there == Some(SeenKind::Directory) {
            return Err(in_the_way(&to, "a directory", "a file"));
        }
        self.push(Planned { to, what, attributes })
    }

    fn push(&mut self, planned: Planned) -> Result<(), CopyError> {
        if planned.to.split().is_some_and(|(_, name)| name.starts_with(WHITEOUT)) {
            return Err(CopyError::Whiteout { path: planned.to.shown() });
        }
        if self.plan.entries.len() as u64 >= limits::LAYER_ENTRIES_MAX {
            return Err(CopyError::TooMany { max: limits::LAYER_ENTRIES_MAX });
        }
        self.plan.entries.push(planned);
        Ok(())
    }

    fn is_directory(&self, path: &TreePath) -> Result<bool, CopyError> {
        let failed = || CopyError::reading(path);
        let Some(resolved) = self.below.resolve(path).map_err(failed())? else { return Ok(false) };
        let seen = self.below.look(&resolved).map_err(failed())?;
        Ok(seen.is_some_and(|seen| seen.kind == SeenKind::Directory))
    }

    /// With the requested owner and mode.
    fn owned(&self, attributes: Attributes) -> Attributes {
        let mode = self.mode.unwrap_or(attributes.mode);
        Attributes { mode, ..self.ids(attributes) }
    }

    fn ids(&self, attributes: Attributes) -> Attributes {
        match self.plan.owner {
            Some(Ids { uid, gid }) => Attributes { uid: uid.into(), gid: gid.into(), ..attributes },
            None => attributes,
        }
    }
}

/// The kind of a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Destination {
    /// Files are copied into it.
    Directory,
    /// The single file gets this name.
    Name,
}

enum Source<'a> {
    Path(TreePath),
    Text { name: &'a str, content: &'a str },
}

fn in_the_way(path: &TreePath, there: &'static str, wanted: &'static str) -> CopyError {
    CopyError::InTheWay { path: path.shown(), there, wanted }
}

fn clean(path: &str) -> Result<TreePath, CopyError> {
    let whole = if path.is_empty() { "/" } else { path };
    TreePath::clean(whole.as_bytes())
        .map_err(|problem| CopyError::Path { path: path.to_owned(), problem })
}

fn join(directory: &TreePath, name: &[u8]) -> Result<TreePath, CopyError> {
    directory.join(name).map_err(|problem| CopyError::Path {
        path: format!("{}/{}", directory.shown(), String::from_utf8_lossy(name)),
        problem,
    })
}

/// The paths that match, in order.
fn sources(path: &str, files: &dyn Files) -> Result<Vec<TreePath>, CopyError> {
    if !Pattern::is_wild(path) {
        return Ok(vec![clean(path)?]);
    }
    let no_match = || CopyError::NoMatch { pattern: path.to_owned() };
    let pattern = Pattern::read(path).ok_or_else(no_match)?;
    // Without `**`, nothing deeper than the pattern itself can match.
    let depth = if path.split('/').any(|part| part == "**") {
        usize::MAX
    } else {
        path.split('/').filter(|part| !part.is_empty()).count()
    };
    let mut found = Vec::new();
    let mut open = vec![TreePath::default()];
    while let Some(directory) = open.pop() {
        for name in files.names(&directory).map_err(CopyError::reading(&directory))? {
            let path = join(&directory, &name)?;
            if pattern.matches(&String::from_utf8_lossy(path.bytes())) {
                found.push(path.clone());
                continue;
            }
            let seen = files.look(&path).map_err(CopyError::reading(&path))?;
            let deeper = path.parts().count() < depth;
            if deeper && seen.is_some_and(|seen| seen.kind == SeenKind::Directory) {
                open.push(path);
            }
        }
    }
    found.sort();
    if found.is_empty() { Err(no_match()) } else { Ok(found) }
}

/// Whether a file is an archive to be unpacked, independent of its name.
fn is_archive(files: &dyn Files, path: &TreePath) -> Result<bool, CopyError> {
    let opened = files.open(path).map_err(CopyError::reading(path))?;
    Ok(matches!(Entries::new(decoded(opened)?).next(), Ok(Some(_))))
}
