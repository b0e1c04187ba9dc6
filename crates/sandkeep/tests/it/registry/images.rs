//! Images built here: as documents and blobs, and as a layout that skopeo pushes.

use std::io::Write;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use sandkeep_image::{
    image::Platform,
    manifest::{OCI_INDEX, OCI_MANIFEST},
};
use sandkeep_tree::digest::Digest;
use serde_json::{Value, json};

/// One image in all its parts.
#[derive(Clone)]
pub struct Made {
    pub manifest: Vec<u8>,
    pub config: Vec<u8>,
    /// Compressed.
    pub layers: Vec<Vec<u8>>,
    pub diff_ids: Vec<Digest>,
    platform: Platform,
}

/// A layer's archive with these files.
pub fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        builder.append_data(&mut header, path, *content).expect("an archive in memory");
    }
    builder.into_inner().expect("an archive in memory")
}

/// Bytes that no compression makes fewer.
pub fn noise(bytes: usize) -> Vec<u8> {
    let mut noise = vec![0; bytes];
    getrandom::fill(&mut noise).expect("random bytes");
    noise
}

fn compressed(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).expect("written to memory");
    encoder.finish().expect("written to memory")
}

pub fn descriptor(media_type: &str, content: &[u8]) -> Value {
    json!({ "mediaType": media_type, "digest": Digest::of(content), "size": content.len() })
}

impl Made {
    pub fn of(archives: &[Vec<u8>]) -> Self {
        Self::for_platform(archives, &Platform::here())
    }

    pub fn for_platform(archives: &[Vec<u8>], platform: &Platform) -> Self {
        let diff_ids: Vec<Digest> = archives.iter().map(|archive| Digest::of(archive)).collect();
        let layers: Vec<Vec<u8>> = archives.iter().map(|archive| compressed(archive)).collect();
        let config = json!({
            "os": platform.os,
            "architecture": platform.architecture,
            "config": { "Env": ["A=b"], "Cmd": ["/bin/tool"], "User": "1000", "WorkingDir": "/srv" },
            "rootfs": { "type": "layers", "diff_ids": diff_ids },
        });
        let config = serde_json::to_vec(&config).expect("JSON");
        let manifest = manifest(&config, &layers);
        Self { manifest, config, layers, diff_ids, platform: platform.clone() }
    }

    pub fn blobs(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.layers.iter().chain([&self.config])
    }

    /// What an index says of it.
    pub fn entry(&self) -> Value {
        let mut entry = descriptor(OCI_MANIFEST, &self.manifest);
        entry["platform"] = json!(self.platform);
        entry
    }
}

fn manifest(config: &[u8], layers: &[Vec<u8>]) -> Vec<u8> {
    let layer = |bytes: &Vec<u8>| descriptor("application/vnd.oci.image.layer.v1.tar+gzip", bytes);
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": descriptor("application/vnd.oci.image.config.v1+json", config),
        "layers": layers.iter().map(layer).collect::<Vec<_>>(),
    });
    serde_json::to_vec(&manifest).expect("JSON")
}

pub fn index(entries: Vec<Value>) -> Vec<u8> {
    let index = json!({ "schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries });
    serde_json::to_vec(&index).expect("JSON")
}

/// Writes an OCI layout: of one image, or of an index over several, called `it`.
pub fn write_layout(directory: &Path, images: &[&Made]) {
    let blobs = directory.join("blobs/sha256");
    std::fs::create_dir_all(&blobs).expect("a directory");
    let keep = |bytes: &[u8]| {
        std::fs::write(blobs.join(Digest::of(bytes).hex()), bytes).expect("a file");
    };
    for image in images {
        image.blobs().chain([&image.manifest]).for_each(|bytes| keep(bytes));
    }
    let mut entry = match images {
        [one] => one.entry(),
        several => {
            let inner = index(several.iter().map(|image| image.entry()).collect());
            keep(&inner);
            descriptor(OCI_INDEX, &inner)
        }
    };
    entry["annotations"] = json!({ "org.opencontainers.image.ref.name": "it" });
    std::fs::write(directory.join("index.json"), index(vec![entry])).expect("a file");
    let version = json!({ "imageLayoutVersion": "1.0.0" });
    std::fs::write(directory.join("oci-layout"), version.to_string()).expect("a file");
}
