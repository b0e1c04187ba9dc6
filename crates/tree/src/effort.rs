//! The host's budget for untrusted files: a limited number of bytes and a time limit, and nothing more once the result
//! is no longer wanted. The tree's owner determines the size of its files, and a file of 7 EiB is free to create; so
//! everything that reads a tree checks this budget for every chunk.

use std::fs::File;
use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use sandkeep_core::limits;

/// A budget shared by all work for one request.
#[derive(Clone, Debug)]
pub struct Effort(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    max_bytes: u64,
    left_bytes: AtomicU64,
    time: Duration,
    /// `None` means unlimited.
    deadline: Option<Instant>,
    cancelled: Arc<AtomicBool>,
    given_up: OnceLock<GivenUp>,
}

/// Why work on a tree was abandoned.
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

    /// Another budget for the next part of the same work: canceling one cancels both.
    pub fn anew(&self, max_bytes: u64, time: Duration) -> Self {
        Self::with(max_bytes, time, Arc::clone(&self.0.cancelled))
    }

    /// Whether both are the same budget.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Why the work was abandoned, if it was.
    pub fn given_up(&self) -> Option<GivenUp> {
        self.0.given_up.get().copied()
    }

    /// All work with it stops at its next chunk.
    pub fn cancel(&self) {
        self.0.cancelled.store(true, Ordering::Relaxed);
    }

    /// Cancels it when dropped.
    pub fn cancel_on_drop(&self) -> CancelOnDrop {
        CancelOnDrop(self.clone())
    }

    /// Whether this many bytes can still be processed; they are not spent.
    pub fn check(&self, bytes: u64) -> io::Result<()> {
        let Inner { left_bytes, max_bytes, given_up, .. } = &*self.0;
        if bytes > left_bytes.load(Ordering::Relaxed) {
            Err((*given_up.get_or_init(|| GivenUp::Bytes { max: *max_bytes })).into())
        } else {
            Ok(())
        }
    }

    /// Called before something slow, or before processing this many bytes.
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

/// The default is bounded, too, so that no tree is read without limits.
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

/// The content of a regular file, up to its size when it was looked up, so that a growing file ends too.
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
    /// All of them before the first is read, so that a file which cannot be read completely is not started.
    AtOnce,
    AsRead,
}

impl Contents {
    /// For reading some of it.
    pub(crate) fn new(file: File, size_bytes: u64, effort: Effort) -> Self {
        Self { file, left_bytes: size_bytes, effort, spent: Spent::AsRead }
    }

    /// For reading all of it.
    pub(crate) fn whole(file: File, size_bytes: u64, effort: Effort) -> io::Result<Self> {
        effort.spend(size_bytes)?;
        Ok(Self { file, left_bytes: size_bytes, effort, spent: Spent::AtOnce })
    }

    pub(crate) fn left_bytes(&self) -> u64 {
        self.left_bytes
    }

    /// The next data at or after an offset; everything before it is a hole.
    pub(crate) fn data_from(&self, at: u64) -> io::Result<Option<u64>> {
        match seek(&self.file, SeekFrom::Data(at)) {
            Ok(start) => Ok(Some(start)),
            Err(Errno::NXIO) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Fails at once if all of it has to be read, because holes are unknown, and that is too much.
    pub(crate) fn check(&self) -> io::Result<()> {
        let size_bytes = self.left_bytes;
        match seek(&self.file, SeekFrom::Hole(0)) {
            Ok(hole) if hole >= size_bytes => self.effort.check(size_bytes),
            Ok(_) | Err(Errno::NXIO) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads at an offset until the buffer is full or the file ends.
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
