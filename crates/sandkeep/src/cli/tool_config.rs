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

/// Directories all of whose files count.
const DIRECTORIES: &[&str] = &[
    ".bzr",
    ".devcontainer",
    ".direnv",
    ".fleet",
    ".githooks",
    ".hg",
    ".husky",
    ".idea",
    ".jj",
    ".mise",
    ".sl",
    ".ssh",
    ".svn",
    ".vs",
    ".vscode",
    ".zed",
];

const FILES: &[&str] = &[
    ".autoenv",
    ".autoenv.zsh",
    ".bash_aliases",
    ".bash_login",
    ".bash_logout",
    ".bash_profile",
    ".bashrc",
    ".devcontainer.json",
    ".dir-locals.el",
    ".envrc",
    ".exrc",
    ".gdbinit",
    ".gitconfig",
    ".lldbinit",
    ".lvimrc",
    ".mcp.json",
    ".nvim.lua",
    ".nvimrc",
    ".pre-commit-config.yaml",
    ".profile",
    ".rtx.toml",
    ".tool-versions",
    ".vimrc",
    ".zlogin",
    ".zlogout",
    ".zprofile",
    ".zshenv",
    ".zshrc",
];

/// A directory, and a file name in it or its prefix.
const PAIRS: &[(&str, &str)] = &[
    (".claude", "settings*"),
    (".config", "autostart"),
    (".config", "direnv"),
    (".config", "fish"),
    (".config", "git"),
    (".config", "mise"),
    (".config", "systemd"),
    (".cursor", "hooks*"),
    (".cursor", "mcp*"),
    ("mise", "config.*"),
];

/// Plain data in a git repository: commits made in a sandbox are accepted, its settings are not.
const GIT_DATA: &[&str] = &[
    "auto_merge",
    "cherry_pick_head",
    "commit_editmsg",
    "description",
    "fetch_head",
    "head",
    "index",
    "merge_head",
    "merge_mode",
    "merge_msg",
    "orig_head",
    "packed-refs",
    "revert_head",
    "shallow",
    "squash_msg",
];
const GIT_DATA_DIRECTORIES: &[&str] = &["logs", "objects", "refs"];

/// Names that, together with `HEAD`, make any directory a repository whose settings git obeys.
const GIT_CONTROL: &[&str] =
    &["commondir", "config", "config.worktree", "gitdir", "hooks", "info", "modules", "worktrees"];

const GIT_STORES: [&str; 2] = ["objects", "refs"];

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
    name == "head" || GIT_CONTROL.contains(&name) || GIT_STORES.contains(&name)
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
    let has = |dir: &[&[u8]], name: &str| {
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
            None => is_of_repository(&parts, &has),
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
    let is_file = FILES.contains(&last.as_str())
        || last.ends_with(".code-workspace")
        || is_toml_of_mise(last)
        || ["lefthook", ".lefthook"].iter().any(|name| is_config_called(last, name));
    let is_pair = |pair: &[String]| {
        PAIRS.iter().any(|(dir, name)| pair[0] == *dir && is_like(&pair[1], name))
    };
    let leads_to_pair = arrival == Arrival::Link && PAIRS.iter().any(|(dir, _)| last == dir);
    is_file
        || leads_to_pair
        || parts.iter().any(|part| DIRECTORIES.contains(&part.as_str()))
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
        [name] => GIT_DATA.contains(name),
        [directory, _, ..] => GIT_DATA_DIRECTORIES.contains(directory),
        [] => false,
    }
}

/// Whether a path belongs to a repository that is not called `.git`: git accepts any directory that has `HEAD`,
/// `objects` and `refs`. They may arrive one at a time, so `HEAD` is refused beside any of the others.
fn is_of_repository(parts: &[&[u8]], has: &impl Fn(&[&[u8]], &str) -> bool) -> bool {
    let Some((last, dir)) = parts.split_last() else { return false };
    let completes =
        fold(last) == "head" && GIT_CONTROL.iter().chain(&GIT_STORES).any(|name| has(dir, name));
    let controls = |(at, part): (usize, &&[u8])| {
        GIT_CONTROL.contains(&fold(part).as_str()) && has(&parts[..at], "HEAD")
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

    fn one(path: &str, arrival: Arrival) -> bool {
        let top = tempfile::tempdir().expect("a directory");
        refuse(top.path(), std::iter::once((path.as_bytes(), arrival))).is_err()
    }

    #[test]
    fn what_makes_tools_run_commands_is_refused_at_every_depth_and_in_any_case() {
        for path in [
            ".git",
            ".git/config",
            ".GIT/Config",
            "sub/.git/config",
            ".git/config.worktree",
            ".git/hooks/pre-commit",
            ".git/info/attributes",
            ".git/modules/x/config",
            ".git/worktrees/x/gitdir",
            ".git/commondir",
            ".git/rebase-merge/git-rebase-todo",
            ".git/objects/info/alternates",
            ".g\u{200c}it/config",
            "git~1/config",
            ".envrc",
            "a/b/.envrc",
            ".vscode/tasks.json",
            ".VSCode/settings.json",
            ".idea/workspace.xml",
            ".husky/pre-commit",
            ".hu\u{17f}\u{212a}y/pre-commit",
            "mise.toml",
            ".mise.local.toml",
            ".config/mise/config.toml",
            "mise/config.toml",
            ".tool-versions",
            "x.code-workspace",
            "lefthook.yml",
            ".lefthook-local.toml",
            ".bashrc",
            ".ssh/authorized_keys",
        ] {
            assert!(one(path, Arrival::File), "{path}");
            assert!(one(path, Arrival::Link), "{path} as a link");
        }
        for link in [".git/refs/heads/main", ".git/objects", ".vscode", ".config"] {
            assert!(one(link, Arrival::Link), "{link}");
        }
    }

    #[test]
    fn files_and_commits_come_through() {
        for path in [
            "src/main.rs",
            "config",
            "hooks/useState.ts",
            "HEAD",
            ".gitignore",
            ".gitattributes",
            ".github/workflows/ci.yml",
            ".git/HEAD",
            ".git/index",
            ".git/refs/heads/main",
            ".git/objects/ab/cdef",
            ".git/logs/HEAD",
            "misery.toml",
            "lefthooks/x",
            ".config/app.toml",
            ".config/gitui/theme",
            ".claude/agents/one.md",
        ] {
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
