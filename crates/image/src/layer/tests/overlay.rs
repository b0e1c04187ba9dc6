//! A real overlay compared with a tree without one: the same layers must result in the same files.

use std::process::Command;

use proptest::prelude::*;

use super::*;

/// Lists a tree as a sandbox would see it, in every respect that a layer can set.
const LIST: &str = r#"find . -mindepth 1 -printf '%P %y %m %U:%G %T@ %l\n' | sort;
    find . -type f | sort | while read -r f; do echo "$f: $(cat "$f")"; done"#;

fn shell(script: &str, directory: &Path) -> String {
    let output = Command::new("sh").args(["-c", script]).current_dir(directory).output().unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Mounts the layers, lowest first, from inside a user namespace, as a launcher does.
fn seen_through_overlay(top: &Path, layers: &[std::path::PathBuf]) -> String {
    for name in ["upper", "work", "merged"] {
        let _ = fs::remove_dir_all(top.join(name));
        fs::create_dir(top.join(name)).unwrap();
    }
    let lowers: Vec<_> = layers.iter().rev().map(|path| path.to_str().unwrap()).collect();
    let script = format!(
        "mount -t overlay overlay -o userxattr,lowerdir={},upperdir=upper,workdir=work merged && cd merged && {LIST}",
        lowers.join(":")
    );
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "--", "sh", "-c", &script])
        .current_dir(top)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Applies layers both ways. A layer that is refused must be refused by both.
fn compare(layers: &[Vec<u8>]) {
    let plain = World::new();
    let top = tempfile::tempdir().unwrap();
    let mut paths: Vec<std::path::PathBuf> = Vec::new();
    for (number, layer) in layers.iter().enumerate() {
        let path = top.path().join(format!("layer{number}"));
        fs::create_dir(&path).unwrap();
        let open = |path: &std::path::PathBuf| OwnedFd::from(File::open(path).unwrap());
        let lowers: Vec<_> = visible(&paths).iter().map(open).collect();
        let overlaid = apply_at(&path, layer.clone(), Whiteouts::Overlay, &lowers);
        let tree = plain.apply(layer.clone());
        assert_eq!(overlaid.is_ok(), tree.is_ok(), "{overlaid:?} but {tree:?}");
        if tree.is_err() {
            return;
        }
        paths.push(path);
        let merged = seen_through_overlay(top.path(), visible(&paths));
        assert_eq!(merged, shell(LIST, &plain.root()), "after layer {number}");
    }
}

/// Without the layers that one above hides altogether, as the storage has it.
fn visible(paths: &[std::path::PathBuf]) -> &[std::path::PathBuf] {
    let hides = |path: &std::path::PathBuf| {
        rustix::fs::getxattr(path, sandkeep_tree::OPAQUE, &mut [0_u8; 1]).is_ok()
    };
    &paths[paths.iter().rposition(hides).unwrap_or(0)..]
}

fn can_mount() -> bool {
    let able = rustix::process::geteuid().is_root();
    if !able {
        println!("SKIP an_overlay_shows_what_a_tree_holds: the layers of this test are root's");
    }
    able
}

#[test]
fn an_overlay_of_typical_layers_shows_what_a_tree_holds() {
    if !can_mount() {
        return;
    }
    let base = Tar::new()
        .dir_mode("tmp", 0o1777)
        .dir("usr")
        .dir("usr/lib")
        .symlink("lib", "usr/lib")
        .file("usr/lib/a", "1")
        .dir("etc")
        .file("etc/one", "1")
        .file("etc/two", "2")
        .dir("var")
        .dir("var/cache")
        .file("var/cache/old", "x");
    let second = Tar::new()
        .file("lib/b", "through a link below")
        .file("tmp/x", "in a directory it does not describe")
        .file("etc/.wh.one", "")
        .dir("var")
        .dir("var/cache")
        .file("var/cache/.wh..wh..opq", "")
        .file("var/cache/new", "y")
        .hardlink("linked", "etc/two");
    let third = Tar::new()
        .file("etc/one", "again")
        .file(".wh.var", "")
        .file("var/fresh", "z")
        .file("usr", "no longer a directory");
    let fourth =
        Tar::new().dir("usr").file("usr/new", "a directory again").hardlink("etc/three", "linked");
    let fifth = Tar::new().file(".wh..wh..opq", "").dir("etc").file("etc/only", "");
    compare(&[base.end(), second.end(), third.end(), fourth.end(), fifth.end()]);
}

/// Entries that get in each other's way as much as possible.
fn entry() -> impl Strategy<Value = (u8, String, String)> {
    let name = prop_oneof!["[ab]", "[ab]/[ab]", "[ab]/[ab]/[ab]"];
    (0_u8..9, name.clone(), name)
}

fn add(tar: Tar, (kind, name, target): &(u8, String, String)) -> Tar {
    let (parent, base) = name.rsplit_once('/').map_or(("", name.as_str()), |(p, b)| (p, b));
    let within = |base: &str| format!("{parent}/{base}");
    match kind {
        0 | 1 => tar.dir_mode(name, if *kind == 0 { 0o755 } else { 0o1700 }),
        2 | 3 => tar.file(name, target.as_bytes()),
        4 => tar.symlink(name, target),
        5 => tar.symlink(name, &format!("/{target}")),
        6 => tar.hardlink(name, target),
        7 => tar.file(within(&format!(".wh.{base}")), ""),
        _ => tar.file(within(".wh..wh..opq"), ""),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_overlay_of_any_layers_shows_what_a_tree_holds(
        layers in proptest::collection::vec(proptest::collection::vec(entry(), 0..7), 1..5)
    ) {
        if can_mount() {
            let built = |entries: &Vec<_>| entries.iter().fold(Tar::new(), add).end();
            compare(&layers.iter().map(built).collect::<Vec<_>>());
        }
    }
}
