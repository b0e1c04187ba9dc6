//! The OpenAPI description, generated from the handlers. Common parts, above all the possible errors, are added here
//! once, from the same table that produces the answers.

mod variants;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use utoipa::openapi::header::{Header, HeaderBuilder};
use utoipa::openapi::path::{Operation, ParameterIn, PathItem};
use utoipa::openapi::schema::{AnyOfBuilder, Components, ObjectBuilder, Type};
use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme,
};
use utoipa::openapi::{ContentBuilder, OpenApi, Ref, RefOr, Response, ResponseBuilder, Schema};
use utoipa::{IntoResponses, OpenApi as _};

use super::problem::{MEDIA_TYPE, Problem, status_of};
use crate::kit::correlation;
use sandkeep_core::Code;

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Sandkeep",
        description = "Isolated computers for AI agents. Errors are problem+json with a stable \
                       `code` and a `remediation`; docs/reference/errors.md lists them all."
    ),
    components(schemas(Problem)),
    tags(
        (name = "sandboxes", description = "Create, inspect, start, stop and destroy sandboxes"),
        (name = "execs", description = "Run commands in a sandbox"),
        (name = "shells", description = "Shells that keep their state between commands"),
        (name = "processes", description = "Start and manage servers and other long-running processes"),
        (name = "files", description = "Read, write, list and watch the files of a sandbox, as its user"),
        (name = "snapshots", description = "Snapshots, turns, rollback, forks, diffs and history"),
        (name = "network", description = "Network policies of sandboxes, their decisions, and requests for more"),
        (name = "ports", description = "Reach servers in a sandbox"),
        (name = "tools", description = "Tools that a model calls in a sandbox: files, search, bash and git"),
        (name = "templates", description = "Import, build and list templates"),
        (name = "codebases", description = "Named trees that are mounted in sandboxes, and the rules for them"),
        (name = "urule", description = "The words of Urule's runtime broker: a session is a sandbox \
            with the label `urule.workspace_id`. Errors also carry Urule's `error` and `details`"),
        (name = "events", description = "Follow what happens, and have it delivered to webhooks"),
        (name = "keys", description = "API keys, for admins"),
        (name = "service", description = "The daemon itself"),
    )
)]
struct Base;

/// The document that all operations are added to.
pub fn base() -> OpenApi {
    let mut api = Base::openapi();
    let components = api.components.get_or_insert_with(Components::new);
    let key = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(
        "An API key, or a token of the configured OIDC issuer. A daemon without keys \
         needs none from its own user.",
    ));
    components.add_security_scheme(BEARER, SecurityScheme::Http(key.build()));
    let header = ApiKeyValue::with_description("X-API-Key", "The same API key in another header.");
    components.add_security_scheme(API_KEY, SecurityScheme::ApiKey(ApiKey::Header(header)));
    components
        .headers
        .insert(CORRELATION.to_owned(), described(correlation::HEADER.as_str()).into());
    let none: [&str; 0] = [];
    api.security = Some(vec![
        SecurityRequirement::new(BEARER, none),
        SecurityRequirement::new(API_KEY, none),
        SecurityRequirement::default(),
    ]);
    api
}

const BEARER: &str = "bearer";
const API_KEY: &str = "api_key";
/// The name of the header component that every answer refers to.
const CORRELATION: &str = "CorrelationId";

fn described(header: &str) -> Header {
    let (kind, text) = match header {
        "retry-after" => (Type::Integer, "Seconds to wait before a retry."),
        _ => (
            Type::String,
            "The request's own id, or a generated one. The daemon's log contains it.",
        ),
    };
    HeaderBuilder::new()
        .schema(Some(ObjectBuilder::new().schema_type(kind)))
        .description(Some(text))
        .build()
}

/// Get the OpenAPI description
#[utoipa::path(
    get, path = "/openapi.json", operation_id = "openapi", tag = "service", security(()),
    responses((status = 200, description = "this document", body = Object), Public)
)]
pub async fn serve() -> impl IntoResponse {
    static DOCUMENT: OnceLock<String> = OnceLock::new();
    let document = DOCUMENT.get_or_init(document);
    ([(header::CONTENT_TYPE, "application/json")], document.as_str())
}

