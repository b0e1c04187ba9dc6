//! Templates.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Owner;
use crate::network::Network;

/// What stands in the error of a failed build before the end of the step's output. A client that shows the output as it
/// comes has shown it already.
pub const BUILD_SAID_LAST: &str = "; it said last: ";

/// A template as the API shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Template {
    pub name: String,
    /// Digest of the image's config; absent for a built-in template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Where it came from.
    pub source: String,
    /// The digests of its layers, lowest first.
    pub layers: Vec<String>,
    /// The built-in template that shows through, if it was captured from a sandbox of that template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub over: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<TemplateConfig>,
    /// The command that runs in every sandbox from its creation on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<Vec<String>>,
    /// The policy of sandboxes that name none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// Total size of its layers, whether or not other templates share them.
    pub bytes: u64,
    /// RFC 3339; absent for a built-in template.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub created_at: Option<Timestamp>,
    /// Whether everyone can create sandboxes from it.
    pub shared: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
}

/// Defaults for commands in a sandbox of the template.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TemplateConfig {
    pub env: BTreeMap<String, String>,
    pub workdir: String,
    /// As in Docker's USER; root if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    pub entrypoint: Vec<String>,
    pub cmd: Vec<String>,
    pub exposed_ports: Vec<String>,
    pub labels: BTreeMap<String, String>,
    pub architecture: String,
}
