//! What a server knows, in memory that outlives it: if it is killed, the next one reads here which nodes the kernel
//! has, and open files go on.
//!
//! Every change of the table is appended before the kernel is answered, so a record that was cut off by the end of the
//! server belongs to a request that the kernel sends again. Once most records are of no use any more, the whole table
//! is written to a second file, which then takes the place of the first.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};
use rustix::io::{Errno, pread, pwrite};
use sandkeep_core::limits;
use sandkeep_core::rules::Permission;
use serde::{Deserialize, Serialize};

use crate::control::WireRules;
use crate::fs::Epochs;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KindTag {
    Directory,
    File,
    Symlink,
    Special,
}

/// A node: its id, key, kind, names and lookups.
pub type NodeImage = (u64, (u64, u64, Permission), KindTag, Vec<(u64, Vec<u8>)>, u64);

/// A file that the kernel reads and writes by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backed {
    /// The kernel's number for it.
    pub backing: u32,
    /// How often it is open, and how often of these for writing.
    pub opens: u64,
    pub writers: u64,
}

/// A node with what the kernel has of its file.
pub type Backing = (u64, Backed);

#[derive(Debug, Serialize, Deserialize)]
pub enum Record {
    /// Everything; always the first.
    Image {
        next: u64,
        nodes: Vec<NodeImage>,
        rules: WireRules,
        backings: Vec<Backing>,
        epochs: Epochs,
    },
    LookUp {
        id: u64,
        dir: u64,
        name: Vec<u8>,
        key: (u64, u64, Permission),
        kind: KindTag,
    },
    Nameless {
        id: u64,
        key: (u64, u64, Permission),
    },
    AddName {
        id: u64,
        dir: u64,
        name: Vec<u8>,
    },
    RemoveName {
        id: u64,
        dir: u64,
        name: Vec<u8>,
    },
    Forget {
        id: u64,
        count: u64,
    },
    /// A file that somebody else has removed: its number may be used again.
    Part((u64, u64)),
    Rules(WireRules),
    /// Not open any more if there are no opens.
    Backing(Backing),
}

/// The two files. A copy refers to the same ones.
#[derive(Clone, Debug)]
pub struct Files(Arc<[OwnedFd; 2]>);

/// At the start of a file: its number, 0 while it is incomplete; the larger one is in use.
const HEADER_BYTES: u64 = 8;
const LENGTH_BYTES: usize = 4;

#[derive(Debug)]
pub struct Journal {
    files: Files,
    active: usize,
    generation: u64,
    end: u64,
    /// Where records follow the image.
    image_end: u64,
}

impl Files {
    pub fn create() -> Result<Self, Errno> {
        let file = || memfd_create("sandkeep-rulefs", MemfdFlags::CLOEXEC);
        Ok(Self(Arc::new([file()?, file()?])))
    }

    /// All complete records, the image first.
    pub fn read(&self) -> Result<(Vec<Record>, Journal), Errno> {
        let generations = [generation(&self.0[0])?, generation(&self.0[1])?];
        let active = usize::from(generations[1] > generations[0]);
        let generation = generations[active];
        if generation == 0 {
            return Err(Errno::NODATA);
        }
        let file = &self.0[active];
        let size = fstat(file)?.st_size as u64;
        let mut bytes = vec![0; (size - HEADER_BYTES) as usize];
        read_all(file, &mut bytes, HEADER_BYTES)?;
        let mut records = Vec::new();
        let (mut at, mut image_end) = (0, 0);
        while let Some(length) = bytes[at..].first_chunk::<LENGTH_BYTES>() {
            let (start, length) = (at + LENGTH_BYTES, u32::from_ne_bytes(*length) as usize);
            let Some(record) = bytes.get(start..start + length) else { break };
            records.push(postcard::from_bytes(record).map_err(|_| Errno::PROTO)?);
            at = start + length;
            if records.len() == 1 {
                image_end = HEADER_BYTES + at as u64;
            }
        }
        let end = HEADER_BYTES + at as u64;
        ftruncate(file, end)?;
        let files = self.clone();
        Ok((records, Journal { files, active, generation, end, image_end }))
    }

    /// Begins with everything that there is.
    pub fn begin(&self, image: &Record) -> Result<Journal, Errno> {
        let (files, end) = (self.clone(), HEADER_BYTES);
        let mut journal = Journal { files, active: 1, generation: 0, end, image_end: end };
        journal.rewrite(image)?;
        Ok(journal)
    }
}

