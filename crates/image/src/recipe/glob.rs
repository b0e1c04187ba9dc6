//! Docker's path patterns: `*` and `?` within a name, `[a-z]` and `[^a]`, `\` to escape a character, and `**` for any
//! number of directories.

/// A pattern, split at its slashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(Vec<GlobPart>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum GlobPart {
    /// Any number of names, including none.
    Any,
    Name(Vec<GlobToken>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum GlobToken {
    Character(char),
    One,
    Many,
    Class { ranges: Vec<(char, char)>, sense: Sense },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sense {
    In,
    NotIn,
}

impl Pattern {
    /// `None` if a bracket or an escape is incomplete.
    pub fn read(text: &str) -> Option<Self> {
        let parts = text.split('/').filter(|part| !part.is_empty() && *part != ".");
        let part = |part: &str| match part {
            "**" => Some(GlobPart::Any),
            name => tokens(name).map(GlobPart::Name),
        };
        parts.map(part).collect::<Option<_>>().map(Self)
    }

    /// Whether it can match more than one path.
    pub fn is_wild(text: &str) -> bool {
        text.contains(['*', '?', '[', '\\'])
    }

    /// Whether it matches a path (relative, without dots).
    pub fn matches(&self, path: &str) -> bool {
        let names: Vec<Vec<char>> = names(path).map(|name| name.chars().collect()).collect();
        let rows = self.0.iter().fold(vec![0], |reached, part| step(&reached, part, &names));
        rows.contains(&names.len())
    }

    /// Whether it matches a path or one of its parent directories.
    pub fn matches_above(&self, path: &str) -> bool {
        let names: Vec<&str> = names(path).collect();
        (1..=names.len()).any(|length| self.matches(&names[..length].join("/")))
    }
}

fn names(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|name| !name.is_empty() && *name != ".")
}

/// The numbers of consumed names after a part, given those before it. Sets of positions instead of backtracking, so
/// that no pattern takes more than its length times the path's.
fn step(reached: &[usize], part: &GlobPart, names: &[Vec<char>]) -> Vec<usize> {
    match part {
        GlobPart::Any => {
            reached.iter().min().map(|at| (*at..=names.len()).collect()).unwrap_or_default()
        }
        GlobPart::Name(tokens) => {
            let fits = |at: &&usize| names.get(**at).is_some_and(|name| is_name(tokens, name));
            reached.iter().filter(fits).map(|at| at + 1).collect()
        }
    }
}

fn is_name(tokens: &[GlobToken], name: &[char]) -> bool {
    let mut reached = vec![0];
    for token in tokens {
        reached = match token {
            GlobToken::Many => {
                reached.iter().min().map(|at| (*at..=name.len()).collect()).unwrap_or_default()
            }
            token => {
                let fits = |at: &&usize| name.get(**at).is_some_and(|c| token.is(*c));
                reached.iter().filter(fits).map(|at| at + 1).collect()
            }
        };
    }
    reached.contains(&name.len())
}

impl GlobToken {
    fn is(&self, c: char) -> bool {
        match self {
            Self::Character(own) => *own == c,
            Self::One | Self::Many => true,
            Self::Class { ranges, sense } => {
                let inside = ranges.iter().any(|(from, to)| (*from..=*to).contains(&c));
                inside == (*sense == Sense::In)
            }
        }
    }
}

fn tokens(name: &str) -> Option<Vec<GlobToken>> {
    let mut characters = name.chars();
    let mut tokens = Vec::new();
    while let Some(c) = characters.next() {
        tokens.push(match c {
            '*' => GlobToken::Many,
            '?' => GlobToken::One,
            '\\' => GlobToken::Character(characters.next()?),
            '[' => class(&mut characters)?,
            c => GlobToken::Character(c),
        });
    }
    Some(tokens)
}

/// Parses after the `[`, up to and including the `]`.
fn class(characters: &mut std::str::Chars<'_>) -> Option<GlobToken> {
    let sense = if characters.as_str().starts_with(['^', '!']) {
        characters.next();
        Sense::NotIn
    } else {
        Sense::In
    };
    let mut ranges = Vec::new();
    loop {
        let from = match characters.next()? {
            ']' if !ranges.is_empty() => return Some(GlobToken::Class { ranges, sense }),
            ']' => return None,
            '\\' => characters.next()?,
            c => c,
        };
        let to = match characters.as_str().strip_prefix('-') {
            Some(_) => {
                characters.next();
                match characters.next()? {
                    '\\' => characters.next()?,
                    ']' => return None,
                    c => c,
                }
            }
            None => from,
        };
        ranges.push((from, to));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_mean_what_docker_means_by_them() {
        for (pattern, yes, no) in [
            ("a", &["a", "./a", "/a"][..], &["b", "a/b", "aa", ""][..]),
            ("*", &["a", ".hidden"], &["a/b", ""]),
            ("*.txt", &["a.txt", ".txt"], &["a.md", "d/a.txt"]),
            ("a?c", &["abc"], &["ac", "abbc"]),
            ("a/*/c", &["a/b/c"], &["a/c", "a/b/b/c"]),
            ("**/c", &["c", "a/c", "a/b/c"], &["a/c/d"]),
            ("a/**", &["a", "a/b", "a/b/c"], &["b"]),
            ("a/**/c", &["a/c", "a/b/b/c"], &["a/b"]),
            ("[a-c]x", &["ax", "cx"], &["dx", "x"]),
            ("[^a-c]x", &["dx"], &["ax"]),
            ("\\*", &["*"], &["a"]),
            ("/a/", &["a"], &["b"]),
            ("a*b*c", &["abc", "aXbYc", "abbbc"], &["ab", "acb"]),
        ] {
            let read = Pattern::read(pattern).expect(pattern);
            yes.iter().for_each(|path| assert!(read.matches(path), "{pattern} is {path}"));
            no.iter().for_each(|path| assert!(!read.matches(path), "{pattern} is not {path}"));
        }
        for bad in ["[", "[a", "[]", "a\\", "[a-", "[a-]"] {
            assert_eq!(Pattern::read(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_pattern_with_many_stars_comes_to_an_end() {
        let pattern = Pattern::read(&"*a".repeat(200)).expect("a pattern");
        assert!(pattern.matches(&"a".repeat(300)));
        assert!(!pattern.matches(&format!("{}b", "a".repeat(300))));
        let deep = Pattern::read(&"**/a/".repeat(100)).expect("a pattern");
        assert!(!deep.matches(&"a/".repeat(50)));
    }
}
