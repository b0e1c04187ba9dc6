//! One error type for every verb of the broker. It is independent of HTTP and of the rest of the broker: it has a
//! [`Code`](sandkeep_core::Code), and each front door translates that into its own dialect.

mod code;

use std::time::Duration;

use toolbox::FailureKind;

use sandkeep_core::network::OverCeiling;
use sandkeep_core::{
    CodebaseId, CodebaseName, ExecId, IdempotencyKey, InvalidSpec, KeyId, Port, ProcessId,
    SandboxId, SandboxName, SlotName, SnapshotName, State, ToolCallId, UploadId, Verb, WebhookId,
};
use sandkeep_guestlink::GuestError;
use sandkeep_home::DataDirError;
use sandkeep_runtime::RuntimeError;
use sandkeep_storage::StorageError;
use sandkeep_store::StoreError;
use sandkeep_tree::RootKind;

pub use sandkeep_egress::{AskError, GatewayError};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    InvalidSpec(#[from] InvalidSpec),

    /// One field of a request is invalid.
    #[error("{field}: {problem}")]
    InvalidField { field: &'static str, problem: String },

    #[error("unknown runtime {name:?}; available: {}", known.join(", "))]
    UnknownRuntime { name: String, known: Vec<String> },

    #[error("runtime {name} is not usable here: {reason}")]
    RuntimeUnusable { name: String, reason: String },

    #[error("unknown template {name:?}; available: {}", known.join(", "))]
    UnknownTemplate { name: String, known: Vec<String> },

    #[error("there is no template {name:?}")]
    TemplateNotFound { name: String },

    /// Sandboxes were made from it.
    #[error("template {name} is in use by {}", listed(users))]
    TemplateInUse { name: String, users: Vec<SandboxId> },

    /// The template is shared, so only an admin may remove or replace it.
    #[error("template {name} is shared: only an admin can change it")]
    TemplateShared { name: String },

    /// The program that a template starts in its sandboxes did not become ready.
    #[error("the start process of {id} is not ready: {problem}")]
    StartUpFailed { id: SandboxId, problem: String },

    /// An invalid build file.
    #[error("{problem}")]
    BuildFileInvalid { problem: String },

    /// The base of a build stage is neither a template of the owner nor available from a registry.
    #[error("line {line}: {name}: {problem}")]
    BaseNotFound { line: usize, name: String, problem: String },

    /// A step of a build failed.
    #[error("line {line}: {instruction}: {problem}")]
    BuildFailed { line: usize, instruction: String, problem: String },

    /// The source of a template or a workspace is invalid.
    #[error("{problem}")]
    SourceInvalid { problem: String },

    /// The path may exist, but this caller may not use it.
    #[error("{path} is not under any of the daemon's {setting}")]
    SourceForbidden { path: String, setting: &'static str },

    /// A remote source that could not be fetched.
    #[error("{problem}")]
    SourceUnavailable { problem: String },

    #[error("there is no repository {url}")]
    RepositoryNotFound { url: String },

    /// The host requires authentication; some hosts also answer so for repositories that do not exist.
    #[error("{url} requires credentials: it is private or does not exist")]
    RepositoryPrivate { url: String },

    #[error("{url} has no branch, tag or commit {reference:?}")]
    ReferenceNotFound { url: String, reference: String },

    /// By its name or its id, as the caller wrote it.
    #[error("there is no codebase {text:?}")]
    CodebaseNotFound { text: String },

    #[error("there is a codebase {name} already: {holder}")]
    CodebaseExists { name: CodebaseName, holder: CodebaseId },

    #[error("codebase {name} is in use by {}", listed(users))]
    CodebaseInUse { name: CodebaseName, users: Vec<SandboxId> },

    #[error("codebase {name} is being {doing}")]
    CodebaseBusy { name: CodebaseName, doing: &'static str },

    /// One of two sandboxes would not see what the other changes.
    #[error(
        "{holder} writes to codebase {name} without a server, which a server with passthrough alone could see; there can be none here"
    )]
    CodebaseExclusive { name: CodebaseName, holder: SandboxId },

    #[error("{problem}")]
    RulesServer { problem: String },

    /// Mounts alone cannot keep them, and there is nothing else here.
    #[error("rules: {problem}")]
    RulesNotServed { problem: String },

    #[error("there is no webhook {id}")]
    WebhookNotFound { id: WebhookId },

    #[error("there is no upload {id}")]
    UploadNotFound { id: UploadId },

    /// The sandbox's disk, or the disk of the host below it, is full.
    #[error("no space left for {what}")]
    NoSpace { what: &'static str },

    /// The remaining space on the host's disk is reserved for the daemon's own records.
    #[error(
        "less than {reserve_mb} MiB of the data directory's disk are free; the rest is kept for the daemon itself"
    )]
    HostFull { reserve_mb: u64 },

    #[error("{what} took longer than {} hours", limit.as_secs() / 3600)]
    TookTooLong { what: &'static str, limit: Duration },

    #[error("the upload is larger than {limit_bytes} bytes")]
    UploadTooLarge { limit_bytes: u64 },

    #[error("there is no profile {name:?}; {}", if known.is_empty() { "there are none".to_owned() } else { format!("there are: {}", known.join(", ")) })]
    UnknownProfile { name: String, known: Vec<String> },

    /// Another sandbox of the same owner has it.
    #[error("slot {slot} is taken by {holder}")]
    SlotTaken { slot: SlotName, holder: SandboxId },

    /// Another sandbox of the same owner has it.
    #[error("the name {name} is taken by {holder}")]
    NameTaken { name: SandboxName, holder: SandboxId },

    #[error("there is no sandbox {text:?}")]
    NameNotFound { text: String },

    /// They are of different owners, or their names are derived.
    #[error("the name {name} is that of {}", ids.iter().map(SandboxId::as_str).collect::<Vec<_>>().join(", "))]
    NameAmbiguous { name: SandboxName, ids: Vec<SandboxId> },

    #[error("the Idempotency-Key {key} was used for another request")]
    IdempotencyMismatch { key: IdempotencyKey },

    /// The create must not be repeated, and the first result is no longer available.
    #[error("sandbox {id}, created under the Idempotency-Key {key}, no longer exists")]
    IdempotencyGone { key: IdempotencyKey, id: SandboxId },

    /// `known` lists the tool's parameters.
    #[error("{tool}: {parameter}: {problem}; its parameters are: {known}")]
    ToolArgument { tool: &'static str, parameter: String, problem: String, known: String },

    #[error("the tool_call_id {id} was used for another call")]
    ToolCallMismatch { id: ToolCallId },

    /// `whose`: `organization` or `user`.
    #[error("the {whose}'s quota of {limit} {what} is exceeded: {used} in use, {asked} requested")]
    QuotaExceeded { whose: &'static str, what: &'static str, limit: f64, used: f64, asked: f64 },

    #[error("the {whose} exceeds {limit} requests per second")]
    RateLimited { whose: &'static str, limit: f64, retry_after: Duration },

    #[error("{what} needs {needs}, which {storage} storage does not have")]
    StorageLacks { what: &'static str, needs: &'static str, storage: &'static str },

    #[error("{what} needs a volume, and runtime {runtime} keeps the files of its sandboxes itself")]
    NoVolume { what: &'static str, runtime: String },

    #[error(
        "runtime {runtime} cannot run on {kind}, which is what {storage} storage makes of this template"
    )]
    UnfitVolume { runtime: &'static str, storage: &'static str, kind: RootKind },

    /// The remaining space is reserved for running sandboxes.
    #[error(
        "the {storage} pool is over {percent} % full, so no sandboxes or snapshots are created"
    )]
    PoolFull { storage: &'static str, percent: f64 },

    #[error("there is no sandbox {id}")]
    NotFound { id: SandboxId },

    #[error(
        "there is no exec {id}; the last {kept} ended execs are kept, up to {} MiB in total",
        kept_bytes / sandkeep_core::limits::MIB
    )]
    ExecNotFound { id: ExecId, kept: u64, kept_bytes: u64 },

    #[error("exec {id} has ended")]
    ExecEnded { id: ExecId },

    /// Stdin was closed, or was never open for more input.
    #[error("the stdin of exec {id} is closed")]
    StdinClosed { id: ExecId },

    #[error("exec {id} has no terminal")]
    NoTerminal { id: ExecId },

    /// Nothing was started: the command's output could not be journaled.
    #[error("cannot write a journal for the exec: {source}")]
    Journal {
        #[source]
        source: std::io::Error,
    },

    /// A file error, as reported from inside the sandbox.
    #[error("{}{message}", path.as_ref().map(|p| format!("{p:?}: ")).unwrap_or_default())]
    File { kind: FailureKind, path: Option<String>, message: String },

    /// The toolbox gave no answer.
    #[error("the file helper in the sandbox failed: {problem}")]
    ToolboxBroke { problem: String },

    /// The toolbox ran out of memory.
    #[error("the file helper in the sandbox was killed: out of memory")]
    ToolboxOutOfMemory,

    #[error("there is no key {id}")]
    KeyNotFound { id: KeyId },

    /// The verb is not legal in this state; `helps` is a verb that leads to a state where it is.
    #[error("cannot {verb} {id}: it is {state}")]
    WrongState { id: SandboxId, state: State, verb: Verb, helps: Option<Verb> },

    /// Another verb is in progress.
    #[error("cannot {verb} {id}: {under_way} is in progress")]
    Busy { id: SandboxId, verb: Verb, under_way: Verb },

    #[error("cannot {verb} {id} while execs run: {}", comma_separated(execs))]
    ExecsInFlight { id: SandboxId, verb: Verb, execs: Vec<ExecId> },

    #[error("{id} has no snapshot {name}")]
    SnapshotNotFound { id: SandboxId, name: SnapshotName },

    #[error("{id} already has a snapshot {name}")]
    SnapshotExists { id: SandboxId, name: SnapshotName },

    /// The maximum is reached, and no snapshot may be removed automatically.
    #[error("{id} has its maximum of {limit} named snapshots")]
    SnapshotsFull { id: SandboxId, limit: usize },

    /// The sandbox's files make the daemon crash, or keep it busy for too long.
    #[error("{attempts} daemons began to bring files back and none finished")]
    RevertAbandoned { attempts: u32 },

    /// The sandbox's data exceeds what one request may read or write.
    #[error("cannot {what}")]
    FilesTooLarge {
        what: &'static str,
        #[source]
        source: std::io::Error,
    },

    #[error("the limit of {limit} {what} is reached")]
    LimitReached { what: &'static str, limit: usize },

    #[error("there is no process {id}")]
    ProcessNotFound { id: ProcessId },

    #[error("process {id} has ended")]
    ProcessEnded { id: ProcessId },

    #[error("no host port forwards to port {port} of {id}")]
    NoListener { id: SandboxId, port: Port },

    #[error("cannot open a host port for port {port}: {source}")]
    CannotListen {
        port: Port,
        #[source]
        source: std::io::Error,
    },

    /// Nothing was done.
    #[error("network: {0}")]
    OverCeiling(#[source] OverCeiling),

    #[error("cannot open the network of {id}: {source}")]
    Gateway {
        id: SandboxId,
        #[source]
        source: GatewayError,
    },

    #[error("secrets: {problem}")]
    Secrets { problem: String },

    #[error(transparent)]
    NetworkAsk(AskError),

    /// The sandbox could not be created or started; `reason` is the first cause.
    #[error("{id} failed: {reason}")]
    SandboxFailed { id: SandboxId, reason: String },

    /// The machine's resources cannot be determined.
    #[error("cannot read the memory size and number of processors: {source}")]
    HostUnreadable {
        #[source]
        source: std::io::Error,
    },

    /// Another daemon uses the data directory.
    #[error("another sandkeep{} uses {path}", pid.map(|p| format!(" (pid {p})")).unwrap_or_default())]
    DataDirInUse { path: String, pid: Option<u32> },

    #[error("cannot use the data directory {path}: {source}")]
    DataDir {
        path: String,
        #[source]
        source: std::io::Error,
    },

    #[error("the daemon is shutting down")]
    ShuttingDown,

    /// Another process has written a row that belongs to this node, so nothing was overwritten.
    #[error("{what} was changed concurrently")]
    Fenced { what: String },

    #[error("sandbox {id} is on node {node}")]
    Elsewhere { id: SandboxId, node: String },

    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    #[error(transparent)]
    Guest(#[from] GuestError),
}

impl From<DataDirError> for Error {
    fn from(error: DataDirError) -> Self {
        match error {
            DataDirError::InUse { path, pid } => Self::DataDirInUse { path, pid },
            DataDirError::Unusable { path, source } => Self::DataDir { path, source },
        }
    }
}

fn listed(ids: &[SandboxId]) -> String {
    ids.iter().map(SandboxId::as_str).collect::<Vec<_>>().join(", ")
}

fn comma_separated(names: &[impl ToString]) -> String {
    names.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::io;

    use sandkeep_core::with_causes;

    use super::*;

    #[test]
    fn causes_are_said_once() {
        let source = || io::Error::other("disk full");
        let storage =
            StorageError::Io { storage: "local", what: "make a root".into(), source: source() };
        let said = with_causes(&Error::Storage(storage));
        assert_eq!(said, "local storage failed to make a root: disk full");
        let runtime =
            RuntimeError::Io { runtime: "native", what: "launch".into(), source: source() };
        let said = with_causes(&Error::Runtime(runtime));
        assert_eq!(said, "runtime native failed to launch: disk full");
        let silent = Error::Store(StoreError::Unavailable(Box::new(source())));
        assert_eq!(with_causes(&silent), "the state store failed: disk full");
        let telling = Error::DataDir { path: "/d".to_owned(), source: source() };
        assert_eq!(with_causes(&telling), "cannot use the data directory /d: disk full");
    }

    #[test]
    fn a_full_disk_is_called_that_whoever_finds_it() {
        let source = || io::Error::from(io::ErrorKind::StorageFull);
        let (storage, what) = ("host template", "fill a root".to_owned());
        let template = Error::Storage(StorageError::Io { storage, what, source: source() });
        let home = Error::DataDir { path: "/d".to_owned(), source: source() };
        assert_eq!([template.code(), home.code()], [sandkeep_core::Code::StorageFull; 2]);
    }
}
