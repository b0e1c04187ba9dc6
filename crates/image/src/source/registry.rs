//! Images from a registry, by the OCI distribution protocol, which is also Docker's.
//!
//! ```text
//! reference ──▶ session    the registry's address, and authentication (door, challenge, credentials)
//!           ──▶ manifest   by tag or digest; from an index, the one for this machine
//!           ──▶ config     the image's metadata, and the diff ids of its layers
//!           ──▶ blobs      the opened layers: fetched into the spool, a few concurrently
//! ```
//!
//! All content is verified against the digest by which it was requested; only the mapping from a tag to a digest is the
//! registry's word. Only addresses that the rules for outgoing connections admit are contacted, and credentials are
//! sent only to the registry that they were given for.

mod blob;
mod challenge;
mod credentials;
mod door;
mod problem;
mod reference;
mod retry;
mod said;
mod session;
mod spool;
mod trouble;

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use tokio::sync::Semaphore;

use super::Source;
use crate::image::{Image, ImageConfig, ImageError, Platform};
use crate::manifest::{self, Descriptor, Manifest};
use blob::RegistryBlob;
use sandkeep_core::{
    Owner,
    ledger::Reservation,
    limits::{
        IMAGE_CONFIG_MAX_BYTES, IMAGE_INDEX_DEPTH_MAX, IMAGE_MANIFEST_MAX_BYTES,
        REGISTRY_DOWNLOADS_MAX, REGISTRY_LAYER_MAX_BYTES,
    },
};
use sandkeep_outgoing::Outgoing;
use sandkeep_tree::digest::{Digest, Mismatch};
use session::Session;

pub use credentials::{AuthFileError, Credentials};
pub use problem::RegistryError;
pub use reference::{InvalidReference, Reference};
pub use spool::Spool;

/// What a daemon needs to pull images.
#[derive(Clone, Debug)]
pub struct Registries {
    outgoing: Outgoing,
    spool: Arc<Spool>,
    /// The credentials file of `docker login`, for pulls without credentials.
    auth_file: Option<PathBuf>,
}

impl Registries {
    pub fn new(outgoing: Outgoing, spool: Arc<Spool>, auth_file: Option<PathBuf>) -> Self {
        Self { outgoing, spool, auth_file }
    }

    /// The rules for outgoing connections.
    pub fn outgoing(&self) -> &Outgoing {
        &self.outgoing
    }

    /// An image to be pulled. Credentials are for the registry that the reference names; without any, configured ones
    /// for that registry are used. Fetched data belongs to its owner, who has reserved `space` for it.
    pub fn image(
        &self,
        reference: Reference,
        credentials: Option<Credentials>,
        owner: &Owner,
        space: &Arc<Reservation>,
    ) -> RegistryImage {
        RegistryImage {
            registries: self.clone(),
            reference,
            credentials,
            owner: owner.clone(),
            space: Arc::clone(space),
            spooled: Mutex::default(),
        }
    }
}

/// An image in a registry.
///
/// Its layers are fetched when they are opened, [`REGISTRY_DOWNLOADS_MAX`] of an image at once: open several
/// concurrently to fetch them in parallel.
pub struct RegistryImage {
    registries: Registries,
    reference: Reference,
    credentials: Option<Credentials>,
    owner: Owner,
    space: Arc<Reservation>,
    /// Blobs that we may have left in the spool.
    spooled: Mutex<Vec<Digest>>,
}

impl fmt::Debug for RegistryImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegistryImage").field("reference", &self.reference).finish_non_exhaustive()
    }
}

/// Fetched layers that were not imported are kept for another attempt.
impl Drop for RegistryImage {
    fn drop(&mut self) {
        for digest in self.take_spooled() {
            self.registries.spool.leave(&self.owner, &digest, &self.space);
        }
    }
}

