//! `sandkeep tool`: calls a tool in a sandbox, and prints what it answers.

use serde_json::{Map, Value};

use crate::cli::argument::pair;
use crate::cli::client::Client;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::print;

/// Call a tool in a sandbox, as an agent does
///
/// `sandkeep tools` lists them. Prints the text of the answer; ends with 1 if the tool says that it failed.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The sandbox's id, or the beginning of it
    id: String,
    /// The tool, such as read_file, grep or bash
    name: String,
    /// Its arguments, each NAME=VALUE; a value that is JSON but no string is taken as it (limit=10, paths='["."]')
    #[arg(value_name = "NAME=VALUE", value_parser = pair, conflicts_with = "json")]
    arguments: Vec<(String, String)>,
    /// All arguments as one JSON object
    #[arg(long, value_name = "ARGS", value_parser = object)]
    json: Option<Map<String, Value>>,
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
    let arguments = args.json.unwrap_or_else(|| given.collect());
    let path = format!("/api/v1/sandboxes/{id}/tools/{}", args.name);
    let answer = client.post(&path, &Value::Object(arguments)).await?;
    match args.raw {
        true => print::json(&answer)?,
        false => {
            let blocks = answer["content"].as_array().into_iter().flatten();
            for text in blocks.filter_map(|block| block["text"].as_str()) {
                print::line(text.strip_suffix('\n').unwrap_or(text))?;
            }
        }
    }
    Ok(if answer["is_error"] == false { Exit::Ok } else { Exit::RequestFailed })
}

/// Numbers, truth values, lists and null are what they look like; everything else is text.
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
