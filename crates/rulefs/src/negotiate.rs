//! The first message of a connection: how the kernel and the server agree to work.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use sandkeep_core::limits;

use crate::control::Mode;
use crate::fs::Epochs;
use crate::wire::{self, Header, Reply, init, op};

const COMMON: u64 = init::ASYNC_READ
    | init::BIG_WRITES
    | init::DONT_MASK
    | init::DO_READDIRPLUS
    | init::READDIRPLUS_AUTO
    | init::ASYNC_DIO
    | init::PARALLEL_DIROPS
    | init::MAX_PAGES
    | init::CACHE_SYMLINKS
    | init::EXPLICIT_INVAL_DATA
    | init::HANDLE_KILLPRIV_V2
    | init::EXT
    | init::NO_EXPORT_SUPPORT
    | init::HAS_RESEND
    | init::ALLOW_IDMAP;

/// Without O_TRUNC in opens: those are not sent, and the kernel then truncates by a request that is.
const ZERO_MESSAGE: u64 = COMMON | init::NO_OPEN_SUPPORT | init::NO_OPENDIR_SUPPORT;
const PASSTHROUGH: u64 = COMMON | init::PASSTHROUGH;

const PAGE_BYTES: usize = 4096;
const BACKGROUND_MAX: u16 = 64;
const CONGESTED_FROM: u16 = 48;

/// Answers the first request. Fails if the kernel lacks what the mode needs.
pub fn initialize(connection: &OwnedFd, mode: Mode) -> io::Result<Epochs> {
    let mut buffer = vec![0; limits::RULEFS_WRITE_MAX_BYTES + wire::REQUEST_EXTRA_BYTES];
    let len = rustix::io::retry_on_intr(|| rustix::io::read(connection, &mut buffer))?;
    let (header, mut fields) = Header::read(&buffer[..len])?;
    if header.opcode != op::INIT {
        return Err(Errno::PROTO.into());
    }
    let (major, minor) = (fields.u32()?, fields.u32()?);
    let (readahead, low) = (fields.u32()?, fields.u32()?);
    let offered = match u64::from(low) & init::EXT {
        0 => u64::from(low),
        _ => u64::from(low) | u64::from(fields.u32()?) << 32,
    };
    let (wanted, needed) = match mode {
        Mode::ZeroMessage => (ZERO_MESSAGE, init::NO_OPEN_SUPPORT | init::NO_OPENDIR_SUPPORT),
        Mode::Passthrough => (PASSTHROUGH, init::PASSTHROUGH),
    };
    if major != wire::MAJOR || offered & needed != needed {
        let refused = Reply::default().finish(header.unique, -Errno::OPNOTSUPP.raw_os_error());
        rustix::io::write(connection, &refused)?;
        return Err(Errno::OPNOTSUPP.into());
    }
    let flags = offered & wanted;
    let pages = limits::RULEFS_WRITE_MAX_BYTES.div_ceil(PAGE_BYTES);
    let reply = Reply::default().u32(wire::MAJOR).u32(wire::MINOR).u32(readahead).u32(flags as u32);
    let reply = reply.u16(BACKGROUND_MAX).u16(CONGESTED_FROM);
    let reply = reply.u32(limits::RULEFS_WRITE_MAX_BYTES as u32).u32(1);
    let reply = reply.u16(u16::try_from(pages).unwrap_or(u16::MAX)).u16(0);
    // Files of a passthrough mount lie on no other such mount.
    let depth = u32::from(mode == Mode::Passthrough);
    let reply = reply.u32((flags >> 32) as u32).u32(depth);
    let reply = (0..6).fold(reply, |reply, _| reply.u32(0));
    rustix::io::write(connection, &reply.finish(header.unique, 0))?;
    Ok(if minor >= wire::MINOR_WITH_EPOCH { Epochs::Known } else { Epochs::Unknown })
}
