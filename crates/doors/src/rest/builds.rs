//! Builds of templates: the body is an archive of the build file and the files that it copies.

use std::collections::BTreeMap;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Deserialize;
use utoipa::IntoParams;

use super::import_events::answer;
use super::openapi::{Carried, Guarded, InState, OfSandbox, Stored, Upstream, WithBody};
use super::templates::{audience, network_named};
use super::uploads;
use crate::kit::Refusal;
use crate::kit::frames::Form;
use crate::kit::path::Id;
use crate::kit::query::{QueryResult, query};
use crate::kit::who::Who;
use sandkeep_broker::{Broker, BuildDraft, Cache, TemplateView};
use sandkeep_core::TemplateName;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct BuildQuery {
    /// Answer live: NDJSON, or Server-Sent Events if the request accepts those.
    #[serde(default)]
    stream: bool,
    /// Visible to everyone; needs the scope `admin`.
    #[serde(default)]
    shared: bool,
    project: Option<String>,
    /// Path of the build file in the archive; `Dockerfile` by default.
    file: Option<String>,
    /// The build stage; the last by default.
    target: Option<String>,
    /// Values for ARGs: a JSON object of strings.
    build_args: Option<String>,
    /// Run every step, without the build cache.
    #[serde(default)]
    no_cache: bool,
    /// What commands of the build may reach: `none`, the default, `open`, or a policy as JSON, as for a new sandbox.
    /// `on_deny: ask` is refused.
    network: Option<String>,
    /// The policy of the template's sandboxes that name none, in the same notation; by default they have no network.
    default_network: Option<String>,
}

/// Build a template from a build file, replacing one of the same name
///
/// The body is a tar (plain, gzip or zstd) with the build file and all files that it copies. Answers when the template
/// exists, or live: `step` for each step, `output` of commands, `progress` of pulled images; then one `done` with the
/// template, or one `failed` with the problem. The build stops if the client disconnects; completed steps are cached
/// for the next build.
#[utoipa::path(
    post, path = "/api/v1/templates/{name}/build", operation_id = "build_template", tag = "templates",
    params(("name" = String, Path, description = "name of the template, with `/` encoded as `%2F`"), BuildQuery),
    request_body(content = [u8], content_type = "application/octet-stream"),
    responses(
        (status = 200, description = "live: progress events", content(
            (String = "application/x-ndjson"),
            (String = "text/event-stream"),
        )),
        (status = 201, description = "the template exists", body = TemplateView, headers(("Location" = String, description = "path of the new resource"))),
        Guarded, WithBody, OfSandbox, InState, Carried, Upstream, Stored
    )
)]
pub async fn build(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(name): Id<TemplateName>,
    asked: QueryResult<BuildQuery>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    let asked = query(asked)?;
    let BuildQuery { stream, shared, project, file, target, build_args, no_cache, .. } = asked;
    let network = network_named("network", asked.network.as_deref())?.unwrap_or_default();
    let default_network = network_named("default_network", asked.default_network.as_deref())?;
    let live = Form::live(stream, &headers);
    let arguments = arguments(build_args.as_deref())?;
    let audience = audience(shared);
    let allowed = broker.may_import(&who, &name, project.as_deref(), audience);
    let context = uploads::receive(&broker, &who, allowed, body).await?;
    let cache = if no_cache { Cache::PassedBy } else { Cache::Used };
    let draft = BuildDraft {
        name,
        project,
        audience,
        context,
        file,
        arguments,
        target,
        cache,
        network,
        default_network,
    };
    answer(broker.build_template(&who, draft).await?, live).await
}

fn arguments(text: Option<&str>) -> Result<BTreeMap<String, String>, Refusal> {
    let Some(text) = text else { return Ok(BTreeMap::new()) };
    serde_json::from_str(text).map_err(|_| Refusal::QueryMalformed {
        // Without the parse error: it would quote the arguments, which may be secrets.
        problem: "build_args is no JSON object of strings".to_owned(),
    })
}
