//! `--format '{{.id}} {{.name}}'`: one line per item, as `docker --format` has it.

use serde_json::Value;

use crate::cli::show::words;

/// A parsed format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineFormat(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    /// The value at this path. An empty path is the whole item.
    Value {
        path: Vec<String>,
        encoding: Encoding,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    Plain,
    Json,
}

/// What is wrong with a format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidFormat {
    #[error("{{{{ without }}}}")]
    Open,
    #[error("{0:?} is not a field: expected {{{{.name}}}}, {{{{.labels.team}}}} or {{{{json .}}}}")]
    NotAField(String),
}

impl LineFormat {
    pub fn parse(text: &str) -> Result<Self, InvalidFormat> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("{{") {
            let (inside, after) = after.split_once("}}").ok_or(InvalidFormat::Open)?;
            parts.push(Part::Text(unescaped(before)));
            parts.push(value(inside.trim())?);
            rest = after;
        }
        parts.push(Part::Text(unescaped(rest)));
        Ok(Self(parts))
    }

    /// The first names of its paths.
    pub fn fields(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|part| match part {
            Part::Value { path, .. } => path.first().map(String::as_str),
            Part::Text(_) => None,
        })
    }

    pub fn line(&self, item: &Value) -> String {
        let shown = self.0.iter().map(|part| match part {
            Part::Text(text) => text.clone(),
            Part::Value { path, encoding } => {
                let found = path.iter().try_fold(item, |value, name| value.get(name));
                match encoding {
                    Encoding::Plain => found.map(words).unwrap_or_default(),
                    Encoding::Json => found.unwrap_or(&Value::Null).to_string(),
                }
            }
        });
        shown.collect()
    }
}

fn value(inside: &str) -> Result<Part, InvalidFormat> {
    let not_a_field = || InvalidFormat::NotAField(inside.to_owned());
    let (encoding, field) = match inside.strip_prefix("json ") {
        Some(field) => (Encoding::Json, field.trim()),
        None => (Encoding::Plain, inside),
    };
    let names = field.strip_prefix('.').ok_or_else(not_a_field)?;
    let path: Vec<String> = match names {
        "" => Vec::new(),
        names => names.split('.').map(str::to_owned).collect(),
    };
    let is_name = |name: &String| {
        let mut chars = name.chars();
        !name.is_empty() && chars.all(|c| c.is_alphanumeric() || "_-/".contains(c))
    };
    if path.iter().all(is_name) && (encoding == Encoding::Json || !path.is_empty()) {
        Ok(Part::Value { path, encoding })
    } else {
        Err(not_a_field())
    }
}

/// A shell passes `\t` and `\n` as they are.
fn unescaped(text: &str) -> String {
    text.replace("\\t", "\t").replace("\\n", "\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_are_replaced_and_the_rest_stays() {
        let item = json!({ "id": "sb1", "labels": { "team": "blue" }, "turns": 3 });
        let line = |text: &str| LineFormat::parse(text).expect(text).line(&item);
        assert_eq!(line("{{.id}}"), "sb1");
        assert_eq!(line("<{{ .labels.team }}>\\t{{.turns}}{{.slot}}"), "<blue>\t3");
        assert_eq!(line("{{json .labels}} {{.labels}}"), "{\"team\":\"blue\"} team=blue");
        assert_eq!(line("{{json .}}"), item.to_string());
        assert_eq!(line("no fields"), "no fields");
    }

    #[test]
    fn what_is_no_field_is_refused() {
        assert_eq!(LineFormat::parse("{{.id"), Err(InvalidFormat::Open));
        for wrong in ["{{id}}", "{{.}}", "{{range .}}", "{{.a..b}}", "{{json id}}"] {
            let refused = LineFormat::parse(wrong);
            assert!(matches!(refused, Err(InvalidFormat::NotAField(_))), "{wrong}");
        }
    }
}