/// The description as served, and as in `docs/reference/openapi.json`.
pub fn document() -> String {
    let (_, api) = crate::front::described().split_for_parts();
    let mut text =
        finished(api).to_pretty_json().expect("a description holds only strings and maps");
    text.push('\n');
    text
}

/// Adds what is common to all answers, and the problem schemas.
fn finished(mut api: OpenApi) -> OpenApi {
    let mut used = BTreeSet::new();
    for operation in operations(&mut api) {
        admit_names(operation);
        for (status, response) in &mut operation.responses.responses {
            match response {
                RefOr::T(response) => complete(response, status),
                RefOr::Ref(_) => {
                    used.extend(status.parse::<u16>());
                }
            }
        }
    }
    let components = api.components.get_or_insert_with(Components::new);
    let problems = used.into_iter().map(|status| (name_of(status), problem(status).into()));
    components.responses.extend(problems);
    variants::name_all(&mut components.schemas);
    api
}

fn operations(api: &mut OpenApi) -> impl Iterator<Item = &mut Operation> {
    api.paths.paths.values_mut().flat_map(|item| {
        let PathItem { get, put, post, delete, patch, .. } = item;
        [get, put, post, delete, patch].into_iter().flatten()
    })
}

/// A path names a sandbox by its id or by its name; the handlers declare the id, which is what they are given.
fn admit_names(operation: &mut Operation) {
    let id = RefOr::Ref(Ref::from_schema_name("SandboxId"));
    let both = [id.clone(), RefOr::Ref(Ref::from_schema_name("SandboxName"))];
    for parameter in operation.parameters.iter_mut().flatten() {
        let RefOr::T(parameter) = parameter else { continue };
        if parameter.parameter_in == ParameterIn::Path && parameter.schema.as_ref() == Some(&id) {
            let either = both.clone().into_iter().fold(AnyOfBuilder::new(), AnyOfBuilder::item);
            parameter.schema = Some(RefOr::T(Schema::AnyOf(either.build())));
        }
    }
}

fn complete(response: &mut Response, status: &str) {
    let correlation = Ref::new(format!("#/components/headers/{CORRELATION}"));
    response.headers.insert(correlation::HEADER.to_string(), RefOr::Ref(correlation));
    if response.description.is_empty() {
        let known = status.parse().ok().and_then(|code| StatusCode::from_u16(code).ok());
        let reason = known.and_then(|known| known.canonical_reason()).unwrap_or(status);
        response.description = reason.to_lowercase();
    }
}

fn name_of(status: u16) -> String {
    format!("Problem{status}")
}

/// Codes that no operation returns: they are for unknown paths, or end the daemon's start.
const NEVER: [Code; 3] = [Code::NoRoute, Code::MethodNotAllowed, Code::DataDirInUse];

/// A problem answer with this status, with its possible codes.
fn problem(status: u16) -> Response {
    let has = |code: &Code| status_of(*code).as_u16() == status && !NEVER.contains(code);
    let codes = Code::ALL.iter().copied().filter(has);
    let names: Vec<String> = codes.map(|code| format!("`{}`", code.as_str())).collect();
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
    let response =
        ResponseBuilder::new().description(names.join(", ")).content(MEDIA_TYPE, content);
    let mut response = response.build();
    complete(&mut response, "");
    if status == StatusCode::TOO_MANY_REQUESTS.as_u16() {
        let name = header::RETRY_AFTER.to_string();
        response.headers.insert(name.clone(), described(&name).into());
    }
    response
}

