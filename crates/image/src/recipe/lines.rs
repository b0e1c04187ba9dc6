//! The lines of a Dockerfile: comments removed, continuations joined, here-documents collected.

use super::problem::{Problem, RecipeError};
use super::text::words;
use sandkeep_core::limits::{RECIPE_LINES_MAX, RECIPE_MAX_BYTES};

const ESCAPE_DEFAULT: char = '\\';
/// The instructions that support here-documents.
const WITH_DOCUMENTS: [&str; 3] = ["RUN", "COPY", "ADD"];

/// A file split into its parts.
pub struct Lines {
    pub escape: char,
    pub instructions: Vec<Line>,
}

/// One instruction, on one or more lines.
#[derive(Debug, PartialEq, Eq)]
pub struct Line {
    /// Its first line, counted from 1.
    pub number: usize,
    /// Upper case.
    pub instruction: String,
    pub rest: String,
    pub documents: Vec<Document>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    pub name: String,
    /// As written at its start: `<<-"EOF"`.
    pub written: String,
    pub content: String,
    pub variables: Variables,
}

/// Whether variables in a here-document are expanded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variables {
    Expanded,
    Kept,
}

struct Reader<'a> {
    lines: Vec<&'a str>,
    at: usize,
    escape: char,
}

pub fn read(text: &str) -> Result<Lines, RecipeError> {
    let wrong = RecipeError::at(1);
    if text.len() > RECIPE_MAX_BYTES {
        return Err(wrong(Problem::TooLarge));
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines: Vec<&str> = text.lines().collect();
    if lines.len() > RECIPE_LINES_MAX {
        return Err(wrong(Problem::TooManyLines));
    }
    let escape = directive_escape(&lines)?;
    let mut reader = Reader { lines, at: 0, escape };
    let mut instructions = Vec::new();
    while let Some((number, joined)) = reader.joined() {
        instructions.push(reader.line(number, &joined)?);
    }
    Ok(Lines { escape, instructions })
}

/// `# escape=` in the leading comments, which end at the first comment of another kind.
fn directive_escape(lines: &[&str]) -> Result<char, RecipeError> {
    for (index, line) in lines.iter().enumerate() {
        let directive = line.trim().strip_prefix('#').and_then(|rest| rest.split_once('='));
        let Some((name, value)) = directive else { break };
        match (name.trim().to_ascii_lowercase().as_str(), value.trim()) {
            ("escape", "\\") => return Ok('\\'),
            ("escape", "`") => return Ok('`'),
            ("escape", value) => {
                let value = value.to_owned();
                let problem = Problem::Value { value, wanted: "an escape: \\ or `" };
                return Err(RecipeError::at(index + 1)(problem));
            }
            ("syntax" | "check", _) => {}
            _ => break,
        }
    }
    Ok(ESCAPE_DEFAULT)
}

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with('#')
}

impl Reader<'_> {
    /// The next instruction with its continuation lines, and its first line.
    fn joined(&mut self) -> Option<(usize, String)> {
        let skipped = |line: &&str| line.trim().is_empty() || is_comment(line);
        while self.lines.get(self.at).is_some_and(skipped) {
            self.at += 1;
        }
        let number = self.at + 1;
        let mut joined = String::new();
        let mut begun = false;
        while let Some(line) = self.lines.get(self.at) {
            self.at += 1;
            // Comments and empty lines do not end a continuation.
            if begun && (is_comment(line) || line.trim().is_empty()) {
                continue;
            }
            begun = true;
            match self.continued(line) {
                Some(line) => joined.push_str(line),
                None => {
                    joined.push_str(line);
                    break;
                }
            }
        }
        begun.then_some((number, joined))
    }

    /// A line without its final escape, if that continues it; an escaped escape does not.
    fn continued<'b>(&self, line: &'b str) -> Option<&'b str> {
        let rest = line.trim_end_matches([' ', '\t', '\r']).strip_suffix(self.escape)?;
        (!rest.ends_with(self.escape)).then_some(rest)
    }

    fn line(&mut self, number: usize, joined: &str) -> Result<Line, RecipeError> {
        let joined = joined.trim();
        let (instruction, rest) =
            joined.split_once(|c: char| c.is_whitespace()).unwrap_or((joined, ""));
        let (instruction, rest) = (instruction.to_ascii_uppercase(), rest.trim().to_owned());
        let mut documents = Vec::new();
        if WITH_DOCUMENTS.contains(&instruction.as_str()) {
            for beginning in words(&rest, self.escape).into_iter().filter_map(beginning) {
                documents.push(self.document(number, beginning)?);
            }
        }
        Ok(Line { number, instruction, rest, documents })
    }

    fn document(&mut self, number: usize, begun: Beginning<'_>) -> Result<Document, RecipeError> {
        let Beginning { name, written, tabs, variables } = begun;
        let mut content = String::new();
        loop {
            let Some(line) = self.lines.get(self.at) else {
                return Err(RecipeError::at(number)(Problem::NoEnd { name: name.to_owned() }));
            };
            self.at += 1;
            let line = match tabs {
                Tabs::Kept => line,
                Tabs::Stripped => line.trim_start_matches('\t'),
            };
            if line == name {
                let (name, written) = (name.to_owned(), written.to_owned());
                return Ok(Document { name, written, content, variables });
            }
            content.push_str(line);
            content.push('\n');
        }
    }
}

