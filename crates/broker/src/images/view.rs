//! How a template is shown.

use std::collections::BTreeMap;

use super::record::{Record, Whose};
use sandkeep_core::Owner;
use sandkeep_image::image::ImageConfig;

/// A template as the API shows it.
#[derive(Clone, Debug, PartialEq, serde::Serialize, utoipa::ToSchema)]
#[schema(as = Template)]
pub struct TemplateView {
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
    pub created_at: Option<String>,
    /// Whether everybody can make sandboxes from it.
    pub shared: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
}

/// How commands run in a sandbox of the template that do not say otherwise.
#[derive(Clone, Debug, PartialEq, serde::Serialize, utoipa::ToSchema)]
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

impl TemplateConfig {
    fn of(config: ImageConfig) -> Self {
        Self {
            env: config.env.into_iter().collect(),
            workdir: config.working_dir.unwrap_or_else(|| "/".to_owned()),
            user: config.user,
            entrypoint: config.entrypoint,
            cmd: config.cmd,
            exposed_ports: config.exposed_ports.into_iter().map(String::from).collect(),
            labels: config.labels,
            architecture: config.architecture,
        }
    }
}

impl TemplateView {
    pub(super) fn of(whose: &Whose, record: Record) -> Self {
        let (shared, owner) = match whose {
            Whose::Own(owner) => (false, Some(owner.clone())),
            Whose::Shared => (true, None),
        };
        Self {
            bytes: record.bytes(),
            layers: record.layers.iter().map(|layer| layer.id.to_string()).collect(),
            name: record.name.into(),
            digest: Some(record.digest),
            source: record.source,
            over: record.over,
            config: record.config.map(TemplateConfig::of),
            start: record.start.map(|start| start.argv),
            created_at: Some(record.created_at.to_string()),
            shared,
            owner,
        }
    }
}

/// One that needs no record.
pub fn built_in(name: &str) -> TemplateView {
    TemplateView {
        name: name.to_owned(),
        digest: None,
        source: "built-in".to_owned(),
        layers: Vec::new(),
        over: None,
        config: None,
        start: None,
        bytes: 0,
        created_at: None,
        shared: true,
        owner: None,
    }
}
