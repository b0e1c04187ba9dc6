//! The domain model of a sandbox, without any I/O: ids, owner, spec, terms, the state machine, error codes, and the
//! types of the API ([`api`]). All other crates share it, including the client.
//!
//! ```
//! use sandkeep_core::{HostLimits, SpecDraft};
//!
//! let host = HostLimits { memory_mb: 4096, cpus: 2.0, disk_default_mb: None };
//! let spec = SpecDraft::default().check(&host)?;
//! assert_eq!((spec.template(), spec.resources().pids), ("host", sandkeep_core::limits::PIDS_DEFAULT));
//! # Ok::<(), sandkeep_core::InvalidSpec>(())
//! ```

pub mod api;
mod caller_id;
mod causes;
mod code;
mod codebase;
pub mod event;
pub mod excerpt;
pub mod failpoint;
mod host_mount;
mod id;
mod image;
mod key_id;
pub mod ledger;
pub mod limits;
mod moment;
pub mod network;
mod owner;
mod port;
mod process;
#[cfg(any(test, feature = "conformance"))]
pub mod promises;
pub mod rules;
mod sandbox_name;
mod signal;
mod slot;
mod snapshot;
mod source;
mod spec;
mod state;
mod template_name;
mod terms;
mod text;
mod trace;

pub use caller_id::{IdempotencyKey, InvalidCallerId, ToolCallId};
pub use causes::with_causes;
pub use code::{Code, Kind};
pub use codebase::{
    CodebaseMode, CodebaseMount, CodebaseName, CodebaseRef, CodebaseServing, DEFAULT_MOUNT,
    InvalidCodebaseName,
};
pub use host_mount::{HostAccess, HostMount};
pub use id::{
    CodebaseId, ExecId, ImportId, InvalidId, ProcessId, SandboxId, ShellId, SnapshotId, UploadId,
    WebhookId,
};
pub use image::{ImageDefaults, PinnedImage};
pub use key_id::{InvalidKeyId, KeyId};
pub use moment::{Moment, millis};
pub use owner::{DEFAULT_PROJECT, Labels, OtherProject, Owner, Principal, Scope, Scopes};
pub use port::{InvalidPort, Port};
pub use process::{Asked, InvalidTerms, Probe, ProcessTerms, Ready, StartUp};
pub use sandbox_name::{InvalidSandboxName, SandboxName};
pub use signal::{NoSignal, Signal};
pub use slot::{InvalidSlot, SlotName};
pub use snapshot::{InvalidSnapshotName, SnapshotKind, SnapshotName};
pub use source::{GitUrl, HOME, HostPaths, InvalidGitUrl, Origin, Source, SourceDraft, Transport};
pub use spec::{
    DEFAULT_RUNTIME, DEFAULT_TEMPLATE, FileLocation, HostLimits, InvalidSpec, Privilege, Purpose,
    Resources, ResourcesDraft, Spec, SpecDraft, check_env,
};
pub use spec::{NamesOnly, within};
pub use state::{
    AtExpiry, Denied, Expiry, Liveness, Next, Operation, Reason, State, Status, Trigger, Verb,
    apply,
};
pub use template_name::{InvalidTemplateName, TemplateName};
pub use terms::{OnTimeout, Terms, TermsPatch, Timeouts};
pub use trace::{InvalidTraceParent, SpanId, TraceId, TraceParent};
