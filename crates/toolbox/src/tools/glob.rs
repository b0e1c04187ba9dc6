//! glob: the files whose path matches a pattern, sorted by name.

use std::path::{Component, Path, PathBuf};

use globset::{GlobBuilder, GlobMatcher};

use super::GLOB_RESULTS_MAX;
use super::call::Glob;
use super::read_file::explained;
use super::refusal::{Refusal, TextRefusal};
use super::walk::{Files, Progress, shown};

pub fn glob(call: &Glob, tell: &mut dyn FnMut(Progress)) -> Result<String, Refusal> {
    let base = Path::new(call.path.as_deref().unwrap_or("."));
    std::fs::metadata(base).map_err(|error| explained(base, &error))?;
    let pattern = call.pattern.strip_prefix("./").unwrap_or(&call.pattern);
    let matcher = matcher(pattern)?;
    // The literal part of the pattern need not be searched.
    let root = base.join(plain_beginning(pattern));
    let mut files = Files::beneath(&root, call.gitignore, None, tell);
    let mut found = Vec::new();
    while found.len() <= GLOB_RESULTS_MAX
        && let Some(entry) = files.next_file()
    {
        // An absolute pattern matches the whole path, any other the part below the base.
        let path = entry.path().strip_prefix(base).unwrap_or(entry.path());
        let path = if pattern.starts_with('/') { entry.path() } else { path };
        if matcher.is_match(path) {
            found.push(format!("{}\n", shown(entry.path())));
            files.progress.found += 1;
        }
    }
    // A path that does not exist has nothing below it.
    files.unreadable = if root.exists() { files.unreadable } else { 0 };
    Ok(answer(found, pattern, &files))
}

fn answer(mut found: Vec<String>, pattern: &str, files: &Files) -> String {
    let more = found.len() > GLOB_RESULTS_MAX;
    found.truncate(GLOB_RESULTS_MAX);
    let mut answer = found.concat();
    if found.is_empty() {
        answer = format!("no file matches {pattern} among {}", files.progress.files_seen);
        let hint =
            if pattern.contains('/') { "" } else { "; to look in all directories begin with **/" };
        answer.push_str(hint);
        answer.push('\n');
    }
    if more {
        answer.push_str(&format!(
            "[the first {GLOB_RESULTS_MAX} files; there are more: make the pattern or path narrower]\n"
        ));
    }
    answer + &files.remarks()
}

fn matcher(pattern: &str) -> Result<GlobMatcher, Refusal> {
    let built = GlobBuilder::new(pattern).literal_separator(true).backslash_escape(true).build();
    let refused = |error: globset::Error| {
        let (glob, problem) = (pattern.to_owned(), error.kind().to_string());
        TextRefusal::BadGlob { glob, problem }.into()
    };
    built.map(|glob| glob.compile_matcher()).map_err(refused)
}

/// The literal directories at the beginning of a pattern.
fn plain_beginning(pattern: &str) -> PathBuf {
    let is_plain = |part: &Component<'_>| {
        let text = part.as_os_str().to_string_lossy();
        !text.contains(['*', '?', '[', ']', '{', '}', '\\', '!'])
    };
    let directories = Path::new(pattern).parent().unwrap_or(Path::new(""));
    directories.components().take_while(is_plain).collect()
}

#[cfg(test)]
mod tests;
