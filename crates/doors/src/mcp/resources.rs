//! Files of sandboxes as resources: `sandkeep://<sandbox id>/<path>`, and `sandkeep://<sandbox id>/~/<path>` for a path
//! from the working directory.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rmcp::model::{
    ErrorData, Extensions, ListResourceTemplatesResult, ListResourcesResult, ReadResourceResponse,
    ReadResourceResult, Resource, ResourceContents, ResourceTemplate,
};
use serde_json::{Value, json};

use super::{Backend, Call, Failure};
use sandkeep_core::api::{ListFiles, ListSandboxes};
use sandkeep_core::{SandboxId, State, limits};

const SCHEME: &str = "sandkeep://";
/// Prefix of a path that is relative to the working directory.
const HOME: &str = "/~/";

pub fn templates() -> ListResourceTemplatesResult {
    let template = ResourceTemplate::new(format!("{SCHEME}{{sandbox}}{{+path}}"), "file")
        .with_title("A file of a sandbox")
        .with_description(
            "A file of a sandbox by its absolute path; /~/ begins one from the working directory.",
        );
    ListResourceTemplatesResult::with_all_items(vec![template])
}

/// The top-level files in the home directories of the caller's running sandboxes. The resource template reads files
/// further down.
pub async fn list(
    backend: &dyn Backend,
    from: &Extensions,
) -> Result<ListResourcesResult, ErrorData> {
    let running = ListSandboxes {
        state: vec![State::Running],
        limit: Some(limits::MCP_LISTED_SANDBOXES_MAX),
        ..ListSandboxes::default()
    };
    let sandboxes = backend.call(Call::ListSandboxes(running), from).await.map_err(error)?;
    let mut resources = Vec::new();
    for sandbox in items(&sandboxes) {
        let Some(id) = sandbox["id"].as_str().and_then(|id| id.parse::<SandboxId>().ok()) else {
            continue;
        };
        let limit = Some(limits::MCP_LISTED_FILES_MAX);
        let home = ListFiles { limit, ..ListFiles::default() };
        // A sandbox that ends meanwhile, or cannot list, contributes no files.
        let Ok(files) = backend.call(Call::ListFiles(id.clone(), home), from).await else {
            continue;
        };
        resources.extend(items(&files).filter_map(|file| resource(&id, file)));
    }
    Ok(ListResourcesResult::with_all_items(resources))
}

fn resource(sandbox: &SandboxId, file: &Value) -> Option<Resource> {
    let path = file["path"].as_str()?;
    let place = if path.starts_with('/') {
        path.to_owned()
    } else {
        format!("{HOME}{}", path.trim_start_matches("./"))
    };
    let resource = Resource::new(format!("{SCHEME}{sandbox}{place}"), path);
    Some(match file["size"].as_u64() {
        Some(size) => resource.with_size(size),
        None => resource,
    })
}

pub async fn read(
    backend: &dyn Backend,
    uri: &str,
    from: &Extensions,
) -> Result<ReadResourceResponse, ErrorData> {
    let Some((sandbox, path)) = parts(uri) else {
        let problem = format!("{uri:?} is no resource; expected {SCHEME}<sandbox>/<path>");
        return Err(ErrorData::invalid_params(problem, None));
    };
    let sandbox = match sandbox.parse() {
        Ok(id) => id,
        Err(_) => backend.named(sandbox, from).await.map_err(error)?,
    };
    let content = backend.read_file(&sandbox, path, from).await.map_err(error)?;
    let contents = match std::str::from_utf8(&content) {
        Ok(text) => ResourceContents::text(text, uri),
        Err(_) => ResourceContents::blob(STANDARD.encode(&content), uri)
            .with_mime_type("application/octet-stream"),
    };
    Ok(ReadResourceResult::new(vec![contents]).into())
}

/// The sandbox and the path of a resource URI.
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

fn error(failure: Failure) -> ErrorData {
    match failure {
        Failure::Refused(problem) => {
            ErrorData::resource_not_found(problem.detail.clone(), Some(json!(problem)))
        }
        other => ErrorData::internal_error(other.to_string(), None),
    }
}
