//! The part of the OCI runtime specification that our bundles use, serialized to `config.json`.

use serde::Serialize;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    pub oci_version: &'static str,
    pub process: Process,
    pub root: Root,
    pub hostname: String,
    pub mounts: Vec<Mount>,
    pub linux: Linux,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Process {
    pub terminal: bool,
    pub user: User,
    pub args: Vec<String>,
    pub env: Vec<String>,
    pub cwd: &'static str,
    pub capabilities: Capabilities,
    pub no_new_privileges: bool,
}

/// Inside the user namespace.
#[derive(Debug, Serialize)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    pub umask: u32,
}

#[derive(Debug, Serialize)]
pub struct Capabilities {
    pub bounding: Vec<String>,
    pub effective: Vec<String>,
    pub inheritable: Vec<String>,
    pub permitted: Vec<String>,
}

#[derive(Debug, Serialize)]
pub struct Root {
    pub path: String,
    pub readonly: bool,
}

/// A mount in the sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mount {
    pub destination: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub source: String,
    pub options: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Linux {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub uid_mappings: Vec<IdMapping>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gid_mappings: Vec<IdMapping>,
    pub namespaces: Vec<Namespace>,
    pub masked_paths: Vec<String>,
    pub readonly_paths: Vec<String>,
    pub seccomp: Seccomp,
}

#[derive(Debug, Serialize)]
pub struct IdMapping {
    #[serde(rename = "containerID")]
    pub container_id: u32,
    #[serde(rename = "hostID")]
    pub host_id: u32,
    pub size: u32,
}

/// A namespace of the sandbox's own.
#[derive(Debug, Serialize)]
pub struct Namespace {
    /// An existing namespace to enter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<&'static str>,
    #[serde(rename = "type")]
    pub kind: &'static str,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Seccomp {
    pub default_action: SeccompAction,
    pub default_errno_ret: i32,
    pub architectures: Vec<&'static str>,
    pub syscalls: Vec<Syscalls>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum SeccompAction {
    #[serde(rename = "SCMP_ACT_ALLOW")]
    Allow,
    #[serde(rename = "SCMP_ACT_ERRNO")]
    Errno,
}

/// The action for these calls if all of `args` match.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Syscalls {
    pub names: Vec<&'static str>,
    pub action: SeccompAction,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub errno_ret: Option<i32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<Argument>,
}

/// `argument & value == value_two`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Argument {
    pub index: u32,
    pub value: u64,
    pub value_two: u64,
    pub op: &'static str,
}
