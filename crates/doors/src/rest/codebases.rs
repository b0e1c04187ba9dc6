//! Codebases: create, list, get, count, delete, their files, and the rules of sandboxes that have them.

use axum::Json;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::header::LOCATION;
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::response::Response;
use toolbox::{Ownership, UnpackArchive, WriteFile};

use super::diff::tar;
use super::files::parameters::Parameters;
use super::files::{
    Listing, Shown, UnpackedView, content, directory_to_list, directory_to_make, move_to_make,
    parents, reach, upload,
};
use super::openapi::{Files, Guarded, InState, OfSandbox, Sourced, Stored, WithBody, WithQuery};
use crate::kit::Refusal;
use crate::kit::body;
use crate::kit::long_answer::heavy_answer;
use crate::kit::path::Id;
use crate::kit::query::{QueryResult, query};
use crate::kit::who::{MayName, Who};
use sandkeep_broker::{Broker, DiffText};
use sandkeep_core::api::{
    self, CheckRules, CheckedRules, Codebase, CodebaseSize, Codebases, CreateCodebase,
    DiffCodebase, DiffFormat, SandboxRules,
};
use sandkeep_core::{CodebaseRef, SandboxId};
use sandkeep_tree::diff::DiffReport;

/// Create a codebase
///
/// An owned, named tree that can be mounted in sandboxes. It is created completely or not at all.
#[utoipa::path(
    post, path = "/api/v1/codebases", operation_id = "create_codebase", tag = "codebases",
    request_body = CreateCodebase,
    responses(
        (status = 201, body = Codebase, headers(("Location" = String, description = "path of the new resource"))),
        WithBody, Guarded, Sourced, InState, Stored
    )
)]
pub async fn create(
    Who(who): Who,
    MayName(reach): MayName,
    State(broker): State<Broker>,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, [(HeaderName, String); 1], Json<Codebase>), Refusal> {
    let mut draft: CreateCodebase = body::required(&headers, body).await?;
    if let Some(source) = &mut draft.source {
        source.reach = reach;
    }
    let made = broker.create_codebase(&who, draft).await?;
    let location = format!("/api/v1/codebases/{}", made.id);
    Ok((StatusCode::CREATED, [(LOCATION, location)], Json(made)))
}

/// List codebases, by name
#[utoipa::path(
    get, path = "/api/v1/codebases", operation_id = "list_codebases", tag = "codebases",
    responses((status = 200, body = Codebases), Guarded)
)]
pub async fn list(Who(who): Who, State(broker): State<Broker>) -> Json<Codebases> {
    Json(Codebases { items: broker.codebases(&who) })
}

/// Get a codebase, with the sandboxes that have it
#[utoipa::path(
    get, path = "/api/v1/codebases/{codebase}", operation_id = "get_codebase", tag = "codebases",
    params(("codebase" = CodebaseRef, Path)),
    responses((status = 200, body = Codebase), Guarded, OfSandbox)
)]
pub async fn get(
    Who(who): Who,
    State(broker): State<Broker>,
    Id(codebase): Id<CodebaseRef>,
) -> Result<Json<Codebase>, Refusal> {
    Ok(Json(broker.codebase(&who, &codebase)?))
}

/// Delete a codebase with all its files
///
/// Refused while a sandbox has it, whether that runs or not; the answer names them.
#[utoipa::path(
    delete, path = "/api/v1/codebases/{codebase}", operation_id = "delete_codebase", tag = "codebases",
    params(("codebase" = CodebaseRef, Path)),
    responses((status = 204, description = "deleted"), Guarded, OfSandbox, InState, Stored)
)]
pub async fn delete(
    Who(who): Who,
    State(broker): State<Broker>,
    Id(codebase): Id<CodebaseRef>,
) -> Result<StatusCode, Refusal> {
    broker.delete_codebase(&who, &codebase).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Count the files of a codebase and their size
#[utoipa::path(
    get, path = "/api/v1/codebases/{codebase}/size", operation_id = "measure_codebase", tag = "codebases",
    params(("codebase" = CodebaseRef, Path)),
    responses((status = 200, body = CodebaseSize), Guarded, OfSandbox, Files)
)]
pub async fn size(
    Who(who): Who,
    State(broker): State<Broker>,
    Id(codebase): Id<CodebaseRef>,
) -> Result<Json<CodebaseSize>, Refusal> {
    Ok(Json(broker.codebase_size(&who, &codebase).await?))
}

