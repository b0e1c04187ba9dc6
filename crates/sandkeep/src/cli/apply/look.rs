//! The caller's side of a plan: what the directory has where the sandbox has changes, and the parent directories. Nothing
//! else is looked at.

use std::collections::HashMap;

use rustix::fs::FileType;

use super::ApplyError;
use super::select::{Left, PathKind, Selection, Winner};
use sandkeep_tree::{
    Node, TreePath, View,
    apply::{Act, LocalFile, LocalKind, OnConflict, Plan},
    diff::{FileChange, FileFacts, FileKind, digest},
};

#[derive(Debug)]
pub struct Looked {
    pub files: Vec<LocalFile>,
    /// Whether a path is listed for its own changes or for those of others.
    listed: HashMap<TreePath, Listing>,
    /// How many changes were not looked at, because ignore files name them.
    pub ignored: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listing {
    Changed,
    Context,
}

/// Looks at all that the caller wants changed.
pub fn look(
    dir: &View,
    changes: &[FileChange],
    top: &TreePath,
    selection: &Selection,
) -> Result<Looked, ApplyError> {
    let mut looked = Looked { files: Vec::new(), listed: HashMap::new(), ignored: 0 };
    for change in changes {
        let source = change.tree_path()?;
        let Some(path) = source.within(top) else { continue };
        if path.is_root() {
            match change.after.as_ref().or(change.before.as_ref()).map(|facts| facts.kind) {
                Some(FileKind::Directory) | None => continue,
                Some(_) => return Err(ApplyError::NoDirectory { path: source.shown() }),
            }
        }
        let from = change.from_tree_path()?.and_then(|from| from.within(top));
        if looked.leaves(selection, change, &path, from.as_ref()) {
            continue;
        }
        for path in [Some(path), from].into_iter().flatten() {
            looked.listed.insert(path, Listing::Changed);
        }
    }
    let changed: Vec<TreePath> = looked.listed.keys().cloned().collect();
    for path in changed {
        looked.changed(dir, path, selection)?;
    }
    Ok(looked)
}

impl Looked {
    /// Whether the caller does not want a change. One half of a rename would lose the file.
    fn leaves(
        &mut self,
        selection: &Selection,
        change: &FileChange,
        path: &TreePath,
        from: Option<&TreePath>,
    ) -> bool {
        let kind = |facts: &Option<FileFacts>| match facts.as_ref().map(|facts| facts.kind) {
            Some(FileKind::Directory) => PathKind::Directory,
            Some(_) | None => PathKind::Other,
        };
        let now = if change.after.is_some() { kind(&change.after) } else { kind(&change.before) };
        let left = selection.leaves(path, now);
        let left =
            left.or_else(|| from.and_then(|from| selection.leaves(from, kind(&change.before))));
        self.ignored += usize::from(left == Some(Left::Ignored));
        left.is_some()
    }

    fn changed(
        &mut self,
        dir: &View,
        path: TreePath,
        selection: &Selection,
    ) -> Result<(), ApplyError> {
        let node = dir.look(&path)?;
        let mut file = described(&path, node.as_ref());
        if let Some(node) = &node {
            match file.kind {
                LocalKind::File => {
                    file.bytes = u64::try_from(node.stat().st_size).ok();
                    file.digest = Some(digest(node)?);
                }
                LocalKind::Symlink => file = file.pointing(&node.read_link()?),
                LocalKind::Directory => self.other_entry(&path, node)?,
                LocalKind::Absent | LocalKind::Other => {}
            }
        }
        file.on_conflict = match selection.winner(&path) {
            Winner::Ours => Some(OnConflict::Ours),
            Winner::Theirs => Some(OnConflict::Theirs),
            Winner::Undecided => None,
        };
        self.files.push(file);
        let mut above = path.split().map(|(parent, _)| parent);
        while let Some(parent) = above.filter(|parent| !parent.is_root()) {
            if self.listed.contains_key(&parent) {
                break;
            }
            let node = dir.look(&parent)?;
            self.context(described(&parent, node.as_ref()), parent.clone());
            above = parent.split().map(|(parent, _)| parent);
        }
        Ok(())
    }

    /// One entry of a directory that the sandbox has not changed is enough to keep the directory.
    fn other_entry(&mut self, path: &TreePath, node: &Node) -> Result<(), ApplyError> {
        for entry in node.entries()? {
            let path = path.join(entry.name.to_bytes())?;
            match self.listed.get(&path) {
                Some(Listing::Changed) => {}
                Some(Listing::Context) => break,
                None => {
                    self.context(LocalFile::new(&path, local_kind(entry.kind())), path);
                    break;
                }
            }
        }
        Ok(())
    }

    fn context(&mut self, file: LocalFile, path: TreePath) {
        self.files.push(LocalFile { context: true, ..file });
        self.listed.insert(path, Listing::Context);
    }

    /// Whether a plan concerns only what was listed: the daemon decides nothing about other files.
    pub fn check(&self, plan: &Plan) -> Result<(), ApplyError> {
        for step in &plan.steps {
            let is_asked = match self.listed.get(&step.path) {
                Some(Listing::Changed) => true,
                Some(Listing::Context) => matches!(step.act, Act::MakeDirectory { .. }),
                None => false,
            };
            if !is_asked {
                return Err(ApplyError::Unasked { path: step.path.shown() });
            }
        }
        Ok(())
    }
}

fn described(path: &TreePath, node: Option<&Node>) -> LocalFile {
    let Some(node) = node else { return LocalFile::new(path, LocalKind::Absent) };
    let file = LocalFile::new(path, local_kind(node.kind()));
    LocalFile { mode: Some(node.stat().st_mode & 0o7777), ..file }
}

fn local_kind(kind: FileType) -> LocalKind {
    match kind {
        FileType::RegularFile => LocalKind::File,
        FileType::Directory => LocalKind::Directory,
        FileType::Symlink => LocalKind::Symlink,
        FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => LocalKind::Other,
    }
}
