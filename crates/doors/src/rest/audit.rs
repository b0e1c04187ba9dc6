//! The audit log, for admins: read, follow, head.

use std::convert::Infallible;
use std::io;

use axum::extract::State;
use axum::response::Response;
use axum::{Extension, Json};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio_util::sync::CancellationToken;
use utoipa::{IntoParams, ToSchema};

use super::openapi::{Guarded, WithQuery};
use crate::kit::Refusal;
use crate::kit::frames::{Form, ndjson};
use crate::kit::query::{QueryResult, query};
use crate::kit::who::Admin;
use sandkeep_audit::{Filter, Full, Reader, Record, to_ocsf};
use sandkeep_broker::{Broker, error::Error};
use sandkeep_core::limits::{AUDIT_TICK, PAGE_DEFAULT, PAGE_MAX, WATCH_SILENCE_MAX};

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct AuditQuery {
    /// Only records after this number.
    #[serde(default)]
    after: u64,
    /// Only records from this time on.
    #[param(value_type = Option<String>, format = DateTime)]
    since: Option<Timestamp>,
    /// Only records before this time.
    #[param(value_type = Option<String>, format = DateTime)]
    until: Option<Timestamp>,
    /// Only records of requests by this organization, or by `organization/user`.
    owner: Option<String>,
    /// Maximum number; 100 by default, without a maximum if `follow` is set.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// Keep the connection open and send new records as they are written.
    #[serde(default)]
    follow: bool,
    #[serde(default)]
    #[param(inline)]
    format: AuditFormat,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AuditFormat {
    /// The records as they are in the log.
    #[default]
    Ndjson,
    /// Open Cybersecurity Schema Framework: API Activity.
    Ocsf,
}

impl AuditFormat {
    fn line(self, record: &Record) -> Bytes {
        match self {
            Self::Ndjson => ndjson(record),
            Self::Ocsf => ndjson(&to_ocsf(record, env!("CARGO_PKG_VERSION"))),
        }
    }
}

/// Read the audit log, oldest record first
///
/// One record per line. To read on, pass the `seq` of the last record as `after`. While nothing happens, a follower gets
/// an empty line now and then.
#[utoipa::path(
    get, path = "/api/v1/audit", operation_id = "read_audit", tag = "service",
    params(AuditQuery),
    responses(
        (status = 200, description = "one record per line", content_type = "application/x-ndjson", body = Record),
        Guarded, WithQuery
    )
)]
pub async fn read(
    _admin: Admin,
    State(broker): State<Broker>,
    Extension(stop): Extension<CancellationToken>,
    asked: QueryResult<AuditQuery>,
) -> Result<Response, Refusal> {
    let AuditQuery { after, since, until, owner, limit, follow, format } = query(asked)?;
    if limit.is_some_and(|limit| !(1..=PAGE_MAX).contains(&limit)) {
        let problem = format!("limit: must be from 1 to {PAGE_MAX}");
        return Err(Refusal::QueryMalformed { problem });
    }
    let filter = Filter { since, until, owner };
    let Some(log) = broker.audit() else {
        return Ok(Form::Ndjson.response(stream::empty::<Result<Bytes, Infallible>>()));
    };
    let following = if follow {
        let place = log.follow().ok_or(Refusal::AuditFollowed)?;
        Some(Following { news: log.watch(), stop, _place: place })
    } else {
        None
    };
    let default = if follow { usize::MAX } else { PAGE_DEFAULT };
    let left = limit.unwrap_or(default);
    let mut place =
        AuditCursor { reader: Some(log.read_after(after)), filter, format, following, left };
    // If nothing can be read, the answer is a problem and no stream.
    let first = place.more().await.map_err(|error| unreadable(&error))?;
    let state = first.map(|first| (first, place));
    let lines = stream::unfold(state, |state| async move {
        let (bytes, mut place) = state?;
        let next = place.more().await;
        Some((Ok(bytes), next.ok().flatten().map(|next| (next, place))))
    });
    Ok(Form::Ndjson.response(lines.map(|line: Result<Bytes, Infallible>| line)))
}

fn unreadable(error: &io::Error) -> Refusal {
    let source = io::Error::new(error.kind(), error.to_string());
    Error::DataDir { path: sandkeep_audit::AUDIT.to_owned(), source }.into()
}

/// How far a reader is.
struct AuditCursor {
    /// `None` while a thread reads.
    reader: Option<Reader>,
    filter: Filter,
    format: AuditFormat,
    following: Option<Following>,
    left: usize,
}

struct Following {
    news: watch::Receiver<u64>,
    stop: CancellationToken,
    _place: OwnedSemaphorePermit,
}

impl AuditCursor {
    /// The next lines; `None` at the end. A follower waits for them, and says now and then that it is there.
    async fn more(&mut self) -> io::Result<Option<Bytes>> {
        let mut waited = std::time::Duration::ZERO;
        while self.left > 0 {
            if let Some(following) = &mut self.following {
                following.news.borrow_and_update();
            }
            let records = self.read().await?;
            let is_end = records.is_empty();
            let wanted = records.iter().filter(|record| self.filter.takes(record)).take(self.left);
            let lines: Vec<Bytes> = wanted.map(|record| self.format.line(record)).collect();
            self.left -= lines.len();
            if !lines.is_empty() {
                return Ok(Some(lines.concat().into()));
            }
            if !is_end {
                continue;
            }
            let Some(Following { news, stop, .. }) = &mut self.following else { return Ok(None) };
            // Another process may have written, which nobody is told about.
            tokio::select! {
                _ = tokio::time::timeout(AUDIT_TICK, news.changed()) => {}
                () = stop.cancelled() => return Ok(None),
            }
            waited += AUDIT_TICK;
            if waited >= WATCH_SILENCE_MAX {
                return Ok(Some(Bytes::from_static(b"\n")));
            }
        }
        Ok(None)
    }

    async fn read(&mut self) -> io::Result<Vec<Record>> {
        let Some(mut reader) = self.reader.take() else { return Ok(Vec::new()) };
        let read = tokio::task::spawn_blocking(move || {
            let records = reader.read();
            (reader, records)
        });
        let (reader, records) = read.await.map_err(io::Error::other)?;
        self.reader = Some(reader);
        records
    }
}

#[derive(Serialize, ToSchema)]
pub struct AuditHead {
    /// Number of the newest record; 0 if there is none.
    seq: u64,
    /// Its hash, which all records before it are part of.
    #[serde(skip_serializing_if = "Option::is_none")]
    hash: Option<String>,
}

/// Get the newest record's number and hash
///
/// Note them outside of this machine: `sandkeep audit verify --head` then detects a log that was rewritten as a whole.
#[utoipa::path(
    get, path = "/api/v1/audit/head", operation_id = "get_audit_head", tag = "service",
    responses((status = 200, body = AuditHead), Guarded)
)]
pub async fn head(_admin: Admin, State(broker): State<Broker>) -> Result<Json<AuditHead>, Refusal> {
    let Some(log) = broker.audit().cloned() else {
        return Ok(Json(AuditHead { seq: 0, hash: None }));
    };
    let found = log.head().map_err(|Full { problem }| Refusal::AuditFull { problem })?;
    let hash = found.map(|head| head.hash.to_string());
    Ok(Json(AuditHead { seq: found.map_or(0, |head| head.seq), hash }))
}
