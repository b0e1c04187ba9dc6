//! Which changes come home, and whose version wins where both sides have changed a file.
//!
//! A pattern is one of a `.gitignore` file: `*.pyc` matches at every depth, `/build/` only at the top, and a directory
//! that matches takes everything in it along.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};

use crate::cli::failure::Failure;
use sandkeep_tree::TreePath;

/// The file in which git and others list what is not part of a project.
const IGNORE_FILE: &str = ".gitignore";

#[derive(Clone, Debug, Default, clap::Args)]
pub struct SelectArgs {
    /// Leave out what matches this pattern, as in a .gitignore file; repeatable
    #[arg(long, value_name = "GLOB")]
    exclude: Vec<String>,
    /// Apply only what matches this pattern; repeatable
    #[arg(long, value_name = "GLOB")]
    include: Vec<String>,
    /// Apply also what the directory's .gitignore files ignore
    #[arg(long)]
    no_ignore: bool,
    /// In a conflict keep your version of the files that match; repeatable
    #[arg(long, value_name = "GLOB")]
    ours: Vec<String>,
    /// In a conflict take the sandbox's version of the files that match; repeatable
    #[arg(long, value_name = "GLOB")]
    theirs: Vec<String>,
    /// In every conflict take the sandbox's version
    #[arg(long)]
    force: bool,
}

/// Why a change does not come home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// `--exclude`, or no `--include` matches.
    Out,
    Ignored,
}

/// Whose version of a file is taken that both sides have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Winner {
    Ours,
    Theirs,
    /// Nobody said: it is a conflict.
    Undecided,
}

pub struct Selection {
    exclude: Gitignore,
    include: Option<Gitignore>,
    ours: Gitignore,
    theirs: Gitignore,
    force: bool,
    ignored: Option<IgnoreFiles>,
}

impl SelectArgs {
    #[cfg(test)]
    pub fn of(arguments: &[&str]) -> Self {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            select: SelectArgs,
        }
        let line = std::iter::once(&"apply").chain(arguments);
        <Line as clap::Parser>::try_parse_from(line).expect("valid arguments").select
    }

    /// The selection for changes that arrive in `directory`.
    pub fn beneath(&self, directory: &Path) -> Result<Selection, Failure> {
        let include = match self.include.as_slice() {
            [] => None,
            globs => Some(patterns("--include", globs)?),
        };
        Ok(Selection {
            exclude: patterns("--exclude", &self.exclude)?,
            include,
            ours: patterns("--ours", &self.ours)?,
            theirs: patterns("--theirs", &self.theirs)?,
            force: self.force,
            ignored: (!self.no_ignore).then(|| IgnoreFiles::above(directory)),
        })
    }
}

impl Selection {
    #[cfg(test)]
    pub fn all() -> Self {
        let args = SelectArgs { no_ignore: true, ..SelectArgs::default() };
        args.beneath(Path::new("/")).expect("there are no patterns")
    }

    /// Why a change of this path stays in the sandbox, if it does.
    pub fn leaves(&self, path: &TreePath, kind: PathKind) -> Option<Left> {
        let out = self.include.as_ref().is_some_and(|include| !matches(include, path, kind));
        if out || matches(&self.exclude, path, kind) {
            return Some(Left::Out);
        }
        let ignored = self.ignored.as_ref()?.ignore(path, kind);
        ignored.then_some(Left::Ignored)
    }

    pub fn winner(&self, path: &TreePath) -> Winner {
        match () {
            () if matches(&self.ours, path, PathKind::Other) => Winner::Ours,
            () if self.force || matches(&self.theirs, path, PathKind::Other) => Winner::Theirs,
            () => Winner::Undecided,
        }
    }
}

/// Some patterns are about directories alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathKind {
    Directory,
    Other,
}

fn patterns(flag: &str, globs: &[String]) -> Result<Gitignore, Failure> {
    let invalid = |problem: ignore::Error| Failure::Usage { problem: format!("{flag}: {problem}") };
    let mut builder = GitignoreBuilder::new("");
    builder.allow_unclosed_class(false);
    for glob in globs {
        // From the top, however it was written.
        let glob = glob.strip_prefix("./").map_or(glob.clone(), |rest| format!("/{rest}"));
        builder.add_line(None, &glob).map_err(invalid)?;
    }
    builder.build().map_err(invalid)
}

fn matches(patterns: &Gitignore, path: &TreePath, kind: PathKind) -> bool {
    let path = as_path(path);
    let directory = kind == PathKind::Directory;
    !patterns.is_empty() && patterns.matched_path_or_any_parents(path, directory).is_ignore()
}

fn as_path(path: &TreePath) -> &Path {
    Path::new(OsStr::from_bytes(path.bytes()))
}