struct Beginning<'a> {
    name: &'a str,
    written: &'a str,
    tabs: Tabs,
    variables: Variables,
}

#[derive(Clone, Copy)]
enum Tabs {
    Kept,
    Stripped,
}

/// `<<NAME`, `<<-NAME`, `<<"NAME"`, optionally with a descriptor before it.
fn beginning(word: &str) -> Option<Beginning<'_>> {
    let after = word.trim_start_matches(|c: char| c.is_ascii_digit()).strip_prefix("<<")?;
    let (tabs, after) = match after.strip_prefix('-') {
        Some(after) => (Tabs::Stripped, after),
        None => (Tabs::Kept, after),
    };
    let quoted = |quote| after.strip_prefix(quote)?.strip_suffix(quote);
    let (name, variables) = match quoted('"').or_else(|| quoted('\'')) {
        Some(name) => (name, Variables::Kept),
        None => (after, Variables::Expanded),
    };
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    let is_name = !name.is_empty() && name.chars().all(fine);
    is_name.then_some(Beginning { name, written: word, tabs, variables })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Vec<(usize, String, String)> {
        let lines = read(text).expect("a file").instructions;
        lines.into_iter().map(|line| (line.number, line.instruction, line.rest)).collect()
    }

    fn line(number: usize, instruction: &str, rest: &str) -> (usize, String, String) {
        (number, instruction.to_owned(), rest.to_owned())
    }

    #[test]
    fn lines_are_joined_as_docker_joins_them() {
        for (text, wanted) in [
            ("", vec![]),
            ("# only\n\n  # this\n", vec![]),
            ("from a", vec![line(1, "FROM", "a")]),
            ("FROM a\r\nRUN b\r\n", vec![line(1, "FROM", "a"), line(2, "RUN", "b")]),
            ("RUN a \\\n  b", vec![line(1, "RUN", "a   b")]),
            (
                "RUN a \\  \n# no\n\n  b\nUSER c",
                vec![line(1, "RUN", "a   b"), line(5, "USER", "c")],
            ),
            ("RUN a\\\\\nRUN b", vec![line(1, "RUN", "a\\\\"), line(2, "RUN", "b")]),
            ("RUN a # no comment", vec![line(1, "RUN", "a # no comment")]),
            (
                "# escape=`\nRUN a `\nb \\\nRUN c",
                vec![line(2, "RUN", "a b \\"), line(4, "RUN", "c")],
            ),
            ("# syntax=x\n# escape=`\nRUN a `\nb", vec![line(3, "RUN", "a b")]),
            ("# hello\n# escape=`\nRUN a \\\nb", vec![line(3, "RUN", "a b")]),
            ("RUN a \\", vec![line(1, "RUN", "a")]),
        ] {
            assert_eq!(shown(text), wanted, "{text:?}");
        }
        assert!(read("# escape=x\nFROM a").is_err());
    }

    #[test]
    fn here_documents_belong_to_the_line_that_begins_them() {
        let lines = read("RUN <<EOF\na\n# b\n\nEOF\nCOPY <<-'A' <<B /x/\n\tc\n\tA\n$d\nB\nUSER x")
            .expect("a file");
        let [run, copy, user] = &lines.instructions[..] else { panic!("three") };
        assert_eq!(run.documents[0].content, "a\n# b\n\n");
        assert_eq!(run.documents[0].variables, Variables::Expanded);
        assert_eq!(copy.documents[0].content, "c\n");
        assert_eq!(copy.documents[0].variables, Variables::Kept);
        assert_eq!(
            (copy.documents[1].name.as_str(), copy.documents[1].content.as_str()),
            ("B", "$d\n")
        );
        assert_eq!(user.number, 11);
        let endless = read("FROM a\nRUN <<EOF\nx").err().expect("no end");
        assert_eq!((endless.line, endless.problem), (2, Problem::NoEnd { name: "EOF".to_owned() }));
        assert_eq!(shown("USER <<EOF"), [line(1, "USER", "<<EOF")]);
    }
}
