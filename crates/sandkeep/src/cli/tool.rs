//! `sandkeep tool`: calls a tool in a sandbox, and prints its answer.

use std::time::Duration;

use serde_json::{Map, Value};

use crate::cli::argument::{duration, pair};
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::limit_args::LimitArgs;
use crate::cli::print;
use sandkeep_client::Client;

/// Call a tool in a sandbox, as an agent does
///
/// `sandkeep tools` lists the tools. Prints the text of the answer; exits with 1 if the tool failed.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Sandbox name, id or unique prefix of an id
    id: String,
    /// Tool name, such as read_file, grep or bash
    name: String,
    /// Tool arguments; numbers, booleans, lists and null are parsed as JSON (limit=10, paths='["."]')
    #[arg(value_name = "NAME=VALUE", value_parser = pair, conflicts_with = "json")]
    arguments: Vec<(String, String)>,
    /// All arguments as one JSON object
    #[arg(long, value_name = "ARGS", value_parser = object)]
    json: Option<Map<String, Value>>,
    #[command(flatten)]
    limits: LimitArgs,
    /// Kill the whole process tree after this time, such as 500ms, 30s or 5m
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    timeout: Option<Duration>,
    /// Print the whole answer as JSON
    #[arg(long)]
    raw: bool,
}

fn object(text: &str) -> Result<Map<String, Value>, serde_json::Error> {
    serde_json::from_str(text)
}

pub async fn run(args: Args, client: &Client) -> Result<Exit, Failure> {
    let id = client.resolve(&args.id).await?;
    let given = args.arguments.into_iter().map(|(name, value)| (name, read(value)));
    let mut arguments: Map<_, _> = args.json.unwrap_or_else(|| given.collect());
    if let Some(own) = resources(args.limits, args.timeout) {
        arguments.insert("resources".to_owned(), own.into());
    }
    let path = format!("/api/v1/sandboxes/{id}/tools/{}", args.name);
    let answer = client.post(&path, &Value::Object(arguments)).await?;
    if args.raw {
        print::json(&answer)?
    } else {
        let blocks = answer["content"].as_array().into_iter().flatten();
        for text in blocks.filter_map(|block| block["text"].as_str()) {
            print::line(text.strip_suffix('\n').unwrap_or(text))?;
        }
    }
    Ok(if answer["is_error"] == false { Exit::Ok } else { Exit::RequestFailed })
}

/// The limits of the call, if any.
fn resources(limits: LimitArgs, timeout: Option<Duration>) -> Option<Map<String, Value>> {
    let timeout_ms = timeout.map(sandkeep_core::millis);
    let mut own = limits.into_json().unwrap_or_default();
    own.extend(timeout_ms.map(|ms| ("timeout_ms".to_owned(), ms.into())));
    (!own.is_empty()).then_some(own)
}

/// Numbers, booleans, lists and null are parsed as JSON; everything else is text.
fn read(value: String) -> Value {
    match serde_json::from_str(&value) {
        Ok(read @ (Value::Number(_) | Value::Bool(_) | Value::Array(_) | Value::Null)) => read,
        Ok(Value::String(_) | Value::Object(_)) | Err(_) => Value::String(value),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_value_is_what_it_looks_like() {
        for (text, expected) in [
            ("10", json!(10)),
            ("true", json!(true)),
            ("[\".\"]", json!(["."])),
            ("a b", json!("a b")),
            ("\"a\"", json!("\"a\"")),
            ("{}", json!("{}")),
            ("", json!("")),
        ] {
            assert_eq!(read(text.to_owned()), expected, "{text}");
        }
    }
}
