//! Templates: import, get, remove. A template name may contain `/`, encoded in a path as `%2F`.

use std::path::PathBuf;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::import_events::answer;
use super::openapi::{Guarded, InState, OfSandbox, Stored, Upstream, WithBody, WithQuery};
use super::uploads;
use crate::kit::Refusal;
use crate::kit::body;
use crate::kit::frames::Form;
use crate::kit::path::Id;
use crate::kit::query::{QueryResult, query};
use crate::kit::who::{MayName, Who};
use sandkeep_broker::{
    Audience, Broker, PathKind, TemplateDraft, TemplateSource, TemplateView, error::Error,
};
use sandkeep_core::api::Sorting;
use sandkeep_core::network::Network;
use sandkeep_core::{HostPaths, Principal, SnapshotName, TemplateName};
use sandkeep_image::source::registry::{Credentials, Reference};

#[derive(Serialize, ToSchema)]
pub struct Templates {
    items: Vec<TemplateView>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CreateTemplate)]
pub struct TemplateBody {
    /// Such as `python:3.12`: letters, digits and `._-+:@` in parts separated by `/`.
    #[schema(value_type = String, max_length = 255, example = "python:3.12")]
    name: TemplateName,
    /// The project it belongs to; default: the key's own project, or `default`.
    project: Option<String>,
    /// Visible to everyone; needs the scope `admin`.
    #[serde(default)]
    shared: bool,
    source: SourceBody,
    /// The policy of sandboxes that name none, neither themselves nor by their profile; by default they have no network.
    /// The policy and the secrets of a sandbox that becomes a template are not taken over.
    network: Option<Network>,
}

/// The source of the template; exactly one of these. Paths are absolute paths on the daemon's host, and allowed only
/// for its own user or below its `source_roots`.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = TemplateSource)]
pub struct SourceBody {
    /// A directory with a root file system.
    dir: Option<String>,
    /// A root file system as a tar: plain, gzip or zstd.
    tar: Option<String>,
    /// An OCI layout, as a directory or an archive.
    oci: Option<String>,
    /// Output of `docker save`.
    docker_archive: Option<String>,
    /// An image in a registry, in Docker's notation: `python:3.12`, `ghcr.io/acme/tools@sha256:…`.
    registry: Option<String>,
    /// Credentials for the registry, if it needs any and the daemon has none.
    credentials: Option<CredentialsBody>,
    /// The id or name of a sandbox, running or stopped, as it is now.
    sandbox: Option<String>,
    /// As that sandbox was at this snapshot, by its name or id.
    snapshot: Option<SnapshotName>,
}

/// A user name and password, or a token. They are never shown or stored.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = RegistryCredentials)]
pub struct CredentialsBody {
    username: Option<String>,
    password: Option<String>,
    token: Option<String>,
}

impl std::fmt::Debug for CredentialsBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CredentialsBody(hidden)")
    }
}

impl CredentialsBody {
    fn read(self) -> Result<Credentials, Error> {
        match (self.username, self.password, self.token) {
            (Some(user), Some(password), None) => Ok(Credentials::Password { user, password }),
            (None, None, Some(token)) => Ok(Credentials::Token(token)),
            _ => {
                let problem = "give either username and password, or token".to_owned();
                Err(Error::InvalidField { field: "source.credentials", problem })
            }
        }
    }
}

impl SourceBody {
    async fn into_source(
        self,
        broker: &Broker,
        who: &Principal,
        reach: HostPaths,
    ) -> Result<TemplateSource, Error> {
        let path = |kind, path: String| {
            let path = PathBuf::from(path);
            TemplateSource::Path { kind, path, reach }
        };
        let credentials = self.credentials.map(CredentialsBody::read).transpose()?;
        if credentials.is_some() && self.registry.is_none() {
            let problem = "they are for a registry".to_owned();
            return Err(Error::InvalidField { field: "source.credentials", problem });
        }
        if self.snapshot.is_some() && self.sandbox.is_none() {
            let problem = "say of which sandbox it is".to_owned();
            return Err(Error::InvalidField { field: "source.snapshot", problem });
        }
        let pull = |text: String| match text.parse::<Reference>() {
            Ok(reference) => Ok(TemplateSource::Registry { reference, credentials }),
            Err(wrong) => {
                let problem = wrong.to_string();
                Err(Error::InvalidField { field: "source.registry", problem })
            }
        };
        let sandbox = match self.sandbox {
            Some(named) => Some(broker.resolve(who, &named).await?),
            None => None,
        };
        let mut given = [
            self.dir.map(|dir| path(PathKind::Dir, dir)),
            self.tar.map(|tar| path(PathKind::Tar, tar)),
            self.oci.map(|oci| path(PathKind::Oci, oci)),
            self.docker_archive.map(|archive| path(PathKind::DockerArchive, archive)),
            self.registry.map(pull).transpose()?,
            sandbox.map(|id| TemplateSource::Sandbox { id, snapshot: self.snapshot }),
        ]
        .into_iter()
        .flatten();
        match (given.next(), given.next()) {
            (Some(source), None) => Ok(source),
            (None, _) | (Some(_), Some(_)) => {
                let problem =
                    "give one of dir, tar, oci, docker_archive, registry and sandbox".to_owned();
                Err(Error::InvalidField { field: "source", problem })
            }
        }
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ImportQuery {
    /// Answer live: NDJSON, or Server-Sent Events if the request accepts those.
    #[serde(default)]
    stream: bool,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct UploadQuery {
    #[serde(default)]
    stream: bool,
    /// Visible to everyone; needs the scope `admin`.
    #[serde(default)]
    shared: bool,
    project: Option<String>,
    /// The policy of sandboxes that name none: `none`, `open`, or a policy as JSON. By default they have no network.
    network: Option<String>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct OfProject {
    /// The project of the template; default: the key's own project, or `default`.
    project: Option<String>,
}

/// List templates, the built-in ones as the oldest
#[utoipa::path(
    get, path = "/api/v1/templates", operation_id = "list_templates", tag = "templates",
    params(Sorting),
    responses((status = 200, body = Templates), Guarded, WithQuery)
)]
pub async fn list(
    State(broker): State<Broker>,
    Who(who): Who,
    asked: QueryResult<Sorting>,
) -> Result<Json<Templates>, Refusal> {
    let sort = query(asked)?.sort;
    Ok(Json(Templates { items: broker.templates(&who, sort).await? }))
}

/// Get a template
///
/// A template of the project takes precedence over a shared one of the same name. A name without a tag means `:latest`.
#[utoipa::path(
    get, path = "/api/v1/templates/{name}", operation_id = "get_template", tag = "templates",
    params(("name" = String, Path, description = "name of the template, with `/` encoded as `%2F`"), OfProject),
    responses((status = 200, body = TemplateView), Guarded, WithQuery, OfSandbox)
)]
pub async fn get(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(name): Id<TemplateName>,
    asked: QueryResult<OfProject>,
) -> Result<Json<TemplateView>, Refusal> {
    let OfProject { project } = query(asked)?;
    Ok(Json(broker.template(&who, name.as_str(), project.as_deref()).await?))
}

