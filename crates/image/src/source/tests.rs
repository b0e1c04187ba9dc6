//! Images from all sources, made by hand and by common tools.

mod archives;
mod directories;
mod layouts;

use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::image::Progress;
use crate::layer::{LayerError, Target, apply};
use sandkeep_core::limits;
use sandkeep_storage::Whiteouts;
use sandkeep_tree::{Ids, archive::building::Tar};

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Two layers, of which the second hides something and links to the first.
fn layers() -> [Vec<u8>; 2] {
    let busybox = fs::read("/bin/busybox").unwrap_or_else(|_| b"#!/bin/sh".to_vec());
    let base = Tar::new().dir("bin").file("bin/busybox", busybox).dir("etc").file("etc/old", "1");
    let second = Tar::new()
        .dir("etc")
        .file("etc/.wh.old", "")
        .file("etc/new", "2")
        .hardlink("bin/sh", "bin/busybox");
    [base.end(), second.end()]
}

const APPLIED: [&str; 5] = ["bin", "bin/busybox", "bin/sh", "etc", "etc/new"];

fn config(layers: &[Vec<u8>], platform: &Platform) -> Vec<u8> {
    let diff_ids: Vec<_> = layers.iter().map(|layer| Digest::of(layer)).collect();
    let document = json!({
        "architecture": platform.architecture,
        "os": platform.os,
        "config": {
            "Env": ["PATH=/bin", "EMPTY=", "UNSET"],
            "Cmd": ["sh"],
            "Entrypoint": null,
            "User": "1000:1000",
            "WorkingDir": "/srv",
            "ExposedPorts": { "8080/tcp": {}, "53/udp": {} },
            "Labels": { "a": "b" },
        },
        "rootfs": { "type": "layers", "diff_ids": diff_ids },
        "history": [{ "created_by": "nobody" }],
    });
    serde_json::to_vec(&document).unwrap()
}

/// An OCI layout in the making.
struct Layout {
    top: TempDir,
    manifests: Vec<serde_json::Value>,
}

