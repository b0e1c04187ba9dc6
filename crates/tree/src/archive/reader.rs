//! The entries of an archive, in order, from a stream that is read once.

use std::io::{self, Read};

use tar::Header;

use super::entry::{Attributes, Entry, Kind, Moment};
use super::pax::Records;
use super::{ArchiveError, BLOCK_BYTES, Damage, sparse};
use sandkeep_core::limits;

/// How an archive ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// With its end mark.
    Marked,
    /// With the stream, after a complete entry. It may have been truncated there; only a digest can tell.
    Unmarked,
}

/// Reads an archive. The bytes of a file are read between two calls of `next`, by [`Entries::read_data`].
pub struct Entries<R> {
    reader: R,
    position: u64,
    headers: u64,
    /// Of the current entry: unread bytes, and the padding of its last block.
    data_left: u64,
    padding_left: u64,
    closing: Option<Closing>,
}

/// Information from headers before the entry's own.
#[derive(Default)]
struct Announced {
    records: Option<Records>,
    long_name: Option<Vec<u8>>,
    long_link: Option<Vec<u8>>,
}

impl<R: Read> Entries<R> {
    pub fn new(reader: R) -> Self {
        Self { reader, position: 0, headers: 0, data_left: 0, padding_left: 0, closing: None }
    }

    /// How many bytes of the archive were read. Right after `next`: the offset of the file's content.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The number of the current entry's unread bytes in the archive.
    pub fn data_left(&self) -> u64 {
        self.data_left
    }

