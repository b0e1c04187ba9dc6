//! Archives for tests, including malformed ones.

use tar::{EntryType, Header};

use super::header::END_MARK;

/// An archive under construction.
#[derive(Clone, Default)]
pub struct Tar(Vec<u8>);

impl Tar {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn header(kind: u8, path: impl AsRef<[u8]>, size_bytes: u64) -> Header {
        let mut header = Header::new_gnu();
        let path = path.as_ref();
        header.as_old_mut().name[..path.len()].copy_from_slice(path);
        header.set_entry_type(EntryType::new(kind));
        header.set_size(size_bytes);
        header.set_mode(if kind == b'5' { 0o755 } else { 0o644 });
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1_000_000_000);
        header
    }

    /// An entry whose header `change` may corrupt; the checksum is always correct.
    pub fn entry(mut self, mut header: Header, data: &[u8]) -> Self {
        header.set_cksum();
        self.0.extend_from_slice(header.as_bytes());
        self.data(data)
    }

    fn data(mut self, data: &[u8]) -> Self {
        self.0.extend_from_slice(data);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    pub fn file(self, path: impl AsRef<[u8]>, content: impl AsRef<[u8]>) -> Self {
        let content = content.as_ref();
        self.entry(Self::header(b'0', path, content.len() as u64), content)
    }

    pub fn dir(self, path: impl AsRef<[u8]>) -> Self {
        self.entry(Self::header(b'5', path, 0), b"")
    }

    pub fn dir_mode(self, path: &str, mode: u32) -> Self {
        let mut header = Self::header(b'5', path, 0);
        header.set_mode(mode);
        self.entry(header, b"")
    }

    fn link(self, kind: u8, path: &str, target: &str) -> Self {
        let mut header = Self::header(kind, path, 0);
        header.set_link_name_literal(target).expect("a short target");
        self.entry(header, b"")
    }

    pub fn symlink(self, path: &str, target: &str) -> Self {
        self.link(b'2', path, target)
    }

    pub fn hardlink(self, path: &str, target: &str) -> Self {
        self.link(b'1', path, target)
    }

    /// PAX records for the next entry.
    pub fn pax(self, records: &[(&str, &[u8])]) -> Self {
        let mut bytes = Vec::new();
        for (key, value) in records {
            super::header::record(&mut bytes, key.as_bytes(), value);
        }
        self.entry(Self::header(b'x', "pax", bytes.len() as u64), &bytes)
    }

    /// A long name (`L`) or a long target (`K`) for the next entry, in GNU format.
    pub fn long(self, kind: u8, name: &[u8]) -> Self {
        let bytes = [name, b"\0"].concat();
        self.entry(Self::header(kind, "././@LongLink", bytes.len() as u64), &bytes)
    }

    pub fn end(mut self) -> Vec<u8> {
        self.0.extend_from_slice(&END_MARK);
        self.0
    }

    /// Without an end mark.
    pub fn cut(self) -> Vec<u8> {
        self.0
    }
}
