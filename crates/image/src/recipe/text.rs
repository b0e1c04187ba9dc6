//! A text with variables, by the rules of Dockerfiles: quotes and escapes as in a shell, `$X`, `${X}`, `${X:-else}`,
//! `${X:+then}` and `${X:?message}`, and the same without the colon.

use super::problem::Problem;
use sandkeep_core::limits::{RECIPE_EXPANDED_MAX_BYTES, RECIPE_NESTING_MAX};

/// Literal pieces and variables, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text(Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Plain(String),
    Variable { name: String, unless: Option<Unless> },
}

/// The replacement for a variable, depending on whether it is set.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Unless {
    /// Whether an empty variable counts as unset.
    empty: Empty,
    then: Then,
    text: Text,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Empty {
    IsUnset,
    IsSet,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// `-`: the text, if it is unset.
    Default,
    /// `+`: the text, if it is set; otherwise nothing.
    Alternative,
    /// `?`: an error with the text, if it is unset.
    Error,
}

/// Which special characters are interpreted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quoting {
    /// Quotes and escapes are removed, variables recognized.
    Shell,
    /// Variables are recognized, escapes of `$` removed; everything else is literal, as in a here-document.
    Document,
}

impl Text {
    /// Literal text.
    pub fn plain(text: &str) -> Self {
        let mut found = Self::default();
        text.chars().for_each(|c| found.push(c));
        found
    }

    /// Parses one word or value.
    pub(super) fn read(text: &str, escape: char) -> Result<Self, Problem> {
        Reader { text, escape, at: 0 }.text(Quoting::Shell, None, 0)
    }

    /// Parses the content of a here-document.
    pub(super) fn document(text: &str, escape: char) -> Result<Self, Problem> {
        Reader { text, escape, at: 0 }.text(Quoting::Document, None, 0)
    }

    /// Expands variables with `look_up`; an undefined one is empty.
    pub fn expand<'a>(
        &self,
        look_up: &impl Fn(&str) -> Option<&'a str>,
    ) -> Result<String, Problem> {
        let mut expanded = String::new();
        for piece in &self.0 {
            match piece {
                Piece::Plain(text) => expanded.push_str(text),
                Piece::Variable { name, unless: None } => {
                    expanded.push_str(look_up(name).unwrap_or_default());
                }
                Piece::Variable { name, unless: Some(unless) } => {
                    expanded.push_str(&unless.expand(name, look_up)?);
                }
            }
            // Few lines can double a text more often than memory allows.
            if expanded.len() > RECIPE_EXPANDED_MAX_BYTES {
                return Err(Problem::TooLong);
            }
        }
        Ok(expanded)
    }

    pub(super) fn as_plain(&self) -> Option<&str> {
        match self.0.as_slice() {
            [] => Some(""),
            [Piece::Plain(text)] => Some(text),
            _ => None,
        }
    }

    fn push(&mut self, c: char) {
        match self.0.last_mut() {
            Some(Piece::Plain(text)) => text.push(c),
            Some(Piece::Variable { .. }) | None => self.0.push(Piece::Plain(c.to_string())),
        }
    }
}

impl Unless {
    fn expand<'a>(
        &self,
        name: &str,
        look_up: &impl Fn(&str) -> Option<&'a str>,
    ) -> Result<String, Problem> {
        let value = look_up(name).filter(|value| match self.empty {
            Empty::IsUnset => !value.is_empty(),
            Empty::IsSet => true,
        });
        match (self.then, value) {
            (Then::Default | Then::Error, Some(value)) => Ok(value.to_owned()),
            (Then::Default, None) | (Then::Alternative, Some(_)) => self.text.expand(look_up),
            (Then::Alternative, None) => Ok(String::new()),
            (Then::Error, None) => {
                let message = self.text.expand(look_up)?;
                Err(Problem::Unset { name: name.to_owned(), message })
            }
        }
    }
}

struct Reader<'a> {
    text: &'a str,
    escape: char,
    at: usize,
}

