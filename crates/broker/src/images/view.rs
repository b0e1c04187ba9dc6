//! The view of a template.

use super::record::{Record, Whose};
use sandkeep_image::image::ImageConfig;

pub use sandkeep_core::api::{Template as TemplateView, TemplateConfig};

fn config(config: ImageConfig) -> TemplateConfig {
    TemplateConfig {
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

pub(super) fn view(whose: &Whose, record: Record) -> TemplateView {
    let (shared, owner) = match whose {
        Whose::Own(owner) => (false, Some(owner.clone())),
        Whose::Shared => (true, None),
    };
    TemplateView {
        bytes: record.bytes(),
        layers: record.layers.iter().map(|layer| layer.id.to_string()).collect(),
        name: record.name.into(),
        digest: Some(record.digest),
        source: record.source,
        over: record.over,
        config: record.config.map(config),
        start: record.start.map(|start| start.argv),
        network: record.network,
        created_at: Some(record.created_at),
        shared,
        owner,
    }
}

/// A template without a record.
pub fn built_in(name: &str) -> TemplateView {
    TemplateView {
        name: name.to_owned(),
        digest: None,
        source: "built-in".to_owned(),
        layers: Vec::new(),
        over: None,
        config: None,
        start: None,
        network: None,
        bytes: 0,
        created_at: None,
        shared: true,
        owner: None,
    }
}
