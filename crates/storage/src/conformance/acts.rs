//! Random changes of a tree, for comparing two ways of reading it.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, lchown, symlink};
use std::path::Path;

use proptest::prelude::*;
use rustix::fs::{XattrFlags, setxattr};

/// A change of a tree.
#[derive(Clone, Debug)]
pub enum Act {
    Write(String, u8),
    Directory(String),
    Remove(String),
    Rename(String, String),
    Link(String, String),
    HardLink(String, String),
    Mode(String, u32),
    Owner(String, u32),
    Note(String, &'static str),
}

pub fn act() -> impl Strategy<Value = Act> {
    let name = || prop_oneof!["[abc]", "[abc]/[abc]", "[abc]/[abc]/[abc]"];
    prop_oneof![
        4 => (name(), any::<u8>()).prop_map(|(at, byte)| Act::Write(at, byte)),
        4 => name().prop_map(Act::Directory),
        3 => name().prop_map(Act::Remove),
        2 => (name(), name()).prop_map(|(from, to)| Act::Rename(from, to)),
        1 => (name(), name()).prop_map(|(at, to)| Act::Link(at, to)),
        1 => (name(), name()).prop_map(|(from, to)| Act::HardLink(from, to)),
        1 => (name(), 0_u32..0o1000).prop_map(|(at, mode)| Act::Mode(at, mode | 0o700)),
        1 => (name(), 0_u32..3).prop_map(|(at, id)| Act::Owner(at, id)),
        1 => (name(), prop_oneof![Just("user.note"), Just("user.overlay.opaque")])
            .prop_map(|(at, name)| Act::Note(at, name)),
    ]
}

/// It may fail: only the resulting tree matters.
pub fn carry_out(root: &Path, act: &Act) {
    let at = |name: &str| root.join(name);
    let _ = match act {
        Act::Write(name, byte) => fs::write(at(name), [*byte; 3]),
        Act::Directory(name) => fs::create_dir(at(name)),
        Act::Remove(name) => fs::remove_dir_all(at(name)).or_else(|_| fs::remove_file(at(name))),
        Act::Rename(from, to) => fs::rename(at(from), at(to)),
        Act::Link(name, to) => symlink(to, at(name)),
        Act::HardLink(from, to) => fs::hard_link(at(from), at(to)),
        Act::Mode(name, mode) => fs::set_permissions(at(name), fs::Permissions::from_mode(*mode)),
        Act::Owner(name, id) => lchown(at(name), Some(*id), Some(*id)),
        Act::Note(name, note) => {
            setxattr(at(name), *note, b"y", XattrFlags::empty()).map_err(Into::into)
        }
    };
}
