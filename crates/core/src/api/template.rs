//! Templates.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Owner;

/// A template as the API shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Template {
    pub name: String,
    /// Of the image's config; absent of a built-in template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Where it came from.
    pub source: String,
    /// The digests of its layers, the lowest first.
    pub layers: Vec<String>,
    /// The built-in template that shows through, of one that was made of a sandbox of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub over: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<TemplateConfig>,
    /// The command that runs in every sandbox of it from the creation on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<Vec<String>>,
    /// In all its layers, whether or not others have them, too.
    pub bytes: u64,
    /// RFC 3339; absent of a built-in template.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub created_at: Option<Timestamp>,
    /// Whether everyone can create sandboxes from it.
    pub shared: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
}

/// How commands run in a sandbox of the template that do not say otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TemplateConfig {
    pub env: BTreeMap<String, String>,
    pub workdir: String,
    /// As in Docker's USER; root if it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    pub entrypoint: Vec<String>,
    pub cmd: Vec<String>,
    pub exposed_ports: Vec<String>,
    pub labels: BTreeMap<String, String>,
    pub architecture: String,
}
