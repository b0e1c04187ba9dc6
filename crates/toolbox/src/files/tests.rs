//! The operations on real files, as the user who runs the tests.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use tempfile::TempDir;

use super::*;
use crate::answer::{EntryKind, Failure, FailureKind, Listing};
use crate::request::{
    ListDirectory, MoveEntry, Overwrite, Ownership, Parents, RawPath, Reach, WriteFile,
};
use crate::wire::{Decoder, Frame, Input, Output, encode};

fn scratch() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn raw(path: impl AsRef<Path>) -> RawPath {
    RawPath::from(path.as_ref())
}

/// The data of a request, complete or aborted.
fn sent(bytes: &[u8], frames: &[Frame]) -> Vec<u8> {
    let mut all = Vec::new();
    encode(&Frame::Data(bytes.to_vec()), &mut all);
    frames.iter().for_each(|frame| encode(frame, &mut all));
    all
}

fn write_to(path: &Path, bytes: &[u8], frames: &[Frame]) -> Result<crate::Written, Failure> {
    let wire = sent(bytes, frames);
    let request = WriteFile { path: raw(path), mode: None, parents: Parents::Require };
    write(&request, &mut Input::over(&wire[..]))
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn a_write_is_all_or_nothing_and_keeps_the_mode() {
    let dir = scratch();
    let path = dir.path().join("note");
    assert!(write_to(&path, b"one", &[Frame::End]).unwrap().created);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    assert!(!write_to(&path, b"two", &[Frame::End]).unwrap().created);
    assert_eq!(write_to(&path, b"three", &[]).unwrap_err().kind, FailureKind::BrokenOff);
    assert_eq!(fs::read(&path).unwrap(), b"two");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
    assert_eq!(names(dir.path()), ["note"], "nothing is left beside it");
}

#[test]
fn a_write_goes_where_a_link_leads_also_if_nothing_is_there() {
    let dir = scratch();
    let (link, loops) = (dir.path().join("link"), dir.path().join("loop"));
    symlink("target", &link).unwrap();
    symlink("loop", &loops).unwrap();
    write_to(&link, b"x", &[Frame::End]).unwrap();
    assert_eq!(fs::read(dir.path().join("target")).unwrap(), b"x");
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(write_to(&loops, b"x", &[Frame::End]).unwrap_err().kind, FailureKind::Invalid);
    let refused = write_to(dir.path(), b"x", &[Frame::End]).unwrap_err();
    assert_eq!(refused.kind, FailureKind::IsADirectory);
}

fn page(dir: &Path, depth: u32, limit: u64, after: Option<RawPath>) -> Listing {
    list(&ListDirectory { path: raw(dir), depth, limit, after }).unwrap()
}

#[test]
fn pages_show_every_entry_once_whatever_their_size() {
    let dir = scratch();
    for path in ["a/x/1", "a/x/2", "a/y", "a.b", "b/z", "c"] {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }
    symlink("/", dir.path().join("root")).unwrap();
    let whole: Vec<RawPath> =
        page(dir.path(), 9, 99, None).entries.into_iter().map(|entry| entry.path).collect();
    assert_eq!(whole.len(), 10, "what a link leads to is not beneath: {whole:?}");
    for limit in 1..=10 {
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let Listing { entries, next, .. } = page(dir.path(), 9, limit, after);
            seen.extend(entries.into_iter().map(|entry| entry.path));
            after = next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(seen, whole, "in pages of {limit}");
    }
    assert_eq!(page(dir.path(), 1, 99, None).entries.len(), 5);
}

#[test]
fn a_page_goes_on_where_the_last_one_ended_although_that_is_gone() {
    let dir = scratch();
    ["a", "b", "c"].iter().for_each(|name| fs::write(dir.path().join(name), "").unwrap());
    let first = page(dir.path(), 1, 2, None);
    fs::remove_file(dir.path().join("b")).unwrap();
    let second = page(dir.path(), 1, 2, first.next);
    assert_eq!(second.entries.len(), 1);
    assert_eq!(second.entries[0].path, raw(dir.path().join("c")));
}

#[test]
fn a_move_replaces_only_if_it_may_and_a_removal_takes_a_tree_only_if_it_may() {
    let dir = scratch();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::write(&from, "new").unwrap();
    fs::write(&to, "old").unwrap();
    let request = |overwrite| MoveEntry {
        from: raw(&from),
        to: raw(&to),
        overwrite,
        parents: Parents::Require,
    };
    assert_eq!(move_entry(&request(Overwrite::Refused)).unwrap_err().kind, FailureKind::Exists);
    assert_eq!(move_entry(&request(Overwrite::Allowed)).unwrap().kind, EntryKind::File);
    assert_eq!(fs::read(&to).unwrap(), b"new");
    let tree = dir.path().join("tree");
    fs::create_dir_all(tree.join("sub")).unwrap();
    assert_eq!(remove(&raw(&tree), Reach::One).unwrap_err().kind, FailureKind::NotEmpty);
    remove(&raw(&tree), Reach::Tree).unwrap();
    assert_eq!(names(dir.path()), ["to"]);
    assert_eq!(remove(&RawPath::from("/"), Reach::Tree).unwrap_err().kind, FailureKind::Invalid);
}

#[test]
fn what_is_packed_and_unpacked_is_the_same() {
    let dir = scratch();
    let (tree, copy) = (dir.path().join("tree"), dir.path().join("copy"));
    fs::create_dir_all(tree.join("sub/empty")).unwrap();
    fs::create_dir(&copy).unwrap();
    fs::write(tree.join("sub/file"), vec![7; 100_000]).unwrap();
    fs::hard_link(tree.join("sub/file"), tree.join("twin")).unwrap();
    symlink("/nowhere", tree.join("link")).unwrap();
    let mut sparse = fs::File::create(tree.join("holes")).unwrap();
    sparse.set_len(10 << 20).unwrap();
    std::io::Seek::seek(&mut sparse, std::io::SeekFrom::Start(5 << 20)).unwrap();
    std::io::Write::write_all(&mut sparse, b"middle").unwrap();
    let mut archive = Vec::new();
    pack_to(&tree, &mut archive).unwrap();
    assert!(archive.len() < 1 << 20, "holes are not in it");
    let unpacked = unpack_into(&copy, Ownership::Own, &mut &archive[..]).unwrap();
    assert_eq!(unpacked.entries, survey(&tree).unwrap().entries);
    for path in ["sub/file", "twin", "holes"] {
        assert!(fs::read(copy.join(path)).unwrap() == fs::read(tree.join(path)).unwrap(), "{path}");
    }
    assert_eq!(fs::read_link(copy.join("link")).unwrap(), Path::new("/nowhere"));
    assert!(copy.join("sub/empty").is_dir());
}

#[test]
fn an_archive_that_is_cut_off_leaves_no_half_of_a_file() {
    let dir = scratch();
    let (tree, copy) = (dir.path().join("tree"), dir.path().join("copy"));
    fs::create_dir(&tree).unwrap();
    fs::create_dir(&copy).unwrap();
    fs::write(tree.join("file"), vec![7; 5000]).unwrap();
    let mut archive = Vec::new();
    pack_to(&tree, &mut archive).unwrap();
    let refused = unpack_into(&copy, Ownership::Own, &mut &archive[..3000]).unwrap_err();
    assert_eq!(refused.kind, FailureKind::Invalid, "{refused}");
    assert!(names(&copy).is_empty());
}

#[test]
fn an_archive_never_leads_through_a_link_that_it_brought_or_found() {
    let dir = scratch();
    let (inside, outside) = (dir.path().join("in"), dir.path().join("out"));
    fs::create_dir(&inside).unwrap();
    fs::create_dir(&outside).unwrap();
    symlink(&outside, inside.join("found")).unwrap();
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(1);
    header.set_mode(0o644);
    builder.append_data(&mut header, "found/bad", &b"x"[..]).unwrap();
    let archive = builder.into_inner().unwrap();
    let refused = unpack_into(&inside, Ownership::Own, &mut &archive[..]).unwrap_err();
    assert_eq!(refused.kind, FailureKind::Invalid, "{refused}");
    assert!(names(&outside).is_empty());
}

#[test]
fn a_file_is_read_in_frames_that_say_when_it_ends() {
    let dir = scratch();
    let path = dir.path().join("big");
    fs::write(&path, vec![1; 600_000]).unwrap();
    let mut wire = Vec::new();
    read(&raw(&path), None, &mut Output::over(&mut wire)).unwrap();
    let mut decoder = Decoder::new();
    decoder.feed(&wire);
    let mut len = 0;
    while let Some(frame) = decoder.next_frame().unwrap() {
        if let Frame::Data(bytes) = frame {
            len += bytes.len();
        }
    }
    assert_eq!(len, 600_000);
    let refused = read(&raw("/dev/null"), None, &mut Output::over(Vec::new())).unwrap_err();
    assert_eq!(refused.kind, FailureKind::NotRegular);
}
