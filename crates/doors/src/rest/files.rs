//! The files of a sandbox: read, write, list, change, watch, and transfer trees as archives.
//!
//! A path is arbitrary bytes. In a query it is percent-encoded, so `%ff` is that byte. In JSON it is `path`, with
//! invalid UTF-8 replaced, and then `path_b64` has the exact bytes. Relative paths start at the sandbox's working
//! directory: the user's home, or the one that the image sets.

pub(super) mod content;
pub(super) mod parameters;
mod shown;
pub(super) mod upload;
mod watch;

use axum::Json;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use toolbox::{
    ChangeMode, ListDirectory, MakeDirectory, MoveEntry, Overwrite, Ownership, Parents, RawPath,
    Reach, UnpackArchive, WriteFile,
};
use utoipa::ToSchema;

use self::parameters::{Parameters, cursor, within};
pub use self::shown::Shown;
#[cfg(feature = "mcp")]
pub use self::shown::checked;
use self::shown::{ModeText, PathText, mode_of};
use super::openapi::{Files, Guarded, OfSandbox, WithBody, WithQuery};
use crate::kit::Refusal;
use crate::kit::body;
use crate::kit::path::Id;
use crate::kit::who::Who;
use sandkeep_broker::{Broker, error::Error};
use sandkeep_core::{SandboxId, api, limits};

/// Read a file, or a range of it
///
/// Symbolic links are followed. If the file shrinks while it is read, the answer is cut off.
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/files", operation_id = "read_file", tag = "files",
    params(
        ("id" = SandboxId, Path),
        ("path" = String, Query, description = "absolute, or relative to the working directory; any bytes, percent-encoded"),
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
    Id(sandbox): Id,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let path = Parameters::read(query, &["path"])?.path()?;
    let range = content::range(&headers);
    let (reading, stream) = broker.read_file(&who, &sandbox, path, range).await?;
    Ok(content::answer(reading, stream, range))
}

/// Write a file atomically
///
/// The body is the new content. It replaces the old content in one step when it has arrived completely; the mode is
/// kept. If the path is a symbolic link, its target is replaced, not the link.
#[utoipa::path(
    put, path = "/api/v1/sandboxes/{id}/files", operation_id = "write_file", tag = "files",
    params(
        ("id" = SandboxId, Path),
        ("path" = String, Query, description = "path of the file or directory, as for reading"),
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
    Id(sandbox): Id,
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
        Ok(broker.write_file(&who, &sandbox, request).await?)
    };
    let written = upload::receive(begun, body).await?;
    let status = if written.created { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(written.entry.into())))
}

/// Delete a file, a symbolic link or a directory
#[utoipa::path(
    delete, path = "/api/v1/sandboxes/{id}/files", operation_id = "delete_file", tag = "files",
    params(("id" = SandboxId, Path), api::DeleteFile),
    responses((status = 204, description = "deleted"), Guarded, WithQuery, OfSandbox, Files)
)]
pub async fn delete(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(sandbox): Id,
    RawQuery(query): RawQuery,
) -> Result<StatusCode, Refusal> {
    let parameters = Parameters::read(query, &["path", "recursive"])?;
    let reach = reach(parameters.flag("recursive")?);
    broker.remove_file(&who, &sandbox, parameters.path()?, reach).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Get the metadata of a path, without following a symbolic link
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/files/stat", operation_id = "stat_file", tag = "files",
    params(("id" = SandboxId, Path), api::FilePath),
    responses((status = 200, body = Shown), Guarded, WithQuery, OfSandbox, Files)
)]
pub async fn stat(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(sandbox): Id,
    RawQuery(query): RawQuery,
) -> Result<Json<Shown>, Refusal> {
    let path = Parameters::read(query, &["path"])?.path()?;
    Ok(Json(broker.stat_file(&who, &sandbox, path).await?.into()))
}

#[derive(Serialize, ToSchema)]
#[schema(as = Files)]
pub struct Listing {
    items: Vec<Shown>,
    /// Pass it as `cursor` to get the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
    /// Subdirectories that the user may not read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unreadable: Vec<String>,
}

