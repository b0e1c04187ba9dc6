//! Bytes that are not a layer, exceed its limits, or are another one.

use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::*;
use sandkeep_core::limits;

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::stream::encode_all(bytes, 1).unwrap()
}

#[test]
fn compression_is_known_by_the_first_bytes() {
    let plain = Tar::new().file("a", "1").end();
    let two_members = [gzip(&plain[..700]), gzip(&plain[700..])].concat();
    let skipped_first = [&[0x50, 0x2A, 0x4D, 0x18, 1, 0, 0, 0, 9][..], &zstd(&plain)].concat();
    let two_frames = [zstd(&plain[..700]), zstd(&plain[700..])].concat();
    for layer in [gzip(&plain), two_members, zstd(&plain), two_frames, skipped_first, plain] {
        let world = World::new();
        world.apply(layer).unwrap();
        assert_eq!(world.listing(), ["a 644 1"]);
    }
}

#[test]
fn other_compressions_are_named() {
    for (start, name) in [(&b"BZh91AY"[..], "bzip2"), (b"\xFD7zXZ\0\0", "xz")] {
        assert!(refusal(World::new().apply(start.to_vec())).contains(name));
    }
}

#[test]
fn an_empty_layer_changes_nothing() {
    for layer in [Tar::new().end(), Vec::new(), gzip(&Tar::new().end())] {
        let world = World::new();
        world.apply(layer).unwrap();
        assert_eq!(world.listing(), Vec::<String>::new());
    }
}

#[test]
fn a_layer_that_is_not_the_announced_one_is_refused() {
    let world = World::new();
    let root = File::open(world.root()).unwrap();
    let target =
        Target { root: root.as_fd(), whiteouts: Whiteouts::Remove, lowers: &[], ids: Ids::Plain };
    let other = Digest::of(b"other");
    for layer in [Tar::new().file("a", "").end(), gzip(&Tar::new().file("a", "").end())] {
        let result = apply(
            io::Cursor::new(layer),
            &other,
            &target,
            &SpaceCheck::endless(),
            &Progress::unheard(),
        );
        assert!(matches!(result, Err(LayerError::Mismatch(_))), "{result:?}");
    }
    // The digest is of all bytes, also of those behind the end mark.
    let mut longer = Tar::new().end();
    let diff_id = Digest::of(&longer);
    longer.extend_from_slice(&[0; 512]);
    let result = apply(
        io::Cursor::new(longer),
        &diff_id,
        &target,
        &SpaceCheck::endless(),
        &Progress::unheard(),
    );
    assert!(matches!(result, Err(LayerError::Mismatch(_))), "{result:?}");
}

#[test]
fn a_layer_that_is_cut_off_is_refused() {
    let whole = Tar::new().file("a", [7; 3000]).file("b", "").end();
    for length in [100, 512, 600, 2000, 3583] {
        let refused = refusal(World::new().apply(whole[..length].to_vec()));
        assert!(refused.contains("cut off"), "{length}: {refused}");
    }
    for compressed in [gzip(&whole), zstd(&whole)] {
        for length in 7..compressed.len() {
            let cut = compressed[..length].to_vec();
            let root = World::new();
            let fd = File::open(root.root()).unwrap();
            let target = Target {
                root: fd.as_fd(),
                whiteouts: Whiteouts::Remove,
                lowers: &[],
                ids: Ids::Plain,
            };
            let id = Digest::of(&whole);
            apply(io::Cursor::new(cut), &id, &target, &SpaceCheck::endless(), &Progress::unheard())
                .expect_err("cut off");
        }
    }
}

#[test]
fn damaged_headers_are_refused() {
    let refused = |layer: Vec<u8>| refusal(World::new().apply(layer));
    let mut checksum = Tar::new().file("a", "").end();
    checksum[0] = b'b';
    assert!(refused(checksum).contains("wrong checksum"));
    let lone = [vec![0; 512], Tar::new().file("a", "").end()].concat();
    assert!(refused(lone).contains("half an end mark"));
    assert!(refused(Tar::new().pax(&[("path", b"x")]).end()).contains("announces another"));
    assert!(
        refused(Tar::new().entry(Tar::header(b'Z', "a", 0), b"").end()).contains("unknown type")
    );
    assert!(
        refused(Tar::new().entry(Tar::header(b'x', "a", 9), b"9 path=ab").end()).contains("PAX")
    );
    assert!(refused(Tar::new().pax(&[("size", b"-1")]).file("a", "").end()).contains("number"));
}

