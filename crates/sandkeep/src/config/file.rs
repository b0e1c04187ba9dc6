//! `sandkeep.toml`: its location, and its content, line by line.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::Surroundings;
use super::layers::Source;
use super::problem::{ConfigError, Problem};
use super::table::Shape;
use sandkeep_core::limits::CONFIG_FILE_MAX_BYTES;

/// One value of the file.
#[derive(Debug)]
pub struct Line {
    /// Its tables and its name.
    pub key: Vec<String>,
    pub number: usize,
    pub value: FileValue,
}

/// A value in the file.
#[derive(Clone, Debug, PartialEq)]
pub struct FileValue {
    pub shape: Option<Shape>,
    /// As it would be written in a variable.
    pub text: String,
}

/// A file that was read.
#[derive(Debug)]
pub struct ConfigText {
    pub path: PathBuf,
    pub lines: Vec<Line>,
}

/// Reads the given file, or the default one if it exists.
pub fn read(
    named: Option<&Path>,
    around: &Surroundings,
) -> Result<Option<ConfigText>, ConfigError> {
    let named =
        named.map(Path::to_owned).or_else(|| around.var("SANDKEEP_CONFIG").map(PathBuf::from));
    let must_be_there = named.is_some();
    let Some(path) = named.or_else(|| around.config_file()) else { return Ok(None) };
    match read_text(&path) {
        Ok(text) => parse(path, &text).map(Some),
        Err(e) if e.kind() == io::ErrorKind::NotFound && !must_be_there => Ok(None),
        Err(source) => Err(ConfigError::Unreadable { path, source }),
    }
}

fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(CONFIG_FILE_MAX_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > CONFIG_FILE_MAX_BYTES {
        Err(io::Error::other(format!("it is larger than {CONFIG_FILE_MAX_BYTES} bytes")))
    } else {
        Ok(text)
    }
}

pub fn parse(path: PathBuf, text: &str) -> Result<ConfigText, ConfigError> {
    let line_of = |at: usize| 1 + text[..at.min(text.len())].matches('\n').count();
    let (table, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        let problem = |error: &toml::de::Error| Problem {
            source: Source::File {
                path: path.clone(),
                line: line_of(error.span().map_or(0, |span| span.start)),
            },
            key: None,
            what: error.message().replace('\n', "; "),
        };
        return Err(ConfigError::Invalid(errors.iter().map(problem).collect()));
    }
    let mut lines = Vec::new();
    collect(&mut Vec::new(), table.get_ref(), &line_of, &mut lines);
    lines.sort_by_key(|line: &Line| line.number);
    Ok(ConfigText { path, lines })
}

fn collect(
    above: &mut Vec<String>,
    table: &DeTable<'_>,
    line_of: &impl Fn(usize) -> usize,
    lines: &mut Vec<Line>,
) {
    for (name, value) in table {
        above.push(name.get_ref().to_string());
        match value.get_ref() {
            DeValue::Table(inner) if !inner.is_empty() => collect(above, inner, line_of, lines),
            other => lines.push(Line {
                key: above.clone(),
                number: line_of(name.span().start),
                value: file_value(other),
            }),
        }
        above.pop();
    }
}

fn file_value(value: &DeValue<'_>) -> FileValue {
    let of = |shape, text: String| FileValue { shape: Some(shape), text };
    match value {
        DeValue::String(text) => of(Shape::Text, text.to_string()),
        DeValue::Integer(number) => match i128::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => of(Shape::Integer, number.to_string()),
            Err(_) => of(Shape::Integer, number.to_string()),
        },
        DeValue::Float(number) => of(Shape::Decimal, number.as_str().to_owned()),
        DeValue::Boolean(value) => of(Shape::Switch, value.to_string()),
        DeValue::Array(items) => match items.iter().map(text_of).collect::<Option<Vec<_>>>() {
            Some(texts) => of(Shape::List, texts.join(",")),
            None => FileValue { shape: None, text: "a list".to_owned() },
        },
        DeValue::Datetime(_) => FileValue { shape: None, text: "a date".to_owned() },
        DeValue::Table(_) => FileValue { shape: None, text: "a table".to_owned() },
    }
}

fn text_of(item: &Spanned<DeValue<'_>>) -> Option<String> {
    match item.get_ref() {
        DeValue::String(text) => Some(text.to_string()),
        _ => None,
    }
}
