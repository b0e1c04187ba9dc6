//! `sandkeep set`.

use serde_json::{Map, Value, json};

use crate::cli::argument::{InvalidArgument, pair, seconds};
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::{Format, print};
use sandkeep_client::Client;

/// Change the name, the labels or the timeouts of a sandbox
///
/// What is not given stays. An empty value removes: `name=` leads back to the name made from the id, `timeout=` to no
/// timeout, and `label.team=` to no such label.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Sandbox name, id or unique prefix of an id
    id: String,
    /// name=NAME, label.KEY=VALUE (or label=KEY=VALUE), timeout=DURATION, idle-timeout=DURATION, on-timeout=destroy|stop|pause,
    /// max-snapshots=N
    #[arg(value_name = "SETTING=VALUE", required = true, value_parser = pair)]
    settings: Vec<(String, String)>,
    #[command(flatten)]
    format: Format,
}

/// A setting that cannot be made.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum InvalidSetting {
    #[error("{setting}: {problem}")]
    Value { setting: String, problem: InvalidArgument },
    #[error("{setting}: expected a number")]
    Count { setting: String },
    #[error(
        "there is no setting {setting:?}; there are: name, label.KEY, timeout, idle-timeout, on-timeout, max-snapshots"
    )]
    Unknown { setting: String },
}

pub async fn run(args: Args, client: &Client) -> Result<Exit, Failure> {
    let patch =
        patch(&args.settings).map_err(|invalid| Failure::Usage { problem: invalid.to_string() })?;
    let id = client.resolve(&args.id).await?;
    let sandbox = client.amend(&id, &patch).await?;
    if args.format.json {
        print::json(&json!(sandbox))?;
    } else {
        print::line(id.as_str())?;
    }
    Ok(Exit::Ok)
}

/// The body of the request. `null` removes.
fn patch(settings: &[(String, String)]) -> Result<Value, InvalidSetting> {
    let (mut patch, mut labels) = (Map::new(), Map::new());
    for (setting, value) in settings {
        let given = Some(value.as_str()).filter(|value| !value.is_empty());
        if setting == "label" {
            let label = pair(value);
            let (key, value) = label
                .map_err(|problem| InvalidSetting::Value { setting: setting.clone(), problem })?;
            labels.insert(key, json!(Some(value).filter(|value| !value.is_empty())));
            continue;
        }
        let (field, value) = match setting.as_str() {
            "name" => ("name", json!(given)),
            "timeout" => ("timeout_secs", span(setting, given)?),
            "idle-timeout" => ("idle_timeout_secs", span(setting, given)?),
            "on-timeout" => ("on_timeout", json!(given)),
            "max-snapshots" => {
                let count = given.map(str::parse::<usize>).transpose();
                let invalid = |_| InvalidSetting::Count { setting: setting.clone() };
                ("max_snapshots", json!(count.map_err(invalid)?))
            }
            other => match other.strip_prefix("label.").filter(|key| !key.is_empty()) {
                Some(key) => {
                    labels.insert(key.to_owned(), json!(given));
                    continue;
                }
                None => return Err(InvalidSetting::Unknown { setting: setting.clone() }),
            },
        };
        patch.insert(field.to_owned(), value);
    }
    if !labels.is_empty() {
        patch.insert("labels".to_owned(), Value::Object(labels));
    }
    Ok(Value::Object(patch))
}

fn span(setting: &str, given: Option<&str>) -> Result<Value, InvalidSetting> {
    let invalid = |problem| InvalidSetting::Value { setting: setting.to_owned(), problem };
    Ok(json!(given.map(seconds).transpose().map_err(invalid)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patched(settings: &[&str]) -> Result<Value, InvalidSetting> {
        let pairs = settings.iter().map(|text| pair(text).expect("a pair"));
        patch(&pairs.collect::<Vec<_>>())
    }

    #[test]
    fn settings_are_a_merge_patch_and_an_empty_value_removes() {
        let all = ["name=web", "label.team=blue", "label=old=", "timeout=30m", "on-timeout=stop"];
        let expected = json!({
            "name": "web", "labels": { "team": "blue", "old": null }, "timeout_secs": 1800,
            "on_timeout": "stop",
        });
        assert_eq!(patched(&all), Ok(expected));
        let none = ["name=", "idle-timeout=", "max-snapshots="];
        let expected = json!({ "name": null, "idle_timeout_secs": null, "max_snapshots": null });
        assert_eq!(patched(&none), Ok(expected));
    }

    #[test]
    fn a_setting_that_does_not_exist_is_answered_with_those_that_do() {
        for wrong in ["colour=red", "label.=x", "label=x", "timeout=soon", "max-snapshots=few"] {
            let problem = patched(&[wrong]).expect_err(wrong).to_string();
            let (setting, _) = wrong.split_once('=').expect("a pair");
            assert!(problem.contains(setting), "{problem}");
        }
    }
}