/// Read a file of a codebase, or a range of it
///
/// Paths begin at the root of the codebase, whether or not they are absolute, and so do the absolute links in it.
#[utoipa::path(
    get, path = "/api/v1/codebases/{codebase}/files", operation_id = "read_codebase_file", tag = "codebases",
    params(
        ("codebase" = CodebaseRef, Path),
        ("path" = String, Query, description = "any bytes, percent-encoded"),
        ("Range" = Option<String>, Header, description = "one range: `bytes=0-99`, `bytes=100-` or `bytes=-100`"),
    ),
    responses(
        (status = 200, content_type = "application/octet-stream", body = [u8]),
        (status = 206, description = "the requested range", content_type = "application/octet-stream", body = [u8]),
        Guarded, WithQuery, OfSandbox, Files
    )
)]
pub async fn read(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(codebase): Id<CodebaseRef>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let path = Parameters::read(query, &["path"])?.path()?;
    let range = content::range(&headers);
    let (reading, stream) = broker.read_codebase_file(&who, &codebase, path, range).await?;
    Ok(content::answer(reading, stream, range))
}

/// Write a file of a codebase atomically
#[utoipa::path(
    put, path = "/api/v1/codebases/{codebase}/files", operation_id = "write_codebase_file", tag = "codebases",
    params(
        ("codebase" = CodebaseRef, Path),
        ("path" = String, Query, description = "as for reading"),
        ("mode" = Option<String>, Query, description = "such as `0755`; default: the mode of the existing file, or 0644"),
        ("parents" = Option<bool>, Query, description = "create missing parent directories"),
    ),
    request_body(content = [u8], content_type = "application/octet-stream"),
    responses(
        (status = 200, description = "the file was replaced", body = Shown),
        (status = 201, description = "the file was created", body = Shown),
        Guarded, WithBody, OfSandbox, Files
    )
)]
pub async fn write(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(codebase): Id<CodebaseRef>,
    RawQuery(query): RawQuery,
    body: Body,
) -> Result<(StatusCode, Json<Shown>), Refusal> {
    let begun = async {
        let parameters = Parameters::read(query, &["path", "mode", "parents"])?;
        let request = WriteFile {
            path: parameters.path()?,
            mode: parameters.mode("mode")?,
            parents: parents(parameters.flag("parents")?),
        };
        Ok(broker.write_codebase_file(&who, &codebase, request).await?)
    };
    let written = upload::receive(begun, body).await?;
    let status = if written.created { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(written.entry.into())))
}

/// Delete a file, a link or a directory of a codebase
#[utoipa::path(
    delete, path = "/api/v1/codebases/{codebase}/files", operation_id = "delete_codebase_file", tag = "codebases",
    params(("codebase" = CodebaseRef, Path), api::DeleteFile),
    responses((status = 204, description = "deleted"), Guarded, WithQuery, OfSandbox, Files)
)]
pub async fn remove(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(codebase): Id<CodebaseRef>,
    RawQuery(query): RawQuery,
) -> Result<StatusCode, Refusal> {
    let parameters = Parameters::read(query, &["path", "recursive"])?;
    let reach = reach(parameters.flag("recursive")?);
    broker.remove_codebase_file(&who, &codebase, parameters.path()?, reach).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Get the metadata of a path in a codebase, without following a link
#[utoipa::path(
    get, path = "/api/v1/codebases/{codebase}/files/stat", operation_id = "stat_codebase_file", tag = "codebases",
    params(("codebase" = CodebaseRef, Path), api::FilePath),
    responses((status = 200, body = Shown), Guarded, WithQuery, OfSandbox, Files)
)]
pub async fn stat(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(codebase): Id<CodebaseRef>,
    RawQuery(query): RawQuery,
) -> Result<Json<Shown>, Refusal> {
    let path = Parameters::read(query, &["path"])?.path()?;
    Ok(Json(broker.stat_codebase_file(&who, &codebase, path).await?.into()))
}

