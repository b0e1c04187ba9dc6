//! Captures a sandbox, or one of its snapshots, as a template: its own files on top of those it was created from.

use std::sync::Arc;

use super::import::Job;
use super::layers::id_of;
use super::pins::Pin;
use super::progress::ImportStep;
use super::record::{Content, KeptLayer, Record};
use crate::Broker;
use crate::error::Error;
use crate::lifecycle::handle::Handle;
use sandkeep_core::{ImageDefaults, SandboxId, SnapshotId, Spec, failpoint};
use sandkeep_image::image::ImageConfig;
use sandkeep_storage::LayerId;
use sandkeep_tree::digest::Digest;

impl Broker {
    pub(super) async fn capture_sandbox(&self, job: &Job, id: &SandboxId) -> Result<Record, Error> {
        let shared = &self.shared;
        let not_found = || Error::NotFound { id: id.clone() };
        let handle = shared.supervised(id).ok_or_else(not_found)?;
        handle.volume.stored("a template of a sandbox")?;
        let (layer, _pin) = self.new_layer(job, &handle).await?;
        job.room.hold(handle.volume_bytes().await)?;
        handle.capture(shared, layer.clone()).await?;
        failpoint!("template.after_capture");
        let bytes = handle.volume_bytes().await;
        self.record_capture(job, &handle, KeptLayer { id: layer, bytes }, format!("sandbox {id}"))
            .await
    }

    /// The same for a snapshot, which needs no freezing.
    pub(super) async fn capture_snapshot(
        &self,
        job: &Job,
        handle: &Arc<Handle>,
        snapshot: &SnapshotId,
        said: String,
    ) -> Result<Record, Error> {
        let volume = handle.volume.with_snapshots()?;
        let (layer, _pin) = self.new_layer(job, handle).await?;
        let below = super::base(&handle.meta().spec)?;
        let reading = handle.snapshots.reading().await;
        let bytes = volume.snapshot_bytes(snapshot).await?;
        job.room.hold(bytes)?;
        volume.layer(Some(snapshot), below.layers(), &layer).await?;
        drop(reading);
        failpoint!("template.after_capture");
        self.record_capture(job, handle, KeptLayer { id: layer, bytes }, said).await
    }

    /// The name of a new layer; the layers below are kept until the pin is dropped.
    async fn new_layer(&self, job: &Job, handle: &Handle) -> Result<(LayerId, Pin), Error> {
        job.reporter.step(ImportStep::Capturing);
        let below = super::base(&handle.meta().spec)?.layers().to_vec();
        // There is no archive to derive a name from, and no two captures are the same.
        let layer = id_of(&Digest::of(job.id.as_str().as_bytes()));
        let images = &self.shared.images;
        let _kept = images.gate.read().await;
        let pin = images.pins.set([below.as_slice(), std::slice::from_ref(&layer)].concat());
        Ok((layer, pin))
    }

    /// A record with the sandbox's base layers and one more.
    async fn record_capture(
        &self,
        job: &Job,
        handle: &Handle,
        layer: KeptLayer,
        source: String,
    ) -> Result<Record, Error> {
        let mut layers = self.kept(super::base(&handle.meta().spec)?.layers().to_vec()).await?;
        layers.push(layer);
        let config = self.config_of(&handle.meta().spec).await?;
        let over = match handle.meta().spec.image() {
            Some(image) => image.over.clone(),
            None => Some(handle.meta().spec.template().to_owned()),
        };
        let listed: Vec<&str> = layers.iter().map(|layer| layer.id.as_str()).collect();
        let digest = Digest::of(listed.join("\n").as_bytes()).to_string();
        let name = job.name.clone();
        let start = handle.meta().spec.image_defaults().and_then(|defaults| defaults.start.clone());
        let content = Content { name, digest, source, layers, over, config, start };
        self.write_down(job, content).await
    }

    async fn kept(&self, ids: Vec<LayerId>) -> Result<Vec<KeptLayer>, Error> {
        let mut layers = Vec::with_capacity(ids.len() + 1);
        for id in ids {
            let bytes = self.shared.images.records.bytes_of(&id).await?.unwrap_or(0);
            layers.push(KeptLayer { id, bytes });
        }
        Ok(layers)
    }

    /// The image config of the sandbox's template: complete while the template exists, otherwise the part that the
    /// sandbox itself has stored.
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
