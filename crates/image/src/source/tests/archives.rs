//! Tars of trees, and what `docker save` writes.

use super::*;

fn saved(layers: &[Vec<u8>], tags: &[&str], extra: Tar) -> Vec<u8> {
    let config = config(layers, &Platform::here());
    let config_name = format!("{}.json", Digest::of(&config).hex());
    let paths: Vec<_> =
        (0..layers.len()).map(|number| format!("layer{number}/layer.tar")).collect();
    let manifest = json!([{ "Config": config_name, "RepoTags": tags, "Layers": paths }]);
    let tar = layers.iter().zip(&paths).fold(extra, |tar, (layer, path)| tar.file(path, layer));
    tar.file(config_name, config)
        .file("manifest.json", serde_json::to_vec(&manifest).unwrap())
        .end()
}

fn at(bytes: Vec<u8>) -> (TempDir, PathBuf) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("given");
    fs::write(&path, bytes).unwrap();
    (place, path)
}

#[tokio::test]
async fn a_saved_image_is_read_compressed_or_not() {
    let archive = saved(&layers(), &["busybox:1"], Tar::new());
    for bytes in [gzip(&archive), archive] {
        let (_place, path) = at(bytes);
        for reference in [None, Some("busybox:1"), Some("docker.io/library/busybox:1")] {
            let (form, image) = read(&path, reference).await.unwrap();
            assert_eq!(form, Form::DockerArchive);
            assert_eq!(image.config.user.as_deref(), Some("1000:1000"));
            assert_eq!(names(applied(&image).await.unwrap().path()), APPLIED);
        }
        assert!(refusal(&path, Some("other")).await.contains("there is busybox:1"));
    }
}

#[tokio::test]
async fn equal_layers_of_old_archives_are_names_for_each_other() {
    let layer = Tar::new().file("a", "1").end();
    let config = config(&[layer.clone(), layer.clone()], &Platform::here());
    let manifest =
        json!([{ "Config": "c.json", "RepoTags": null, "Layers": ["x/layer.tar", "y/layer.tar"] }]);
    let archive = Tar::new()
        .file("c.json", config)
        .file("x/layer.tar", layer)
        .symlink("y/layer.tar", "../x/layer.tar")
        .symlink("z", "/etc/passwd")
        .file("manifest.json", serde_json::to_vec(&manifest).unwrap());
    let (_place, path) = at(archive.end());
    let (_, image) = read(&path, None).await.unwrap();
    assert_eq!(names(applied(&image).await.unwrap().path()), ["a"]);
}

#[tokio::test]
async fn a_link_out_of_an_archive_leads_nowhere() {
    let manifest = json!([{ "Config": "c.json", "Layers": [] }]);
    let archive = Tar::new()
        .symlink("c.json", "../../../../../../../../etc/passwd")
        .file("manifest.json", serde_json::to_vec(&manifest).unwrap());
    let (_place, path) = at(archive.end());
    assert!(refusal(&path, None).await.contains("\"c.json\" of the image is missing"));
}

#[tokio::test]
async fn a_config_that_is_not_what_its_name_says_is_refused() {
    let name = format!("{}.json", Digest::of(b"other").hex());
    let manifest = json!([{ "Config": name, "Layers": [] }]);
    let archive = Tar::new()
        .file(&name, config(&[], &Platform::here()))
        .file("manifest.json", serde_json::to_vec(&manifest).unwrap());
    let (_place, path) = at(archive.end());
    assert!(refusal(&path, None).await.contains("damaged or exchanged"));
}

#[tokio::test]
async fn of_several_saved_images_one_must_be_named() {
    let image = |name: &str| json!({ "Config": "c", "RepoTags": [name], "Layers": [] });
    let manifest = json!([image("a:1"), image("b:1")]);
    let archive = Tar::new()
        .file("c", config(&[], &Platform::here()))
        .file("manifest.json", serde_json::to_vec(&manifest).unwrap());
    let (_place, path) = at(archive.end());
    assert!(refusal(&path, None).await.contains("say which: a:1, b:1"));
    assert_eq!(read(&path, Some("b:1")).await.unwrap().0, Form::DockerArchive);
}

