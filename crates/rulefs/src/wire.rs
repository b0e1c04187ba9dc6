//! The messages of FUSE, version 7.44 and older: numbers in the byte order of the machine, and names that end with NUL.
//! Layouts are those of `linux/fuse.h`; messages are read and written field by field.

use rustix::io::Errno;

pub const HEADER_OUT_BYTES: usize = 16;
/// The buffer for requests must have room for more than the largest write.
pub const REQUEST_EXTRA_BYTES: usize = 4096;
pub const ROOT: u64 = 1;

/// Version of the protocol that is spoken; the kernel may know a later one.
pub const MAJOR: u32 = 7;
pub const MINOR: u32 = 44;
/// The first version with [`notice::INC_EPOCH`].
pub const MINOR_WITH_EPOCH: u32 = 44;

pub mod op {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const TMPFILE: u32 = 51;
}

/// What a server tells the kernel unasked.
pub mod notice {
    pub const INVAL_INODE: i32 = 2;
    pub const INVAL_ENTRY: i32 = 3;
    pub const RESEND: i32 = 7;
    /// All names have to be looked up again.
    pub const INC_EPOCH: i32 = 8;
}

pub mod init {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const NO_OPEN_SUPPORT: u64 = 1 << 17;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const EXT: u64 = 1 << 30;
    pub const PASSTHROUGH: u64 = 1 << 37;
    /// File handles (`open_by_handle_at`) are refused.
    pub const NO_EXPORT_SUPPORT: u64 = 1 << 38;
    pub const HAS_RESEND: u64 = 1 << 39;
    pub const ALLOW_IDMAP: u64 = 1 << 40;
}

pub mod open {
    pub const KEEP_CACHE: u32 = 1 << 1;
    pub const CACHE_DIR: u32 = 1 << 3;
    pub const NOFLUSH: u32 = 1 << 5;
    pub const PASSTHROUGH: u32 = 1 << 7;
}

pub mod set {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// A flag of a write by a process without CAP_FSETID.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;

#[derive(Clone, Copy, Debug)]
pub struct Header {
    pub opcode: u32,
    /// The answer repeats it exactly: its highest bit says that an earlier server may have read the request already.
    pub unique: u64,
    pub node: u64,
    pub uid: u32,
    pub gid: u32,
    pub pid: u32,
}

impl Header {
    /// Splits a request. A malformed one could only come from a kernel that we do not understand.
    pub fn read(message: &[u8]) -> Result<(Self, Fields<'_>), Errno> {
        let mut fields = Fields(message);
        let len = fields.u32()? as usize;
        if len != message.len() {
            return Err(Errno::PROTO);
        }
        let opcode = fields.u32()?;
        let unique = fields.u64()?;
        let (node, uid, gid, pid) = (fields.u64()?, fields.u32()?, fields.u32()?, fields.u32()?);
        fields.skip(4)?;
        Ok((Self { opcode, unique, node, uid, gid, pid }, fields))
    }
}

/// The rest of a message.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub fn skip(&mut self, bytes: usize) -> Result<&'a [u8], Errno> {
        let (skipped, rest) = self.0.split_at_checked(bytes).ok_or(Errno::PROTO)?;
        self.0 = rest;
        Ok(skipped)
    }

    pub fn u32(&mut self) -> Result<u32, Errno> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(Errno::PROTO)?;
        self.0 = rest;
        Ok(u32::from_ne_bytes(*bytes))
    }

    pub fn u64(&mut self) -> Result<u64, Errno> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(Errno::PROTO)?;
        self.0 = rest;
        Ok(u64::from_ne_bytes(*bytes))
    }

    /// A text up to its NUL.
    pub fn text(&mut self) -> Result<&'a [u8], Errno> {
        let end = self.0.iter().position(|byte| *byte == 0).ok_or(Errno::PROTO)?;
        let text = self.skip(end)?;
        self.skip(1)?;
        Ok(text)
    }

    /// The name of a directory entry.
    pub fn name(&mut self) -> Result<&'a [u8], Errno> {
        let name = self.text()?;
        match name {
            b"" | b"." | b".." => Err(Errno::INVAL),
            name if name.contains(&b'/') => Err(Errno::INVAL),
            name => Ok(name),
        }
    }
}

/// A message to the kernel, with room for its header at the start.
#[derive(Debug)]
pub struct Reply(Vec<u8>);

impl Default for Reply {
    fn default() -> Self {
        Self(vec![0; HEADER_OUT_BYTES])
    }
}

impl Reply {
    /// With room for this much data, all zero.
    pub fn with_zeroes(bytes: usize) -> Self {
        Self(vec![0; HEADER_OUT_BYTES + bytes])
    }

    pub fn body(&mut self) -> &mut [u8] {
        &mut self.0[HEADER_OUT_BYTES..]
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn truncate(&mut self, bytes: usize) {
        self.0.truncate(HEADER_OUT_BYTES + bytes);
    }

    pub fn len(&self) -> usize {
        self.0.len() - HEADER_OUT_BYTES
    }

    pub fn u16(mut self, value: u16) -> Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    pub fn u32(mut self, value: u32) -> Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    pub fn u64(mut self, value: u64) -> Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub fn append(&mut self, other: &Self) {
        self.0.extend_from_slice(&other.0[HEADER_OUT_BYTES..]);
    }

    /// Zeroes up to the next multiple of eight bytes.
    pub fn align(mut self) -> Self {
        let len = self.len().next_multiple_of(8);
        self.0.resize(HEADER_OUT_BYTES + len, 0);
        self
    }

    /// The whole message: an answer to a request, an error, or (with `unique` 0) a notice.
    pub fn finish(mut self, unique: u64, error: i32) -> Vec<u8> {
        let len = self.0.len() as u32;
        self.0[..4].copy_from_slice(&len.to_ne_bytes());
        self.0[4..8].copy_from_slice(&error.to_ne_bytes());
        self.0[8..16].copy_from_slice(&unique.to_ne_bytes());
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_split_and_a_cut_one_refused() {
        let mut message = Vec::new();
        message.extend(44u32.to_ne_bytes());
        message.extend(op::LOOKUP.to_ne_bytes());
        message.extend((7u64 | 1 << 63).to_ne_bytes());
        message.extend(1u64.to_ne_bytes());
        message.extend([1u32, 2, 3, 0].map(u32::to_ne_bytes).concat());
        message.extend(b"abc\0");
        let (header, mut fields) = Header::read(&message).unwrap();
        assert_eq!((header.opcode, header.unique, header.node), (op::LOOKUP, 7 | 1 << 63, 1));
        assert_eq!(fields.name().unwrap(), b"abc");
        assert!(fields.u32().is_err());
        assert!(Header::read(&message[..43]).is_err());
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for bad in [&b"..\0"[..], b".\0", b"\0", b"a/b\0", b"no end"] {
            assert!(Fields(bad).name().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_reply_carries_its_length_and_error() {
        let bytes = Reply::default().u32(5).align().finish(9, -2);
        assert_eq!(bytes.len(), 24);
        let (len, error) = (&bytes[..4], &bytes[4..8]);
        assert_eq!((len, error), (&24u32.to_ne_bytes()[..], &(-2i32).to_ne_bytes()[..]));
    }
}