impl Layout {
    fn new() -> Self {
        let top = tempfile::tempdir().unwrap();
        fs::create_dir_all(top.path().join("blobs/sha256")).unwrap();
        fs::write(top.path().join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
        Self { top, manifests: Vec::new() }
    }

    fn path(&self) -> &Path {
        self.top.path()
    }

    fn blob_path(&self, digest: Digest) -> PathBuf {
        self.path().join("blobs/sha256").join(digest.hex())
    }

    fn blob(&self, media_type: &str, bytes: &[u8]) -> serde_json::Value {
        let digest = Digest::of(bytes);
        fs::write(self.blob_path(digest), bytes).unwrap();
        json!({ "mediaType": media_type, "digest": digest, "size": bytes.len() })
    }

    /// Adds an image of these layers, compressed.
    fn image(mut self, name: &str, layers: &[Vec<u8>], platform: &Platform) -> Self {
        let media = "application/vnd.oci.image";
        let config = self.blob(&format!("{media}.config.v1+json"), &config(layers, platform));
        let blobs: Vec<_> = layers
            .iter()
            .map(|layer| self.blob(&format!("{media}.layer.v1.tar+gzip"), &gzip(layer)))
            .collect();
        let media_type = format!("{media}.manifest.v1+json");
        let manifest = json!({ "schemaVersion": 2, "mediaType": media_type, "config": config, "layers": blobs });
        let mut named = self.blob(&media_type, &serde_json::to_vec(&manifest).unwrap());
        named["annotations"] = json!({ "org.opencontainers.image.ref.name": name });
        named["platform"] = serde_json::to_value(platform).unwrap();
        self.manifests.push(named);
        self.write_index();
        self
    }

    fn write_index(&self) {
        let index = json!({ "schemaVersion": 2, "manifests": self.manifests });
        fs::write(self.path().join("index.json"), serde_json::to_vec(&index).unwrap()).unwrap();
    }
}

fn wanted(reference: Option<&str>) -> Wanted {
    Wanted { platform: Platform::here(), reference: reference.map(str::to_owned) }
}

fn elsewhere() -> Platform {
    Platform { os: "linux".into(), architecture: "sparc64".into(), variant: None }
}

/// Recognizes what lies at a path and tells what image it is.
async fn read(path: &Path, reference: Option<&str>) -> Result<(Form, Image), ImageError> {
    let spool = tempfile::tempdir().unwrap();
    let file = File::open(path).unwrap();
    let given = if file.metadata().unwrap().is_dir() {
        Given::Directory(file.into())
    } else {
        Given::File(file)
    };
    let spool_dir = SpoolDir::new(File::open(spool.path()).unwrap().into(), unlimited());
    let (form, source) = recognize(given, wanted(reference), &spool_dir)?;
    assert_eq!(fs::read_dir(spool.path()).unwrap().count(), 0, "what is spooled has no name");
    Ok((form, source.image().await?))
}

/// Applies all layers of an image into a new directory.
async fn applied(image: &Image) -> Result<TempDir, LayerError> {
    let root = tempfile::tempdir().unwrap();
    let directory = File::open(root.path()).unwrap();
    for layer in &image.layers {
        let blob = layer.blob.open(&Progress::unheard()).await.unwrap();
        let target = Target {
            root: directory.as_fd(),
            whiteouts: Whiteouts::Remove,
            lowers: &[],
            ids: Ids::Plain,
        };
        apply(
            blob,
            &layer.diff_id,
            &target,
            &crate::layer::SpaceCheck::endless(),
            &Progress::unheard(),
        )?;
    }
    Ok(root)
}

fn names(root: &Path) -> Vec<String> {
    let output = Command::new("find").arg(".").current_dir(root).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mut names: Vec<_> =
        text.lines().filter_map(|line| line.strip_prefix("./")).map(str::to_owned).collect();
    names.sort();
    names
}

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Whether a tool is installed; otherwise the test reports that it is skipped.
fn have(program: &str, test: &str) -> bool {
    let there = Command::new(program).arg("--version").output().is_ok();
    if !there {
        println!("SKIP {test}: {program} is not installed");
    }
    there
}

/// What went wrong, in all words.
fn words(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", words(source)),
        None => error.to_string(),
    }
}

async fn refusal(path: &Path, reference: Option<&str>) -> String {
    match read(path, reference).await {
        Ok((form, _)) => panic!("it was taken for a good {form:?}"),
        Err(error) => words(&error),
    }
}

/// Space of which there is enough.
fn unlimited() -> std::sync::Arc<sandkeep_core::ledger::Reservation> {
    let ledger = sandkeep_core::ledger::Ledger::unlimited();
    std::sync::Arc::new(ledger.open(&sandkeep_core::Owner::local()))
}

#[test]
fn an_archive_is_decoded_only_as_long_as_what_it_holds_may_fit() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bomb.tar.gz");
    let zeros = vec![0; usize::try_from(5 * limits::DRAFT_LOOK_BYTES).unwrap()];
    fs::write(&path, gzip(&Tar::new().file("zeros", zeros).end())).unwrap();
    let look = |max: u64| {
        let asked = Arc::new(AtomicU64::new(0));
        let seen = Arc::clone(&asked);
        let spool = SpoolDir::new(File::open(dir.path()).unwrap().into(), unlimited());
        let spool = spool.decoding_while(move |bytes| {
            seen.store(bytes, Ordering::Relaxed);
            if bytes > max { Err(std::io::ErrorKind::StorageFull.into()) } else { Ok(()) }
        });
        let given = Given::File(File::open(&path).unwrap());
        let found = recognize(given, wanted(None), &spool).map(|(form, _)| form);
        (found, asked.load(Ordering::Relaxed))
    };
    assert_eq!(look(u64::MAX).0.unwrap(), Form::Tar);
    let (refused, decoded) = look(limits::DRAFT_LOOK_BYTES);
    assert!(refused.is_err());
    assert!(decoded < 3 * limits::DRAFT_LOOK_BYTES, "{decoded} bytes were decoded");
}
