//! Tools for agents: a model calls them by name, with arguments described by a schema, and gets answers that it can act
//! on.
//!
//! ```text
//!   call_tool ──▶ catalogue, parameter   does the tool exist, and are the arguments valid?
//!      │
//!      ├──▶ kept       under a tool_call_id: executed once, with the same answer for every retry
//!      └──▶ work ──▶ files     inside, by the toolbox: file tools
//!                └─▶ command   an exec like any other: bash, and the sandbox's own git
//! ```
//!
//! An error concerns the request or the sandbox, and means that nothing was done. If the tool itself fails, that is an
//! answer with `is_error`, whose text says what was refused, by which rule, and what to do instead.

mod answer;
mod catalogue;
mod command;
mod files;
mod git;
mod kept;
pub mod parameter;
mod work;

use std::sync::Arc;
use std::time::Duration;

use ring::digest::{SHA256, digest};
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::sync::mpsc;

use crate::Broker;
use crate::error::Error;
use crate::execs::check_limits;
use crate::lifecycle::handle::Handle;
use crate::shared::Shared;
use sandkeep_core::{Principal, SandboxId, ToolCallId, api::ExecLimits, limits};
use sandkeep_store::Key;

pub use answer::{ToolAnswer, ToolEvent};
pub use catalogue::{Annotations, GitVerb, Tier, Tool, ToolName, UnknownTool, catalogue};
pub(crate) use kept::Calls;
use work::Work;

/// A call as requested, before validation.
#[derive(Clone, Debug)]
pub struct ToolDraft {
    pub name: ToolName,
    pub arguments: Map<String, Value>,
    pub tool_call_id: Option<ToolCallId>,
    pub resources: ToolResources,
    pub snapshot: SnapshotAfter,
}

/// Whether the sandbox's files are kept as a snapshot after a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SnapshotAfter {
    /// If the sandbox's setting says so, and the call may have changed files.
    #[default]
    AsMade,
    No,
    Yes,
}

impl SnapshotAfter {
    /// From the request's field.
    pub fn asked(snapshot: Option<bool>) -> Self {
        match snapshot {
            None => Self::AsMade,
            Some(false) => Self::No,
            Some(true) => Self::Yes,
        }
    }
}

/// Limits of one call, within the sandbox's limits. All except the timeout need a runtime with `exec_limits`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Deserialize, serde::Serialize, utoipa::ToSchema,
)]
#[serde(deny_unknown_fields)]
pub struct ToolResources {
    /// Timeout; then the call and all processes that it started are killed. A `timeout_ms` among the arguments takes
    /// precedence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1_800_000)]
    pub timeout_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 8)]
    pub memory_mb: Option<u64>,
    /// CPU limit, in processors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0.01)]
    pub cpus: Option<f64>,
    /// Maximum number of processes and threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 4)]
    pub pids: Option<u64>,
}

impl ToolResources {
    fn limits(&self) -> ExecLimits {
        let Self { timeout_ms: _, memory_mb, cpus, pids } = *self;
        ExecLimits { memory_mb, cpus, pids }
    }
}

/// Where a call sends its progress, if anybody listens.
#[derive(Clone, Debug, Default)]
pub struct Listener(Option<mpsc::Sender<ToolEvent>>);

impl Listener {
    /// A listener that discards everything.
    pub fn none() -> Self {
        Self(None)
    }

    /// A listener with a channel. A slow receiver slows the call down.
    pub fn channel() -> (Self, mpsc::Receiver<ToolEvent>) {
        let (sender, receiver) = mpsc::channel(limits::TOOL_EVENTS_MAX);
        (Self(Some(sender)), receiver)
    }

    async fn tell(&self, event: ToolEvent) {
        if let Some(sender) = &self.0 {
            // The receiver may be gone.
            let _ = sender.send(event).await;
        }
    }
}

/// The context of a call.
struct Scene {
    broker: Broker,
    who: Principal,
    shared: Arc<Shared>,
    handle: Arc<Handle>,
    listener: Listener,
}

impl Broker {
    /// Calls a tool in a running sandbox. Without a `tool_call_id` a call whose future is dropped is killed; with one
    /// it continues, and its answer is kept for retries.
    pub async fn call_tool(
        &self,
        who: &Principal,
        sandbox: &SandboxId,
        draft: ToolDraft,
        listener: Listener,
    ) -> Result<Arc<ToolAnswer>, Error> {
        let handle = self.shared.find(who, sandbox)?;
        let tool = catalogue::find(draft.name);
        tool.check(&draft.arguments)?;
        let print = fingerprint(&draft);
        let timeout = asked_timeout(draft.resources)?;
        let limits = draft.resources.limits();
        check_limits(&limits, &self.shared, &handle.meta().spec)?;
        let work = Work::of(tool, draft.arguments, timeout)?.within(limits).then(draft.snapshot);
        if draft.snapshot == SnapshotAfter::Yes {
            handle.volume.with_snapshots()?;
        }
        let (broker, shared) = (self.clone(), Arc::clone(&self.shared));
        let scene = Scene { broker, who: who.clone(), shared, handle, listener };
        match draft.tool_call_id {
            None => Ok(Arc::new(work.carry_out(&scene).await?)),
            Some(id) => {
                let key = Key::new([sandbox.as_str(), &who.organization, &who.user, id.as_str()]);
                let organization = who.organization.clone();
                kept::once(scene, work, kept::Call { id, organization, key, print }).await
            }
        }
    }
}

fn asked_timeout(resources: ToolResources) -> Result<Option<Duration>, Error> {
    let asked = resources.timeout_ms.map(Duration::from_millis);
    match asked {
        Some(time) if time.is_zero() || time > limits::TOOL_TIMEOUT_MAX => {
            Err(Error::InvalidField {
                field: "resources.timeout_ms",
                problem: format!("it must be from 1 to {}", limits::TOOL_TIMEOUT_MAX.as_millis()),
            })
        }
        asked => Ok(asked),
    }
}

/// Covers the whole request, so that a different request with the same id is detected.
fn fingerprint(draft: &ToolDraft) -> [u8; 32] {
    let snapshot = match draft.snapshot {
        SnapshotAfter::AsMade => None,
        SnapshotAfter::No => Some(false),
        SnapshotAfter::Yes => Some(true),
    };
    let asked = (draft.name.as_str(), &draft.arguments, draft.resources, snapshot);
    let asked = serde_json::to_vec(&asked).expect("arguments came as JSON");
    let mut print = [0; 32];
    print.copy_from_slice(digest(&SHA256, &asked).as_ref());
    print
}
