//! Problems of a configuration, each with its location, reported all at once.

use std::fmt;
use std::io;
use std::path::PathBuf;

use super::layers::Source;
use super::value::Invalid;

/// One problem.
#[derive(Debug)]
pub struct Problem {
    pub source: Source,
    /// The setting, if it concerns one.
    pub key: Option<String>,
    pub what: String,
}

impl Problem {
    pub fn value(source: Source, key: &str, invalid: &Invalid) -> Self {
        Self { source, key: Some(key.to_owned()), what: invalid.to_string() }
    }

    pub fn unknown<'a>(
        source: Source,
        key: &str,
        known: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let what = match nearest(key, known) {
            Some(near) => format!("unknown setting; did you mean `{near}`?"),
            None => "unknown setting; docs/reference/configuration.md lists them".to_owned(),
        };
        Self { source, key: Some(key.to_owned()), what }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.key.as_deref().unwrap_or_default();
        match &self.source {
            Source::Default => write!(f, "{key}: ")?,
            Source::File { path, line } if key.is_empty() => {
                write!(f, "{}:{line}: ", path.display())?
            }
            Source::File { path, line } => write!(f, "{}:{line}: {key}: ", path.display())?,
            Source::Env { variable } => write!(f, "{variable}: ")?,
            Source::Flag { flag } => write!(f, "{flag}: ")?,
        }
        f.write_str(&self.what)
    }
}

/// Why the configuration is invalid.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read the configuration file {path}")]
    Unreadable {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{}", in_lines(.0))]
    Invalid(Vec<Problem>),
}

fn in_lines(problems: &[Problem]) -> String {
    match problems {
        [only] => only.to_string(),
        several => {
            let lines: Vec<String> =
                several.iter().map(|problem| format!("\n  {problem}")).collect();
            format!("the configuration has {} errors:{}", several.len(), lines.concat())
        }
    }
}

/// The most similar known name.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // People remember the last part: `max_sandboxes` for `limits.max_sandboxes`.
    let tail = |key: &'a str| key.rsplit('.').next().unwrap_or(key);
    let distance = |key: &'a str| {
        let whole = edits(name, key);
        if name.contains('.') { whole } else { whole.min(edits(name, tail(key)) + 1) }
    };
    let near = known.into_iter().map(|key| (distance(key), key)).min_by_key(|(edits, _)| *edits)?;
    let (edits, key) = near;
    (edits <= name.len().max(3) / 3).then_some(key)
}

/// The edit distance of two names.
fn edits(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in to.iter().enumerate() {
            let changed = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}
