//! A directory of the host as an image with one layer.

use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use async_trait::async_trait;

use super::{Source, offload};
use crate::image::{Blob, Image, ImageError, Layer, Progress};
use sandkeep_tree::{archive::TreeArchive, digest::Hasher};

/// Reads the directory once to compute its digest, and again when the layer is opened. If it changes in between,
/// applying the layer fails.
pub struct DirectorySource {
    directory: Arc<OwnedFd>,
}

impl DirectorySource {
    pub fn new(directory: Arc<OwnedFd>) -> Self {
        Self { directory }
    }
}

#[async_trait]
impl Source for DirectorySource {
    async fn image(&self) -> Result<Image, ImageError> {
        let blob = DirectoryBlob { directory: Arc::clone(&self.directory) };
        let (blob, diff_id) = offload(move || {
            let mut hasher = Hasher::new();
            blob.archive()
                .and_then(|mut archive| io::copy(&mut archive, &mut hasher))
                .map_err(failed)?;
            Ok((blob, hasher.finish()))
        })
        .await?;
        Ok(Image::of_one(Layer { diff_id, blob: Arc::new(blob) }))
    }
}

struct DirectoryBlob {
    directory: Arc<OwnedFd>,
}

impl DirectoryBlob {
    fn archive(&self) -> io::Result<TreeArchive> {
        TreeArchive::whole(self.directory.try_clone()?)
    }
}

#[async_trait]
impl Blob for DirectoryBlob {
    fn size_bytes(&self) -> Option<u64> {
        None
    }

    async fn open(&self, _: &Progress) -> Result<Box<dyn Read + Send>, ImageError> {
        let blob = Self { directory: Arc::clone(&self.directory) };
        let archive = offload(move || blob.archive().map_err(failed)).await?;
        Ok(Box::new(archive))
    }
}

fn failed(source: io::Error) -> ImageError {
    ImageError::Io { what: "the directory".to_owned(), source }
}
