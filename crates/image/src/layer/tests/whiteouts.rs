//! How a layer hides entries of those below.

use super::*;

fn above(lower: Tar, layer: Tar) -> Vec<String> {
    let world = World::new();
    world.apply(lower.end()).unwrap();
    world.after(layer)
}

fn base() -> Tar {
    Tar::new().dir("d").file("d/a", "1").dir("d/sub").file("d/sub/b", "2").file("e", "3")
}

#[test]
fn a_whiteout_removes_a_file_or_a_whole_directory() {
    let expected = ["d/ 755", "d/sub/ 755", "d/sub/b 644 2", "e 644 3"];
    assert_eq!(above(base(), Tar::new().file("d/.wh.a", "")), expected);
    assert_eq!(above(base(), Tar::new().file(".wh.d", "")), ["e 644 3"]);
}

#[test]
fn a_whiteout_of_nothing_does_nothing() {
    assert_eq!(above(base(), Tar::new().file("d/.wh.x", "")).len(), 5);
    assert_eq!(above(base(), Tar::new().file("nowhere/.wh.x", "")).len(), 5);
}

#[test]
fn an_opaque_directory_keeps_what_its_own_layer_brings_whatever_comes_first() {
    let expected = ["d/ 755", "d/new 644 4", "e 644 3"];
    let opaque = "d/.wh..wh..opq";
    assert_eq!(above(base(), Tar::new().dir("d").file(opaque, "").file("d/new", "4")), expected);
    assert_eq!(above(base(), Tar::new().dir("d").file("d/new", "4").file(opaque, "")), expected);
}

#[test]
fn a_whiteout_hides_nothing_of_its_own_layer() {
    let expected = ["d/ 755", "d/new 644 4", "e 644 3"];
    assert_eq!(above(base(), Tar::new().file("d/new", "4").file(".wh.d", "")), expected);
    assert_eq!(above(base(), Tar::new().file(".wh.d", "").file("d/new", "4")), expected);
    assert_eq!(above(Tar::new(), Tar::new().file("a", "1").file(".wh.a", "")), ["a 644 1"]);
}

#[test]
fn an_opaque_root_leaves_only_what_its_layer_brings() {
    assert_eq!(above(base(), Tar::new().file("x", "").file(".wh..wh..opq", "")), ["x 644 "]);
}

#[test]
fn a_whiteout_does_not_reach_out_of_the_tree() {
    let world = World::new();
    let top = world.top.path().to_str().unwrap().to_owned();
    let layer = Tar::new()
        .symlink("out", &top)
        .file("out/.wh.outside", "")
        .file("../.wh.outside", "")
        .file("out/.wh..wh..opq", "");
    assert_eq!(world.after(layer), [format!("out -> {top}")]);
}

#[test]
fn whiteouts_that_name_nothing_are_refused() {
    for name in [".wh.", ".wh..", "a/.wh..."] {
        let refused = refusal(World::new().apply(Tar::new().file(name, "").end()));
        assert!(refused.contains("whiteout of nothing"), "{refused}");
    }
}

#[test]
fn what_old_drivers_left_behind_is_passed_over() {
    assert_eq!(above(base(), Tar::new().file(".wh..wh.aufs", "").dir("d/.wh..wh.plnk")).len(), 5);
}

#[test]
fn a_deep_tree_is_removed_whole() {
    let world = World::new();
    let mut directory = File::open(world.root()).map(OwnedFd::from).unwrap();
    rustix::fs::mkdirat(&directory, "deep", 0o755.into()).unwrap();
    for _ in 0..3000 {
        directory = sandkeep_tree::beneath::open_dir(&directory, b"deep").unwrap();
        rustix::fs::mkdirat(&directory, "deep", 0o755.into()).unwrap();
    }
    assert_eq!(world.after(Tar::new().file(".wh.deep", "")), Vec::<String>::new());
}

#[test]
fn marks_for_an_overlay_are_written_without_a_look_below() {
    let world = World::new();
    let layer = Tar::new().dir("d").file("d/.wh.gone", "").dir("o").file("o/.wh..wh..opq", "");
    let applied = world.apply_with(layer.end(), Whiteouts::Overlay, &[]).unwrap();
    assert_eq!(world.listing(), ["d/ 755", "d/gone device 0", "o/ 755"]);
    let mut value = [0; 1];
    rustix::fs::getxattr(world.root().join("o"), "user.overlay.opaque", &mut value).unwrap();
    assert_eq!(value, *b"y");
    assert_eq!(applied.stands, Stands::Alone);
}

#[test]
fn a_layer_that_leans_on_those_below_says_so() {
    let stands = |layer: Tar| {
        let world = World::new();
        world.apply_with(layer.end(), Whiteouts::Overlay, &[]).unwrap().stands
    };
    assert_eq!(stands(Tar::new().dir("a").file("a/b", "").hardlink("c", "a/b")), Stands::Alone);
    assert_eq!(stands(Tar::new().file(".wh.x", "").symlink("l", "a")), Stands::Alone);
    assert_eq!(stands(Tar::new().file("a/b", "")), Stands::OnWhatIsBelow);
    assert_eq!(stands(Tar::new().file("a/.wh.b", "")), Stands::OnWhatIsBelow);
    let names = [id_above(&[], &Digest::of(b"x")), id_above(&[Digest::of(b"")], &Digest::of(b"x"))];
    assert!(names[0] != names[1] && !names.contains(&Digest::of(b"x")));
}
