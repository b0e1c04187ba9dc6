//! Writes headers: the oldest sufficient format, and PAX records for what does not fit.

use std::io::Cursor;

use tar::{EntryType, Header};

use super::BLOCK_BYTES;
use super::entry::{Attributes, Moment};

/// Two zero blocks.
pub(super) const END_MARK: [u8; 2 * BLOCK_BYTES] = [0; 2 * BLOCK_BYTES];
/// Limits of the old format's fields.
const NAME_MAX_BYTES: usize = 100;
const SIZE_MAX_BYTES: u64 = 0o77_777_777_777;

/// The number of zeros that pad the last block.
pub(super) fn padding(size_bytes: u64) -> usize {
    let block = BLOCK_BYTES as u64;
    usize::try_from(size_bytes.next_multiple_of(block) - size_bytes).unwrap_or(0)
}

pub(super) fn directory(path: &[u8], attributes: &Attributes) -> Cursor<Vec<u8>> {
    written(EntryType::Directory, path, b"", 0, attributes)
}

pub(super) fn file(path: &[u8], size_bytes: u64, attributes: &Attributes) -> Cursor<Vec<u8>> {
    written(EntryType::Regular, path, b"", size_bytes, attributes)
}

pub(super) fn symlink(path: &[u8], target: &[u8], attributes: &Attributes) -> Cursor<Vec<u8>> {
    written(EntryType::Symlink, path, target, 0, attributes)
}

pub(super) fn hardlink(path: &[u8], target: &[u8], attributes: &Attributes) -> Cursor<Vec<u8>> {
    written(EntryType::Link, path, target, 0, attributes)
}

pub(super) fn fifo(path: &[u8], attributes: &Attributes) -> Cursor<Vec<u8>> {
    written(EntryType::Fifo, path, b"", 0, attributes)
}

/// The removal of a name. Only the toolbox understands this kind of entry, and the next.
pub(super) fn gone(path: &[u8]) -> Cursor<Vec<u8>> {
    written(EntryType::new(toolbox::GONE), path, b"", 0, &Attributes::default())
}

/// The metadata of an entry without its content.
pub(super) fn metadata(path: &[u8], attributes: &Attributes) -> Cursor<Vec<u8>> {
    written(EntryType::new(toolbox::METADATA), path, b"", 0, attributes)
}

fn written(
    kind: EntryType,
    path: &[u8],
    link: &[u8],
    size_bytes: u64,
    attributes: &Attributes,
) -> Cursor<Vec<u8>> {
    let records = records(path, link, size_bytes, attributes);
    let mut bytes = Vec::new();
    if !records.is_empty() {
        let size = records.len() as u64;
        let header = header(EntryType::XHeader, b"PaxHeader", b"", size, &Attributes::default());
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(&records);
        bytes.resize(bytes.len() + padding(size), 0);
    }
    let size = if size_bytes > SIZE_MAX_BYTES { 0 } else { size_bytes };
    bytes.extend_from_slice(header(kind, path, link, size, attributes).as_bytes());
    Cursor::new(bytes)
}

/// Too long values are cut off: the records contain them completely.
fn header(kind: EntryType, path: &[u8], link: &[u8], size: u64, attributes: &Attributes) -> Header {
    let mut header = Header::new_ustar();
    let old = header.as_old_mut();
    fill(&mut old.name, path);
    fill(&mut old.linkname, link);
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(attributes.mode);
    header.set_uid(attributes.uid);
    header.set_gid(attributes.gid);
    header.set_mtime(u64::try_from(attributes.modified.secs).unwrap_or(0));
    header.set_cksum();
    header
}

fn fill(field: &mut [u8; NAME_MAX_BYTES], name: &[u8]) {
    let length = name.len().min(NAME_MAX_BYTES);
    field[..length].copy_from_slice(&name[..length]);
}

fn records(path: &[u8], link: &[u8], size_bytes: u64, attributes: &Attributes) -> Vec<u8> {
    let mut records = Vec::new();
    if path.len() > NAME_MAX_BYTES {
        record(&mut records, b"path", path);
    }
    if link.len() > NAME_MAX_BYTES {
        record(&mut records, b"linkpath", link);
    }
    if size_bytes > SIZE_MAX_BYTES {
        record(&mut records, b"size", size_bytes.to_string().as_bytes());
    }
    let Moment { secs, nanos } = attributes.modified;
    if nanos > 0 || secs < 0 {
        record(&mut records, b"mtime", moment(attributes.modified).as_bytes());
    }
    let mut xattrs: Vec<_> = attributes.xattrs.iter().collect();
    xattrs.sort();
    for (name, value) in xattrs {
        record(&mut records, &[b"SCHILY.xattr.", name.to_bytes()].concat(), value);
    }
    records
}

/// A time before 1970 counts its fraction away from zero.
fn moment(moment: Moment) -> String {
    match (moment.secs, moment.nanos) {
        (secs, 0) => secs.to_string(),
        (secs, nanos) if secs < 0 => {
            let whole = secs + 1;
            let sign = if whole == 0 { "-" } else { "" };
            format!("{sign}{whole}.{:09}", 1_000_000_000 - nanos)
        }
        (secs, nanos) => format!("{secs}.{nanos:09}"),
    }
}

/// Appends `<length> <key>=<value>\n`; the length includes its own digits.
pub(super) fn record(records: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    records.extend_from_slice(format!("{length} ").as_bytes());
    records.extend_from_slice(key);
    records.push(b'=');
    records.extend_from_slice(value);
    records.push(b'\n');
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;

    use super::super::{Entries, Kind};
    use super::*;

    #[test]
    fn what_is_written_is_what_is_read() {
        let long = [b'x'; 300];
        let moments = [(0, 0), (5, 1), (-1, 500_000_000), (-7, 250_000_000), (-3, 0)];
        for (secs, nanos) in moments {
            let attributes = Attributes {
                mode: 0o4755,
                uid: 1,
                gid: 3_000_000,
                modified: Moment { secs, nanos },
                xattrs: vec![(CString::new("user.x").unwrap(), b"a\n=b\0".to_vec())],
            };
            let written = [
                directory(b"d/", &attributes).into_inner(),
                symlink(&long, &long, &attributes).into_inner(),
                file(b"huge", SIZE_MAX_BYTES + 1, &attributes).into_inner(),
            ];
            let read: Vec<_> = written
                .iter()
                .map(|bytes| Entries::new(bytes.as_slice()).next().unwrap().unwrap())
                .collect();
            assert!(read.iter().all(|entry| entry.attributes == attributes), "{read:?}");
            assert_eq!((read[0].path.as_slice(), &read[0].kind), (&b"d/"[..], &Kind::Directory));
            assert_eq!(read[1].kind, Kind::Symlink { target: long.to_vec() });
            assert_eq!(read[1].path, long);
            let size_bytes = SIZE_MAX_BYTES + 1;
            assert_eq!(read[2].kind, Kind::File { size_bytes, segments: None });
        }
    }

    #[test]
    fn the_length_of_a_record_counts_its_own_digits() {
        for length in 0..1100 {
            let mut bytes = Vec::new();
            record(&mut bytes, b"key", &vec![b'v'; length]);
            let text = String::from_utf8(bytes).unwrap();
            let (said, _) = text.split_once(' ').unwrap();
            assert_eq!(said.parse(), Ok(text.len()));
        }
    }
}