impl Reader<'_> {
    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn problem(&self, reason: &'static str) -> Problem {
        Problem::Text { text: self.text.to_owned(), reason }
    }

    /// Parses up to `end`, which is not consumed, or to the end of the text.
    fn text(&mut self, how: Quoting, end: Option<char>, depth: usize) -> Result<Text, Problem> {
        let mut found = Text::default();
        while let Some(c) = self.peek().filter(|c| Some(*c) != end) {
            self.next();
            match (c, how) {
                ('$', _) => self.variable(&mut found, how, depth)?,
                ('\'', Quoting::Shell) => self.single_quoted(&mut found)?,
                ('"', Quoting::Shell) => self.double_quoted(&mut found, depth)?,
                (c, Quoting::Shell) if c == self.escape => {
                    // An escape at the very end escapes nothing.
                    self.next().into_iter().for_each(|c| found.push(c));
                }
                (c, Quoting::Document) if c == self.escape && self.peek() == Some('$') => {
                    self.next();
                    found.push('$');
                }
                (c, _) => found.push(c),
            }
        }
        Ok(found)
    }

    fn single_quoted(&mut self, found: &mut Text) -> Result<(), Problem> {
        loop {
            match self.next().ok_or_else(|| self.problem("a quote is not closed"))? {
                '\'' => return Ok(()),
                c => found.push(c),
            }
        }
    }

    fn double_quoted(&mut self, found: &mut Text, depth: usize) -> Result<(), Problem> {
        loop {
            match self.next().ok_or_else(|| self.problem("a quote is not closed"))? {
                '"' => return Ok(()),
                '$' => self.variable(found, Quoting::Shell, depth)?,
                c if c == self.escape => {
                    let special = self.peek().filter(|c| ['"', '$', self.escape].contains(c));
                    match special {
                        Some(c) => {
                            self.next();
                            found.push(c);
                        }
                        None => found.push(c),
                    }
                }
                c => found.push(c),
            }
        }
    }

    /// After the `$`.
    fn variable(&mut self, found: &mut Text, how: Quoting, depth: usize) -> Result<(), Problem> {
        if depth > RECIPE_NESTING_MAX {
            return Err(self.problem("variables stand too deep within each other"));
        }
        let braced = self.peek() == Some('{');
        if braced {
            self.next();
        }
        let name = self.name();
        match (name.is_empty(), braced) {
            (true, true) => return Err(self.problem("a variable has no name")),
            (true, false) => found.push('$'),
            (false, false) => found.0.push(Piece::Variable { name, unless: None }),
            (false, true) => {
                let unless = self.unless(how, depth)?;
                match self.next() {
                    Some('}') => found.0.push(Piece::Variable { name, unless }),
                    _ => return Err(self.problem("a brace is not closed")),
                }
            }
        }
        Ok(())
    }

    /// Digits are valid names, too: a shell's positional parameters, which builds never have.
    fn name(&mut self) -> String {
        let rest = &self.text[self.at..];
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let length = if rest.starts_with(|c: char| c.is_ascii_digit()) {
            rest.find(|c: char| !c.is_ascii_digit())
        } else {
            rest.find(|c| !is_word(c))
        };
        let name = &rest[..length.unwrap_or(rest.len())];
        self.at += name.len();
        name.to_owned()
    }

    fn unless(&mut self, how: Quoting, depth: usize) -> Result<Option<Unless>, Problem> {
        let empty = match self.peek() {
            Some('}') | None => return Ok(None),
            Some(':') => {
                self.next();
                Empty::IsUnset
            }
            Some(_) => Empty::IsSet,
        };
        let then = match self.next() {
            Some('-') => Then::Default,
            Some('+') => Then::Alternative,
            Some('?') => Then::Error,
            _ => {
                let reason =
                    "of a variable there may be ${X}, ${X:-else}, ${X:+then} and ${X:?message}";
                return Err(self.problem(reason));
            }
        };
        let text = self.text(how, Some('}'), depth + 1)?;
        Ok(Some(Unless { empty, then, text }))
    }
}

