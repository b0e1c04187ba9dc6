//! The code of each error. The match is exhaustive, so that a new error cannot be forgotten.

use toolbox::FailureKind;

use super::Error;
use sandkeep_core::Code;
use sandkeep_egress::AskError;
use sandkeep_guestlink::GuestError;
use sandkeep_runtime::RuntimeError;
use sandkeep_storage::StorageError;
use sandkeep_store::StoreError;

impl Error {
    pub fn code(&self) -> Code {
        match self {
            Self::InvalidSpec(_) | Self::InvalidField { .. } => Code::InvalidField,
            Self::UnknownRuntime { .. } => Code::UnknownRuntime,
            Self::RuntimeUnusable { .. } => Code::RuntimeUnusable,
            Self::UnknownTemplate { .. } => Code::UnknownTemplate,
            Self::TemplateNotFound { .. } | Self::BaseNotFound { .. } => Code::TemplateNotFound,
            Self::TemplateInUse { .. } => Code::TemplateInUse,
            Self::TemplateShared { .. } => Code::TemplateShared,
            Self::SourceInvalid { .. } => Code::SourceInvalid,
            Self::StartUpFailed { .. } => Code::StartUpFailed,
            Self::BuildFileInvalid { .. } => Code::BuildFileInvalid,
            Self::BuildFailed { .. } => Code::BuildFailed,
            Self::SourceForbidden { .. } => Code::SourceForbidden,
            Self::SourceUnavailable { .. } => Code::SourceUnavailable,
            Self::RepositoryNotFound { .. } => Code::RepositoryNotFound,
            Self::RepositoryPrivate { .. } => Code::RepositoryPrivate,
            Self::ReferenceNotFound { .. } => Code::ReferenceNotFound,
            Self::CodebaseNotFound { .. } => Code::CodebaseNotFound,
            Self::CodebaseExists { .. } => Code::CodebaseExists,
            Self::CodebaseInUse { .. } => Code::CodebaseInUse,
            Self::CodebaseBusy { .. } => Code::CodebaseBusy,
            Self::CodebaseExclusive { .. } => Code::CodebaseExclusive,
            Self::RulesServer { .. } => Code::RulesServerFailed,
            Self::RulesNotServed { .. } => Code::RulesNotServed,
            Self::WebhookNotFound { .. } => Code::WebhookNotFound,
            Self::UploadNotFound { .. } => Code::UploadNotFound,
            Self::NoSpace { .. } => Code::NoSpace,
            Self::HostFull { .. } => Code::StorageFull,
            Self::UploadTooLarge { .. } => Code::UploadTooLarge,
            Self::TookTooLong { .. } => Code::TookTooLong,
            Self::UnknownProfile { .. } => Code::UnknownProfile,
            Self::SlotTaken { .. } => Code::SlotTaken,
            Self::NameTaken { .. } => Code::NameTaken,
            Self::NameNotFound { .. } => Code::NotFound,
            Self::NameAmbiguous { .. } => Code::NameAmbiguous,
            Self::IdempotencyMismatch { .. } => Code::IdempotencyMismatch,
            Self::IdempotencyGone { .. } => Code::IdempotencyGone,
            Self::ToolArgument { .. } => Code::InvalidArgument,
            Self::ToolCallMismatch { .. } => Code::ToolCallMismatch,
            Self::QuotaExceeded { .. } => Code::QuotaExceeded,
            Self::RateLimited { .. } => Code::RateLimited,
            Self::StorageLacks { .. } => Code::UnsupportedByStorage,
            Self::NoVolume { .. } | Self::UnfitVolume { .. } => Code::UnsupportedByRuntime,
            Self::NotFound { .. } => Code::NotFound,
            Self::ExecNotFound { .. } => Code::ExecNotFound,
            Self::ExecEnded { .. } => Code::ExecEnded,
            Self::StdinClosed { .. } => Code::StdinClosed,
            Self::NoTerminal { .. } => Code::NoTerminal,
            Self::Journal { .. } => Code::JournalFailed,
            Self::KeyNotFound { .. } => Code::KeyNotFound,
            Self::File { kind, .. } => of_file(*kind),
            Self::ToolboxBroke { .. } => Code::ToolboxBroke,
            Self::ToolboxOutOfMemory => Code::OutOfMemory,
            Self::WrongState { .. } => Code::WrongState,
            Self::Busy { .. } => Code::Busy,
            Self::ExecsInFlight { .. } => Code::ExecsInFlight,
            Self::SnapshotNotFound { .. } => Code::SnapshotNotFound,
            Self::SnapshotExists { .. } => Code::SnapshotExists,
            Self::SnapshotsFull { .. } => Code::SnapshotsFull,
            Self::FilesTooLarge { .. } | Self::RevertAbandoned { .. } => Code::FilesTooLarge,
            Self::LimitReached { .. } => Code::LimitReached,
            Self::ProcessNotFound { .. } => Code::ProcessNotFound,
            Self::ProcessEnded { .. } => Code::ProcessEnded,
            Self::NoListener { .. } => Code::ListenerNotFound,
            Self::CannotListen { .. } => Code::CannotListen,
            Self::OverCeiling(_) => Code::NetworkOverCeiling,
            Self::Gateway { .. } => Code::GatewayFailed,
            Self::Secrets { .. } => Code::SecretsUnreadable,
            Self::NetworkAsk(error) => of_ask(error),
            Self::SandboxFailed { .. } => Code::SandboxFailed,
            Self::DataDirInUse { .. } => Code::DataDirInUse,
            Self::DataDir { source, .. } if is_full(source) => Code::StorageFull,
            Self::DataDir { .. } => Code::DataDirUnusable,
            Self::HostUnreadable { .. } => Code::RuntimeFailed,
            Self::ShuttingDown => Code::ShuttingDown,
            Self::Fenced { .. } | Self::Elsewhere { .. } => Code::Conflict,
            Self::PoolFull { .. } => Code::PoolFull,
            Self::Store(error) => of_store(error),
            Self::Storage(error) => of_storage(error),
            Self::Runtime(error) => of_runtime(error),
            Self::Guest(error) => of_guest(error),
        }
    }

