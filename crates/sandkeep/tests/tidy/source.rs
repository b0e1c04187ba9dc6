//! A Rust file, split as far as the rules need: code without comments and string contents, and comments without code.
//! Line numbers stay those of the file.

/// One file of the repository.
pub struct Source {
    /// From the top of the repository, with `/`.
    pub path: String,
    pub text: String,
    /// The text with comments and the contents of literals replaced by spaces.
    pub code: String,
    /// The text with everything but comments replaced by spaces.
    pub comments: String,
    /// The contents of all string literals.
    pub strings: Vec<String>,
}

/// One word or symbol of the code, and its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token<'a> {
    pub text: &'a str,
    pub line: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Code,
    Comment,
    Literal,
}

impl Source {
    pub fn new(path: &str, text: &str) -> Self {
        let parts = classify(text);
        let only = |part: Part| -> String {
            text.chars()
                .zip(&parts)
                .map(|(c, p)| if c == '\n' || *p == part { c } else { ' ' })
                .collect()
        };
        Self {
            path: path.to_owned(),
            text: text.to_owned(),
            code: only(Part::Code),
            comments: only(Part::Comment),
            strings: literals(text, &parts),
        }
    }

    pub fn tokens(&self) -> Vec<Token<'_>> {
        let mut tokens = Vec::new();
        for (index, line) in self.code.lines().enumerate() {
            let mut rest = line;
            while let Some(start) = rest.find(|c: char| !c.is_whitespace()) {
                rest = &rest[start..];
                let len = token_len(rest);
                tokens.push(Token { text: &rest[..len], line: index + 1 });
                rest = &rest[len..];
            }
        }
        tokens
    }
}

fn token_len(rest: &str) -> usize {
    let word = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
    match word {
        0 if rest.starts_with("::") => 2,
        0 => rest.chars().next().map_or(0, char::len_utf8),
        len => len,
    }
}

/// Classifies every character. Quotes count as code, their content does not.
fn classify(text: &str) -> Vec<Part> {
    let chars: Vec<char> = text.chars().collect();
    let mut parts = Vec::with_capacity(chars.len());
    while parts.len() < chars.len() {
        let at = parts.len();
        let (len, part) = span(&chars[at..], at.checked_sub(1).map(|i| chars[i]));
        match part {
            Part::Literal => mark_literal(&chars[at..at + len], &mut parts),
            part => parts.extend(std::iter::repeat_n(part, len)),
        }
    }
    parts
}

fn mark_literal(literal: &[char], parts: &mut Vec<Part>) {
    let open = literal.iter().position(|c| matches!(c, '"' | '\'')).unwrap_or(0);
    let close = literal.iter().rposition(|c| matches!(c, '"' | '\'')).unwrap_or(0);
    parts.extend(
        (0..literal.len()).map(|i| if i > open && i < close { Part::Literal } else { Part::Code }),
    );
}

/// The length and the kind of the span that starts here.
fn span(rest: &[char], before: Option<char>) -> (usize, Part) {
    let in_word = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
    match rest {
        ['/', '/', ..] => (line_len(rest), Part::Comment),
        ['/', '*', ..] => (block_comment_len(rest), Part::Comment),
        ['r', '"' | '#', ..] | ['b', 'r', '"' | '#', ..] if !in_word => {
            match raw_string_len(rest) {
                Some(len) => (len, Part::Literal),
                None => (1, Part::Code),
            }
        }
        ['"', ..] => (quoted_len(rest, '"'), Part::Literal),
        // A lifetime has no closing quote after its first character; a character literal has.
        ['\'', '\\', ..] | ['\'', _, '\'', ..] => (quoted_len(rest, '\''), Part::Literal),
        _ => (1, Part::Code),
    }
}

fn line_len(rest: &[char]) -> usize {
    rest.iter().position(|c| *c == '\n').unwrap_or(rest.len())
}

fn block_comment_len(rest: &[char]) -> usize {
    let mut depth = 0usize;
    let mut at = 0;
    while at < rest.len() {
        match &rest[at..] {
            ['/', '*', ..] => (depth, at) = (depth + 1, at + 2),
            ['*', '/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn raw_string_len(rest: &[char]) -> Option<usize> {
    let prefix = rest.iter().position(|c| *c == 'r')? + 1;
    let hashes = rest[prefix..].iter().take_while(|c| **c == '#').count();
    let open = prefix + hashes;
    if rest.get(open) != Some(&'"') {
        return None;
    }
    let is_end = |i: usize| {
        rest[i] == '"' && rest[i + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes
    };
    (open + 1..rest.len()).find(|i| is_end(*i)).map(|end| end + 1 + hashes)
}

fn quoted_len(rest: &[char], quote: char) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != quote {
        at += if rest[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(rest.len())
}

fn literals(text: &str, parts: &[Part]) -> Vec<String> {
    let mut found = Vec::new();
    let mut current = String::new();
    for (c, part) in text.chars().zip(parts) {
        match part {
            Part::Literal => current.push(c),
            Part::Code | Part::Comment if !current.is_empty() => {
                found.push(std::mem::take(&mut current));
            }
            Part::Code | Part::Comment => {}
        }
    }
    found
}

#[test]
fn code_comments_and_strings_are_told_apart() {
    let source = Source::new(
        "a.rs",
        "let a = \"todo!()\"; // FIXME\nlet b = 'x'; fn f<'a>() {} /* XXX /* y */ */ r#\"unsafe\"#;",
    );
    assert!(!source.code.contains("todo") && !source.code.contains("FIXME"));
    assert!(!source.code.contains("XXX") && !source.code.contains("unsafe"));
    assert!(source.code.contains("fn f<'a>()"));
    assert!(source.comments.contains("FIXME") && source.comments.contains("XXX /* y */"));
    assert_eq!(source.strings, ["todo!()", "x", "unsafe"]);
}

#[test]
fn tokens_carry_their_line() {
    let source = Source::new("a.rs", "use a::b;\nunsafe_code");
    let texts: Vec<_> = source.tokens().iter().map(|t| (t.text.to_owned(), t.line)).collect();
    let expected = [("use", 1), ("a", 1), ("::", 1), ("b", 1), (";", 1), ("unsafe_code", 2)];
    assert_eq!(texts, expected.map(|(t, l)| (t.to_owned(), l)));
}
