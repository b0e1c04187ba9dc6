//! Files that make tools on this machine run commands: git, editors, shells, version managers. `apply` and `cp` refuse
//! to write them from a sandbox without `--allow-tool-config`: otherwise code from a sandbox would run outside of it at
//! the next `git status` or `cd`.
//!
//! A path is judged by its names alone, at every depth, ignoring case, for files and for links. Build files (Makefile,
//! package.json) are not listed: they run when the user builds the project, not before.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// How many names an error shows; the rest is counted.
const SHOWN_MAX: usize = 20;

/// The kind of an arriving path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Harmless by itself: its files are listed separately.
    Directory,
    Link,
    /// A file, its removal or its new mode.
    File,
}

/// The files were refused, and nothing was written.
#[derive(Debug, thiserror::Error)]
#[error(
    "nothing was written: these files make tools on this machine run commands: {}; review them in the sandbox, then \
     repeat with --allow-tool-config", shown(.paths)
)]
pub struct ToolConfig {
    paths: Vec<String>,
}

fn shown(paths: &[String]) -> String {
    let listed = paths[..paths.len().min(SHOWN_MAX)].join(", ");
    match paths.len().saturating_sub(SHOWN_MAX) {
        0 => listed,
        more => format!("{listed} and {more} more"),
    }
}

/// The names, which the Python client has as well: one list for all that write files from a sandbox.
#[derive(serde::Deserialize)]
struct Names {
    /// Directories all of whose files count.
    directories: Vec<String>,
    files: Vec<String>,
    /// A directory, and a file name in it or its prefix.
    pairs: Vec<(String, String)>,
    /// Plain data in a git repository: commits made in a sandbox are accepted, its settings are not.
    git_data: Vec<String>,
    git_data_directories: Vec<String>,
    /// Names that, together with `HEAD`, make any directory a repository whose settings git obeys.
    git_control: Vec<String>,
    git_stores: Vec<String>,
}

static NAMES: LazyLock<Names> = LazyLock::new(|| {
    let text = include_str!("../../../../clients/python/src/sandkeep/_apply/tool_config.json");
    serde_json::from_str(text).expect("a test reads it")
});

fn has(names: &[String], name: &str) -> bool {
    names.iter().any(|known| known == name)
}

/// What to do with such files.
#[derive(Clone, Debug)]
pub enum Guard {
    /// Refuse them below this directory.
    Refuse(PathBuf),
    Allow,
}

#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct GuardArgs {
    /// Also write files that make tools on this machine run commands: .git/config, hooks, .envrc, .vscode, ...
    #[arg(long)]
    allow_tool_config: bool,
}

impl GuardArgs {
    pub fn beneath(self, directory: &Path) -> Guard {
        if self.allow_tool_config { Guard::Allow } else { Guard::Refuse(directory.to_owned()) }
    }
}

impl Guard {
    pub fn check<'a>(
        &self,
        arriving: impl Iterator<Item = (&'a [u8], Arrival)>,
    ) -> Result<(), ToolConfig> {
        match self {
            Self::Refuse(top) => refuse(top, arriving),
            Self::Allow => Ok(()),
        }
    }
}

fn is_part_of_git(name: &str) -> bool {
    name == "head" || has(&NAMES.git_control, name) || has(&NAMES.git_stores, name)
}