#[test]
fn sizes_beyond_all_measure_are_refused_before_anything_is_read() {
    let refused = |layer: Tar| refusal(World::new().apply(layer.end()));
    let max = limits::LAYER_MAX_BYTES;
    assert!(refused(Tar::new().entry(Tar::header(b'0', "a", max + 1), b"")).contains("too large"));
    let size = u64::MAX.to_string();
    assert!(
        refused(Tar::new().pax(&[("size", size.as_bytes())]).file("a", "")).contains("too large")
    );
    let huge = (max + 1).to_string();
    let sparse = [("GNU.sparse.size", huge.as_bytes()), ("GNU.sparse.map", b"0,0")];
    assert!(refused(Tar::new().pax(&sparse).file("a", "")).contains("too large"));
    let extension = limits::LAYER_EXTENSION_MAX_BYTES + 1;
    for kind in *b"xgLK" {
        assert!(
            refused(Tar::new().entry(Tar::header(kind, "a", extension), b"")).contains("extended")
        );
    }
    let parts = format!("{}\n", limits::LAYER_SPARSE_PARTS_MAX + 1);
    let mut data = parts.into_bytes();
    data.resize(512, 0);
    let version = [("GNU.sparse.major", b"1".as_slice()), ("GNU.sparse.minor", b"0")];
    assert!(refused(Tar::new().pax(&version).file("a", data)).contains("sparse"));
}

#[test]
fn entries_that_are_no_files_have_no_bytes_whatever_they_say() {
    let mut link = Tar::header(b'2', "l", 512);
    link.set_link_name_literal("t").unwrap();
    let listing = World::new().after(Tar::new().entry(link, b"").file("a", ""));
    assert_eq!(listing, ["a 644 ", "l -> t"]);
}

#[test]
fn a_layer_that_swells_beyond_all_measure_is_refused() {
    // A gigabyte of zeros, and a little more, out of a few kilobytes.
    let bomb = zstd::stream::encode_all(io::repeat(0).take(limits::LAYER_RATIO_FREE_BYTES + 1), 1);
    let world = World::new();
    let root = File::open(world.root()).unwrap();
    let target =
        Target { root: root.as_fd(), whiteouts: Whiteouts::Remove, lowers: &[], ids: Ids::Plain };
    let blob = io::Cursor::new(bomb.unwrap());
    let result =
        apply(blob, &Digest::of(b""), &target, &SpaceCheck::endless(), &Progress::unheard());
    assert!(refusal(result).contains("out of each compressed one"));
}

#[test]
fn a_layer_is_proven_by_all_of_its_bytes_and_within_the_same_bounds() {
    let prove = |layer: Vec<u8>, diff_id: &Digest| {
        prove(io::Cursor::new(layer), diff_id, &Progress::unheard())
    };
    let whole = Tar::new().file("a", [7; 3000]).file("b", "").end();
    let diff_id = Digest::of(&whole);
    for layer in [whole.clone(), gzip(&whole), zstd(&whole)] {
        assert_eq!(prove(layer.clone(), &diff_id).unwrap(), 3000);
        let other = prove(layer.clone(), &Digest::of(b"other"));
        assert!(matches!(other, Err(LayerError::Mismatch(_))), "{other:?}");
        prove(layer[..layer.len() - 1].to_vec(), &diff_id).expect_err("cut off");
    }
    let bomb = zstd::stream::encode_all(io::repeat(0).take(limits::LAYER_RATIO_FREE_BYTES + 1), 1);
    let refused = prove(bomb.unwrap(), &Digest::of(b"")).expect_err("a bomb");
    assert!(sandkeep_core::with_causes(&refused).contains("out of each compressed one"));
}

#[test]
fn a_path_that_links_make_too_long_is_refused() {
    let part = "p".repeat(200);
    let long = vec![part.as_str(); 15].join("/");
    let layer = Tar::new()
        .pax(&[("linkpath", long.as_bytes())])
        .symlink("s", "x")
        .pax(&[("path", format!("s/{long}").as_bytes())])
        .file("x", "");
    assert!(refusal(World::new().apply(layer.end())).contains("too long"));
}

#[test]
fn progress_is_told_up_to_the_last_byte() {
    let layer = Tar::new().file("a", vec![7; 5 << 20]).end();
    let (told, last) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicU64::new(0)));
    let (listener, newest) = (Arc::clone(&told), Arc::clone(&last));
    let progress = Progress::to(move |bytes| {
        assert!(newest.swap(bytes, Ordering::Relaxed) <= bytes, "it goes backwards");
        listener.lock().unwrap().push(bytes);
    });
    let world = World::new();
    let root = File::open(world.root()).unwrap();
    let target =
        Target { root: root.as_fd(), whiteouts: Whiteouts::Remove, lowers: &[], ids: Ids::Plain };
    let size = layer.len() as u64;
    let diff_id = Digest::of(&layer);
    apply(io::Cursor::new(layer), &diff_id, &target, &SpaceCheck::endless(), &progress).unwrap();
    let told = told.lock().unwrap();
    assert!(told.len() >= 4, "{told:?}");
    assert_eq!(told.last(), Some(&size));
}
