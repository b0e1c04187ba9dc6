//! File metadata.

use rustix::fs::{XattrFlags, getxattr, setxattr};

use super::*;

fn xattr(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = [0; 256];
    let size = getxattr(path, name, &mut value).ok()?;
    Some(value[..size].to_vec())
}

/// Only root can give files away.
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn owners_modes_and_times_are_kept() {
    if !is_root() {
        println!("SKIP owners_modes_and_times_are_kept: only root can give files away");
        return;
    }
    let mut header = Tar::header(b'0', "a", 1);
    header.set_uid(1000);
    header.set_gid(65_535);
    header.set_mode(0o6755);
    let layer = Tar::new().pax(&[("mtime", b"1234.5")]).entry(header, b"x");
    let world = World::new();
    let applied = world.apply(layer.end()).unwrap();
    assert_eq!((applied.owners, applied.bytes, applied.entries), (Owners::Kept(Ids::Plain), 1, 1));
    let meta = fs::metadata(world.root().join("a")).unwrap();
    assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (1000, 65_535, 0o6755));
    assert_eq!((meta.mtime(), meta.mtime_nsec()), (1234, 500_000_000));
}

#[test]
fn directories_get_their_modes_and_times_at_the_end() {
    let world = World::new();
    let layer = Tar::new().dir_mode("a", 0o1555).dir_mode("a/b", 0o000).file("a/b/c", "");
    world.apply(layer.end()).unwrap();
    let meta = fs::metadata(world.root().join("a")).unwrap();
    assert_eq!((meta.mode() & 0o7777, meta.mtime()), (0o1555, 1_000_000_000));
    assert_eq!(fs::metadata(world.root().join("a/b")).unwrap().mtime(), 1_000_000_000);
}

#[test]
fn a_directory_of_a_layer_below_keeps_its_time_when_something_is_put_into_it() {
    let world = World::new();
    world.apply(Tar::new().dir_mode("a", 0o711).end()).unwrap();
    world.apply(Tar::new().file("a/b", "").end()).unwrap();
    let meta = fs::metadata(world.root().join("a")).unwrap();
    assert_eq!((meta.mode() & 0o7777, meta.mtime()), (0o711, 1_000_000_000));
}

#[test]
fn the_root_takes_what_its_entry_says() {
    let world = World::new();
    world.apply(Tar::new().dir_mode("./", 0o1777).end()).unwrap();
    assert_eq!(fs::metadata(world.root()).unwrap().mode() & 0o7777, 0o1777);
}

#[test]
fn owners_that_no_sandbox_has_are_refused_by_name() {
    let mut header = Tar::header(b'0', "who", 0);
    header.set_uid(65_536);
    let refused = refusal(World::new().apply(Tar::new().entry(header, b"").end()));
    assert!(refused.contains("\"who\"") && refused.contains("65536"), "{refused}");
    let layer = Tar::new().pax(&[("gid", b"4294967296")]).file("who", "");
    assert!(refusal(World::new().apply(layer.end())).contains("4294967296"));
}

#[test]
fn attributes_of_users_and_capabilities_are_kept_and_no_others() {
    // cap_net_raw+ep, which holds a byte that ends a line.
    let mut capability = vec![1, 0, 0, 2, 0, 0x20, 0, 0];
    capability.resize(20, 0);
    let layer = Tar::new()
        .pax(&[
            ("SCHILY.xattr.user.note", b"two\nlines"),
            ("SCHILY.xattr.security.capability", &capability),
            ("SCHILY.xattr.security.selinux", b"label"),
            ("SCHILY.xattr.trusted.overlay.opaque", b"y"),
        ])
        .file("a", "");
    let world = World::new();
    let applied = world.apply(layer.end()).unwrap();
    let path = world.root().join("a");
    assert_eq!(xattr(&path, "user.note").unwrap(), b"two\nlines");
    assert_eq!(xattr(&path, "trusted.overlay.opaque"), None);
    if is_root() {
        assert_eq!(xattr(&path, "security.capability").unwrap(), capability);
        assert_eq!(applied.xattrs_skipped, 2);
    }
}