/// Refuses paths below a directory that make tools run commands. Call it before anything is written.
fn refuse<'a>(
    top: &Path,
    arriving: impl Iterator<Item = (&'a [u8], Arrival)>,
) -> Result<(), ToolConfig> {
    // The directory's own location counts too: it may be inside a repository.
    let top = fs::canonicalize(top).unwrap_or_else(|_| top.to_owned());
    let arriving: Vec<(&[u8], Arrival)> = arriving.collect();
    let folded = |path: &[u8]| path.split(|byte| *byte == b'/').map(fold).collect::<Vec<_>>();
    // Entries that make a directory a repository, together with those already in it.
    let mut names: HashSet<Vec<String>> = HashSet::new();
    for (path, _) in &arriving {
        let parts = folded(path);
        let ends = (1..=parts.len()).filter(|end| is_part_of_git(&parts[end - 1]));
        names.extend(ends.map(|end| parts[..end].to_vec()));
    }
    let exists = |dir: &[&[u8]], name: &str| {
        let here = dir
            .iter()
            .map(|part| OsStr::from_bytes(part))
            .fold(top.clone(), |path, part| path.join(part));
        let sibling: Vec<String> =
            dir.iter().map(|part| fold(part)).chain([fold(name.as_bytes())]).collect();
        names.contains(&sibling) || fs::symlink_metadata(here.join(name)).is_ok()
    };
    let above: Vec<String> = folded(top.as_os_str().as_bytes());
    let is_refused = |path: &[u8], arrival| {
        let parts: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
        let whole: Vec<String> = above.iter().cloned().chain(folded(path)).collect();
        let in_git = whole.iter().position(|part| part == ".git");
        let of_git = match in_git {
            Some(at) => !is_git_data(&whole[at + 1..], arrival),
            None => is_of_repository(&parts, &exists),
        };
        arrival != Arrival::Directory && (of_git || is_named(&whole, arrival))
    };
    let refused = arriving.iter().filter(|(path, arrival)| is_refused(path, *arrival));
    let paths: Vec<String> =
        refused.map(|(path, _)| String::from_utf8_lossy(path).escape_debug().to_string()).collect();
    if paths.is_empty() { Ok(()) } else { Err(ToolConfig { paths }) }
}

/// A name as seen by file systems that ignore case, or invisible characters.
fn fold(part: &[u8]) -> String {
    // The common case.
    let plain = |byte: &u8| byte.is_ascii_alphanumeric();
    if part.iter().all(plain) {
        return String::from_utf8_lossy(part).to_ascii_lowercase();
    }
    let text = String::from_utf8_lossy(part).to_uppercase().to_lowercase();
    let ascii: String = text.chars().filter(char::is_ascii).collect();
    match ascii.trim_end_matches(['.', ' ']) {
        "git~1" => ".git".to_owned(),
        "" => ascii,
        name => name.to_owned(),
    }
}

fn is_named(parts: &[String], arrival: Arrival) -> bool {
    let Some(last) = parts.last() else { return false };
    let is_file = has(&NAMES.files, last)
        || last.ends_with(".code-workspace")
        || is_toml_of_mise(last)
        || ["lefthook", ".lefthook"].iter().any(|name| is_config_called(last, name));
    let is_pair = |pair: &[String]| {
        NAMES.pairs.iter().any(|(dir, name)| pair[0] == *dir && is_like(&pair[1], name))
    };
    let leads_to_pair = arrival == Arrival::Link && NAMES.pairs.iter().any(|(dir, _)| last == dir);
    is_file
        || leads_to_pair
        || parts.iter().any(|part| has(&NAMES.directories, part))
        || parts.windows(2).any(is_pair)
}

/// Whether a name equals the pattern, or starts with the part before its star.
fn is_like(name: &str, pattern: &str) -> bool {
    pattern.strip_suffix('*').map_or(name == pattern, |start| name.starts_with(start))
}

fn is_toml_of_mise(name: &str) -> bool {
    let rest = name.strip_prefix('.').unwrap_or(name).strip_prefix("mise.");
    rest.is_some_and(|rest| rest.ends_with("toml"))
}

/// Whether it is `name.EXT` or `name-local.EXT`.
fn is_config_called(file: &str, name: &str) -> bool {
    let rest = file.strip_prefix(name).map(|rest| rest.strip_prefix("-local").unwrap_or(rest));
    rest.is_some_and(|rest| rest.starts_with('.'))
}

/// Whether a path below `.git` is a plain file that git only reads as data. A link is not: git would write through it.
fn is_git_data(rest: &[String], arrival: Arrival) -> bool {
    if arrival == Arrival::Link {
        return false;
    }
    let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
    match rest.as_slice() {
        ["info", "exclude"] => true,
        ["objects", "info", name] => !name.ends_with("alternates"),
        [name] => has(&NAMES.git_data, name),
        [directory, _, ..] => has(&NAMES.git_data_directories, directory),
        [] => false,
    }
}