/// Splits at white space that is neither quoted nor escaped; quotes and escapes are kept for [`Text::read`].
pub(super) fn words(text: &str, escape: char) -> Vec<&str> {
    let mut words = Vec::new();
    let mut begin = None;
    let mut quote = None;
    let mut characters = text.char_indices();
    while let Some((at, c)) = characters.next() {
        match (c, quote) {
            (c, None) if c.is_whitespace() => {
                words.extend(begin.take().map(|begin| &text[begin..at]));
                continue;
            }
            (c, None | Some('"')) if c == escape => {
                begin.get_or_insert(at);
                characters.next();
                continue;
            }
            ('\'' | '"', None) => quote = Some(c),
            (c, Some(open)) if c == open => quote = None,
            _ => {}
        }
        begin.get_or_insert(at);
    }
    words.extend(begin.map(|begin| &text[begin..]));
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(text: &str) -> Result<String, Problem> {
        let look_up = |name: &str| match name {
            "X" => Some("x"),
            "Y" => Some("y y"),
            "EMPTY" => Some(""),
            _ => None,
        };
        Text::read(text, '\\')?.expand(&look_up)
    }

    #[test]
    fn variables_come_to_what_docker_makes_of_them() {
        for (text, wanted) in [
            ("", ""),
            ("plain", "plain"),
            ("$X", "x"),
            ("a${X}b", "axb"),
            ("$X$Y", "xy y"),
            ("$XY", ""),
            ("$X-$X", "x-x"),
            ("$NO", ""),
            ("a$", "a$"),
            ("$ a", "$ a"),
            ("$1a", "a"),
            ("\\$X", "$X"),
            ("\\\\$X", "\\x"),
            ("'$X'", "$X"),
            ("\"$X\"", "x"),
            ("\"a \\\"b\\\" \\$X \\n\"", "a \"b\" $X \\n"),
            ("'it''s'", "its"),
            ("a\\ b", "a b"),
            ("${NO:-d}", "d"),
            ("${EMPTY:-d}", "d"),
            ("${EMPTY-d}", ""),
            ("${X:-d}", "x"),
            ("${NO-d}", "d"),
            ("${X:+d}", "d"),
            ("${NO:+d}", ""),
            ("${EMPTY:+d}", ""),
            ("${EMPTY+d}", "d"),
            ("${NO:-${NO2:-$X}}", "x"),
            ("${NO:-a b}", "a b"),
            ("${X:?gone}", "x"),
        ] {
            assert_eq!(expanded(text).as_deref(), Ok(wanted), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_said() {
        for text in ["${X", "${}", "${X:-a", "'a", "\"a", "${X%y}", "${X/a/b}", "${X:y}", "${X:"] {
            assert!(matches!(expanded(text), Err(Problem::Text { .. })), "{text}");
        }
        let unset = Problem::Unset { name: "NO".to_owned(), message: "say x".to_owned() };
        assert_eq!(expanded("${NO:?say $X}"), Err(unset));
        let deep = "${A:-".repeat(1000);
        assert!(matches!(expanded(&deep), Err(Problem::Text { .. })));
    }

    #[test]
    fn words_end_at_white_space_that_is_not_quoted() {
        assert_eq!(words(" a  b\tc ", '\\'), ["a", "b", "c"]);
        assert_eq!(words("a=\"b c\" d='e f' g=h\\ i", '\\'), ["a=\"b c\"", "d='e f'", "g=h\\ i"]);
        assert_eq!(words("a=`b c", '`'), ["a=`b", "c"]);
        assert_eq!(words("\"a\\\" b\"", '\\'), ["\"a\\\" b\""]);
        assert_eq!(words("", '\\'), Vec::<&str>::new());
    }

    #[test]
    fn a_document_keeps_its_quotes() {
        let text = Text::document("say \"$X\" and '\\$X' \\n", '\\').expect("a text");
        assert_eq!(text.expand(&|_| Some("x")).as_deref(), Ok("say \"x\" and '$X' \\n"));
    }
}
