//! Our own format: one word a line, what it is about behind it, and lines beneath it that go on.

use std::collections::BTreeMap;

use super::problem::{Problem, RecipeError};
use super::text::{Text, words};
use super::{
    Archives, Base, Command, Copy, Copyable, Instruction, Origin, Ready, Recipe, Stage, Step,
};
use sandkeep_core::limits::{RECIPE_LINES_MAX, RECIPE_MAX_BYTES, RECIPE_STEPS_MAX};

const SUPPORTED: &str = "from, run, copy, env, workdir, user, start and ready";
/// A character that nobody types: nothing is escaped in this format.
const NO_ESCAPE: char = '\0';
/// Stops at the first command that fails, unlike a Dockerfile's.
const SHELL: [&str; 2] = ["/bin/sh", "-ec"];

/// One word, and what it is about.
struct Entry {
    line: usize,
    word: String,
    rest: String,
    /// What stands beneath it, without what all of it is indented by.
    beneath: String,
}

pub fn read(text: &str) -> Result<Recipe, RecipeError> {
    let mut stage: Option<Stage> = None;
    for entry in entries(text)? {
        let wrong = RecipeError::at(entry.line);
        stage = Some(take(stage, &entry).map_err(wrong)?);
    }
    let stage = stage.ok_or_else(|| RecipeError::at(1)(Problem::Nothing))?;
    Ok(Recipe { stages: vec![stage], given: BTreeMap::new(), globals: BTreeMap::new() })
}

fn entries(text: &str) -> Result<Vec<Entry>, RecipeError> {
    if text.len() > RECIPE_MAX_BYTES {
        return Err(RecipeError::at(1)(Problem::TooLarge));
    }
    let mut entries: Vec<Entry> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let wrong = RecipeError::at(index + 1);
        if index >= RECIPE_LINES_MAX {
            return Err(wrong(Problem::TooManyLines));
        }
        let goes_on = line.starts_with([' ', '\t']);
        match (line.trim(), entries.last_mut()) {
            // Within a script an empty line is a line of it.
            ("", Some(above)) if !above.beneath.is_empty() => above.beneath.push('\n'),
            ("", _) => {}
            (_, Some(above)) if goes_on => {
                above.beneath.push_str(line);
                above.beneath.push('\n');
            }
            (comment, _) if comment.starts_with('#') => {}
            (_, None) if goes_on => return Err(wrong(Problem::NothingToGoOn)),
            (line, _) => {
                let (word, rest) = line.split_once([' ', '\t']).unwrap_or((line, ""));
                let (word, rest) = (word.to_owned(), rest.trim().to_owned());
                entries.push(Entry { line: index + 1, word, rest, beneath: String::new() });
            }
        }
    }
    entries.iter_mut().for_each(|entry| entry.beneath = unindented(&entry.beneath));
    Ok(entries)
}

/// Takes away what every line is indented by.
fn unindented(text: &str) -> String {
    let indent = |line: &str| line.len() - line.trim_start_matches([' ', '\t']).len();
    let lines = text.trim_end().lines();
    let common = lines.clone().filter(|line| !line.trim().is_empty()).map(indent).min();
    let cut = |line: &str| line.get(common.unwrap_or(0)..).unwrap_or_default().to_owned();
    lines.map(cut).collect::<Vec<_>>().join("\n")
}

fn take(stage: Option<Stage>, entry: &Entry) -> Result<Stage, Problem> {
    match (stage, entry.word.as_str()) {
        (None, "from") => begun(entry),
        (Some(_), "from") => {
            let what = "a second line: a template is made from one other".to_owned();
            Err(Problem::DoesNotTake { instruction: "from", what })
        }
        (None, word) => match SUPPORTED.split([',', ' ']).any(|known| known == word) {
            true => Err(Problem::BeforeFrom { instruction: word.to_owned() }),
            false => Err(unknown(word)),
        },
        (Some(mut stage), _) => {
            let instruction = instruction(entry)?;
            if stage.steps.len() >= RECIPE_STEPS_MAX {
                return Err(Problem::TooManySteps);
            }
            let first = entry.beneath.lines().next().unwrap_or_default();
            let about = if entry.rest.is_empty() { first } else { &entry.rest };
            let written = format!("{} {about}", entry.word);
            stage.steps.push(Step { line: entry.line, written, instruction });
            Ok(stage)
        }
    }
}

fn unknown(word: &str) -> Problem {
    Problem::Unknown { instruction: word.to_owned(), supported: SUPPORTED }
}

fn begun(entry: &Entry) -> Result<Stage, Problem> {
    let base = match one("from", "an image, a template, or scratch", entry)? {
        "scratch" => Base::Scratch,
        image => Base::Image(image.to_owned()),
    };
    let shell = Instruction::Shell(SHELL.map(str::to_owned).to_vec());
    let written = format!("shell {}", SHELL.join(" "));
    let shell = Step { line: entry.line, written, instruction: shell };
    Ok(Stage { name: None, base, steps: vec![shell], line: entry.line })
}