/// List a directory, sorted by name
///
/// With `depth` also lists subdirectories, each before its contents. Symbolic links are not followed.
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/files/list", operation_id = "list_files", tag = "files",
    params(("id" = SandboxId, Path), api::ListFiles),
    responses((status = 200, body = Listing), Guarded, WithQuery, OfSandbox, Files)
)]
pub async fn list(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(sandbox): Id,
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
    Ok(Json(broker.list_files(&who, &sandbox, request).await?.into()))
}

/// The list request without the path, which need not be UTF-8.
pub fn directory_to_list(path: RawPath, asked: api::ListFiles) -> Result<ListDirectory, Refusal> {
    let depth = within("depth", asked.depth, u64::from(limits::FILE_DEPTH_MAX))?;
    let limit = within("limit", asked.limit, limits::FILES_PAGE_MAX)?;
    Ok(ListDirectory {
        path,
        depth: depth.unwrap_or(1) as u32,
        limit: limit.unwrap_or(limits::FILES_PAGE_DEFAULT),
        after: asked.cursor.as_deref().map(cursor).transpose()?,
    })
}

impl From<toolbox::Listing> for Listing {
    fn from(listing: toolbox::Listing) -> Self {
        Self {
            items: listing.entries.into_iter().map(Shown::from).collect(),
            next_cursor: listing.next.map(|next| URL_SAFE_NO_PAD.encode(next.as_bytes())),
            unreadable: listing.unreadable.iter().map(RawPath::to_text_lossy).collect(),
        }
    }
}

/// Create a directory
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/files/mkdir", operation_id = "make_directory", tag = "files",
    params(("id" = SandboxId, Path)),
    request_body = api::MakeDirectory,
    responses((status = 201, body = Shown), Guarded, WithBody, OfSandbox, Files)
)]
pub async fn mkdir(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(sandbox): Id,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, Json<Shown>), Refusal> {
    let request = directory_to_make(body::required(&headers, body).await?)?;
    let made = broker.make_directory(&who, &sandbox, request).await?;
    Ok((StatusCode::CREATED, Json(made.into())))
}

pub fn directory_to_make(asked: api::MakeDirectory) -> Result<MakeDirectory, Refusal> {
    let mode = |text: String| match mode_of(&text) {
        Some(mode) => Ok(mode),
        None => Err(Refusal::BodyMalformed {
            field: Some("mode".to_owned()),
            problem: format!("{text:?} is no mode such as \"0644\""),
        }),
    };
    Ok(MakeDirectory {
        path: PathText { path: asked.path, path_b64: asked.path_b64 }.path("path")?,
        mode: asked.mode.map(mode).transpose()?,
        parents: parents(asked.parents),
    })
}

/// Move or rename a file or a directory
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/files/move", operation_id = "move_file", tag = "files",
    params(("id" = SandboxId, Path)),
    request_body = api::MoveFile,
    responses((status = 200, body = Shown), Guarded, WithBody, OfSandbox, Files)
)]
pub async fn r#move(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(sandbox): Id,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Shown>, Refusal> {
    let request = move_to_make(body::required(&headers, body).await?)?;
    Ok(Json(broker.move_file(&who, &sandbox, request).await?.into()))
}

pub fn move_to_make(asked: api::MoveFile) -> Result<MoveEntry, Error> {
    Ok(MoveEntry {
        from: PathText { path: asked.from, path_b64: asked.from_b64 }.path("from")?,
        to: PathText { path: asked.to, path_b64: asked.to_b64 }.path("to")?,
        overwrite: if asked.overwrite { Overwrite::Allowed } else { Overwrite::Refused },
        parents: parents(asked.parents),
    })
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ChangeMode)]
pub struct ChmodBody {
    /// Absolute, or relative to the working directory.
    path: Option<String>,
    /// Instead of `path` if it is not UTF-8; base64.
    path_b64: Option<String>,
    /// Such as `0644`.
    #[schema(value_type = String)]
    mode: ModeText,
    /// Also change everything below; symbolic links are not followed.
    #[serde(default)]
    recursive: bool,
}