#[async_trait]
impl Source for RegistryImage {
    async fn image(&self) -> Result<Image, ImageError> {
        let credentials = self.credentials()?;
        let open = Session::open(&self.registries.outgoing, &self.reference, credentials);
        let session = Arc::new(open.await?);
        let machine = Platform::here();
        let manifest = self.manifest(&session, &machine).await?;
        let (config, diff_ids) = self.config(&session, &manifest.config).await?;
        config.check_platform(&machine)?;
        let blobs = self.blobs(&session, &manifest.layers)?;
        let layers = super::paired(diff_ids, blobs)?;
        Ok(Image { id: manifest.config.digest, config, layers })
    }
}

impl RegistryImage {
    /// Called when the image was imported: its layers need not be kept for another attempt.
    pub fn taken_over(self) {
        for digest in self.take_spooled() {
            if let Err(error) = self.registries.spool.discard(&self.owner, &digest) {
                tracing::warn!("a layer that is not needed stays in the spool: {error}");
            }
        }
    }

    fn take_spooled(&self) -> Vec<Digest> {
        std::mem::take(&mut self.spooled.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn credentials(&self) -> Result<Option<Credentials>, RegistryError> {
        match (&self.credentials, &self.registries.auth_file) {
            (Some(given), _) => Ok(Some(given.clone())),
            (None, Some(file)) => Ok(credentials::from_file(file, self.reference.host())?),
            (None, None) => Ok(None),
        }
    }

    /// The manifest for this machine, through any nested indexes.
    async fn manifest(
        &self,
        session: &Session,
        machine: &Platform,
    ) -> Result<Manifest, ImageError> {
        let first = self.reference.wanted();
        let mut document = session.manifest(&first, IMAGE_MANIFEST_MAX_BYTES).await?;
        for _ in 0..=IMAGE_INDEX_DEPTH_MAX {
            let said = document.media_type.as_deref();
            let index = match manifest::Document::parse(&document.bytes, said)? {
                manifest::Document::Manifest(manifest) => return Ok(manifest),
                manifest::Document::Index(index) => index,
            };
            let chosen = index.select(machine, None)?;
            let name = chosen.digest.to_string();
            document = session.manifest(&name, IMAGE_MANIFEST_MAX_BYTES).await?;
            check_size(session, chosen, &document.bytes)?;
        }
        Err(super::too_deep())
    }

    async fn config(
        &self,
        session: &Session,
        descriptor: &Descriptor,
    ) -> Result<(ImageConfig, Vec<Digest>), ImageError> {
        let bytes = session.small_blob(descriptor.digest, IMAGE_CONFIG_MAX_BYTES).await?;
        check_size(session, descriptor, &bytes)?;
        ImageConfig::parse(&bytes)
    }

    fn blobs(
        &self,
        session: &Arc<Session>,
        descriptors: &[Descriptor],
    ) -> Result<Vec<RegistryBlob>, RegistryError> {
        let permits = Arc::new(Semaphore::new(REGISTRY_DOWNLOADS_MAX));
        let mut spooled = self.spooled.lock().unwrap_or_else(PoisonError::into_inner);
        *spooled = descriptors.iter().map(|descriptor| descriptor.digest).collect();
        let blob = |descriptor: &Descriptor| {
            let Descriptor { digest, size_bytes, .. } = *descriptor;
            if size_bytes > REGISTRY_LAYER_MAX_BYTES {
                return Err(RegistryError::LayerTooLarge { layer: digest, size_bytes });
            }
            let (session, permits) = (Arc::clone(session), Arc::clone(&permits));
            let spool = Arc::clone(&self.registries.spool);
            let (owner, space) = (self.owner.clone(), Arc::clone(&self.space));
            Ok(RegistryBlob { session, spool, owner, space, permits, digest, size_bytes })
        };
        descriptors.iter().map(blob).collect()
    }
}

fn check_size(session: &Session, named: &Descriptor, bytes: &[u8]) -> Result<(), RegistryError> {
    let (expected, expected_bytes) = (named.digest, named.size_bytes);
    let found_bytes = bytes.len() as u64;
    if found_bytes == expected_bytes {
        Ok(())
    } else {
        Err(session.mismatch(Mismatch::Size { expected, expected_bytes, found_bytes }))
    }
}