impl Journal {
    pub fn append(&mut self, record: &Record) -> Result<(), Errno> {
        let written = encode(record).and_then(|bytes| {
            write_all(&self.files.0[self.active], &bytes, self.end).map(|()| bytes)
        });
        match written {
            Ok(bytes) => self.end += bytes.len() as u64,
            Err(error) => {
                // Better no next server than one with a wrong table.
                self.generation = 0;
                set_generation(&self.files.0[self.active], 0)?;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Whether it is mostly of records that later ones have made useless.
    pub fn is_long(&self) -> bool {
        self.generation > 0
            && self.end > limits::RULEFS_JOURNAL_MIN_BYTES
            && self.end > 3 * self.image_end
    }

    pub fn rewrite(&mut self, image: &Record) -> Result<(), Errno> {
        let next = 1 - self.active;
        let (file, old) = (&self.files.0[next], &self.files.0[self.active]);
        ftruncate(file, 0)?;
        ftruncate(file, HEADER_BYTES)?;
        let bytes = encode(image)?;
        write_all(file, &bytes, HEADER_BYTES)?;
        self.generation += 1;
        set_generation(file, self.generation)?;
        ftruncate(old, 0)?;
        self.active = next;
        self.end = HEADER_BYTES + bytes.len() as u64;
        self.image_end = self.end;
        Ok(())
    }
}

fn encode(record: &Record) -> Result<Vec<u8>, Errno> {
    let record = postcard::to_allocvec(record).map_err(|_| Errno::NOMEM)?;
    let length = u32::try_from(record.len()).map_err(|_| Errno::FBIG)?;
    Ok([&length.to_ne_bytes()[..], &record].concat())
}

fn generation(file: &OwnedFd) -> Result<u64, Errno> {
    let mut bytes = [0; HEADER_BYTES as usize];
    match pread(file, &mut bytes, 0)? {
        len if len < bytes.len() => Ok(0),
        _ => Ok(u64::from_ne_bytes(bytes)),
    }
}

fn set_generation(file: &OwnedFd, generation: u64) -> Result<(), Errno> {
    write_all(file, &generation.to_ne_bytes(), 0)
}

fn write_all(file: &OwnedFd, mut bytes: &[u8], mut at: u64) -> Result<(), Errno> {
    while !bytes.is_empty() {
        let len = pwrite(file, bytes, at)?;
        bytes = &bytes[len..];
        at += len as u64;
    }
    Ok(())
}

fn read_all(file: &OwnedFd, bytes: &mut [u8], from: u64) -> Result<(), Errno> {
    let mut done = 0;
    while done < bytes.len() {
        match pread(file, &mut bytes[done..], from + done as u64)? {
            0 => return Err(Errno::IO),
            len => done += len,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandkeep_core::rules::Rules;

    fn image() -> Record {
        let rules = WireRules::from(&Rules::new(Vec::new()).unwrap());
        let (nodes, backings, epochs) = (Vec::new(), Vec::new(), Epochs::Known);
        Record::Image { next: 2, nodes, rules, backings, epochs }
    }

    fn forget(count: u64) -> Record {
        Record::Forget { id: 1, count }
    }

    fn counts(records: &[Record]) -> Vec<u64> {
        let count = |record: &Record| match record {
            Record::Forget { count, .. } => Some(*count),
            _ => None,
        };
        records.iter().filter_map(count).collect()
    }

    #[test]
    fn records_are_read_up_to_one_that_was_cut_off() {
        let files = Files::create().unwrap();
        assert!(files.read().is_err(), "nothing was written");
        let mut journal = files.begin(&image()).unwrap();
        journal.append(&forget(1)).unwrap();
        journal.append(&forget(300)).unwrap();
        let whole = journal.end;
        ftruncate(&files.0[journal.active], whole - 1).unwrap();
        let (records, mut next) = files.read().unwrap();
        assert_eq!(counts(&records), [1]);
        next.append(&forget(7)).unwrap();
        assert_eq!(counts(&files.read().unwrap().0), [1, 7]);
    }

    #[test]
    fn a_rewritten_journal_takes_the_place_of_the_old_one() {
        let files = Files::create().unwrap();
        let mut journal = files.begin(&image()).unwrap();
        for _ in 0..3 {
            journal.append(&forget(1)).unwrap();
            journal.rewrite(&image()).unwrap();
            assert_eq!(counts(&files.read().unwrap().0), [0; 0]);
        }
        journal.append(&forget(2)).unwrap();
        assert_eq!(counts(&files.read().unwrap().0), [2]);
        // One that was being written when the server ended does not count.
        let other = &files.0[1 - journal.active];
        ftruncate(other, HEADER_BYTES).unwrap();
        write_all(other, &encode(&image()).unwrap(), HEADER_BYTES).unwrap();
        assert_eq!(counts(&files.read().unwrap().0), [2]);
    }
}
