//! Sends a template, and shows the daemon's progress.

use std::path::Path;

use indicatif::ProgressBar;
use reqwest::Response;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::AsyncRead;

use super::{ImportArgs, TemplateNetwork, TemplateOwner, as_query, path_of};
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::progress::{bar, pieces};
use crate::cli::source_args::without_endings;
use crate::cli::{Format, print};
use sandkeep_client::{Client, Error, Lines, Problem};
use sandkeep_core::{TemplateName, api::Template};

/// The file that marks a directory as an OCI layout.
const OCI_LAYOUT: &str = "oci-layout";

#[derive(Debug, Deserialize)]
struct Event {
    r#type: String,
    #[serde(default)]
    step: String,
    #[serde(default)]
    layer: u64,
    #[serde(default)]
    layers: u64,
    #[serde(default)]
    done_bytes: u64,
    total_bytes: Option<u64>,
    template: Option<Value>,
    problem: Option<Box<Problem>>,
}

pub async fn import(args: ImportArgs, client: &Client) -> Result<Exit, Failure> {
    let name = match &args.name {
        Some(name) => name.clone(),
        None => name_of(&args.path)?,
    };
    let whose = (&args.place, &args.network);
    if args.path == Path::new("-") {
        return send(client, &name, whose, tokio::io::stdin(), None, args.format).await;
    }
    let usage =
        |e: std::io::Error| Failure::Usage { problem: format!("{}: {e}", args.path.display()) };
    let found = std::fs::metadata(&args.path).map_err(usage)?;
    if found.is_dir() {
        let path = std::fs::canonicalize(&args.path).map_err(usage)?;
        let kind = if path.join(OCI_LAYOUT).exists() { "oci" } else { "dir" };
        let source = json!({ kind: path });
        return ask(client, &name, whose, source, args.format).await;
    }
    let file = tokio::fs::File::open(&args.path).await.map_err(usage)?;
    send(client, &name, whose, file, Some(found.len()), args.format).await
}

/// Has the daemon create it from a source that it can access itself.
pub async fn ask(
    client: &Client,
    name: &TemplateName,
    (place, network): (&TemplateOwner, &TemplateNetwork),
    source: Value,
    format: Format,
) -> Result<Exit, Failure> {
    let mut body = json!({ "name": name, "shared": place.shared, "source": source });
    if let Some(project) = &place.project {
        body["project"] = json!(project);
    }
    if let Some(network) = &network.default_network {
        body["network"] = json!(network);
    }
    let response = client.post_live("/api/v1/templates", &body).await?;
    follow(client, response, &bar(), format).await
}

/// Sends an archive as it is read.
async fn send(
    client: &Client,
    name: &TemplateName,
    (place, network): (&TemplateOwner, &TemplateNetwork),
    archive: impl AsyncRead + Send + Unpin + 'static,
    total_bytes: Option<u64>,
    format: Format,
) -> Result<Exit, Failure> {
    let bar = bar();
    bar.set_message("sending");
    bar.set_length(total_bytes.unwrap_or_default());
    let mut query = vec![("shared", place.shared.to_string())];
    query.extend(place.project.clone().map(|project| ("project", project)));
    query.extend(network.default_network.as_ref().map(|network| ("network", as_query(network))));
    let path = format!("{}/upload", path_of(name));
    let response = client.put_live(&path, &query, pieces(archive, &bar)).await?;
    follow(client, response, &bar, format).await
}

/// Shows the progress until the last event.
async fn follow(
    client: &Client,
    response: Response,
    bar: &ProgressBar,
    format: Format,
) -> Result<Exit, Failure> {
    let mut lines = Lines::of(client, response);
    let last = loop {
        let event: Event = lines.next().await?;
        match event.r#type.as_str() {
            "progress" => show(bar, &event),
            _ => break event,
        }
    };
    bar.finish_and_clear();
    match (last.template, last.problem) {
        (Some(template), _) if format.json => print::json(&template)?,
        (Some(template), _) => print::line(&client.read::<Template>(template)?.name)?,
        (None, Some(problem)) => return Err(Error::Refused(problem).into()),
        (None, None) => {
            return Err(client.not_sandkeep(format!("an event {:?}", last.r#type)).into());
        }
    }
    Ok(Exit::Ok)
}

fn show(bar: &ProgressBar, event: &Event) {
    bar.set_message(match event.layers {
        0 => event.step.clone(),
        layers => format!("{} layer {} of {layers}", event.step, event.layer),
    });
    bar.set_length(event.total_bytes.unwrap_or(event.done_bytes));
    bar.set_position(event.done_bytes);
}

/// A file name without its extensions.
fn name_of(path: &Path) -> Result<TemplateName, Failure> {
    let file = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    without_endings(file).parse().map_err(|_| Failure::Usage {
        problem: format!("{} does not tell a name; say --name", path.display()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_called_by_its_name_without_endings() {
        let name = |path: &str| name_of(Path::new(path)).map(String::from).ok();
        for (path, expected) in [
            ("/x/busybox.tar", Some("busybox")),
            ("python-3.12.tar.gz", Some("python-3.12")),
            ("a.tgz", Some("a")),
            ("layout", Some("layout")),
            ("-", None),
            ("..", None),
            (".tar", None),
        ] {
            assert_eq!(name(path).as_deref(), expected, "{path}");
        }
    }
}