/// List a directory of a codebase, sorted by name
#[utoipa::path(
    get, path = "/api/v1/codebases/{codebase}/files/list", operation_id = "list_codebase_files", tag = "codebases",
    params(("codebase" = CodebaseRef, Path), api::ListFiles),
    responses((status = 200, body = Listing), Guarded, WithQuery, OfSandbox, Files)
)]
pub async fn list_files(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(codebase): Id<CodebaseRef>,
    RawQuery(query): RawQuery,
) -> Result<Json<Listing>, Refusal> {
    let parameters = Parameters::read(query, &["path", "depth", "limit", "cursor"])?;
    let asked = api::ListFiles {
        path: None,
        depth: parameters.number("depth")?,
        limit: parameters.number("limit")?,
        cursor: parameters.text("cursor")?.map(str::to_owned),
    };
    let request = directory_to_list(parameters.path_or(".")?, asked)?;
    Ok(Json(broker.list_codebase_files(&who, &codebase, request).await?.into()))
}

/// Create a directory in a codebase
#[utoipa::path(
    post, path = "/api/v1/codebases/{codebase}/files/mkdir", operation_id = "make_codebase_directory",
    tag = "codebases",
    params(("codebase" = CodebaseRef, Path)),
    request_body = api::MakeDirectory,
    responses((status = 201, body = Shown), Guarded, WithBody, OfSandbox, Files)
)]
pub async fn mkdir(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(codebase): Id<CodebaseRef>,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, Json<Shown>), Refusal> {
    let request = directory_to_make(body::required(&headers, body).await?)?;
    let made = broker.make_codebase_directory(&who, &codebase, request).await?;
    Ok((StatusCode::CREATED, Json(made.into())))
}

/// Move or rename a file or a directory of a codebase
#[utoipa::path(
    post, path = "/api/v1/codebases/{codebase}/files/move", operation_id = "move_codebase_file", tag = "codebases",
    params(("codebase" = CodebaseRef, Path)),
    request_body = api::MoveFile,
    responses((status = 200, body = Shown), Guarded, WithBody, OfSandbox, Files)
)]
pub async fn r#move(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(codebase): Id<CodebaseRef>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Shown>, Refusal> {
    let request = move_to_make(body::required(&headers, body).await?)?;
    Ok(Json(broker.move_codebase_file(&who, &codebase, request).await?.into()))
}

/// Download a directory or file of a codebase as a tar archive
///
/// As for a sandbox: FIFOs, sockets and devices are left out.
#[utoipa::path(
    get, path = "/api/v1/codebases/{codebase}/files/archive", operation_id = "download_codebase_archive",
    tag = "codebases",
    params(("codebase" = CodebaseRef, Path), ("path" = Option<String>, Query, description = "default: all of it")),
    responses((status = 200, content_type = "application/x-tar", body = [u8]), Guarded, WithQuery, OfSandbox, Files)
)]
pub async fn download(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(codebase): Id<CodebaseRef>,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    let path = Parameters::read(query, &["path"])?.path_or(".")?;
    let (packing, stream) = broker.pack_codebase_files(&who, &codebase, path).await?;
    Ok(content::archive(packing, stream))
}

/// Unpack a tar archive into a directory of a codebase
///
/// The body is a plain tar. Absolute paths, `..`, devices and FIFOs are refused, and links are never followed. If an
/// archive is refused in the middle, the entries before stay.
#[utoipa::path(
    put, path = "/api/v1/codebases/{codebase}/files/archive", operation_id = "upload_codebase_archive",
    tag = "codebases",
    params(
        ("codebase" = CodebaseRef, Path),
        ("path" = Option<String>, Query, description = "the directory to unpack into; default: the root"),
        ("parents" = Option<bool>, Query, description = "create the directory and its parents if they are missing"),
    ),
    request_body(content = [u8], content_type = "application/octet-stream"),
    responses((status = 200, body = UnpackedView), Guarded, WithBody, OfSandbox, Files)
)]
pub async fn unpack(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(codebase): Id<CodebaseRef>,
    RawQuery(query): RawQuery,
    body: Body,
) -> Result<Json<UnpackedView>, Refusal> {
    let begun = async {
        let parameters = Parameters::read(query, &["path", "parents"])?;
        let request = UnpackArchive {
            path: parameters.path_or(".")?,
            parents: parents(parameters.flag("parents")?),
            ownership: Ownership::Own,
        };
        Ok(broker.unpack_codebase_files(&who, &codebase, request).await?)
    };
    Ok(Json(upload::receive(begun, body).await?.into()))
}