/// Change the mode of a file or a directory
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/files/chmod", operation_id = "change_mode", tag = "files",
    params(("id" = SandboxId, Path)),
    request_body = ChmodBody,
    responses((status = 200, body = Shown), Guarded, WithBody, OfSandbox, Files)
)]
pub async fn chmod(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(sandbox): Id,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Shown>, Refusal> {
    let body: ChmodBody = body::required(&headers, body).await?;
    let request = ChangeMode {
        path: PathText { path: body.path, path_b64: body.path_b64 }.path("path")?,
        mode: body.mode.0,
        reach: reach(body.recursive),
    };
    Ok(Json(broker.change_mode(&who, &sandbox, request).await?.into()))
}

/// Watch a file or a directory: one event per change, until the client disconnects
///
/// `watching` comes first. Then `created`, `modified`, `attributes` (mode, owner, times) and `deleted`, each with its
/// path; `gone` when the directory itself is removed; `overflow` when events were lost; `detached` when the daemon
/// shuts down. A watch delays neither a sandbox's timeout nor a pause.
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/files/watch", operation_id = "watch_files", tag = "files",
    params(
        ("id" = SandboxId, Path),
        ("path" = String, Query, description = "path of the file or directory, as for reading"),
        ("recursive" = Option<bool>, Query, description = "include subdirectories"),
    ),
    responses(
        (status = 200, content((String = "text/event-stream"), (String = "application/x-ndjson"))),
        Guarded, WithQuery, OfSandbox, Files
    )
)]
pub async fn watch(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(sandbox): Id,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let parameters = Parameters::read(query, &["path", "recursive"])?;
    let reach = reach(parameters.flag("recursive")?);
    let watch = broker.watch_files(&who, &sandbox, parameters.path()?, reach).await?;
    Ok(watch::answer(watch, &headers))
}

/// Download a directory or file as a tar archive
///
/// Names are relative to the directory; FIFOs, sockets and devices are left out. `x-sandkeep-archive-bytes` is the
/// total size of the content. `x-sandkeep-archive-of` is `directory`, or `file` if the archive contains only that file.
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/files/archive", operation_id = "download_archive", tag = "files",
    params(("id" = SandboxId, Path), ("path" = String, Query, description = "path of the file or directory, as for reading")),
    responses(
        (status = 200, content_type = "application/x-tar", body = [u8]),
        Guarded, WithQuery, OfSandbox, Files
    )
)]
pub async fn download(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(sandbox): Id,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    let path = Parameters::read(query, &["path"])?.path()?;
    let (packing, stream) = broker.pack_files(&who, &sandbox, path).await?;
    Ok(content::archive(packing, stream))
}

/// Result of unpacking an archive.
#[derive(Serialize, ToSchema)]
#[schema(as = Unpacked)]
pub struct UnpackedView {
    entries: u64,
    /// Total size of the files' content.
    bytes: u64,
}

/// Unpack a tar archive into a directory
///
/// The body is a plain tar. Files are owned by the sandbox's user, and replace existing ones of the same name. Absolute
/// paths, `..`, devices and FIFOs are refused, and symbolic links are never followed. If an archive is refused in the
/// middle, the entries before stay.
#[utoipa::path(
    put, path = "/api/v1/sandboxes/{id}/files/archive", operation_id = "upload_archive", tag = "files",
    params(
        ("id" = SandboxId, Path),
        ("path" = String, Query, description = "the directory to unpack into"),
        ("parents" = Option<bool>, Query, description = "create the directory and its parents if they are missing"),
    ),
    request_body(content = [u8], content_type = "application/octet-stream"),
    responses((status = 200, body = UnpackedView), Guarded, WithBody, OfSandbox, Files)
)]
pub async fn unpack(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(sandbox): Id,
    RawQuery(query): RawQuery,
    body: Body,
) -> Result<Json<UnpackedView>, Refusal> {
    let begun = async {
        let parameters = Parameters::read(query, &["path", "parents"])?;
        let request = UnpackArchive {
            path: parameters.path()?,
            parents: parents(parameters.flag("parents")?),
            ownership: Ownership::Own,
        };
        Ok(broker.unpack_files(&who, &sandbox, request).await?)
    };
    Ok(Json(upload::receive(begun, body).await?.into()))
}

impl From<toolbox::Unpacked> for UnpackedView {
    fn from(toolbox::Unpacked { entries, bytes }: toolbox::Unpacked) -> Self {
        Self { entries, bytes }
    }
}

pub fn parents(make: bool) -> Parents {
    if make { Parents::Make } else { Parents::Require }
}

pub fn reach(recursive: bool) -> Reach {
    if recursive { Reach::Tree } else { Reach::One }
}
