//! Where entries are written.

use super::*;

#[test]
fn entries_become_files_directories_and_links() {
    let layer = Tar::new()
        .dir("etc/")
        .file("etc/passwd", "root")
        .symlink("etc/link", "/etc/passwd")
        .hardlink("etc/same", "etc/passwd")
        .entry(Tar::header(b'6', "fifo", 0), b"");
    let expected = [
        "etc/ 755",
        "etc/link -> /etc/passwd",
        "etc/passwd 644 root",
        "etc/same 644 root",
        "fifo| 644",
    ];
    assert_eq!(World::new().after(layer), expected);
}

#[test]
fn absolute_names_and_names_that_lead_up_stay_beneath_the_root() {
    let layer = Tar::new()
        .file("/absolute", "1")
        .file("../up", "2")
        .file("a/../../../b", "3")
        .file("./dot/./x", "4");
    let expected = ["absolute 644 1", "b 644 3", "dot/ 755", "dot/x 644 4", "up 644 2"];
    assert_eq!(World::new().after(layer), expected);
}

#[test]
fn a_link_out_of_the_tree_is_followed_within_it() {
    let layer = Tar::new()
        .symlink("abs", "/target")
        .symlink("up", "../../../../../../target")
        .file("abs/one", "1")
        .file("up/two", "2");
    let expected = [
        "abs -> /target",
        "target/ 755",
        "target/one 644 1",
        "target/two 644 2",
        "up -> ../../../../../../target",
    ];
    assert_eq!(World::new().after(layer), expected);
}

#[test]
fn a_link_to_the_real_outside_leads_nowhere() {
    let world = World::new();
    let outside = world.top.path().to_str().unwrap().to_owned();
    let layer = Tar::new().symlink("out", &outside).file("out/outside", "changed");
    world.apply(layer.end()).unwrap();
    // The path of the host exists inside now, and is the only thing that was written to.
    assert!(world.listing().contains(&format!("{}/outside 644 changed", &outside[1..])));
}

#[test]
fn links_to_links_are_followed_and_circles_refused() {
    let world = World::new();
    let layer =
        Tar::new().symlink("a", "b/c").symlink("b", "d").symlink("d/c", "/e").file("a/f", "1");
    assert!(world.after(layer).contains(&"e/f 644 1".to_owned()));
    let circle = Tar::new().symlink("x", "y").symlink("y", "x").file("x/z", "");
    assert!(refusal(world.apply(circle.end())).contains("too many links"));
}

#[test]
fn missing_parents_are_made_for_root_0755() {
    assert_eq!(
        World::new().after(Tar::new().file("a/b/c", "")),
        ["a/ 755", "a/b/ 755", "a/b/c 644 "]
    );
}

#[test]
fn a_file_in_the_way_of_a_directory_is_named() {
    let layer = Tar::new().file("a", "").file("a/b", "");
    assert!(refusal(World::new().apply(layer.end())).contains("a on its way is not a directory"));
}

#[test]
fn of_two_entries_of_one_name_the_last_wins() {
    let world = World::new();
    assert_eq!(world.after(Tar::new().file("a", "1").file("a", "2")), ["a 644 2"]);
    assert_eq!(world.after(Tar::new().dir("a").file("a/x", "")), ["a/ 755", "a/x 644 "]);
    assert_eq!(world.after(Tar::new().dir("a").dir_mode("a", 0o700)), ["a/ 700", "a/x 644 "]);
    assert_eq!(world.after(Tar::new().file("a", "3")), ["a 644 3"]);
    assert_eq!(world.after(Tar::new().symlink("a", "b")), ["a -> b"]);
    // A directory takes the place of the link, not of what it leads to.
    assert_eq!(world.after(Tar::new().dir("b").dir("a")), ["a/ 755", "b/ 755"]);
}

#[test]
fn a_file_is_not_written_through_a_link_of_its_name() {
    let world = World::new();
    let layer = Tar::new().file("target", "kept").symlink("a", "target").file("a", "own");
    assert_eq!(world.after(layer), ["a 644 own", "target 644 kept"]);
}

#[test]
fn a_directory_replaced_by_a_link_is_not_remembered() {
    let layer = Tar::new().dir("d").file("d/1", "").symlink("d", "/e").file("d/2", "");
    assert_eq!(World::new().after(layer), ["d -> /e", "e/ 755", "e/2 644 "]);
}

#[test]
fn names_need_not_be_utf_8() {
    use std::os::unix::ffi::OsStrExt as _;
    let world = World::new();
    world.apply(Tar::new().file(b"caf\xE9", "x").end()).unwrap();
    let path = world.root().join(std::ffi::OsStr::from_bytes(b"caf\xE9"));
    assert_eq!(fs::read(path).unwrap(), b"x");
}

#[test]
fn names_that_no_file_can_have_are_refused() {
    let refused = |layer: Tar| refusal(World::new().apply(layer.end()));
    assert!(refused(Tar::new().file("", "")).contains("empty"));
    assert!(refused(Tar::new().file("/", "")).contains("only a directory can be the root"));
    assert!(refused(Tar::new().pax(&[("path", b"a\0b")]).file("x", "")).contains("NUL"));
    assert!(refused(Tar::new().pax(&[("path", &[b'a'; 300])]).file("x", "")).contains("too long"));
    assert!(refused(Tar::new().pax(&[("linkpath", b"a\0b")]).symlink("x", "y")).contains("NUL"));
    assert!(refused(Tar::new().symlink("x", "")).contains("empty"));
}

#[test]
fn long_names_of_both_kinds_are_whole() {
    let long = format!("{}/{}", "d".repeat(200), "n".repeat(250));
    let layer = Tar::new()
        .pax(&[("path", long.as_bytes())])
        .file("cut", "pax")
        .long(b'L', format!("{long}2").as_bytes())
        .file("cut", "gnu")
        .long(b'K', long.as_bytes())
        .symlink("s", "cut");
    let listing = World::new().after(layer);
    assert!(listing.contains(&format!("{long} 644 pax")));
    assert!(listing.contains(&format!("{long}2 644 gnu")));
    assert!(listing.contains(&format!("s -> {long}")));
}