/// Whether a path belongs to a repository that is not called `.git`: git accepts any directory that has `HEAD`,
/// `objects` and `refs`. They may arrive one at a time, so `HEAD` is refused beside any of the others.
fn is_of_repository(parts: &[&[u8]], exists: &impl Fn(&[&[u8]], &str) -> bool) -> bool {
    let Some((last, dir)) = parts.split_last() else { return false };
    let completes = fold(last) == "head"
        && NAMES.git_control.iter().chain(&NAMES.git_stores).any(|n| exists(dir, n));
    let controls = |(at, part): (usize, &&[u8])| {
        has(&NAMES.git_control, &fold(part)) && exists(&parts[..at], "HEAD")
    };
    completes || parts.iter().enumerate().any(controls)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which of these paths a directory would refuse.
    fn refused<'a>(top: &Path, arriving: &[(&'a str, Arrival)]) -> Vec<&'a str> {
        let as_bytes = arriving.iter().map(|(path, arrival)| (path.as_bytes(), *arrival));
        let found = refuse(top, as_bytes).err().map(|error| error.paths).unwrap_or_default();
        arriving
            .iter()
            .map(|(path, _)| *path)
            .filter(|path| found.iter().any(|f| f == path))
            .collect()
    }

    /// What the Python client tries, too.
    #[derive(serde::Deserialize)]
    struct Cases {
        refused: Vec<String>,
        taken: Vec<String>,
    }

    fn cases() -> Cases {
        let text = include_str!("../../../../clients/python/tests/tool_config_cases.json");
        serde_json::from_str(text).expect("JSON")
    }

    fn one(path: &str, arrival: Arrival) -> bool {
        let top = tempfile::tempdir().expect("a directory");
        refuse(top.path(), std::iter::once((path.as_bytes(), arrival))).is_err()
    }

    #[test]
    fn what_makes_tools_run_commands_is_refused_at_every_depth_and_in_any_case() {
        for path in cases().refused {
            let path = path.as_str();
            assert!(one(path, Arrival::File), "{path}");
            assert!(one(path, Arrival::Link), "{path} as a link");
        }
        for link in [".git/refs/heads/main", ".git/objects", ".vscode", ".config"] {
            assert!(one(link, Arrival::Link), "{link}");
        }
    }

    #[test]
    fn files_and_commits_come_through() {
        for path in cases().taken {
            let path = path.as_str();
            assert!(!one(path, Arrival::File), "{path}");
        }
        assert!(!one(".git/hooks", Arrival::Directory));
        assert!(!one("src", Arrival::Link));
    }

    #[test]
    fn a_repository_by_another_name_is_one_too() {
        use Arrival::File;
        let top = tempfile::tempdir().expect("a directory");
        let bare =
            [("x/HEAD", File), ("x/config", File), ("x/hooks/update", File), ("x/objects/p", File)];
        assert_eq!(refused(top.path(), &bare), ["x/HEAD", "x/config", "x/hooks/update"]);
        fs::create_dir(top.path().join("y")).expect("a directory");
        fs::write(top.path().join("y/HEAD"), "ref: refs/heads/main").expect("a file");
        assert_eq!(refused(top.path(), &[("y/config", File), ("z/config", File)]), ["y/config"]);
        fs::create_dir(top.path().join("z")).expect("a directory");
        fs::write(top.path().join("z/config"), "").expect("a file");
        assert_eq!(refused(top.path(), &[("z/HEAD", File)]), ["z/HEAD"], "the last piece of one");
        let within = top.path().join("r/.git");
        fs::create_dir_all(&within).expect("a directory");
        assert_eq!(refused(&within, &[("config", File), ("index", File)]), ["config"]);
        fs::write(within.join("config"), "").expect("a file");
        assert_eq!(refused(top.path(), &[("r/.git/HEAD", File)]), [""; 0], "a commit comes home");
    }

    #[test]
    fn the_error_names_the_paths_and_the_flag() {
        let many: Vec<String> = (0..25).map(|at| format!("{at}/.envrc")).collect();
        let arriving = many.iter().map(|path| (path.as_bytes(), Arrival::File));
        let error = refuse(Path::new("/"), arriving).expect_err("it is refused").to_string();
        assert!(error.contains("0/.envrc, 1/.envrc") && error.contains("and 5 more"), "{error}");
        assert!(error.contains("--allow-tool-config"), "{error}");
    }
}
