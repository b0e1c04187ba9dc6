//! Hard links, within a layer and to those below.

use super::*;

fn inode(path: &Path) -> u64 {
    fs::symlink_metadata(path).unwrap().ino()
}

#[test]
fn hard_links_share_their_file() {
    let world = World::new();
    world
        .apply(Tar::new().file("a", "1").hardlink("b", "/a").hardlink("d/c", "./b").end())
        .unwrap();
    let root = world.root();
    assert_eq!(inode(&root.join("a")), inode(&root.join("b")));
    assert_eq!(inode(&root.join("a")), inode(&root.join("d/c")));
}

#[test]
fn hard_links_reach_into_layers_below() {
    let world = World::new();
    world.apply(Tar::new().file("dir/a", "1").end()).unwrap();
    world.apply(Tar::new().hardlink("b", "dir/a").end()).unwrap();
    assert_eq!(inode(&world.root().join("dir/a")), inode(&world.root().join("b")));
}

#[test]
fn a_hard_link_to_a_link_is_not_followed() {
    let listing = World::new().after(Tar::new().symlink("s", "/etc/shadow").hardlink("h", "s"));
    assert_eq!(listing, ["h -> /etc/shadow", "s -> /etc/shadow"]);
}

#[test]
fn a_hard_link_through_a_link_stays_beneath_the_root() {
    let world = World::new();
    let top = world.top.path().to_str().unwrap().to_owned();
    let layer = Tar::new().symlink("out", &top).hardlink("stolen", "out/outside");
    assert!(refusal(world.apply(layer.end())).contains("which is not there"));
    let layer = Tar::new().hardlink("stolen", "../outside");
    assert!(refusal(world.apply(layer.end())).contains("which is not there"));
    world.listing();
}

#[test]
fn hard_links_that_make_no_sense_are_named() {
    let refused = |layer: Tar| refusal(World::new().apply(layer.end()));
    assert!(refused(Tar::new().hardlink("a", "b")).contains("\"b\", which is not there"));
    assert!(
        refused(Tar::new().dir("d").hardlink("a", "d")).contains("\"d\", which is a directory")
    );
    assert!(refused(Tar::new().hardlink("a", "/")).contains("links to the root"));
    assert!(refused(Tar::new().hardlink("a", "")).contains("empty"));
}

#[test]
fn a_hard_link_to_itself_changes_nothing() {
    assert_eq!(World::new().after(Tar::new().file("a", "1").hardlink("a", "./a")), ["a 644 1"]);
}

#[test]
fn a_hard_link_to_a_layer_below_an_overlay_brings_the_file() {
    let below = World::new();
    below.apply(Tar::new().dir_mode("d", 0o700).file("d/a", "1").end()).unwrap();
    let lowers = [File::open(below.root()).unwrap().into()];
    let world = World::new();
    let layer = Tar::new().hardlink("b", "d/a").end();
    let applied = world.apply_with(layer, Whiteouts::Overlay, &lowers).unwrap();
    assert_eq!(world.listing(), ["b 644 1", "d/ 700", "d/a 644 1"]);
    assert_eq!(inode(&world.root().join("b")), inode(&world.root().join("d/a")));
    assert_eq!(applied.stands, Stands::OnWhatIsBelow);
    assert_eq!(below.listing(), ["d/ 700", "d/a 644 1"], "the layer below stays as it is");
}

#[test]
fn a_link_to_a_sparse_file_below_leaves_its_holes() {
    let (below, above) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = File::create(below.path().join("sparse")).unwrap();
    let size_bytes = 1 << 40;
    file.set_len(size_bytes).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"end", size_bytes - 3).unwrap();
    let lowers = [OwnedFd::from(File::open(below.path()).unwrap())];
    let layer = Tar::new().hardlink("link", "sparse").end();
    let applied = apply_at(above.path(), layer, Whiteouts::Overlay, &lowers).unwrap();
    let copied = fs::metadata(above.path().join("link")).unwrap();
    let blocks = std::os::unix::fs::MetadataExt::blocks(&copied);
    assert_eq!((copied.len(), blocks * 512 < 1 << 20), (size_bytes, true), "{blocks} blocks");
    assert!(applied.bytes < 1 << 20, "{} bytes were copied", applied.bytes);
    let mut end = [0; 3];
    let link = File::open(above.path().join("link")).unwrap();
    std::os::unix::fs::FileExt::read_exact_at(&link, &mut end, size_bytes - 3).unwrap();
    assert_eq!(&end, b"end");
}
