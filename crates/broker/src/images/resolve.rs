//! Resolves a template name for a new sandbox: first the owner's templates, then shared ones, then built-in ones.

use std::sync::Arc;

use tokio::sync::RwLockReadGuard;

use super::record::{Record, Whose};
use crate::error::Error;
use crate::shared::Shared;
use sandkeep_core::network::Network;
use sandkeep_core::{ImageDefaults, Owner, PinnedImage, Spec, TemplateName};
use sandkeep_image::{ImageTemplate, Template, image::ImageConfig};
use sandkeep_runtime::Capabilities;
use sandkeep_storage::{Base, StorageError};

/// The user of an image that sets none. Numeric, because the image may have no such name.
const IMAGE_USER: &str = "0";
/// The only user, if a runtime cannot have several.
pub const ONLY_USER: &str = "1000";

/// The template of a sandbox that is about to be created.
pub struct Chosen<'a> {
    pub template: Arc<dyn Template>,
    image: Option<Box<Record>>,
    /// Its layers are kept at least until this is dropped; by then the sandbox must be recorded.
    _kept: Option<RwLockReadGuard<'a, ()>>,
}

impl Chosen<'_> {
    /// The policy of a sandbox that names none, neither itself nor by its profile.
    pub fn network(&self) -> Option<&Network> {
        self.image.as_ref()?.network.as_ref()
    }

    /// The spec of a sandbox that is created from it.
    pub fn pin(&self, spec: Spec, can: &Capabilities) -> Spec {
        match &self.image {
            None => spec,
            Some(record) => spec.of_image(PinnedImage {
                digest: record.digest.clone(),
                layers: record.layers.iter().map(|layer| layer.id.to_string()).collect(),
                over: record.over.clone(),
                defaults: record.config.as_ref().map(|config| ImageDefaults {
                    start: record.start.clone(),
                    ..defaults(config, can)
                }),
            }),
        }
    }
}

fn defaults(config: &ImageConfig, can: &Capabilities) -> ImageDefaults {
    let user = if can.any_user { config.user.as_deref().unwrap_or(IMAGE_USER) } else { ONLY_USER };
    ImageDefaults {
        user: user.to_owned(),
        workdir: config.working_dir.clone().unwrap_or_else(|| "/".to_owned()),
        env: config.env.iter().cloned().collect(),
        command: config.entrypoint.iter().chain(&config.cmd).cloned().collect(),
        start: None,
    }
}

impl Shared {
    /// The template of this name for a sandbox of this owner; without a name, the first built-in one.
    pub async fn choose_template(
        &self,
        owner: &Owner,
        name: Option<&str>,
    ) -> Result<Chosen<'_>, Error> {
        let built_in = match name {
            None => self.templates.first(),
            Some(name) => self.templates.iter().find(|template| template.name() == name),
        };
        // Built-in names are reserved, so the search ends here.
        if let Some(template) = built_in {
            return Ok(Chosen { template: Arc::clone(template), image: None, _kept: None });
        }
        let name = name.unwrap_or_default();
        let kept = self.images.gate.read().await;
        let Some((_, record)) = self.record_of(owner, name).await? else {
            let known = self.template_names(owner).await?;
            return Err(Error::UnknownTemplate { name: name.to_owned(), known });
        };
        let template = self.image_template(record.name.as_str(), record.over.as_deref())?;
        Ok(Chosen { template, image: Some(Box::new(record)), _kept: Some(kept) })
    }

    /// All layers are kept until this is dropped; by then their users must be recorded.
    pub async fn keep_layers(&self) -> RwLockReadGuard<'_, ()> {
        self.images.gate.read().await
    }

    /// The template that a sandbox was created from.
    pub fn template_of(&self, spec: &Spec) -> Result<Arc<dyn Template>, Error> {
        match spec.image() {
            None => self.built_in(spec.template()),
            Some(image) => self.image_template(spec.template(), image.over.as_deref()),
        }
    }

    fn image_template(&self, name: &str, over: Option<&str>) -> Result<Arc<dyn Template>, Error> {
        let over = over.map(|over| self.built_in(over)).transpose()?;
        Ok(Arc::new(ImageTemplate::new(name, over)))
    }

    fn built_in(&self, name: &str) -> Result<Arc<dyn Template>, Error> {
        let unknown = || Error::UnknownTemplate {
            name: name.to_owned(),
            known: self.templates.iter().map(|template| template.name().to_owned()).collect(),
        };
        self.templates.iter().find(|t| t.name() == name).cloned().ok_or_else(unknown)
    }

    /// The record that a name means to this owner; a name without a tag also matches `latest`.
    pub(super) async fn record_of(
        &self,
        owner: &Owner,
        name: &str,
    ) -> Result<Option<(Whose, Record)>, Error> {
        // A malformed name matches nothing.
        let Ok(name) = name.parse::<TemplateName>() else { return Ok(None) };
        for whose in [Whose::Own(owner.clone()), Whose::Shared] {
            for name in std::iter::once(name.clone()).chain(name.latest()) {
                if let Some(record) = self.images.records.get(&whose, &name).await? {
                    return Ok(Some((whose, record)));
                }
            }
        }
        Ok(None)
    }

    /// All names that this owner can use.
    async fn template_names(&self, owner: &Owner) -> Result<Vec<String>, Error> {
        let built_in = self.templates.iter().map(|template| template.name().to_owned());
        let mut names: Vec<String> = built_in.collect();
        for (whose, record) in self.images.records.all().await? {
            if whose.includes(owner) && !names.iter().any(|name| name == record.name.as_str()) {
                names.push(record.name.into());
            }
        }
        Ok(names)
    }
}

/// The base of a sandbox's volume.
pub fn base(spec: &Spec) -> Result<Base, Error> {
    let Some(image) = spec.image() else { return Ok(Base::Empty) };
    let unreadable = |layer: &str| {
        let source = std::io::Error::other(format!("{layer:?} is no layer"));
        let what = "read what the sandbox stands on".to_owned();
        Error::from(StorageError::Io { storage: "any", what, source })
    };
    let layers = image.layers.iter().map(|layer| layer.parse().map_err(|_| unreadable(layer)));
    Ok(Base::Layers(layers.collect::<Result<_, _>>()?))
}
