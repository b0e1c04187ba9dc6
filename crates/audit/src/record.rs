//! What the audit log says. A record names requests and never has their contents: no values of environment variables,
//! no command lines, no files, no credentials.

use std::net::IpAddr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use sandkeep_core::limits::AUDIT_TEXT_MAX_BYTES;
use sandkeep_core::{Code, KeyId, Kind, Owner, Principal};

/// One line of the audit log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Record {
    /// Position in the log of this node, without gaps.
    pub seq: u64,
    /// When it was written: for a request, right before its answer.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    #[serde(flatten)]
    pub entry: Entry,
}

/// What a record is about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[schema(as = AuditEntry)]
pub enum Entry {
    /// A request that changed something, or was refused.
    Request(Box<Request>),
    /// The daemon opened the log.
    Started { version: String },
    /// Records are missing here, or an incomplete one was cut off.
    Gap {
        reason: GapReason,
        /// How many records.
        records: u64,
    },
    /// A file of the log expired: everything up to `through`, whose hash is `hash`, is removed.
    Removed { through: u64, hash: String },
    /// Refusals and reads of one organization that are only counted, because it had used up its share of the file. They
    /// came before this record and after the former one of this kind.
    Suppressed {
        /// Absent for callers without valid credentials.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        organization: Option<String>,
        count: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = AuditGapReason)]
pub enum GapReason {
    /// The disk was full, and the daemon was configured to continue.
    Full,
    /// A crash left an incomplete record, whose request was not answered. It was cut off.
    Torn,
    /// The end of the log was missing when the daemon started: removed, or lost with the machine's power.
    Missing,
    /// The newest file was damaged when the daemon started. It was left as it is.
    Damaged,
}

/// One request, or several that repeat.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[schema(as = AuditRequest)]
pub struct Request {
    /// Where it came in: `rest`, `urule`, `mcp`, `ports`, `cli`, …
    pub door: String,
    /// The operation id of the API, the tool of MCP, or the command.
    pub operation: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// Template of the route, such as `/api/v1/sandboxes/{id}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route: Option<String>,
    /// Absent if the credentials were missing or invalid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor: Option<Actor>,
    /// Address of the client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub address: Option<IpAddr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// Id of the W3C trace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
    /// Sandbox that the request is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// What else it is about: an exec, a snapshot, a template, a key, …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    pub effect: Effect,
    pub outcome: Outcome,
    /// HTTP status of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Error code of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Until the answer began, in microseconds; of the first one if they repeat.
    pub duration_us: u64,
    /// How many such requests there were since the former such record; absent if one.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub count: u64,
}

fn one() -> u64 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_one(count: &u64) -> bool {
    *count == 1
}

/// Who made a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[schema(as = AuditActor)]
pub struct Actor {
    pub organization: String,
    pub user: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// Id of the API key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

impl Actor {
    pub fn of(who: &Principal, key: Option<&KeyId>) -> Self {
        Self {
            organization: who.organization.clone(),
            user: who.user.clone(),
            project: who.project.clone(),
            key: key.map(ToString::to_string),
        }
    }

    /// The user who works on the data directory itself.
    pub fn local() -> Self {
        let Owner { organization, user, project: _ } = Owner::local();
        Self { organization, user, project: None, key: None }
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = AuditOutcome)]
pub enum Outcome {
    #[default]
    Success,
    /// By a rule about the caller: credentials, scope, another owner, a quota, a rate.
    Refused,
    /// For any other reason. Part of it may have been done.
    Failed,
}

impl Outcome {
    /// Of a request that was answered with this code.
    pub fn of(code: Option<Code>) -> Self {
        let Some(code) = code else { return Self::Success };
        match code.kind() {
            Kind::Unauthenticated | Kind::Forbidden | Kind::Quota | Kind::RateLimited => {
                Self::Refused
            }
            // The sandbox may be another owner's.
            Kind::NotFound if code == Code::NotFound => Self::Refused,
            _ => Self::Failed,
        }
    }
}

/// Whether a request changes something when it succeeds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = AuditEffect)]
pub enum Effect {
    Reads,
    #[default]
    Changes,
}

impl Request {
    /// A record of its own for everything that was done; the rest may be counted together.
    pub fn is_single(&self) -> bool {
        self.effect == Effect::Changes && self.outcome == Outcome::Success
    }

    /// Cuts off what no record has room for.
    pub(crate) fn clipped(mut self) -> Self {
        let Self { door, operation, method, route, actor, .. } = &mut self;
        [door, operation].into_iter().for_each(clip);
        [method, route].into_iter().flatten().for_each(clip);
        if let Some(Actor { organization, user, project, key }) = actor {
            [organization, user].into_iter().for_each(clip);
            [project, key].into_iter().flatten().for_each(clip);
        }
        let Self { correlation_id, trace_id, sandbox, resource, code, .. } = &mut self;
        [correlation_id, trace_id, sandbox, resource, code].into_iter().flatten().for_each(clip);
        self
    }
}

fn clip(text: &mut String) {
    if text.len() > AUDIT_TEXT_MAX_BYTES {
        text.truncate(text.floor_char_boundary(AUDIT_TEXT_MAX_BYTES - '…'.len_utf8()));
        text.push('…');
    }
}