#[tokio::test]
async fn newer_archives_are_layouts_as_well() {
    let layout = Layout::new();
    let layers = layers();
    let config = config(&layers, &Platform::here());
    layout.blob("", &config);
    let paths: Vec<_> = layers
        .iter()
        .map(|layer| {
            layout.blob("", layer);
            format!("blobs/sha256/{}", Digest::of(layer).hex())
        })
        .collect();
    let config_path = format!("blobs/sha256/{}", Digest::of(&config).hex());
    let manifest = json!([{ "Config": config_path, "RepoTags": ["x:1"], "Layers": paths }]);
    fs::write(layout.path().join("manifest.json"), serde_json::to_vec(&manifest).unwrap()).unwrap();
    let layout = layout.image("x:1", &layers, &Platform::here());
    let place = tempfile::tempdir().unwrap();
    let tar = place.path().join("saved.tar");
    run("tar", &["-C", layout.path().to_str().unwrap(), "-cf", tar.to_str().unwrap(), "."]);
    let (form, image) = read(&tar, Some("x:1")).await.unwrap();
    assert_eq!(form, Form::DockerArchive);
    assert_eq!(names(applied(&image).await.unwrap().path()), APPLIED);
}

#[tokio::test]
async fn what_skopeo_makes_of_an_image_is_the_same_image() {
    if !have("skopeo", "what_skopeo_makes_of_an_image_is_the_same_image") {
        return;
    }
    let layout = Layout::new().image("one", &layers(), &Platform::here());
    let (_, original) = read(layout.path(), None).await.unwrap();
    let place = tempfile::tempdir().unwrap();
    let from = format!("oci:{}:one", layout.path().display());
    let forms = [
        ("docker-archive", "docker.tar:busybox:1", "docker.tar", Form::DockerArchive),
        ("oci-archive", "oci.tar", "oci.tar", Form::OciLayout),
        ("oci", "layout", "layout", Form::OciLayout),
    ];
    for (transport, target, file, expected) in forms {
        let to = format!("{transport}:{}", place.path().join(target).display());
        run("skopeo", &["--insecure-policy", "copy", "--quiet", &from, &to]);
        let (form, image) = read(&place.path().join(file), None).await.unwrap();
        assert_eq!(form, expected);
        assert_eq!(image.config, original.config, "{transport}");
        let diff_ids = |image: &Image| image.layers.iter().map(|l| l.diff_id).collect::<Vec<_>>();
        assert_eq!(diff_ids(&image), diff_ids(&original), "{transport}");
        assert_eq!(names(applied(&image).await.unwrap().path()), APPLIED, "{transport}");
    }
}

#[tokio::test]
async fn a_tar_of_a_tree_is_one_layer_known_by_what_it_holds() {
    let tar = Tar::new().dir("etc").file("etc/a", "1").file("manifest.json", "no image's").end();
    for bytes in [tar.clone(), gzip(&tar), zstd::stream::encode_all(tar.as_slice(), 1).unwrap()] {
        let (_place, path) = at(bytes);
        let (form, image) = read(&path, None).await.unwrap();
        assert_eq!(form, Form::Tar);
        assert_eq!(image.layers[0].diff_id, Digest::of(&tar));
        assert_eq!(names(applied(&image).await.unwrap().path()), ["etc", "etc/a", "manifest.json"]);
    }
}

#[tokio::test]
async fn a_tar_that_was_cut_off_is_refused_even_between_two_entries() {
    let tar = Tar::new().file("a", "1").file("b", "2");
    for length in [1024, 1536, 100] {
        let (_place, path) = at(tar.clone().cut()[..length].to_vec());
        let refused = refusal(&path, None).await;
        assert!(refused.contains("cut off"), "{length}: {refused}");
    }
}

#[tokio::test]
async fn what_is_no_archive_is_said_to_be_none() {
    let (_place, path) = at(b"#!/bin/sh\necho this is no archive at all\n".repeat(40));
    assert!(refusal(&path, None).await.contains("it is no tar"));
}

#[tokio::test]
async fn what_gnu_tar_writes_in_all_its_forms_comes_out_as_it_was() {
    let tree = directories::tree();
    let place = tempfile::tempdir().unwrap();
    let expected = directories::listing(tree.path());
    for format in ["gnu", "pax", "ustar"] {
        let tar = place.path().join(format!("{format}.tar"));
        let (from, to) = (tree.path().to_str().unwrap(), tar.to_str().unwrap());
        let option = format!("--format={format}");
        let sparse: &[&str] = if format == "ustar" { &[] } else { &["--sparse"] };
        let rest = ["-C", from, &option, "--numeric-owner", "-cf", to, "."];
        run("tar", &[sparse, &rest].concat());
        let (_, image) = read(&tar, None).await.unwrap();
        let root = applied(&image).await.unwrap();
        assert_eq!(directories::listing(root.path()), expected, "{format}");
    }
}
