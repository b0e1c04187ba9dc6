//! The description of this API, made from the handlers themselves. What is common to many of them,
//! above all how they fail, is said here once, from the same table that answers with it.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use axum::http::header;
use axum::response::IntoResponse;
use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme,
};
use utoipa::openapi::{ContentBuilder, OpenApi, Ref, RefOr, Response, ResponseBuilder};
use utoipa::{IntoResponses, OpenApi as _};

use super::problem::{Code, MEDIA_TYPE, Problem};

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Sandkeep",
        description = "Isolated computers for AI agents. Errors are problem+json with a stable \
                       `code` and a `remediation`; docs/errors.md lists them all."
    ),
    components(schemas(Problem)),
    tags(
        (name = "sandboxes", description = "Make, look at, start, stop and destroy sandboxes"),
        (name = "execs", description = "Run commands in a sandbox"),
        (name = "shells", description = "Shells that keep their state from one command to the next"),
        (name = "urule", description = "The words of Urule's runtime broker: a session is a sandbox \
            with the label `urule.workspace_id`. Errors also carry Urule's `error` and `details`"),
        (name = "keys", description = "API keys, for admins"),
        (name = "service", description = "The daemon itself"),
    )
)]
struct Base;

/// What all operations are added to.
pub fn base() -> OpenApi {
    let mut api = Base::openapi();
    let components = api.components.get_or_insert_default();
    components.add_security_scheme(
        "bearer",
        SecurityScheme::Http(
            HttpBuilder::new()
                .scheme(HttpAuthScheme::Bearer)
                .description(Some("An API key, or a token of the configured OIDC issuer"))
                .build(),
        ),
    );
    let header = ApiKeyValue::with_description("X-API-Key", "The same in a header of its own");
    components.add_security_scheme("api_key", SecurityScheme::ApiKey(ApiKey::Header(header)));
    // Without keys nothing is needed; that is the empty one.
    let either = |name: &str| SecurityRequirement::new(name, Vec::<String>::new());
    api.security = Some(vec![either("bearer"), either("api_key"), SecurityRequirement::default()]);
    api
}

/// `/openapi.json`: the finished description, encoded once.
pub async fn serve() -> impl IntoResponse {
    static DOCUMENT: OnceLock<String> = OnceLock::new();
    let document = DOCUMENT.get_or_init(document);
    ([(header::CONTENT_TYPE, "application/json")], document.as_str())
}

/// The description as it is served and as `docs/openapi.json` has it.
pub fn document() -> String {
    let (_, api) = super::routes().split_for_parts();
    let mut text = api.to_pretty_json().expect("a description holds only strings and maps");
    text.push('\n');
    text
}

/// An answer of this status that is a problem, naming the codes that have it.
fn problem(status: u16) -> RefOr<Response> {
    let codes = Code::ALL.iter().filter(|code| code.status() == status);
    let names: Vec<String> = codes.map(|code| format!("`{}`", code.as_str())).collect();
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
    ResponseBuilder::new().description(names.join(", ")).content(MEDIA_TYPE, content).build().into()
}

macro_rules! refusals {
    ($($(#[$doc:meta])* $name:ident $($status:literal)*;)*) => {$(
        $(#[$doc])*
        pub struct $name;

        impl IntoResponses for $name {
            fn responses() -> BTreeMap<String, RefOr<Response>> {
                [$($status),*].map(|status: u16| (status.to_string(), problem(status))).into()
            }
        }
    )*};
}

refusals! {
    /// How a request can fail that needs no credentials.
    Public 403;
    /// How a request can fail that needs them.
    Guarded 401 403 429 500 503;
    /// How a request can fail for its body.
    WithBody 400 408 413 415;
    /// How a request can fail that names a sandbox, or something in one.
    OfSandbox 404;
    /// How a request can fail for the state that a sandbox is in.
    InState 409;
    /// How a request can fail that goes inside a sandbox.
    Inside 400 409 502 504;
    /// How a request can fail for what has to be written down first.
    Journaled 507;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openapi_json_is_what_the_handlers_say() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
        if std::env::var_os("SANDKEEP_REGENERATE").is_some() {
            std::fs::write(path, document()).expect("docs can be written");
        }
        let written = std::fs::read_to_string(path).expect("docs/openapi.json exists");
        assert!(
            written == document(),
            "docs/openapi.json is stale: run with SANDKEEP_REGENERATE=1"
        );
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