/// Compare a codebase with what it was created from
///
/// Paths begin at the root of the codebase. It is read while sandboxes may write to it.
#[utoipa::path(
    get, path = "/api/v1/codebases/{codebase}/diff", operation_id = "diff_codebase", tag = "codebases",
    params(("codebase" = CodebaseRef, Path), DiffCodebase),
    responses(
        (status = 200, content((DiffReport = "application/json"), (Vec<u8> = "application/x-tar"))),
        Guarded, WithQuery, OfSandbox, Files
    )
)]
pub async fn diff(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(codebase): Id<CodebaseRef>,
    asked: QueryResult<DiffCodebase>,
) -> Result<Response, Refusal> {
    let DiffCodebase { text, limit, format } = query(asked)?;
    match format.unwrap_or(DiffFormat::Json) {
        DiffFormat::Json => {
            let text = if text.unwrap_or(false) { DiffText::Included } else { DiffText::Omitted };
            let (told, space) = broker.codebase_diff(&who, &codebase, limit, text).await?;
            Ok(heavy_answer(&told, space))
        }
        DiffFormat::Tar => Ok(tar(broker.codebase_bundle(&who, &codebase).await?)),
    }
}

/// Say what rules allow for some paths, and which rule decides
///
/// The codebase need not have the paths. Without `rules` in the request, everything is allowed.
#[utoipa::path(
    post, path = "/api/v1/codebases/{codebase}/check", operation_id = "check_codebase_rules", tag = "codebases",
    params(("codebase" = CodebaseRef, Path)),
    request_body = CheckRules,
    responses((status = 200, body = CheckedRules), WithBody, Guarded, OfSandbox)
)]
pub async fn check(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(codebase): Id<CodebaseRef>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<CheckedRules>, Refusal> {
    let request: CheckRules = body::required(&headers, body).await?;
    Ok(Json(broker.check_codebase_rules(&who, &codebase, &request)?))
}

/// Get the rules of a sandbox's codebase, and how they are kept
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/rules", operation_id = "get_rules", tag = "codebases",
    params(("id" = SandboxId, Path)),
    responses((status = 200, body = SandboxRules), Guarded, OfSandbox, WithBody)
)]
pub async fn rules(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(id): Id,
) -> Result<Json<SandboxRules>, Refusal> {
    Ok(Json(broker.sandbox_rules(&who, &id)?))
}

/// Replace the rules of a sandbox's codebase
///
/// `effect` says when they apply. Rules that only mounts keep cannot change under running processes: stop it first. With
/// `revoke: "kill"`, processes end that have files open or mapped which the new rules forbid.
#[utoipa::path(
    put, path = "/api/v1/sandboxes/{id}/rules", operation_id = "replace_rules", tag = "codebases",
    params(("id" = SandboxId, Path)),
    request_body = api::ReplaceRules,
    responses((status = 200, body = SandboxRules), WithBody, Guarded, OfSandbox, InState)
)]
pub async fn replace_rules(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(id): Id,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<SandboxRules>, Refusal> {
    let request: api::ReplaceRules = body::required(&headers, body).await?;
    Ok(Json(broker.replace_rules(&who, &id, request).await?))
}

/// Say what the rules of a sandbox allow for some paths, and which rule decides
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/rules/check", operation_id = "check_rules", tag = "codebases",
    params(("id" = SandboxId, Path)),
    request_body = CheckRules,
    responses((status = 200, body = CheckedRules), WithBody, Guarded, OfSandbox)
)]
pub async fn check_rules(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(id): Id,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<CheckedRules>, Refusal> {
    let request: CheckRules = body::required(&headers, body).await?;
    Ok(Json(broker.check_rules(&who, &id, &request)?))
}
