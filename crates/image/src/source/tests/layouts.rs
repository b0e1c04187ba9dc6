//! OCI layouts.

use super::*;
use crate::image::{ExposedPort, Protocol};

#[tokio::test]
async fn a_layout_is_an_image_with_its_config_and_layers() {
    let layout = Layout::new().image("one:1", &layers(), &Platform::here());
    let (form, image) = read(layout.path(), None).await.unwrap();
    assert_eq!(form, Form::OciLayout);
    let config = &image.config;
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(config.env, [pair("PATH", "/bin"), pair("EMPTY", "")]);
    assert_eq!((config.cmd.as_slice(), config.entrypoint.len()), (&["sh".to_owned()][..], 0));
    assert_eq!(config.user.as_deref(), Some("1000:1000"));
    assert_eq!(config.working_dir.as_deref(), Some("/srv"));
    let ports = [
        ExposedPort { port: 53, protocol: Protocol::Udp },
        ExposedPort { port: 8080, protocol: Protocol::Tcp },
    ];
    assert_eq!(config.exposed_ports, ports);
    assert_eq!(config.labels["a"], "b");
    assert_eq!(names(applied(&image).await.unwrap().path()), APPLIED);
}

#[tokio::test]
async fn a_layout_may_be_a_tar_compressed_or_not() {
    let layout = Layout::new().image("one:1", &layers(), &Platform::here());
    let place = tempfile::tempdir().unwrap();
    let tar = place.path().join("layout.tar");
    run("tar", &["-C", layout.path().to_str().unwrap(), "-cf", tar.to_str().unwrap(), "."]);
    let compressed = place.path().join("layout.tar.gz");
    fs::write(&compressed, gzip(&fs::read(&tar).unwrap())).unwrap();
    for path in [tar, compressed] {
        let (form, image) = read(&path, None).await.unwrap();
        assert_eq!(form, Form::OciLayout);
        assert_eq!(names(applied(&image).await.unwrap().path()), APPLIED);
    }
}

#[tokio::test]
async fn of_several_platforms_this_machines_is_taken() {
    let other = [Tar::new().file("other", "").end()];
    let layout =
        Layout::new().image("one", &other, &elsewhere()).image("one", &layers(), &Platform::here());
    let (_, image) = read(layout.path(), None).await.unwrap();
    assert_eq!(image.layers.len(), 2);
}

#[tokio::test]
async fn an_index_within_an_index_leads_to_the_image() {
    let mut layout = Layout::new().image("one", &layers(), &Platform::here());
    let inner = json!({ "schemaVersion": 2, "manifests": layout.manifests });
    let bytes = serde_json::to_vec(&inner).unwrap();
    layout.manifests = vec![layout.blob("application/vnd.oci.image.index.v1+json", &bytes)];
    layout.write_index();
    assert_eq!(read(layout.path(), None).await.unwrap().1.layers.len(), 2);
}

#[tokio::test]
async fn an_image_for_other_machines_is_refused_with_a_list_of_what_there_is() {
    let layout = Layout::new().image("one", &layers(), &elsewhere());
    let refused = refusal(layout.path(), None).await;
    assert!(refused.contains("there is linux/sparc64"), "{refused}");
    assert!(refused.contains(&Platform::here().to_string()), "{refused}");
}

#[tokio::test]
async fn an_image_is_found_by_its_name() {
    let one = [Tar::new().file("one", "").end()];
    let two = [Tar::new().file("two", "").end()];
    let here = Platform::here();
    let layout = Layout::new().image("a:1", &one, &here).image("a:2", &two, &here);
    let (_, image) = read(layout.path(), Some("a:2")).await.unwrap();
    assert_eq!(names(applied(&image).await.unwrap().path()), ["two"]);
    let refused = refusal(layout.path(), Some("a:3")).await;
    assert!(refused.contains("\"a:3\"; there is a:1, a:2"), "{refused}");
}

#[tokio::test]
async fn what_was_damaged_is_refused() {
    let damage = |digest: fn(&Layout) -> Digest, change: fn(Vec<u8>) -> Vec<u8>| {
        let layout = Layout::new().image("one", &layers(), &Platform::here());
        let path = layout.blob_path(digest(&layout));
        fs::write(&path, change(fs::read(&path).unwrap())).unwrap();
        layout
    };
    let manifest = |layout: &Layout| {
        serde_json::from_value::<Digest>(layout.manifests[0]["digest"].clone()).unwrap()
    };
    let config = |_: &Layout| Digest::of(&config(&layers(), &Platform::here()));
    let flip = |mut bytes: Vec<u8>| {
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        bytes
    };
    let cut = |mut bytes: Vec<u8>| {
        bytes.pop();
        bytes
    };
    for digest in [manifest, config] {
        assert!(refusal(damage(digest, flip).path(), None).await.contains("damaged or exchanged"));
        assert!(refusal(damage(digest, cut).path(), None).await.contains("bytes"));
    }
    let layer = |_: &Layout| Digest::of(&gzip(&layers()[0]));
    assert!(refusal(damage(layer, cut).path(), None).await.contains("bytes"));
    let layout = damage(layer, flip);
    let (_, image) = read(layout.path(), None).await.unwrap();
    applied(&image).await.expect_err("a layer that is not what its digest says");
}

#[tokio::test]
async fn links_in_a_layout_are_not_followed() {
    let layout = Layout::new().image("one", &layers(), &Platform::here());
    let path = layout.blob_path(Digest::of(&gzip(&layers()[1])));
    let elsewhere = layout.path().join("elsewhere");
    fs::rename(&path, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
    let refused = refusal(layout.path(), None).await;
    assert!(refused.contains("cannot read"), "{refused}");
    fs::remove_file(&path).unwrap();
    assert!(refusal(layout.path(), None).await.contains("is missing"));
}

#[tokio::test]
async fn a_config_that_names_other_layers_is_refused() {
    let mut layout = Layout::new();
    let config = layout
        .blob("application/vnd.oci.image.config.v1+json", &config(&layers(), &Platform::here()));
    let manifest = json!({ "schemaVersion": 2, "config": config, "layers": [] });
    let bytes = serde_json::to_vec(&manifest).unwrap();
    layout.manifests = vec![layout.blob("application/vnd.oci.image.manifest.v1+json", &bytes)];
    layout.write_index();
    assert!(refusal(layout.path(), None).await.contains("it has 0 layers, and its config names 2"));
}

#[tokio::test]
async fn schema_1_is_refused_by_name() {
    let layout = Layout::new();
    let old = json!({ "schemaVersion": 1, "fsLayers": [{ "blobSum": Digest::of(b"") }] });
    fs::write(layout.path().join("index.json"), serde_json::to_vec(&old).unwrap()).unwrap();
    assert!(refusal(layout.path(), None).await.contains("schema 1"));
}
