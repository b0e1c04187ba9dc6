//! The messages of `sandbox.v1`, by field number. As JSON they are what grpc-gateway makes of them: names in camel case,
//! of which the reader also takes those of the schema; 64-bit numbers as texts; every field there.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::json::{EnumName, Named, int64};

pub use super::json::{Duration, Timestamp};

/// Enums whose names on the wire are those of the schema.
macro_rules! enums {
    ($($name:ident { $($variant:ident = $number:literal $text:literal,)* })*) => {$(
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
        #[repr(i32)]
        pub enum $name { $($variant = $number,)* }

        impl Named for $name {
            const NAMES: &'static [(i32, &'static str)] = &[$(($number, $text),)*];
        }
    )*};
}

enums! {
    Permission {
        Unspecified = 0 "PERMISSION_UNSPECIFIED",
        None = 1 "PERMISSION_NONE",
        View = 2 "PERMISSION_VIEW",
        Read = 3 "PERMISSION_READ",
        Write = 4 "PERMISSION_WRITE",
    }
    PatternType {
        Unspecified = 0 "PATTERN_TYPE_UNSPECIFIED",
        Glob = 1 "PATTERN_TYPE_GLOB",
        Directory = 2 "PATTERN_TYPE_DIRECTORY",
        File = 3 "PATTERN_TYPE_FILE",
    }
    SandboxStatus {
        Unspecified = 0 "SANDBOX_STATUS_UNSPECIFIED",
        Pending = 1 "SANDBOX_STATUS_PENDING",
        Running = 2 "SANDBOX_STATUS_RUNNING",
        Stopped = 3 "SANDBOX_STATUS_STOPPED",
        Error = 4 "SANDBOX_STATUS_ERROR",
    }
    SessionStatus {
        Unspecified = 0 "SESSION_STATUS_UNSPECIFIED",
        Active = 1 "SESSION_STATUS_ACTIVE",
        Closed = 2 "SESSION_STATUS_CLOSED",
    }
    RuntimeType {
        Unspecified = 0 "RUNTIME_TYPE_UNSPECIFIED",
        Bwrap = 1 "RUNTIME_TYPE_BWRAP",
        Docker = 2 "RUNTIME_TYPE_DOCKER",
    }
    OutputType {
        Unspecified = 0 "OUTPUT_TYPE_UNSPECIFIED",
        Stdout = 1 "OUTPUT_TYPE_STDOUT",
        Stderr = 2 "OUTPUT_TYPE_STDERR",
    }
}

/// Messages that are also JSON.
macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_meta:meta])* $field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
        #[serde(default, rename_all = "camelCase")]
        pub struct $name { $($(#[$field_meta])* pub $field: $type,)* }
    )*};
}