fn instruction(entry: &Entry) -> Result<Instruction, Problem> {
    Ok(match entry.word.as_str() {
        "run" => Instruction::Run(Command::Shell(script("run", entry)?)),
        "copy" => Instruction::Copy(copy(entry)?),
        "env" => Instruction::Env(pairs(entry)?),
        "workdir" => Instruction::Workdir(Text::plain(one("workdir", "a directory", entry)?)),
        "user" => Instruction::User(Text::plain(one("user", "a user, as in 1000 or name", entry)?)),
        "start" => Instruction::Start(script("start", entry)?),
        "ready" => Instruction::Ready(ready(entry)?),
        word => return Err(unknown(word)),
    })
}

/// What must be one line.
fn one<'a>(
    instruction: &'static str,
    needs: &'static str,
    entry: &'a Entry,
) -> Result<&'a str, Problem> {
    match (entry.rest.as_str(), entry.beneath.is_empty()) {
        ("", _) => Err(Problem::Needs { instruction, needs }),
        (_, false) => {
            let what = "lines beneath it".to_owned();
            Err(Problem::DoesNotTake { instruction, what })
        }
        (rest, true) => Ok(rest),
    }
}

/// What stands behind the word and beneath it.
fn script(instruction: &'static str, entry: &Entry) -> Result<String, Problem> {
    match (entry.rest.is_empty(), entry.beneath.is_empty()) {
        (true, true) => Err(Problem::Needs { instruction, needs: "a command" }),
        (false, true) => Ok(entry.rest.clone()),
        (true, false) => Ok(entry.beneath.clone()),
        (false, false) => Ok(format!("{}\n{}", entry.rest, entry.beneath)),
    }
}

/// The words behind and beneath, of which each may be quoted.
fn all_words(entry: &Entry) -> Result<Vec<String>, Problem> {
    let lines = [entry.rest.as_str(), entry.beneath.as_str()];
    let found = lines.into_iter().flat_map(|line| words(line, NO_ESCAPE));
    found.map(unquoted).collect()
}

fn unquoted(word: &str) -> Result<String, Problem> {
    let mut text = String::new();
    let mut quote = None;
    for c in word.chars() {
        match (c, quote) {
            ('\'' | '"', None) => quote = Some(c),
            (c, Some(open)) if c == open => quote = None,
            (c, _) => text.push(c),
        }
    }
    match quote {
        None => Ok(text),
        Some(_) => Err(Problem::Text { text: word.to_owned(), reason: "a quote is not closed" }),
    }
}

fn copy(entry: &Entry) -> Result<Copy, Problem> {
    let mut words = all_words(entry)?;
    let to = words.pop().unwrap_or_default();
    let needs = match (words.len(), to.ends_with('/')) {
        (0, _) => "at least one source and a destination, as in copy app /srv/",
        (2.., false) => "a destination that ends with / if there is more than one source",
        _ => {
            let sources = words.iter().map(|word| Copyable::Path(Text::plain(word))).collect();
            let (from, to) = (Origin::Context, Text::plain(&to));
            let archives = Archives::Kept;
            return Ok(Copy { from, sources, to, owner: None, mode: None, archives });
        }
    };
    Err(Problem::Needs { instruction: "copy", needs })
}

fn pairs(entry: &Entry) -> Result<Vec<(Text, Text)>, Problem> {
    let pair = |word: String| match word.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((Text::plain(name), Text::plain(value))),
        _ => Err(Problem::Value { value: word, wanted: "NAME=value" }),
    };
    let pairs: Vec<_> = all_words(entry)?.into_iter().map(pair).collect::<Result<_, _>>()?;
    match pairs.is_empty() {
        true => Err(Problem::Needs { instruction: "env", needs: "NAME=value" }),
        false => Ok(pairs),
    }
}

fn ready(entry: &Entry) -> Result<Ready, Problem> {
    let needs = "`port N`, `http PORT /path` or `run COMMAND`";
    let wrong = || Problem::Needs { instruction: "ready", needs };
    let (kind, about) = entry.rest.split_once([' ', '\t']).ok_or_else(wrong)?;
    let about = about.trim();
    let port = |text: &str| match text.parse::<u16>() {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(Problem::Value { value: text.to_owned(), wanted: "a port" }),
    };
    match (kind, about.split_once([' ', '\t'])) {
        ("port", _) => Ok(Ready::Port(port(about)?)),
        ("http", None) => Ok(Ready::Http { port: port(about)?, path: "/".to_owned() }),
        ("http", Some((number, path))) if path.trim().starts_with('/') => {
            Ok(Ready::Http { port: port(number)?, path: path.trim().to_owned() })
        }
        ("run", _) => match entry.beneath.is_empty() {
            true => Ok(Ready::Run(about.to_owned())),
            false => Ok(Ready::Run(format!("{about}\n{}", entry.beneath))),
        },
        _ => Err(wrong()),
    }
}