    /// The next entry, or `None` after the last. Unread bytes of the previous one are skipped.
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator could not fail once and for all"
    )]
    pub fn next(&mut self) -> Result<Option<Entry>, ArchiveError> {
        let mut announced = Announced::default();
        loop {
            self.skip_data()?;
            let Some(header) = self.header()? else {
                return if announced.is_empty() {
                    Ok(None)
                } else {
                    Err(self.malformed(Damage::NothingAnnounced))
                };
            };
            match header.entry_type().as_byte() {
                b'x' => {
                    let bytes = self.announcement(&header)?;
                    let records =
                        Records::parse(&bytes).map_err(|damage| self.malformed(damage))?;
                    announced.records = Some(records);
                }
                b'L' => announced.long_name = Some(until_nul(self.announcement(&header)?)),
                b'K' => announced.long_link = Some(until_nul(self.announcement(&header)?)),
                // Global headers are ignored by other image tools, too.
                b'g' => drop(self.announcement(&header)?),
                _ => return self.entry(&header, announced).map(Some),
            }
        }
    }

    /// Reads content of the current file; 0 is its end.
    pub fn read_data(&mut self, buffer: &mut [u8]) -> Result<usize, ArchiveError> {
        let wanted = usize::try_from(self.data_left).unwrap_or(usize::MAX).min(buffer.len());
        if wanted == 0 {
            return Ok(0);
        }
        let read = self.read_some(&mut buffer[..wanted])?;
        if read == 0 {
            return Err(ArchiveError::Truncated);
        }
        self.data_left -= read as u64;
        Ok(read)
    }

    /// Reads the stream to its end, so that a verifying reader reaches its verdict. Data after an end mark is ignored.
    pub fn finish(mut self) -> Result<Closing, ArchiveError> {
        while self.next()?.is_some() {}
        io::copy(&mut self.reader, &mut io::sink())?;
        Ok(self.closing.unwrap_or(Closing::Unmarked))
    }

    pub(super) fn malformed(&self, damage: Damage) -> ArchiveError {
        ArchiveError::Malformed { position: self.position, damage }
    }

    fn read_some(&mut self, buffer: &mut [u8]) -> Result<usize, ArchiveError> {
        loop {
            match self.reader.read(buffer) {
                Ok(read) => {
                    self.position += read as u64;
                    return Ok(read);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reads a block; `false` if the stream ends before its first byte.
    fn try_read_block(&mut self, block: &mut [u8; BLOCK_BYTES]) -> Result<bool, ArchiveError> {
        let mut filled = 0;
        while filled < BLOCK_BYTES {
            match self.read_some(&mut block[filled..])? {
                0 if filled == 0 => return Ok(false),
                0 => return Err(ArchiveError::Truncated),
                read => filled += read,
            }
        }
        Ok(true)
    }

    /// A required block.
    pub(super) fn read_block(&mut self, block: &mut [u8; BLOCK_BYTES]) -> Result<(), ArchiveError> {
        if self.try_read_block(block)? { Ok(()) } else { Err(ArchiveError::Truncated) }
    }

    /// A block of the current entry's own bytes.
    pub(super) fn read_data_block(
        &mut self,
        block: &mut [u8; BLOCK_BYTES],
    ) -> Result<(), ArchiveError> {
        self.data_left = self
            .data_left
            .checked_sub(BLOCK_BYTES as u64)
            .ok_or_else(|| self.malformed(Damage::SparseMapCutOff))?;
        self.read_block(block)
    }

    fn skip_data(&mut self) -> Result<(), ArchiveError> {
        let mut left = self.data_left + self.padding_left;
        (self.data_left, self.padding_left) = (0, 0);
        let mut sink = [0; 16 * BLOCK_BYTES];
        while left > 0 {
            let wanted = usize::try_from(left).unwrap_or(usize::MAX).min(sink.len());
            match self.read_some(&mut sink[..wanted])? {
                0 => return Err(ArchiveError::Truncated),
                read => left -= read as u64,
            }
        }
        Ok(())
    }

    /// The next header; `None` at the end mark or the end of the stream.
    fn header(&mut self) -> Result<Option<Header>, ArchiveError> {
        if self.closing.is_some() {
            return Ok(None);
        }
        let mut header = Header::new_old();
        if !self.try_read_block(header.as_mut_bytes())? {
            self.closing = Some(Closing::Unmarked);
            return Ok(None);
        }
        if header.as_bytes().iter().all(|byte| *byte == 0) {
            return self.end_mark().map(|()| None);
        }
        self.headers += 1;
        if self.headers > limits::LAYER_ENTRIES_MAX {
            return Err(ArchiveError::TooLarge { what: "entries", max: limits::LAYER_ENTRIES_MAX });
        }
        if header.cksum().is_ok_and(|sum| sums(header.as_bytes()).contains(&i64::from(sum))) {
            Ok(Some(header))
        } else {
            Err(self.malformed(Damage::Checksum))
        }
    }

    /// After one zero block only another one, or nothing, is valid.
    fn end_mark(&mut self) -> Result<(), ArchiveError> {
        let mut second = [0; BLOCK_BYTES];
        if self.try_read_block(&mut second)? && second.iter().any(|byte| *byte != 0) {
            return Err(self.malformed(Damage::HalfAnEndMark));
        }
        self.closing = Some(Closing::Marked);
        Ok(())
    }

    fn begin_data(&mut self, size_bytes: u64) -> Result<(), ArchiveError> {
        if size_bytes > limits::LAYER_MAX_BYTES {
            return Err(ArchiveError::TooLarge { what: "bytes", max: limits::LAYER_MAX_BYTES });
        }
        self.data_left = size_bytes;
        self.padding_left = size_bytes.next_multiple_of(BLOCK_BYTES as u64) - size_bytes;
        Ok(())
    }

    /// The complete content of a header that describes the next one.
    fn announcement(&mut self, header: &Header) -> Result<Vec<u8>, ArchiveError> {
        let size = header.entry_size().map_err(|_| self.malformed(Damage::Size))?;
        if size > limits::LAYER_EXTENSION_MAX_BYTES {
            let max = limits::LAYER_EXTENSION_MAX_BYTES;
            return Err(ArchiveError::TooLarge { what: "bytes in an extended header", max });
        }
        self.begin_data(size)?;
        let mut content = vec![0; usize::try_from(size).unwrap_or(0)];
        let mut filled = 0;
        while filled < content.len() {
            filled += self.read_data(&mut content[filled..])?;
        }
        Ok(content)
    }

    fn entry(&mut self, header: &Header, announced: Announced) -> Result<Entry, ArchiveError> {
        let records = announced.records.unwrap_or_default();
        let own_path = || records.path.clone().unwrap_or_else(|| header.path_bytes().into_owned());
        let path =
            announced.long_name.or_else(|| records.sparse.name.clone()).unwrap_or_else(own_path);
        let own_link =
            || header.link_name_bytes().map(|name| name.into_owned()).unwrap_or_default();
        let link =
            announced.long_link.or_else(|| records.link_path.clone()).unwrap_or_else(own_link);
        let kind = match header.entry_type().as_byte() {
            b'\0' if path.ends_with(b"/") => Kind::Directory,
            b'\0' | b'0' | b'7' | b'S' => self.file(header, &records)?,
            b'1' => Kind::Hardlink { target: link },
            b'2' => Kind::Symlink { target: link },
            b'3' | b'4' => Kind::Device,
            b'5' => Kind::Directory,
            b'6' => Kind::Fifo,
            other => {
                let path = String::from_utf8_lossy(&path).into_owned();
                let what = format!("it is of the unknown type {:?}", char::from(other));
                return Err(ArchiveError::Entry { path, what });
            }
        };
        let attributes = self.attributes(header, records)?;
        Ok(Entry { path, kind, attributes })
    }

    /// Only files have content. No content follows any other entry, whatever size it declares.
    fn file(&mut self, header: &Header, records: &Records) -> Result<Kind, ArchiveError> {
        let own = header.entry_size();
        let size = records.size_bytes.map_or(own, Ok);
        let size_bytes = size.map_err(|_| self.malformed(Damage::Size))?;
        self.begin_data(size_bytes)?;
        let sparse = match header.entry_type().as_byte() {
            b'S' => Some(sparse::old_gnu(self, header)?),
            _ => sparse::from_pax(self, &records.sparse)?,
        };
        let Some((segments, real_size)) = sparse else {
            return Ok(Kind::File { size_bytes, segments: None });
        };
        if real_size > limits::LAYER_MAX_BYTES {
            return Err(ArchiveError::TooLarge { what: "bytes", max: limits::LAYER_MAX_BYTES });
        }
        sparse::checked(&segments, real_size, self.data_left)
            .map_err(|damage| self.malformed(damage))?;
        Ok(Kind::File { size_bytes: real_size, segments: Some(segments) })
    }

    fn attributes(&self, header: &Header, records: Records) -> Result<Attributes, ArchiveError> {
        let id = |said: Option<u64>, own: io::Result<u64>| {
            said.map_or(own, Ok).map_err(|_| self.malformed(Damage::Owner))
        };
        let modified = match records.modified {
            Some(moment) => moment,
            None => {
                let secs = header.mtime().map_err(|_| self.malformed(Damage::Time))?;
                Moment { secs: i64::try_from(secs).unwrap_or(0), nanos: 0 }
            }
        };
        Ok(Attributes {
            mode: header.mode().map_err(|_| self.malformed(Damage::Mode))? & 0o7777,
            uid: id(records.uid, header.uid())?,
            gid: id(records.gid, header.gid())?,
            modified,
            xattrs: records.xattrs,
        })
    }
}

impl Announced {
    fn is_empty(&self) -> bool {
        self.records.is_none() && self.long_name.is_none() && self.long_link.is_none()
    }
}

fn until_nul(mut name: Vec<u8>) -> Vec<u8> {
    name.truncate(name.iter().position(|byte| *byte == 0).unwrap_or(name.len()));
    name
}

/// The checksum of a header with its own field as blanks: of unsigned bytes, which is correct, and of signed ones, as
/// some old programs computed it.
fn sums(header: &[u8; BLOCK_BYTES]) -> [i64; 2] {
    let field = 148..156;
    let bytes = header.iter().enumerate();
    let bytes = bytes.map(|(at, byte)| if field.contains(&at) { b' ' } else { *byte });
    bytes.fold([0, 0], |[unsigned, signed], byte| {
        [unsigned + i64::from(byte), signed + i64::from(byte.cast_signed())]
    })
}