#[test]
fn no_layer_speaks_to_the_overlay_it_lies_in() {
    let layer = Tar::new()
        .pax(&[
            ("SCHILY.xattr.user.overlay.opaque", b"y"),
            ("SCHILY.xattr.user.overlay.redirect", b"/etc"),
            ("SCHILY.xattr.user.overlay.metacopy", b""),
        ])
        .dir("a");
    let world = World::new();
    let applied = world.apply_with(layer.end(), Whiteouts::Overlay, &[]).unwrap();
    for name in ["opaque", "redirect", "metacopy"] {
        assert_eq!(xattr(&world.root().join("a"), &format!("user.overlay.{name}")), None);
    }
    assert_eq!(applied.xattrs_skipped, 3);
}

#[test]
fn a_directory_described_anew_loses_the_attributes_it_had() {
    let world = World::new();
    world.apply(Tar::new().dir("a").end()).unwrap();
    setxattr(world.root().join("a"), "user.old", b"1", XattrFlags::empty()).unwrap();
    world.apply(Tar::new().dir("a").end()).unwrap();
    assert_eq!(xattr(&world.root().join("a"), "user.old"), None);
}

#[test]
fn devices_are_skipped_and_counted() {
    let mut null = Tar::header(b'3', "null", 0);
    null.set_device_major(1).unwrap();
    null.set_device_minor(3).unwrap();
    let layer = Tar::new().entry(null, b"").entry(Tar::header(b'4', "disk", 0), b"").file("a", "");
    let world = World::new();
    let applied = world.apply_with(layer.end(), Whiteouts::Overlay, &[]).unwrap();
    assert_eq!(applied.devices_skipped, 2);
    assert_eq!(world.listing(), ["a 644 "], "not even a device 0/0, which would be a whiteout");
}

#[test]
fn sparse_files_of_all_forms_keep_their_holes() {
    let size = 16 * 1024 * 1024_u64;
    let sparse = |tar: Tar, extra: &[(&str, &[u8])], data: &[u8]| {
        let real = size.to_string();
        let mut records = vec![("GNU.sparse.size", real.as_bytes())];
        records.extend_from_slice(extra);
        tar.pax(&records).file("sparse", data)
    };
    let first = [("GNU.sparse.offset", b"8192".as_slice()), ("GNU.sparse.numbytes", b"4")];
    let mut third = b"1\n8192\n4\n".to_vec();
    third.resize(512, 0);
    third.extend_from_slice(b"data");
    let version = [("GNU.sparse.major", b"1".as_slice()), ("GNU.sparse.minor", b"0")];
    let mut old = Tar::header(b'S', "sparse", 4);
    let gnu = old.as_gnu_mut().unwrap();
    gnu.set_real_size(size);
    gnu.sparse[0].set_offset(8192);
    gnu.sparse[0].set_length(4);
    let forms = [
        sparse(Tar::new(), &first, b"data"),
        sparse(Tar::new(), &[("GNU.sparse.map", b"8192,4")], b"data"),
        sparse(Tar::new(), &version, &third),
        Tar::new().entry(old, b"data"),
    ];
    for layer in forms {
        let world = World::new();
        world.apply(layer.file("next", "").end()).unwrap();
        let path = world.root().join("sparse");
        let content = fs::read(&path).unwrap();
        assert_eq!(content.len() as u64, size);
        assert_eq!(&content[8192..8196], b"data");
        assert_eq!(content.iter().filter(|byte| **byte != 0).count(), 4);
        assert!(fs::metadata(&path).unwrap().blocks() * 512 < size / 2, "it has no holes");
    }
}

#[test]
fn maps_of_sparse_files_that_do_not_fit_are_refused() {
    let layer = |map: &[u8]| {
        Tar::new()
            .pax(&[("GNU.sparse.size", b"100"), ("GNU.sparse.map", map)])
            .file("s", "data")
            .end()
    };
    let maps: [&[u8]; 5] = [b"98,4", b"0,2,1,2", b"0,5", b"0", b"18446744073709551615,4"];
    for map in maps {
        World::new().apply(layer(map)).expect_err("a map that does not fit");
    }
}
