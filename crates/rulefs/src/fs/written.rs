//! Which files others may be writing without a message, so that the kernel must not trust what it knows of them.
//!
//! With passthrough a server sees that a file is opened for writing and closed, not what is written meanwhile. It tells
//! both, and in between the others have their kernels ask about the attributes every time.

use std::collections::HashMap;

use sandkeep_core::limits;

use crate::control::Writers;
use crate::table::FileId;

/// The kernel caches names and attributes until it is told otherwise.
const FOR_EVER_SECS: u64 = 365 * 24 * 60 * 60;

pub struct Written {
    writers: Writers,
    /// The servers that have each file open for writing.
    files: HashMap<FileId, Vec<u32>>,
    /// There are more such files than are kept here.
    is_full: bool,
}

impl Written {
    pub fn new(writers: Writers) -> Self {
        Self { writers, files: HashMap::new(), is_full: false }
    }

    pub fn add(&mut self, file: FileId, by: u32) {
        if self.files.len() >= limits::RULEFS_WRITTEN_MAX && !self.files.contains_key(&file) {
            self.is_full = true;
            return;
        }
        let writers = self.files.entry(file).or_default();
        if !writers.contains(&by) {
            writers.push(by);
        }
    }

    pub fn remove(&mut self, file: FileId, by: u32) {
        let Some(writers) = self.files.get_mut(&file) else { return };
        writers.retain(|known| *known != by);
        if writers.is_empty() {
            self.files.remove(&file);
        }
    }

    /// A server is gone, or tells again what it has. Returns the files that it had.
    pub fn forget(&mut self, by: u32) -> Vec<FileId> {
        let had = |(file, writers): (&FileId, &Vec<u32>)| writers.contains(&by).then_some(*file);
        let files: Vec<FileId> = self.files.iter().filter_map(had).collect();
        files.iter().for_each(|file| self.remove(*file, by));
        files
    }

    pub fn clear(&mut self) {
        self.files.clear();
    }

    /// Whether the file may change at any time without a word.
    pub fn is_volatile(&self, file: FileId) -> bool {
        self.is_full || self.writers == Writers::Silent || self.files.contains_key(&file)
    }

    /// How long the kernel may keep what it is told of a file.
    pub fn attributes_secs(&self, file: FileId) -> u64 {
        if self.is_volatile(file) { 0 } else { FOR_EVER_SECS }
    }

    /// How long it may keep a name, and what a directory lists.
    pub fn names_secs(&self) -> u64 {
        match self.writers {
            Writers::Tell => FOR_EVER_SECS,
            Writers::Silent => 0,
        }
    }

    pub fn writers(&self) -> Writers {
        self.writers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_volatile_while_any_server_has_it_open_for_writing() {
        let mut written = Written::new(Writers::Tell);
        let file = (1, 2);
        assert_eq!(written.attributes_secs(file), FOR_EVER_SECS);
        written.add(file, 10);
        written.add(file, 10);
        written.add(file, 11);
        written.remove(file, 10);
        assert_eq!(written.attributes_secs(file), 0);
        assert_eq!(written.forget(11), [file]);
        assert!(!written.is_volatile(file));
    }

    #[test]
    fn with_more_files_than_are_kept_nothing_is_trusted() {
        let mut written = Written::new(Writers::Tell);
        (0..=limits::RULEFS_WRITTEN_MAX as u64).for_each(|inode| written.add((1, inode), 10));
        assert_eq!(written.attributes_secs((2, 0)), 0);
        assert_eq!(written.files.len(), limits::RULEFS_WRITTEN_MAX);
    }

    #[test]
    fn where_others_are_silent_the_kernel_keeps_nothing() {
        let written = Written::new(Writers::Silent);
        assert_eq!((written.names_secs(), written.attributes_secs((1, 2))), (0, 0));
    }
}
