//! A template of what a sandbox has, above what it was made from.

use super::import::Job;
use super::layers::id_of;
use super::progress::ImportStep;
use super::record::{Content, KeptLayer, Record};
use crate::broker::Broker;
use crate::broker::supervisor::LifecycleVerb;
use crate::error::Error;
use crate::failpoint;
use crate::sandbox::{ImageDefaults, SandboxId, Spec};
use crate::storage::LayerId;
use crate::template::digest::Digest;
use crate::template::image::ImageConfig;

impl Broker {
    pub(super) async fn capture_sandbox(&self, job: &Job, id: &SandboxId) -> Result<Record, Error> {
        let shared = &self.shared;
        let not_found = || Error::NotFound { id: id.clone() };
        let handle = shared.supervised(id).ok_or_else(not_found)?;
        job.reporter.step(ImportStep::Capturing);
        let below = super::base(&handle.spec)?.layers().to_vec();
        // There is no archive that it could be named after; no two captures are the same.
        let layer = id_of(&Digest::of(job.id.as_str().as_bytes()));
        let _pin = {
            let _kept = shared.images.gate.read().await;
            shared.images.pins.set([below.as_slice(), std::slice::from_ref(&layer)].concat())
        };
        self.ask(&handle, LifecycleVerb::Capture(Box::new(layer.clone()))).await?;
        failpoint!("template.after_capture");
        let bytes = shared.storage.usage(id).await.map_or(0, |usage| usage.used_bytes);
        let mut layers = self.kept(below).await?;
        layers.push(KeptLayer { id: layer, bytes });
        let config = self.config_of(&handle.spec).await?;
        let over = match handle.spec.image() {
            Some(image) => image.over.clone(),
            None => Some(handle.spec.template().to_owned()),
        };
        let listed: Vec<&str> = layers.iter().map(|layer| layer.id.as_str()).collect();
        let digest = Digest::of(listed.join("\n").as_bytes()).to_string();
        let (name, source) = (job.name.clone(), format!("sandbox {id}"));
        self.write_down(job, Content { name, digest, source, layers, over, config }).await
    }

    async fn kept(&self, ids: Vec<LayerId>) -> Result<Vec<KeptLayer>, Error> {
        let mut layers = Vec::with_capacity(ids.len() + 1);
        for id in ids {
            let bytes = self.shared.images.records.bytes_of(&id).await?.unwrap_or(0);
            layers.push(KeptLayer { id, bytes });
        }
        Ok(layers)
    }

    /// The config of the image that a sandbox was made from: whole, while its template is there, or as
    /// much of it as the sandbox itself has kept.
    async fn config_of(&self, spec: &Spec) -> Result<Option<ImageConfig>, Error> {
        let Some(image) = spec.image() else { return Ok(None) };
        let records = self.shared.images.records.all().await?;
        let record = records.into_iter().find(|(_, record)| record.digest == image.digest);
        Ok(match record {
            Some((_, record)) => record.config,
            None => image.defaults.as_ref().map(as_config),
        })
    }
}

fn as_config(defaults: &ImageDefaults) -> ImageConfig {
    ImageConfig {
        env: defaults.env.clone().into_iter().collect(),
        working_dir: Some(defaults.workdir.clone()),
        user: Some(defaults.user.clone()),
        cmd: defaults.command.clone(),
        ..ImageConfig::default()
    }
}
