//! A log in shared memory: processes of ours append records to it, and each reads what the others append.
//!
//! It is a memory file, so it needs neither a path nor a disk, and lives as long as one of its processes. Its first page
//! holds numbers that all of them map; records follow, each after its length. A record is one `write` in append mode, so
//! records never mix. Old ones are removed: a reader that is too far behind is told that it has lost some.

#![expect(unsafe_code, reason = "shared memory has no safe wrapper")]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{
    FallocateFlags, MemfdFlags, OFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals,
    fcntl_setfl, fstat, ftruncate, memfd_create,
};
use rustix::io::{Errno, pread};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::thread::futex;
use sandkeep_core::limits;

/// Where records begin. The kernel maps and removes whole pages.
const PAGE_BYTES: usize = 4096;
const LENGTH_BYTES: usize = 4;

/// The start of the first page.
#[repr(C)]
struct Words {
    /// Whether there is anybody to append for.
    shared: AtomicU32,
    /// Counted up with every record: what readers wait for.
    appended: AtomicU32,
    /// Counted up with every record that could not be appended: all readers have lost something then.
    lost: AtomicU32,
}

#[derive(Debug)]
pub struct Board {
    file: OwnedFd,
    words: NonNull<Words>,
}

// SAFETY: the pointer is to shared memory that stays mapped as long as the value lives, and is only used for atomics.
unsafe impl Send for Board {}
// SAFETY: as above.
unsafe impl Sync for Board {}

/// How far a reader has read.
#[derive(Clone, Copy, Debug)]
pub struct Position {
    at: u64,
    appended: u32,
    lost: u32,
}

/// What was appended since a position.
#[derive(Debug, PartialEq, Eq)]
pub enum News {
    Records(Vec<Vec<u8>>),
    /// Some were not read in time, or could not be appended.
    Lost,
}