/// The ignore files of a directory, of those in it, and of those above it up to the top of its repository. Each is read
/// when something in its directory is looked up.
struct IgnoreFiles {
    directory: PathBuf,
    /// The top of the repository that the directory is in, or the directory.
    top: PathBuf,
    read: Mutex<HashMap<PathBuf, Arc<Gitignore>>>,
}

impl IgnoreFiles {
    fn above(directory: &Path) -> Self {
        let directory = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
        let is_repository = |path: &&Path| path.join(".git").exists();
        let top = directory.ancestors().find(is_repository).unwrap_or(&directory).to_owned();
        Self { directory, top, read: Mutex::default() }
    }

    /// Whether a path is ignored, or a directory that it is in.
    fn ignore(&self, path: &TreePath, kind: PathKind) -> bool {
        let path = self.directory.join(as_path(path));
        let within = |path: &&Path| path.starts_with(&self.top) && *path != self.top;
        let mut named: Vec<&Path> = path.ancestors().take_while(within).collect();
        named.reverse();
        named.iter().any(|part| {
            let directory = kind == PathKind::Directory || *part != path;
            self.ignore_by_name(part, directory)
        })
    }

    /// The last pattern that matches decides, of the innermost file that has one.
    fn ignore_by_name(&self, path: &Path, directory: bool) -> bool {
        let within = |dir: &&Path| dir.starts_with(&self.top);
        for dir in path.ancestors().skip(1).take_while(within) {
            match self.of(dir).matched(path, directory) {
                Match::None => {}
                Match::Ignore(_) => return true,
                Match::Whitelist(_) => return false,
            }
        }
        false
    }

    fn of(&self, directory: &Path) -> Arc<Gitignore> {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let patterns = read.entry(directory.to_owned()).or_insert_with(|| {
            let mut builder = GitignoreBuilder::new(directory);
            // One that is not there, or a line that means nothing, ignores nothing.
            builder.add(directory.join(IGNORE_FILE));
            Arc::new(builder.build().unwrap_or_else(|_| Gitignore::empty()))
        });
        Arc::clone(patterns)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn path(text: &str) -> TreePath {
        TreePath::clean(text.as_bytes()).expect("a path")
    }

    #[test]
    fn patterns_mean_what_they_mean_to_git() {
        let args = SelectArgs {
            exclude: ["*.pyc", "/build/", "./top"].map(str::to_owned).to_vec(),
            no_ignore: true,
            ..SelectArgs::default()
        };
        let selection = args.beneath(Path::new("/nowhere")).expect("valid");
        let out = |text: &str, kind| selection.leaves(&path(text), kind) == Some(Left::Out);
        assert!(out("a/b/c.pyc", PathKind::Other));
        assert!(out("build", PathKind::Directory) && out("build/x/y", PathKind::Other));
        assert!(!out("build", PathKind::Other) && !out("a/build/x", PathKind::Other));
        assert!(out("top", PathKind::Other) && !out("a/top", PathKind::Other));
        let args = SelectArgs {
            include: vec!["src/**".to_owned()],
            exclude: vec!["src/gen/".to_owned()],
            ..args
        };
        let selection = args.beneath(Path::new("/nowhere")).expect("valid");
        let out = |text: &str| selection.leaves(&path(text), PathKind::Other) == Some(Left::Out);
        assert!(!out("src/a/b") && out("src/gen/x") && out("other"));
        let wrong = SelectArgs { exclude: vec!["a[".to_owned()], ..SelectArgs::default() };
        assert!(wrong.beneath(Path::new("/")).is_err(), "a pattern that cannot be read is refused");
    }

    #[test]
    fn ignore_files_count_from_the_top_of_the_repository() {
        let place = tempfile::tempdir().expect("a directory");
        let top = place.path();
        fs::create_dir_all(top.join(".git")).expect("a directory");
        fs::create_dir_all(top.join("app/sub")).expect("a directory");
        fs::write(top.join(".gitignore"), "*.log\n/app/dist\nnode_modules/\n").expect("a file");
        fs::write(top.join("app/sub/.gitignore"), "!keep.log\n").expect("a file");
        let selection = SelectArgs::default().beneath(&top.join("app")).expect("valid");
        let ignored =
            |text: &str| selection.leaves(&path(text), PathKind::Other) == Some(Left::Ignored);
        assert!(ignored("a.log") && ignored("sub/b.log") && ignored("dist/x"));
        assert!(ignored("sub/node_modules/a/b"));
        assert!(!ignored("sub/keep.log") && !ignored("sub/dist/x") && !ignored("main.py"));
        let all = SelectArgs { no_ignore: true, ..SelectArgs::default() };
        let all = all.beneath(&top.join("app")).expect("valid");
        assert_eq!(all.leaves(&path("a.log"), PathKind::Other), None);
    }
}
