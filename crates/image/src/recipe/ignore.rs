//! `.dockerignore`: the files of a directory that are excluded from a build. The last matching line decides; a line
//! that starts with `!` includes files again.

use super::glob::Pattern;
use super::problem::{Problem, RecipeError};
use sandkeep_core::limits::{RECIPE_LINES_MAX, RECIPE_MAX_BYTES};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ignore(Vec<(Pattern, Verdict)>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Out,
    In,
}

impl Ignore {
    pub fn read(text: &str) -> Result<Self, RecipeError> {
        if text.len() > RECIPE_MAX_BYTES {
            return Err(RecipeError::at(1)(Problem::TooLarge));
        }
        let mut rules = Vec::new();
        for (index, line) in text.lines().enumerate() {
            if index >= RECIPE_LINES_MAX {
                return Err(RecipeError::at(index + 1)(Problem::TooManyLines));
            }
            let line = line.strip_prefix('\u{feff}').unwrap_or(line).trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (pattern, verdict) = match line.strip_prefix('!') {
                Some(pattern) => (pattern.trim(), Verdict::In),
                None => (line, Verdict::Out),
            };
            let wrong = || Problem::Value { value: line.to_owned(), wanted: "a pattern of paths" };
            let read = Pattern::read(&clean(pattern)).filter(|_| !pattern.is_empty());
            rules.push((read.ok_or_else(wrong).map_err(RecipeError::at(index + 1))?, verdict));
        }
        Ok(Self(rules))
    }

    /// Whether a path, relative to the directory, is excluded. The content of an excluded directory is excluded too,
    /// unless a later line includes it, so such a directory cannot be skipped.
    pub fn leaves_out(&self, path: &str) -> bool {
        let about = self.0.iter().rev().find(|(pattern, _)| pattern.matches_above(path));
        about.is_some_and(|(_, verdict)| *verdict == Verdict::Out)
    }

    /// Whether some line includes files again, so that excluded directories must be traversed.
    pub fn lets_in(&self) -> bool {
        self.0.iter().any(|(_, verdict)| *verdict == Verdict::In)
    }
}

/// Resolves `..`.
fn clean(pattern: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in pattern.split('/') {
        match part {
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left_out<'a>(text: &str, paths: &[&'a str]) -> Vec<&'a str> {
        let ignore = Ignore::read(text).expect(text);
        paths.iter().copied().filter(|path| ignore.leaves_out(path)).collect()
    }

    #[test]
    fn files_are_left_out_as_docker_does() {
        let paths =
            ["a", "a/b", "a/b/c.md", "README.md", "x.md", "temp1", "d/temp2", ".git/config"];
        for (text, wanted) in [
            ("", &[][..]),
            ("# a\n\n", &[]),
            ("a", &["a", "a/b", "a/b/c.md"]),
            ("/a/", &["a", "a/b", "a/b/c.md"]),
            ("a/b\n", &["a/b", "a/b/c.md"]),
            ("*.md\n!README.md", &["x.md"]),
            ("*.md\n!README*.md\nREADME.md", &["README.md", "x.md"]),
            ("!README.md\n*.md", &["README.md", "x.md"]),
            ("**/*.md", &["a/b/c.md", "README.md", "x.md"]),
            ("*/temp*", &["d/temp2"]),
            ("temp?", &["temp1"]),
            (".git", &[".git/config"]),
            ("a\n!a/b/c.md", &["a", "a/b"]),
            ("x/../temp1", &["temp1"]),
            ("*", &paths),
            ("**", &paths),
        ] {
            assert_eq!(left_out(text, &paths), wanted, "{text:?}");
        }
        assert!(Ignore::read("*\n!a").expect("a file").lets_in());
        let wrong = Ignore::read("a\n[b").expect_err("a bracket");
        assert_eq!(wrong.line, 2);
    }
}
