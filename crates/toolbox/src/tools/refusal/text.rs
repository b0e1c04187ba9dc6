//! Refusals about a text to be found or replaced.

use serde::{Deserialize, Serialize};

use super::Said;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum TextRefusal {
    NoMatch {
        path: String,
        nearest: Option<Nearest>,
    },
    /// `lines` are the first places, from 1.
    NotUnique {
        path: String,
        count: usize,
        lines: Vec<usize>,
    },
    NothingToReplace,
    NothingChanges,
    BadPattern {
        pattern: String,
        problem: String,
    },
    BadGlob {
        glob: String,
        problem: String,
    },
}

/// The most similar part of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nearest {
    /// Of its first line, from 1.
    pub line: usize,
    /// Similarity in percent.
    pub percent: u8,
    /// The requested text (-) and the existing one (+), line by line.
    pub difference: String,
}

impl TextRefusal {
    pub(super) fn said(&self) -> Said {
        match self {
            Self::NoMatch { path, nearest: Some(nearest) } => {
                let Nearest { line, percent, difference } = nearest;
                Said::new(
                    "no_match",
                    format!(
                        "old_string is not in {path}; the most similar text begins at line {line} and matches to \
                         {percent}% (- your text, + the file's text):\n{difference}"
                    ),
                    EXACTLY,
                    "use the file's text as old_string",
                )
            }
            Self::NoMatch { path, nearest: None } => Said::new(
                "no_match",
                format!("old_string is not in {path}, and no similar text"),
                EXACTLY,
                "read the file with read_file, and copy the text from there",
            ),
            Self::NotUnique { path, count, lines } => {
                let places: Vec<_> = lines.iter().map(usize::to_string).collect();
                let more = if lines.len() < *count { " …" } else { "" };
                Said::new(
                    "not_unique",
                    format!(
                        "old_string occurs {count} times in {path}: lines {}{more}",
                        places.join(", ")
                    ),
                    "old_string must occur exactly once, unless replace_all is true",
                    "include more lines before or after it, or set replace_all to change all of them",
                )
            }
            Self::NothingToReplace => Said::new(
                "nothing_to_replace",
                "old_string is empty".to_owned(),
                "edit_file replaces existing text",
                "give the text to replace; use write_file to create or overwrite a file",
            ),
            Self::NothingChanges => Said::new(
                "nothing_changes",
                "old_string and new_string are the same".to_owned(),
                "an edit must change the file; line endings are always kept",
                "give the new text as new_string, or leave the file as it is",
            ),
            Self::BadPattern { pattern, problem } => Said::new(
                "bad_pattern",
                format!("{pattern:?} is not a regular expression: {problem}"),
                "pattern is a regular expression in ripgrep's syntax and matches within a line",
                "escape literal characters with a backslash: ( ) [ ] { } . * + ? | ^ $ \\",
            ),
            Self::BadGlob { glob, problem } => Said::new(
                "bad_glob",
                format!("{glob:?} is not a glob: {problem}"),
                "a glob consists of *, ?, [abc], {a,b}, and ** for any number of directories",
                "use something like **/*.rs or src/**/*.{ts,tsx}",
            ),
        }
    }

    pub(super) fn samples() -> Vec<Self> {
        let path = || "src/main.rs".to_owned();
        let difference = "-    println!(\"hi\");\n+    println!(\"hello\");".to_owned();
        vec![
            Self::NoMatch {
                path: path(),
                nearest: Some(Nearest { line: 7, percent: 88, difference }),
            },
            Self::NotUnique { path: path(), count: 3, lines: vec![2, 5, 9] },
            Self::NothingToReplace,
            Self::NothingChanges,
            Self::BadPattern { pattern: "(a".to_owned(), problem: "unclosed group".to_owned() },
            Self::BadGlob { glob: "[a".to_owned(), problem: "unclosed character class".to_owned() },
        ]
    }
}

const EXACTLY: &str = "old_string must be in the file exactly as it is there, indentation included, and without \
                       the line numbers that read_file shows";