/// Create a template, replacing one of the same name
///
/// Answers when it exists, or live: `progress` events, then one `done` with the template, or one `failed` with the
/// problem. It continues if the client disconnects.
#[utoipa::path(
    post, path = "/api/v1/templates", operation_id = "create_template", tag = "templates",
    params(ImportQuery),
    request_body = TemplateBody,
    responses(
        (status = 200, description = "live: progress events", content(
            (String = "application/x-ndjson"),
            (String = "text/event-stream"),
        )),
        (status = 201, description = "the template exists", body = TemplateView, headers(("Location" = String, description = "path of the new resource"))),
        Guarded, WithBody, OfSandbox, InState, Upstream, Stored
    )
)]
pub async fn create(
    State(broker): State<Broker>,
    Who(who): Who,
    MayName(reach): MayName,
    asked: QueryResult<ImportQuery>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    let live = Form::live(query(asked)?.stream, &headers);
    let body: TemplateBody = body::required(&headers, body).await?;
    let TemplateBody { name, project, shared, source, network } = body;
    let source = source.into_source(&broker, &who, reach).await?;
    let draft = TemplateDraft { name, project, audience: audience(shared), source, network };
    answer(broker.import_template(&who, draft).await?, live).await
}

/// Create a template from an uploaded archive
///
/// A tar of a root file system, an OCI layout, or the output of `docker save`; plain, gzip or zstd. Answers like
/// `create_template`.
#[utoipa::path(
    put, path = "/api/v1/templates/{name}/upload", operation_id = "upload_template", tag = "templates",
    params(("name" = String, Path, description = "name of the template, with `/` encoded as `%2F`"), UploadQuery),
    request_body(content = [u8], content_type = "application/octet-stream"),
    responses(
        (status = 200, description = "live: progress events", content(
            (String = "application/x-ndjson"),
            (String = "text/event-stream"),
        )),
        (status = 201, description = "the template exists", body = TemplateView, headers(("Location" = String, description = "path of the new resource"))),
        Guarded, WithBody, OfSandbox, Upstream, Stored
    )
)]
pub async fn upload(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(name): Id<TemplateName>,
    asked: QueryResult<UploadQuery>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    let UploadQuery { stream, shared, project, network } = query(asked)?;
    let network = network_named("network", network.as_deref())?;
    let live = Form::live(stream, &headers);
    let audience = audience(shared);
    let admitted = broker.may_import(&who, &name, project.as_deref(), audience);
    let upload = uploads::receive(&broker, &who, admitted, body).await?;
    let source = TemplateSource::Upload(Box::new(upload));
    let draft = TemplateDraft { name, project, audience, source, network };
    answer(broker.import_template(&who, draft).await?, live).await
}

/// Remove a template
///
/// Refused while a sandbox that was created from it exists. A template of the project is removed before a shared one of
/// the same name, which only an admin may remove.
#[utoipa::path(
    delete, path = "/api/v1/templates/{name}", operation_id = "remove_template", tag = "templates",
    params(("name" = String, Path, description = "name of the template, with `/` encoded as `%2F`"), OfProject),
    responses((status = 204, description = "deleted"), Guarded, WithQuery, OfSandbox, InState)
)]
pub async fn remove(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(name): Id<TemplateName>,
    asked: QueryResult<OfProject>,
) -> Result<StatusCode, Refusal> {
    let OfProject { project } = query(asked)?;
    broker.remove_template(&who, name.as_str(), project.as_deref()).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A network in a query: a word, or JSON.
pub fn network_named(field: &str, text: Option<&str>) -> Result<Option<Network>, Refusal> {
    let Some(text) = text else { return Ok(None) };
    let read = if text.starts_with('{') {
        serde_json::from_str(text)
    } else {
        serde_json::from_value(serde_json::Value::String(text.to_owned()))
    };
    let wrong = |error| Refusal::QueryMalformed { problem: format!("{field}: {error}") };
    read.map(Some).map_err(wrong)
}

pub fn audience(shared: bool) -> Audience {
    if shared { Audience::Everybody } else { Audience::Owner }
}
