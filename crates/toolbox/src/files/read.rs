//! The bytes of a file, all or a range.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat};

use super::stat::{entry, kind_of};
use crate::answer::{Failure, FailureKind, Reading};
use crate::request::{ByteRange, RawPath};
use crate::wire::{DATA_MAX, Output};

pub fn read(path: &RawPath, range: Option<ByteRange>, output: &mut Output) -> Result<(), Failure> {
    let (file, found) = open_regular(path)?;
    let entry = entry(path.clone(), &found, None);
    let Some((start, len)) = portion(range, entry.size) else {
        return output.head(&Reading::Unsatisfiable { entry });
    };
    output.head(&Reading::Bytes { entry, start, len })?;
    send(&file, path, start, len, output)
}

/// A regular file, open for reading, even if it is replaced meanwhile. Other types are refused before opening, because
/// opening a FIFO or a device can have side effects.
pub fn open_regular(path: &RawPath) -> Result<(File, Stat), Failure> {
    let failure = |errno| Failure::from_errno(errno, path);
    let looked = rustix::fs::statat(CWD, path.as_path(), rustix::fs::AtFlags::empty());
    require_regular(path, &looked.map_err(failure)?)?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix::fs::open(path.as_path(), flags, Mode::empty()).map_err(failure)?;
    // It may be another one by now.
    let found = rustix::fs::fstat(file.as_fd()).map_err(failure)?;
    require_regular(path, &found)?;
    Ok((file.into(), found))
}

pub fn require_regular(path: &RawPath, found: &Stat) -> Result<(), Failure> {
    match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile => Ok(()),
        FileType::Directory => {
            Err(Failure::new(FailureKind::IsADirectory, "it is a directory, not a file").at(path))
        }
        other => {
            let message = format!("it is {}, not a regular file", kind_of(other));
            Err(Failure::new(FailureKind::NotRegular, message).at(path))
        }
    }
}

/// The start and length of a read; `None` if the range is empty.
fn portion(range: Option<ByteRange>, size: u64) -> Option<(u64, u64)> {
    match range {
        None => Some((0, size)),
        Some(ByteRange::From { first, last }) => {
            let end = last.map_or(size, |last| last.saturating_add(1).min(size));
            (first < size && first < end).then(|| (first, end - first))
        }
        Some(ByteRange::Last { bytes }) => {
            let len = bytes.min(size);
            (len > 0).then(|| (size - len, len))
        }
    }
}

fn send(
    file: &File,
    path: &RawPath,
    start: u64,
    len: u64,
    output: &mut Output,
) -> Result<(), Failure> {
    let mut buffer = vec![0; DATA_MAX];
    let mut sent = 0;
    while sent < len {
        let wanted = usize::try_from(len - sent).unwrap_or(DATA_MAX).min(DATA_MAX);
        match file.read_at(&mut buffer[..wanted], start + sent) {
            Ok(0) => {
                let message = "it became shorter while it was read";
                return Err(Failure::new(FailureKind::Changed, message).at(path));
            }
            Ok(count) => {
                output.data(&buffer[..count])?;
                sent += count as u64;
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Failure::from_io(&error, Some(path.as_path()))),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_what_http_says_it_is() {
        let from = |first, last| Some(ByteRange::From { first, last });
        assert_eq!(portion(None, 0), Some((0, 0)));
        assert_eq!(portion(None, 9), Some((0, 9)));
        assert_eq!(portion(from(0, Some(0)), 9), Some((0, 1)));
        assert_eq!(portion(from(4, None), 9), Some((4, 5)));
        assert_eq!(portion(from(4, Some(99)), 9), Some((4, 5)));
        assert_eq!(portion(from(0, Some(u64::MAX)), 9), Some((0, 9)));
        assert_eq!(portion(Some(ByteRange::Last { bytes: 3 }), 9), Some((6, 3)));
        assert_eq!(portion(Some(ByteRange::Last { bytes: 30 }), 9), Some((0, 9)));
        for nothing in [from(9, None), from(5, Some(4)), Some(ByteRange::Last { bytes: 0 })] {
            assert_eq!(portion(nothing, 9), None, "{nothing:?}");
        }
        assert_eq!(portion(from(0, None), 0), None);
    }
}
