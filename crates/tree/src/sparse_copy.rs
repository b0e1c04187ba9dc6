//! Copies a file's data into another file, preserving holes.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::{SeekFrom, copy_file_range, ftruncate, seek};
use rustix::io::Errno;

use crate::Effort;

/// How much is copied between two checks of the budget.
const CHUNK_BYTES: u64 = 64 * 1024 * 1024;

/// Makes an empty file a copy with `size_bytes`. Returns how many bytes were copied.
pub fn copy_data(
    from: impl AsFd,
    to: impl AsFd,
    size_bytes: u64,
    effort: &Effort,
) -> io::Result<u64> {
    ftruncate(&to, size_bytes)?;
    let (mut at, mut copied) = (0, 0);
    while at < size_bytes {
        let start = match seek(&from, SeekFrom::Data(at)) {
            Ok(start) => start,
            // Only a hole is left.
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        at = seek(&from, SeekFrom::Hole(start))?.min(size_bytes);
        copied += at.saturating_sub(start);
        copy_range(&from, &to, (start, at), effort)?;
    }
    Ok(copied)
}

fn copy_range(
    from: impl AsFd,
    to: impl AsFd,
    (start, end): (u64, u64),
    effort: &Effort,
) -> io::Result<()> {
    let (mut at_from, mut at_to) = (start, start);
    while at_from < end {
        let part = (end - at_from).min(CHUNK_BYTES);
        effort.spend(part)?;
        let part = usize::try_from(part).unwrap_or(usize::MAX);
        if copy_file_range(&from, Some(&mut at_from), &to, Some(&mut at_to), part)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}