impl Board {
    pub fn create() -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("sandkeep-board", flags)?;
        ftruncate(&file, PAGE_BYTES as u64)?;
        // Nobody can take the page away below the others.
        fcntl_add_seals(&file, SealFlags::SHRINK)?;
        fcntl_setfl(&file, OFlags::RDWR | OFlags::APPEND)?;
        Self::of(file)
    }

    /// The board of another process.
    pub fn of(file: OwnedFd) -> io::Result<Self> {
        let size = fstat(&file)?.st_size;
        let is_board = fcntl_get_seals(&file)?.contains(SealFlags::SHRINK);
        if !is_board || size < PAGE_BYTES as i64 {
            return Err(Errno::INVAL.into());
        }
        // SAFETY: the kernel chooses where, so nothing of ours is replaced.
        let page = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            mmap(std::ptr::null_mut(), PAGE_BYTES, access, MapFlags::SHARED, &file, 0)?
        };
        let words = NonNull::new(page.cast()).ok_or(Errno::FAULT)?;
        Ok(Self { file, words })
    }

    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn words(&self) -> &Words {
        // SAFETY: the page is mapped while `self` lives, the file cannot shrink below it, it is aligned to pages, and
        // every process uses it as atomics.
        unsafe { self.words.as_ref() }
    }

    /// From now on somebody reads. Whoever makes a change after this returns sees it.
    pub fn share(&self) {
        self.words().shared.store(1, Ordering::SeqCst);
    }

    /// Whether anybody may read what is appended.
    pub fn is_shared(&self) -> bool {
        self.words().shared.load(Ordering::SeqCst) != 0
    }

    /// Appends a record and wakes the readers. If there is no memory for it, they learn that they have lost something.
    pub fn append(&self, record: &[u8]) {
        let words = self.words();
        if self.try_append(record).is_err() {
            words.lost.fetch_add(1, Ordering::SeqCst);
        }
        words.appended.fetch_add(1, Ordering::SeqCst);
        // It fails only for addresses that are not mapped.
        let _ = futex::wake(&words.appended, futex::Flags::empty(), i32::MAX.cast_unsigned());
    }

    fn try_append(&self, record: &[u8]) -> io::Result<()> {
        let length = u32::try_from(record.len()).map_err(|_| Errno::FBIG)?;
        if record.len() > limits::BOARD_RECORD_MAX_BYTES {
            return Err(Errno::FBIG.into());
        }
        let bytes = [&length.to_ne_bytes()[..], record].concat();
        if rustix::io::retry_on_intr(|| rustix::io::write(&self.file, &bytes))? != bytes.len() {
            return Err(Errno::NOSPC.into());
        }
        let end = self.end()?;
        let is_due = end % limits::BOARD_KEPT_BYTES < bytes.len() as u64;
        match end.checked_sub(2 * limits::BOARD_KEPT_BYTES).filter(|_| is_due) {
            Some(old) => {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                Ok(fallocate(&self.file, flags, PAGE_BYTES as u64, old)?)
            }
            None => Ok(()),
        }
    }

    fn end(&self) -> Result<u64, Errno> {
        Ok(fstat(&self.file)?.st_size.cast_unsigned())
    }

    /// The position of a reader that wants what comes from now on.
    pub fn now(&self) -> io::Result<Position> {
        let words = self.words();
        let appended = words.appended.load(Ordering::SeqCst);
        let lost = words.lost.load(Ordering::SeqCst);
        Ok(Position { at: self.end()?, appended, lost })
    }

    /// Waits until something was appended that the reader has not looked for yet.
    pub fn wait(&self, position: &Position) {
        let appended = &self.words().appended;
        while appended.load(Ordering::SeqCst) == position.appended {
            // It returns early after a signal, and at once if the number has changed.
            let _ = futex::wait(appended, futex::Flags::empty(), position.appended, None);
        }
    }

    /// What was appended since the position, which moves on.
    pub fn read(&self, position: &mut Position) -> io::Result<News> {
        // Before the records, so that one that comes meanwhile is not waited for.
        let now = self.now()?;
        let was_lost = std::mem::replace(&mut position.lost, now.lost) != now.lost;
        position.appended = now.appended;
        let behind = now.at.saturating_sub(position.at);
        if was_lost || behind > limits::BOARD_KEPT_BYTES {
            position.at = now.at;
            return Ok(News::Lost);
        }
        let mut bytes = vec![0; usize::try_from(behind).unwrap_or_default()];
        let mut done = 0;
        while done < bytes.len() {
            match pread(&self.file, &mut bytes[done..], position.at + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let Some((records, used)) = split(&bytes[..done]) else {
            position.at = now.at;
            return Ok(News::Lost);
        };
        position.at += used as u64;
        Ok(News::Records(records))
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        // SAFETY: `of` mapped this page, and nothing refers to it any more.
        let _ = unsafe { munmap(self.words.as_ptr().cast(), PAGE_BYTES) };
    }
}

/// The complete records, and how many bytes they take; `None` where there is none.
fn split(mut bytes: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
    let all = bytes.len();
    let mut records = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk::<LENGTH_BYTES>() {
        let length = u32::from_ne_bytes(*length) as usize;
        if length == 0 || length > limits::BOARD_RECORD_MAX_BYTES {
            return None;
        }
        // The rest of it is about to be written.
        let Some((record, rest)) = rest.split_at_checked(length) else { break };
        records.push(record.to_vec());
        bytes = rest;
    }
    Some((records, all - bytes.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(board: &Board, position: &mut Position) -> Vec<Vec<u8>> {
        match board.read(position).unwrap() {
            News::Records(records) => records,
            News::Lost => panic!("nothing was lost"),
        }
    }

    #[test]
    fn every_holder_reads_what_the_others_append() {
        let board = Board::create().unwrap();
        let other = Board::of(board.file().try_clone_to_owned().unwrap()).unwrap();
        let mut position = other.now().unwrap();
        assert!(!other.is_shared());
        board.share();
        assert!(other.is_shared());
        std::thread::scope(|scope| {
            for writer in 0..4u8 {
                let board = &board;
                scope.spawn(move || (0..250).for_each(|_| board.append(&[writer; 33])));
            }
            let mut read = Vec::new();
            while read.len() < 1000 {
                other.wait(&position);
                read.extend(records(&other, &mut position));
            }
            assert!(read.iter().all(|record| *record == [record[0]; 33]), "records are mixed");
        });
        assert_eq!(records(&other, &mut position), [[0; 0]; 0]);
    }

    #[test]
    fn a_reader_that_is_too_far_behind_is_told() {
        let board = Board::create().unwrap();
        let mut position = board.now().unwrap();
        let record = vec![7; limits::BOARD_RECORD_MAX_BYTES];
        let count = 3 * limits::BOARD_KEPT_BYTES / record.len() as u64;
        (0..count).for_each(|_| board.append(&record));
        assert_eq!(board.read(&mut position).unwrap(), News::Lost);
        board.append(b"next");
        assert_eq!(records(&board, &mut position), [b"next"]);
        // What nobody needs takes no memory.
        let blocks = fstat(&board.file).unwrap().st_blocks.cast_unsigned() * 512;
        assert!(blocks <= 4 * limits::BOARD_KEPT_BYTES, "{blocks} bytes");
    }

    #[test]
    fn a_record_that_does_not_fit_is_a_loss_and_another_file_is_no_board() {
        let board = Board::create().unwrap();
        let mut position = board.now().unwrap();
        board.append(&vec![1; limits::BOARD_RECORD_MAX_BYTES + 1]);
        assert_eq!(board.read(&mut position).unwrap(), News::Lost);
        let other = memfd_create("other", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&other, 8192).unwrap();
        assert!(Board::of(other).is_err());
    }
}
