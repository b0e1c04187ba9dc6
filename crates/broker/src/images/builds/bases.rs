//! The base of a stage: an existing template, a built-in one, or an image that has to be pulled.

use super::Cache;
use super::cache;
use super::steps::{Builder, Built};
use crate::error::Error;
use crate::images::import::unusable;
use crate::images::record::{KeptLayer, Record};
use sandkeep_core::{StartUp, with_causes};
use sandkeep_image::{
    image::{ImageConfig, Platform},
    recipe::{Beginning, Key, Scene},
    source::{Source as _, registry::Reference},
};
use sandkeep_tree::digest::Digest;

/// The user for commands in a built-in template. Numeric, because no layer contains its list of users.
const BUILT_IN_USER: &str = "1000";
const BUILT_IN_WORKDIR: &str = "/home/user";

/// An image that is available locally.
pub struct BaseImage {
    pub layers: Vec<KeptLayer>,
    over: Option<String>,
    config: ImageConfig,
    start: Option<StartUp>,
}

impl Builder<'_> {
    /// A stage that starts from an image or template.
    pub async fn base(&mut self, name: &str, line: usize) -> Result<Built, Error> {
        if self.is_built_in(name) {
            return self.built_in(name).await;
        }
        let BaseImage { layers, over, config, start } = self.image(name, line).await?;
        let scene = Scene::begin(&self.recipe, Beginning::Image(&config));
        let digests = layers.iter().filter_map(|layer| layer.id.as_str().parse().ok());
        // The files that show through are not in the layers, but they affect the result.
        let beneath = over.as_ref().map(|over| Digest::of(over.as_bytes()));
        let key = Key::of_layers(&beneath.into_iter().chain(digests).collect::<Vec<Digest>>());
        Ok(Built { key, layers, over, scene, start })
    }

    /// An image or template of which only the files are needed.
    pub async fn image(&mut self, name: &str, line: usize) -> Result<BaseImage, Error> {
        let images = &self.broker.shared.images;
        {
            // Not while layers are being removed: these may be among them.
            let _kept = images.gate.read().await;
            if let Some((_, record)) = self.broker.shared.record_of(&self.owner, name).await? {
                self.pins.push(images.pins.set(record.layer_ids()));
                return Ok(of_record(record));
            }
        }
        let pulled = self.pull(name).await;
        pulled.map_err(|error| match error {
            Error::SourceUnavailable { .. } | Error::SourceInvalid { .. } => {
                let why = with_causes(&error);
                let problem =
                    format!("there is no such template here, and it cannot be pulled: {why}");
                Error::BaseNotFound { line, name: name.to_owned(), problem }
            }
            other => other,
        })
    }

    async fn pull(&mut self, name: &str) -> Result<BaseImage, Error> {
        let wrong =
            |error: &dyn std::error::Error| Error::SourceInvalid { problem: with_causes(error) };
        let reference: Reference = name.parse().map_err(|error| wrong(&error))?;
        let source =
            self.broker.shared.registries.image(reference, None, &self.owner, &self.job.space);
        let image = source.image().await.map_err(unusable)?;
        image.config.check_platform(&Platform::here()).map_err(unusable)?;
        let taken = self.broker.take_layers(self.job, &image.layers).await?;
        source.taken_over();
        let layers = taken.layers.clone();
        self.taken.push(taken);
        Ok(BaseImage { layers, over: None, config: image.config, start: None })
    }

    fn is_built_in(&self, name: &str) -> bool {
        self.broker.shared.templates.iter().any(|template| template.name() == name)
    }

    /// A built-in template has no layers of its own: the content of a new sandbox becomes the first.
    async fn built_in(&mut self, name: &str) -> Result<Built, Error> {
        let scene = Scene::begin(&self.recipe, Beginning::Image(&of_built_in()));
        let key = Key::of_layers(&[Digest::of(name.as_bytes())]);
        let over = Some(name.to_owned());
        let mut built = Built { key, layers: Vec::new(), over, scene, start: None };
        let found = match self.cache {
            Cache::Used => cache::find(&self.broker.shared, &self.owner, &key).await?,
            Cache::PassedBy => None,
        };
        match found {
            Some((layers, pin)) => {
                self.pins.push(pin);
                built.layers = layers;
            }
            None => {
                self.of_built_in(&mut built, name).await?;
                cache::remember(&self.broker.shared, &self.owner, &key, &built.layers).await?;
            }
        }
        Ok(built)
    }
}

fn of_record(record: Record) -> BaseImage {
    let config = match (record.config, &record.over) {
        (Some(config), _) => config,
        (None, Some(_)) => of_built_in(),
        (None, None) => ImageConfig::default(),
    };
    BaseImage { layers: record.layers, over: record.over, config, start: record.start }
}

/// The config for commands in a built-in template.
fn of_built_in() -> ImageConfig {
    ImageConfig {
        user: Some(BUILT_IN_USER.to_owned()),
        working_dir: Some(BUILT_IN_WORKDIR.to_owned()),
        ..ImageConfig::default()
    }
}
