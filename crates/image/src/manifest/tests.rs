//! Documents of registries and layouts, valid and invalid.

use serde_json::json;

use super::*;

fn descriptor(platform: Option<(&str, &str, Option<&str>)>) -> Descriptor {
    Descriptor {
        media_type: OCI_MANIFEST.to_owned(),
        digest: Digest::of(format!("{platform:?}").as_bytes()),
        size_bytes: 1,
        platform: platform.map(|(os, architecture, variant)| Platform {
            os: os.to_owned(),
            architecture: architecture.to_owned(),
            variant: variant.map(str::to_owned),
        }),
        annotations: None,
    }
}

fn parse(document: &serde_json::Value, media_type: Option<&str>) -> Result<Document, ImageError> {
    Document::parse(&serde_json::to_vec(document).unwrap(), media_type)
}

fn amd64() -> Platform {
    Platform { os: "linux".to_owned(), architecture: "amd64".to_owned(), variant: None }
}

#[test]
fn both_families_of_documents_are_read() {
    let blob = json!({ "digest": Digest::of(b""), "size": 0, "unknown": [] });
    let manifest = json!({ "schemaVersion": 2, "config": blob, "layers": [blob], "subject": null });
    for media_type in [None, Some(OCI_MANIFEST), Some(DOCKER_MANIFEST), Some("text/plain")] {
        assert!(
            matches!(parse(&manifest, media_type), Ok(Document::Manifest(_))),
            "{media_type:?}"
        );
    }
    let index = json!({ "schemaVersion": 2, "manifests": [blob] });
    for media_type in [None, Some(OCI_INDEX), Some(DOCKER_INDEX)] {
        assert!(matches!(parse(&index, media_type), Ok(Document::Index(_))), "{media_type:?}");
    }
}

#[test]
fn documents_that_can_be_taken_for_two_things_are_refused() {
    let blob = json!({ "digest": Digest::of(b""), "size": 0 });
    let both = json!({ "config": blob, "layers": [], "manifests": [] });
    parse(&both, None).expect_err("both a manifest and an index");
    let manifest = json!({ "mediaType": OCI_MANIFEST, "config": blob, "layers": [] });
    parse(&manifest, Some(DOCKER_MANIFEST)).expect_err("announced as something else");
    parse(&manifest, Some(OCI_INDEX)).expect_err("announced as an index");
    let unknown = json!({ "mediaType": "application/x", "config": blob, "layers": [] });
    parse(&unknown, None).expect_err("of a kind that nobody knows");
}

#[test]
fn schema_1_and_encrypted_layers_are_refused_by_name() {
    let old = json!({ "schemaVersion": 1, "fsLayers": [] });
    assert!(matches!(parse(&old, None), Err(ImageError::SchemaOne)));
    let blob = json!({ "digest": Digest::of(b""), "size": 0 });
    let kind = "application/vnd.oci.image.layer.v1.tar+gzip+encrypted";
    let layer = json!({ "mediaType": kind, "digest": Digest::of(b""), "size": 0 });
    let error = parse(&json!({ "config": blob, "layers": [layer] }), None).unwrap_err();
    assert!(error.to_string().contains("encrypted"), "{error}");
}

#[test]
fn documents_beyond_all_measure_are_refused() {
    let blob = json!({ "digest": Digest::of(b""), "size": 0 });
    let layers = vec![blob.clone(); limits::IMAGE_LAYERS_MAX + 1];
    parse(&json!({ "config": blob, "layers": layers }), None).expect_err("too many layers");
    let manifests = vec![blob; limits::IMAGE_INDEX_MAX + 1];
    parse(&json!({ "manifests": manifests }), None).expect_err("too many manifests");
    let large = vec![b' '; limits::IMAGE_MANIFEST_MAX_BYTES + 1];
    Document::parse(&large, None).expect_err("too many bytes");
    Document::parse(b"[[[[", None).expect_err("no JSON");
}

#[test]
fn the_platform_that_fits_best_is_chosen() {
    let index = Index {
        manifests: vec![
            descriptor(Some(("linux", "amd64", Some("v3")))),
            descriptor(Some(("unknown", "unknown", None))),
            descriptor(Some(("linux", "arm64", Some("v8")))),
            descriptor(Some(("linux", "amd64", None))),
            descriptor(Some(("windows", "amd64", None))),
        ],
    };
    assert_eq!(index.select(&amd64(), None).unwrap(), &index.manifests[3]);
    let arm64 = Platform { architecture: "arm64".to_owned(), ..amd64() };
    assert_eq!(index.select(&arm64, None).unwrap(), &index.manifests[2]);
    let s390x = Platform { architecture: "s390x".to_owned(), ..amd64() };
    let error = index.select(&s390x, None).unwrap_err().to_string();
    let there = "linux/amd64/v3, linux/arm64/v8, linux/amd64, windows/amd64";
    assert_eq!(error, format!("there is no image for linux/s390x; there is {there}"));
}

#[test]
fn one_manifest_that_names_no_platform_fits_and_several_do_not() {
    let mut index = Index { manifests: vec![descriptor(None)] };
    assert_eq!(index.select(&amd64(), None).unwrap(), &index.manifests[0]);
    index.manifests.push(descriptor(None));
    assert!(matches!(index.select(&amd64(), None), Err(ImageError::SeveralImages { .. })));
    index.manifests.clear();
    let error = index.select(&amd64(), None).unwrap_err().to_string();
    assert!(error.contains("none at all"), "{error}");
}

#[test]
fn names_mean_the_same_image_with_and_without_what_docker_fills_in() {
    for (one, other) in [
        ("busybox", "busybox:latest"),
        ("docker.io/library/busybox:1", "busybox:1"),
        ("docker.io/me/app", "me/app:latest"),
        ("localhost:5000/app", "localhost:5000/app:latest"),
    ] {
        assert!(same_image(one, other), "{one} {other}");
    }
    assert!(!same_image("busybox:1", "busybox"));
}
