//! What the host spends on files that somebody else filled: so many bytes and so much time, and nothing more once
//! nobody wants the result. Whoever fills a tree decides how large its files are, and a file of 7 EiB costs nothing to
//! make; so everything that reads a tree asks here, chunk by chunk, whether it may go on.

use std::fs::File;
use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use sandkeep_core::limits;

/// A budget that all who work for one request share.
#[derive(Clone, Debug)]
pub struct Effort(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    max_bytes: u64,
    left_bytes: AtomicU64,
    time: Duration,
    /// None if there is all the time in the world.
    deadline: Option<Instant>,
    cancelled: Arc<AtomicBool>,
    given_up: OnceLock<GivenUp>,
}

/// Why work on a tree was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GivenUp {
    #[error("nobody waits for the result any more")]
    Cancelled,
    #[error("the files hold more than {max} bytes, holes included")]
    Bytes { max: u64 },
    #[error("reading the files takes longer than {} s", max.as_secs())]
    Time { max: Duration },
}

impl From<GivenUp> for io::Error {
    fn from(reason: GivenUp) -> Self {
        Self::other(reason)
    }
}

impl Effort {
    pub fn new(max_bytes: u64, time: Duration) -> Self {
        Self::with(max_bytes, time, Arc::default())
    }

    fn with(max_bytes: u64, time: Duration, cancelled: Arc<AtomicBool>) -> Self {
        let (left_bytes, given_up) = (AtomicU64::new(max_bytes), OnceLock::new());
        let deadline = Instant::now().checked_add(time);
        Self(Arc::new(Inner { max_bytes, left_bytes, time, deadline, cancelled, given_up }))
    }

    /// Another budget, for the next part of the same work: who cancels one cancels both.
    pub fn anew(&self, max_bytes: u64, time: Duration) -> Self {
        Self::with(max_bytes, time, Arc::clone(&self.0.cancelled))
    }

    /// Why the work was given up, if it was.
    pub fn given_up(&self) -> Option<GivenUp> {
        self.0.given_up.get().copied()
    }

    /// All who work with it stop at their next chunk.
    pub fn cancel(&self) {
        self.0.cancelled.store(true, Ordering::Relaxed);
    }

    /// Cancels it when it is dropped.
    pub fn cancel_on_drop(&self) -> CancelOnDrop {
        CancelOnDrop(self.clone())
    }

    /// Whether so many bytes can still be handled; they are not spent.
    pub fn check(&self, bytes: u64) -> io::Result<()> {
        let Inner { left_bytes, max_bytes, given_up, .. } = &*self.0;
        match bytes > left_bytes.load(Ordering::Relaxed) {
            true => Err((*given_up.get_or_init(|| GivenUp::Bytes { max: *max_bytes })).into()),
            false => Ok(()),
        }
    }

    /// Before something is done that takes a while, or handles so many bytes.
    pub fn spend(&self, bytes: u64) -> io::Result<()> {
        let Inner { max_bytes, left_bytes, time, deadline, cancelled, given_up } = &*self.0;
        let take = |left: u64| left.checked_sub(bytes);
        let reason = match () {
            () if cancelled.load(Ordering::Relaxed) => GivenUp::Cancelled,
            () if deadline.is_some_and(|deadline| Instant::now() > deadline) => {
                GivenUp::Time { max: *time }
            }
            () => match left_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
                Ok(_) => return Ok(()),
                Err(_) => GivenUp::Bytes { max: *max_bytes },
            },
        };
        Err((*given_up.get_or_init(|| reason)).into())
    }
}

/// Nobody reads a tree without bounds, also not who names none.
impl Default for Effort {
    fn default() -> Self {
        Self::new(limits::TREE_WORK_MAX_BYTES, limits::TREE_WORK_MAX)
    }
}

pub struct CancelOnDrop(Effort);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// What a regular file holds, of as much as it held when it was looked at: one that grows ends too.
#[derive(Debug)]
pub struct Contents {
    file: File,
    left_bytes: u64,
    effort: Effort,
    spent: Spent,
}

/// When the bytes of a file are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spent {
    /// All of them before the first is read, so that a file which cannot be read whole is not begun.
    AtOnce,
    AsRead,
}

impl Contents {
    /// To be read as far as somebody likes.
    pub(crate) fn new(file: File, size_bytes: u64, effort: Effort) -> Self {
        Self { file, left_bytes: size_bytes, effort, spent: Spent::AsRead }
    }

    /// To be read from the first to the last byte.
    pub(crate) fn whole(file: File, size_bytes: u64, effort: Effort) -> io::Result<Self> {
        effort.spend(size_bytes)?;
        Ok(Self { file, left_bytes: size_bytes, effort, spent: Spent::AtOnce })
    }

    pub(crate) fn left_bytes(&self) -> u64 {
        self.left_bytes
    }

    /// Where the next data is at or behind a place; what is before it is a hole.
    pub(crate) fn data_from(&self, at: u64) -> io::Result<Option<u64>> {
        match seek(&self.file, SeekFrom::Data(at)) {
            Ok(start) => Ok(Some(start)),
            Err(Errno::NXIO) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Fails at once if all of it has to be read, because nobody knows of holes in it, and that is too much.
    pub(crate) fn check(&self) -> io::Result<()> {
        let size_bytes = self.left_bytes;
        match seek(&self.file, SeekFrom::Hole(0)) {
            Ok(hole) if hole >= size_bytes => self.effort.check(size_bytes),
            Ok(_) | Err(Errno::NXIO) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads at a place until the buffer is full or the file is over.
    pub(crate) fn fill_at(&self, at: u64, buffer: &mut [u8]) -> io::Result<usize> {
        use std::os::unix::fs::FileExt as _;
        self.effort.spend(buffer.len() as u64)?;
        let mut filled = 0;
        while filled < buffer.len() {
            match self.file.read_at(&mut buffer[filled..], at + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }
}

impl Read for Contents {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let room = usize::try_from(self.left_bytes).unwrap_or(usize::MAX).min(buffer.len());
        self.effort.spend(match self.spent {
            Spent::AtOnce => 0,
            Spent::AsRead => room as u64,
        })?;
        let read = self.file.read(&mut buffer[..room])?;
        self.left_bytes -= read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_ends_with_its_bytes_its_time_or_whoever_wants_it() {
        let effort = Effort::new(10, Duration::from_secs(3600));
        let also = effort.clone();
        effort.spend(6).expect("there is enough");
        assert!(also.spend(5).is_err(), "both have one budget");
        assert_eq!(effort.given_up(), Some(GivenUp::Bytes { max: 10 }));
        let next = effort.anew(5, Duration::MAX);
        next.spend(5).expect("it has a budget of its own");
        drop(effort.cancel_on_drop());
        assert!(next.spend(0).is_err(), "who cancels one cancels both");
        assert_eq!(next.given_up(), Some(GivenUp::Cancelled));
        let late = Effort::new(10, Duration::ZERO);
        while late.spend(0).is_ok() {}
        assert_eq!(late.given_up(), Some(GivenUp::Time { max: Duration::ZERO }));
    }
}