    /// What to do about it: the error's own advice if it has any, otherwise that of its code.
    pub fn remedy(&self) -> String {
        match self {
            Self::WrongState { id, helps: Some(verb), .. } => {
                format!("{verb} it first: sandkeep {verb} {id}, or the same verb of the API")
            }
            Self::SlotTaken { holder, .. } => format!(
                "use {holder}, destroy it first, or ask POST /api/v1/sandboxes/ensure for whichever there is"
            ),
            other => other.code().remedy().to_owned(),
        }
    }
}

fn of_file(kind: FailureKind) -> Code {
    match kind {
        FailureKind::NotFound => Code::FileNotFound,
        FailureKind::NotADirectory => Code::NotADirectory,
        FailureKind::IsADirectory => Code::IsADirectory,
        FailureKind::Exists => Code::FileExists,
        FailureKind::NotEmpty => Code::DirectoryNotEmpty,
        FailureKind::NotPermitted => Code::FileNotPermitted,
        FailureKind::ReadOnly => Code::FileReadOnly,
        FailureKind::NoSpace => Code::NoSpace,
        FailureKind::TooLarge => Code::FileTooLarge,
        FailureKind::NotRegular => Code::NotARegularFile,
        FailureKind::Changed => Code::FileChanged,
        FailureKind::Invalid => Code::FileRequestInvalid,
        FailureKind::Unsupported => Code::FileUnsupported,
        FailureKind::BrokenOff => Code::BrokenBody,
        FailureKind::NoMatch => Code::NoMatch,
        FailureKind::TimedOut => Code::FileTimedOut,
        FailureKind::Other => Code::FileFailed,
    }
}

fn of_ask(error: &AskError) -> Code {
    match error {
        AskError::Unknown(_) => Code::NetworkRequestNotFound,
        AskError::TooMany => Code::LimitReached,
        AskError::NotAHost(_) => Code::InvalidField,
        AskError::DoesNotAsk
        | AskError::Allowed(_)
        | AskError::Denied { .. }
        | AskError::Refused(_)
        | AskError::PolicyFull => Code::NetworkNotAsked,
    }
}

fn of_store(error: &StoreError) -> Code {
    match error {
        StoreError::Exists { .. } | StoreError::Conflict { .. } => Code::Conflict,
        StoreError::TooLarge { .. } => Code::ValueTooLarge,
        StoreError::Compacted { .. } => Code::StoreFailed,
        StoreError::Unavailable(_) => Code::StoreUnavailable,
    }
}

fn is_full(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded)
}

fn of_storage(error: &StorageError) -> Code {
    match error {
        StorageError::Unsupported { .. } | StorageError::TooManyLayers { .. } => {
            Code::UnsupportedByStorage
        }
        StorageError::NotFound { .. }
        | StorageError::Exists { .. }
        | StorageError::SnapshotExists { .. }
        | StorageError::LayerMissing { .. }
        | StorageError::LayerInUse { .. } => Code::StorageInconsistent,
        // It was there when it was looked up, and was removed before it was used.
        StorageError::SnapshotNotFound { .. } => Code::SnapshotNotFound,
        StorageError::NoDatasetSnapshot { .. } => Code::TemplateNotFound,
        StorageError::Unusable { .. } => Code::StorageUnusable,
        StorageError::Full { .. } => Code::StorageFull,
        StorageError::Io { source, .. } if is_full(source) => Code::StorageFull,
        StorageError::Io { .. } => Code::StorageFailed,
    }
}

fn of_runtime(error: &RuntimeError) -> Code {
    match error {
        RuntimeError::Unsupported { .. } | RuntimeError::NoNetwork { .. } => {
            Code::UnsupportedByRuntime
        }
        RuntimeError::NotFound { .. } => Code::RuntimeInconsistent,
        RuntimeError::NotRunning { .. } => Code::NotRunning,
        RuntimeError::Io { .. } => Code::RuntimeFailed,
    }
}

fn of_guest(error: &GuestError) -> Code {
    match error {
        GuestError::Unreachable(_) => Code::GuestUnreachable,
        GuestError::TimedOut { .. } => Code::GuestTimedOut,
        GuestError::Version { .. } => Code::GuestVersion,
        GuestError::Protocol(_) => Code::GuestBroke,
        GuestError::Refused { .. } => Code::GuestRefused,
        GuestError::Unsupported { .. } => Code::UnsupportedByRuntime,
        GuestError::Unprepared { .. } => Code::RuntimeFailed,
        GuestError::PortClosed { .. } => Code::PortClosed,
        GuestError::ShellNotFound { .. } => Code::ShellNotFound,
        GuestError::ShellEnded { .. } => Code::ShellEnded,
        GuestError::ShellQueueFull { .. } => Code::ShellQueueFull,
        GuestError::TooManyShells { .. } => Code::LimitReached,
    }
}
