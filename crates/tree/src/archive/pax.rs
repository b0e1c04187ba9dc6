//! The records of a PAX header, `<length> <key>=<value>\n`. Parsed by their length, because a value may contain any
//! byte, as that of `security.capability` does.

use std::ffi::CString;

use super::Damage;
use super::entry::Moment;

const XATTR: &[u8] = b"SCHILY.xattr.";

/// PAX records for the next entry.
#[derive(Debug, Default)]
pub(super) struct Records {
    pub path: Option<Vec<u8>>,
    pub link_path: Option<Vec<u8>>,
    pub size_bytes: Option<u64>,
    pub uid: Option<u64>,
    pub gid: Option<u64>,
    pub modified: Option<Moment>,
    pub xattrs: Vec<(CString, Vec<u8>)>,
    pub sparse: SparseRecords,
}

/// GNU tar's PAX records for sparse files; there are three formats.
#[derive(Debug, Default)]
pub(super) struct SparseRecords {
    pub major: Option<u64>,
    pub minor: Option<u64>,
    pub name: Option<Vec<u8>>,
    pub real_size: Option<u64>,
    /// Alternating offsets and lengths.
    pub map: Vec<u64>,
    pub has_map: bool,
}

impl Records {
    pub(super) fn parse(mut bytes: &[u8]) -> Result<Self, Damage> {
        let mut records = Self::default();
        while !bytes.is_empty() {
            let (key, value, rest) = split(bytes).ok_or(Damage::Record)?;
            records.take(key, value)?;
            bytes = rest;
        }
        Ok(records)
    }

    /// An empty value cancels an earlier header's; none of those matter here.
    fn take(&mut self, key: &[u8], value: &[u8]) -> Result<(), Damage> {
        if let Some(name) = key.strip_prefix(XATTR) {
            let name = CString::new(name).map_err(|_| Damage::AttributeName)?;
            self.xattrs.push((name, value.to_vec()));
            return Ok(());
        }
        if value.is_empty() {
            return Ok(());
        }
        match key {
            b"path" => self.path = Some(value.to_vec()),
            b"linkpath" => self.link_path = Some(value.to_vec()),
            b"size" => self.size_bytes = Some(number(value)?),
            b"uid" => self.uid = Some(number(value)?),
            b"gid" => self.gid = Some(number(value)?),
            b"mtime" => {
                let text = std::str::from_utf8(value).ok();
                let moment = text.and_then(Moment::parse).ok_or(Damage::RecordTime)?;
                self.modified = Some(moment);
            }
            b"GNU.sparse.major" => self.sparse.major = Some(number(value)?),
            b"GNU.sparse.minor" => self.sparse.minor = Some(number(value)?),
            b"GNU.sparse.name" => self.sparse.name = Some(value.to_vec()),
            b"GNU.sparse.size" | b"GNU.sparse.realsize" => {
                self.sparse.real_size = Some(number(value)?);
            }
            b"GNU.sparse.map" => {
                self.sparse.has_map = true;
                self.sparse.map =
                    value.split(|byte| *byte == b',').map(number).collect::<Result<_, _>>()?;
            }
            b"GNU.sparse.offset" | b"GNU.sparse.numbytes" => {
                self.sparse.has_map = true;
                self.sparse.map.push(number(value)?);
            }
            _ => {}
        }
        Ok(())
    }
}

/// The first record's key and value, and the rest.
fn split(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = bytes.iter().position(|byte| *byte == b' ')?;
    let length = usize::try_from(number(&bytes[..space]).ok()?).ok()?;
    let record = bytes.get(space + 1..length)?.strip_suffix(b"\n")?;
    let equals = record.iter().position(|byte| *byte == b'=')?;
    let (key, value) = (&record[..equals], &record[equals + 1..]);
    (!key.is_empty()).then_some((key, value, &bytes[length..]))
}

/// A plain decimal number, without even a sign.
pub(super) fn number(digits: &[u8]) -> Result<u64, Damage> {
    let refused = Damage::RecordNumber;
    if !digits.is_empty() && digits.iter().all(u8::is_ascii_digit) {
        std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok()).ok_or(refused)
    } else {
        Err(refused)
    }
}