messages! {
    PermissionRule {
        #[prost(string, tag = "1")]
        pattern: String,
        #[prost(enumeration = "PatternType", tag = "2")]
        #[serde(rename = "type", with = "EnumName::<PatternType>")]
        kind: i32,
        #[prost(enumeration = "Permission", tag = "3")]
        #[serde(with = "EnumName::<Permission>")]
        permission: i32,
        #[prost(int32, tag = "4")]
        priority: i32,
    }
    Empty {}

    Codebase {
        #[prost(string, tag = "1")]
        id: String,
        #[prost(string, tag = "2")]
        name: String,
        #[prost(string, tag = "3")]
        #[serde(alias = "owner_id")]
        owner_id: String,
        #[prost(int64, tag = "4")]
        #[serde(with = "int64")]
        size: i64,
        #[prost(int32, tag = "5")]
        #[serde(alias = "file_count")]
        file_count: i32,
        #[prost(message, tag = "6")]
        #[serde(alias = "created_at")]
        created_at: Option<Timestamp>,
        #[prost(message, tag = "7")]
        #[serde(alias = "updated_at")]
        updated_at: Option<Timestamp>,
    }
    CreateCodebaseRequest {
        #[prost(string, tag = "1")]
        name: String,
        #[prost(string, tag = "2")]
        #[serde(alias = "owner_id")]
        owner_id: String,
    }
    /// Of every method that takes a codebase and nothing else.
    CodebaseRequest {
        #[prost(string, tag = "1")]
        #[serde(alias = "codebase_id")]
        codebase_id: String,
    }
    ListCodebasesRequest {
        #[prost(string, tag = "1")]
        #[serde(alias = "owner_id")]
        owner_id: String,
        #[prost(int32, tag = "2")]
        #[serde(alias = "page_size")]
        page_size: i32,
        #[prost(string, tag = "3")]
        #[serde(alias = "page_token")]
        page_token: String,
    }
    ListCodebasesResponse {
        #[prost(message, repeated, tag = "1")]
        codebases: Vec<Codebase>,
        #[prost(string, tag = "2")]
        #[serde(alias = "next_page_token")]
        next_page_token: String,
    }
    DownloadFileRequest {
        #[prost(string, tag = "1")]
        codebase_id: String,
        #[prost(string, tag = "2")]
        file_path: String,
    }
    ListFilesRequest {
        #[prost(string, tag = "1")]
        #[serde(alias = "codebase_id")]
        codebase_id: String,
        #[prost(string, tag = "2")]
        path: String,
        #[prost(bool, tag = "3")]
        recursive: bool,
    }
    ListFilesResponse {
        #[prost(message, repeated, tag = "1")]
        files: Vec<FileInfo>,
    }
    FileInfo {
        #[prost(string, tag = "1")]
        path: String,
        #[prost(string, tag = "2")]
        name: String,
        #[prost(bool, tag = "3")]
        #[serde(alias = "is_dir")]
        is_dir: bool,
        #[prost(int64, tag = "4")]
        #[serde(with = "int64")]
        size: i64,
        #[prost(message, tag = "5")]
        #[serde(alias = "modified_at")]
        modified_at: Option<Timestamp>,
    }

    ResourceLimits {
        #[prost(int64, tag = "1")]
        #[serde(alias = "memory_bytes", with = "int64")]
        memory_bytes: i64,
        #[prost(int64, tag = "2")]
        #[serde(alias = "cpu_quota", with = "int64")]
        cpu_quota: i64,
        #[prost(int64, tag = "3")]
        #[serde(alias = "cpu_shares", with = "int64")]
        cpu_shares: i64,
        #[prost(int64, tag = "4")]
        #[serde(alias = "pids_limit", with = "int64")]
        pids_limit: i64,
    }
    Sandbox {
        #[prost(string, tag = "1")]
        id: String,
        #[prost(string, tag = "2")]
        #[serde(alias = "codebase_id")]
        codebase_id: String,
        #[prost(message, repeated, tag = "3")]
        permissions: Vec<PermissionRule>,
        #[prost(enumeration = "SandboxStatus", tag = "4")]
        #[serde(with = "EnumName::<SandboxStatus>")]
        status: i32,
        #[prost(btree_map = "string, string", tag = "5")]
        labels: BTreeMap<String, String>,
        #[prost(message, tag = "6")]
        #[serde(alias = "created_at")]
        created_at: Option<Timestamp>,
        #[prost(message, tag = "7")]
        #[serde(alias = "started_at")]
        started_at: Option<Timestamp>,
        #[prost(message, tag = "8")]
        #[serde(alias = "stopped_at")]
        stopped_at: Option<Timestamp>,
        #[prost(message, tag = "9")]
        #[serde(alias = "expires_at")]
        expires_at: Option<Timestamp>,
        #[prost(enumeration = "RuntimeType", tag = "10")]
        #[serde(with = "EnumName::<RuntimeType>")]
        runtime: i32,
        #[prost(string, tag = "11")]
        image: String,
        #[prost(message, tag = "12")]
        resources: Option<ResourceLimits>,
    }
    CreateSandboxRequest {
        #[prost(string, tag = "1")]
        #[serde(alias = "codebase_id")]
        codebase_id: String,
        #[prost(message, repeated, tag = "2")]
        permissions: Vec<PermissionRule>,
        #[prost(message, tag = "3")]
        #[serde(alias = "expires_in")]
        expires_in: Option<Duration>,
        #[prost(btree_map = "string, string", tag = "4")]
        labels: BTreeMap<String, String>,
        #[prost(enumeration = "RuntimeType", tag = "5")]
        #[serde(with = "EnumName::<RuntimeType>")]
        runtime: i32,
        #[prost(string, tag = "6")]
        image: String,
        #[prost(message, tag = "7")]
        resources: Option<ResourceLimits>,
    }
    /// Of every method that takes a sandbox and nothing else.
    SandboxRequest {
        #[prost(string, tag = "1")]
        #[serde(alias = "sandbox_id")]
        sandbox_id: String,
    }
    ListSandboxesRequest {
        #[prost(string, tag = "1")]
        #[serde(alias = "codebase_id")]
        codebase_id: String,
        #[prost(int32, tag = "2")]
        #[serde(alias = "page_size")]
        page_size: i32,
        #[prost(string, tag = "3")]
        #[serde(alias = "page_token")]
        page_token: String,
    }
    ListSandboxesResponse {
        #[prost(message, repeated, tag = "1")]
        sandboxes: Vec<Sandbox>,
        #[prost(string, tag = "2")]
        #[serde(alias = "next_page_token")]
        next_page_token: String,
    }
    ExecRequest {
        #[prost(string, tag = "1")]
        #[serde(alias = "sandbox_id")]
        sandbox_id: String,
        #[prost(string, tag = "2")]
        command: String,
        #[prost(string, tag = "3")]
        stdin: String,
        #[prost(btree_map = "string, string", tag = "4")]
        env: BTreeMap<String, String>,
        #[prost(string, tag = "5")]
        workdir: String,
        #[prost(message, tag = "6")]
        timeout: Option<Duration>,
    }
    ExecResult {
        #[prost(string, tag = "1")]
        stdout: String,
        #[prost(string, tag = "2")]
        stderr: String,
        #[prost(int32, tag = "3")]
        #[serde(alias = "exit_code")]
        exit_code: i32,
        #[prost(message, tag = "4")]
        duration: Option<Duration>,
    }
    Session {
        #[prost(string, tag = "1")]
        id: String,
        #[prost(string, tag = "2")]
        #[serde(alias = "sandbox_id")]
        sandbox_id: String,
        #[prost(enumeration = "SessionStatus", tag = "3")]
        #[serde(with = "EnumName::<SessionStatus>")]
        status: i32,
        #[prost(string, tag = "4")]
        shell: String,
        #[prost(message, tag = "5")]
        #[serde(alias = "created_at")]
        created_at: Option<Timestamp>,
        #[prost(message, tag = "6")]
        #[serde(alias = "closed_at")]
        closed_at: Option<Timestamp>,
    }
    CreateSessionRequest {
        #[prost(string, tag = "1")]
        #[serde(alias = "sandbox_id")]
        sandbox_id: String,
        #[prost(string, tag = "2")]
        shell: String,
        #[prost(btree_map = "string, string", tag = "3")]
        env: BTreeMap<String, String>,
    }
    /// Of every method that takes a session and nothing else.
    SessionRequest {
        #[prost(string, tag = "1")]
        #[serde(alias = "session_id")]
        session_id: String,
    }
    ListSessionsResponse {
        #[prost(message, repeated, tag = "1")]
        sessions: Vec<Session>,
    }
    SessionExecRequest {
        #[prost(string, tag = "1")]
        #[serde(alias = "session_id")]
        session_id: String,
        #[prost(string, tag = "2")]
        command: String,
        #[prost(message, tag = "3")]
        timeout: Option<Duration>,
    }
}

/// Messages of streams, which have no JSON.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ExecOutput {
    #[prost(enumeration = "OutputType", tag = "1")]
    pub kind: i32,
    #[prost(bytes = "bytes", tag = "2")]
    pub data: bytes::Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct UploadChunk {
    #[prost(oneof = "UploadContent", tags = "1, 2")]
    pub content: Option<UploadContent>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub enum UploadContent {
    #[prost(message, tag = "1")]
    Metadata(UploadMetadata),
    #[prost(bytes = "bytes", tag = "2")]
    Data(bytes::Bytes),
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct UploadMetadata {
    #[prost(string, tag = "1")]
    pub codebase_id: String,
    #[prost(string, tag = "2")]
    pub file_path: String,
    #[prost(int64, tag = "3")]
    pub total_size: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct UploadResult {
    #[prost(string, tag = "1")]
    pub codebase_id: String,
    #[prost(string, tag = "2")]
    pub file_path: String,
    #[prost(int64, tag = "3")]
    pub size: i64,
    #[prost(string, tag = "4")]
    pub checksum: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct FileChunk {
    #[prost(bytes = "bytes", tag = "1")]
    pub data: bytes::Bytes,
}
