//! Files of sandboxes as resources: `sandkeep://<sandbox id>/<path>`, and `sandkeep://<sandbox id>/~/<path>` for a path
//! from the working directory.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rmcp::model::{
    ErrorData, Extensions, ListResourceTemplatesResult, ListResourcesResult, ReadResourceResponse,
    ReadResourceResult, Resource, ResourceContents, ResourceTemplate,
};
use serde_json::Value;

use super::rest::{Outgoing, Reply, Rest, Unreachable, encoded};
use sandkeep_core::limits;

const SCHEME: &str = "sandkeep://";
/// What a path begins with that is meant from the working directory.
const HOME: &str = "/~/";

pub fn templates() -> ListResourceTemplatesResult {
    let template = ResourceTemplate::new(format!("{SCHEME}{{sandbox}}{{+path}}"), "file")
        .with_title("A file of a sandbox")
        .with_description(
            "A file of a sandbox by its absolute path; /~/ begins one from the working directory.",
        );
    ListResourceTemplatesResult::with_all_items(vec![template])
}

/// What lies in the homes of the caller's running sandboxes. Files deeper down are read by the template.
pub async fn list(rest: &dyn Rest, from: &Extensions) -> Result<ListResourcesResult, ErrorData> {
    let path =
        format!("/api/v1/sandboxes?state=running&limit={}", limits::MCP_LISTED_SANDBOXES_MAX);
    let sandboxes = json(rest.call(Outgoing::get(path), from).await)?;
    let mut resources = Vec::new();
    for sandbox in items(&sandboxes) {
        let Some(id) = sandbox["id"].as_str() else { continue };
        let path = format!(
            "/api/v1/sandboxes/{id}/files/list?path=.&depth=1&limit={}",
            limits::MCP_LISTED_FILES_MAX
        );
        // One that ends meanwhile, or cannot list, has no files to show.
        let Ok(files) = json(rest.call(Outgoing::get(path), from).await) else { continue };
        resources.extend(items(&files).filter_map(|file| resource(id, file)));
    }
    Ok(ListResourcesResult::with_all_items(resources))
}

fn resource(sandbox: &str, file: &Value) -> Option<Resource> {
    let path = file["path"].as_str()?;
    let place = match path.starts_with('/') {
        true => path.to_owned(),
        false => format!("{HOME}{}", path.trim_start_matches("./")),
    };
    let resource = Resource::new(format!("{SCHEME}{sandbox}{place}"), path);
    Some(match file["size"].as_u64() {
        Some(size) => resource.with_size(size),
        None => resource,
    })
}

pub async fn read(
    rest: &dyn Rest,
    uri: &str,
    from: &Extensions,
) -> Result<ReadResourceResponse, ErrorData> {
    let Some((sandbox, path)) = parts(uri) else {
        let problem = format!("{uri:?} is no resource; expected {SCHEME}<sandbox id>/<path>");
        return Err(ErrorData::invalid_params(problem, None));
    };
    let path = format!("/api/v1/sandboxes/{}/files?path={}", encoded(sandbox), encoded(path));
    let reply = reply(rest.call(Outgoing::get(path), from).await)?;
    let contents = match std::str::from_utf8(&reply.body) {
        Ok(text) => ResourceContents::text(text, uri),
        Err(_) => ResourceContents::blob(STANDARD.encode(&reply.body), uri)
            .with_mime_type("application/octet-stream"),
    };
    Ok(ReadResourceResult::new(vec![contents]).into())
}

/// The sandbox and the path of a resource.
fn parts(uri: &str) -> Option<(&str, &str)> {
    let rest = uri.strip_prefix(SCHEME)?;
    let at = rest.find('/')?;
    let (sandbox, path) = rest.split_at(at);
    let path = path.strip_prefix(HOME).unwrap_or(path);
    (!sandbox.is_empty()).then_some((sandbox, path))
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list["items"].as_array().into_iter().flatten()
}

fn reply(answer: Result<Reply, Unreachable>) -> Result<Reply, ErrorData> {
    let reply = answer.map_err(|e| ErrorData::internal_error(e.to_string(), None))?;
    match reply.is_success() {
        true => Ok(reply),
        false => {
            let problem = reply.json().unwrap_or_default();
            let words = problem["detail"].as_str().unwrap_or("refused").to_owned();
            Err(ErrorData::resource_not_found(words, Some(problem)))
        }
    }
}

fn json(answer: Result<Reply, Unreachable>) -> Result<Value, ErrorData> {
    let unread = || ErrorData::internal_error("an answer is no JSON", None);
    reply(answer)?.json().ok_or_else(unread)
}