macro_rules! refusals {
    ($($(#[$doc:meta])* $name:ident $($status:literal)*;)*) => {$(
        $(#[$doc])*
        pub struct $name;

        impl IntoResponses for $name {
            fn responses() -> BTreeMap<String, RefOr<Response>> {
                [$($status),*]
                    .map(|status: u16| {
                        let problem = Ref::from_response_name(name_of(status));
                        (status.to_string(), problem.into())
                    })
                    .into()
            }
        }
    )*};
}

refusals! {
    /// Errors of requests that need no credentials.
    Public 403;
    /// Errors of requests that need credentials.
    Guarded 401 403 429 500 503;
    /// Errors of requests with a query string.
    WithQuery 400;
    /// Errors of requests with a body.
    WithBody 400 408 413 415;
    /// Errors of requests that name a sandbox, or an item in one.
    OfSandbox 404;
    /// Errors of a create's source.
    Sourced 404 422;
    /// Errors of requests that need storage space.
    Stored 507;
    /// Errors of a create's idempotency key.
    Keyed 409 422;
    /// Errors of requests that depend on a sandbox's state.
    InState 409;
    /// Errors of requests that are executed inside a sandbox.
    Inside 400 409 502 504;
    /// Errors of commands that a build or a template runs.
    Carried 422;
    /// Errors of requests that are journaled first.
    Journaled 507;
    /// Errors of requests that depend on a remote service.
    Upstream 502;
    /// Errors of file requests.
    Files 400 409 413 416 502 504 507;
    /// Errors of requests that must upgrade to a WebSocket.
    Upgraded 426;
}

#[cfg(test)]
mod rules;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openapi_json_is_what_the_handlers_say() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/openapi.json");
        if std::env::var_os("SANDKEEP_REGENERATE").is_some() {
            std::fs::write(path, document()).expect("docs can be written");
        }
        let written = std::fs::read_to_string(path).expect("docs/reference/openapi.json exists");
        assert!(
            written == document(),
            "docs/reference/openapi.json is stale: run with SANDKEEP_REGENERATE=1"
        );
    }

    /// What a reference means; `None` if it dangles.
    fn meant<'a>(api: &'a serde_json::Value, reference: &str) -> Option<&'a serde_json::Value> {
        api.pointer(reference.strip_prefix('#')?)
    }

    fn walk(value: &serde_json::Value, look: &mut impl FnMut(&serde_json::Value)) {
        look(value);
        match value {
            serde_json::Value::Object(fields) => {
                fields.values().for_each(|field| walk(field, look))
            }
            serde_json::Value::Array(items) => items.iter().for_each(|item| walk(item, look)),
            _ => {}
        }
    }

    #[test]
    fn no_reference_dangles_and_nothing_is_all_of_one_of_several() {
        let api: serde_json::Value = serde_json::from_str(&document()).expect("JSON");
        walk(&api, &mut |value| {
            if let Some(reference) = value["$ref"].as_str() {
                assert!(meant(&api, reference).is_some(), "{reference} means nothing");
            }
            for part in value["allOf"].as_array().into_iter().flatten() {
                let part = match part["$ref"].as_str() {
                    Some(reference) => meant(&api, reference).expect("it was looked up"),
                    None => part,
                };
                assert!(part["oneOf"].is_null(), "{value:#}");
            }
        });
        let kinds = &api["components"]["schemas"]["Event"]["oneOf"];
        assert!(kinds.as_array().is_some_and(|kinds| kinds.len() > 10), "{kinds:#}");
        assert!(api["components"]["schemas"]["EventExecEnded"]["properties"]["seq"].is_object());
    }

    #[test]
    fn every_operation_is_described_and_says_how_it_fails() {
        let api: serde_json::Value = serde_json::from_str(&document()).expect("JSON");
        assert_eq!(api["openapi"], "3.1.0");
        let mut ids = std::collections::HashSet::new();
        for (path, item) in api["paths"].as_object().expect("paths") {
            for (method, operation) in item.as_object().expect("operations") {
                let name = format!("{method} {path}");
                assert!(operation["summary"].is_string(), "{name} has no summary");
                let id = operation["operationId"].as_str().expect("an id").to_owned();
                assert!(ids.insert(id.clone()), "{name}: the id {id} is taken");
                let responses = operation["responses"].as_object().expect("responses");
                let fails = responses.keys().any(|status| status.starts_with(['4', '5']));
                assert!(fails, "{name} does not say how it fails");
            }
        }
    }
}
