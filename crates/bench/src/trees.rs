//! File trees for measuring storages: by size, or by number of files. Their content is incompressible, and the same in
//! every run.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::path::Path;
use std::str::FromStr;

use sandkeep_core::limits::MIB;

/// Files of one directory.
const FILES_PER_DIRECTORY: u64 = 1_000;
/// The file size in a tree defined by its number of files.
const SMALL_FILE_BYTES: u64 = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tree {
    /// In files of a mebibyte.
    Mebibytes(u64),
    Files(u64),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no tree: expected a number with MB, GB or files, such as 100MB")]
pub struct NoTree {
    text: String,
}

impl FromStr for Tree {
    type Err = NoTree;

    fn from_str(text: &str) -> Result<Self, NoTree> {
        let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (digits, unit) = text.split_at(split);
        let number = digits.parse().ok().filter(|number| (1..=1_000_000).contains(number));
        let tree = number.and_then(|number: u64| match unit {
            "MB" => Some(Self::Mebibytes(number)),
            "GB" => Some(Self::Mebibytes(number * 1024)),
            "files" => Some(Self::Files(number)),
            _ => None,
        });
        tree.ok_or_else(|| NoTree { text: text.to_owned() })
    }
}

impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mebibytes(count) if count.is_multiple_of(1024) => write!(f, "{}GB", count / 1024),
            Self::Mebibytes(count) => write!(f, "{count}MB"),
            Self::Files(count) => write!(f, "{count}files"),
        }
    }
}

impl Tree {
    /// Approximate size on disk.
    pub fn mebibytes(self) -> u64 {
        match self {
            Self::Mebibytes(count) => count,
            // A block for each file, and the same for its name and metadata.
            Self::Files(count) => (count * 8 * 1024).div_ceil(MIB),
        }
    }

    /// Creates it in a new directory.
    pub fn make(self, at: &Path) -> io::Result<()> {
        let (files, bytes) = match self {
            Self::Mebibytes(count) => (count, MIB),
            Self::Files(count) => (count, SMALL_FILE_BYTES),
        };
        let mut noise = Noise(0x9e37_79b9_7f4a_7c15);
        for number in 0..files {
            let directory = at.join((number / FILES_PER_DIRECTORY).to_string());
            if number.is_multiple_of(FILES_PER_DIRECTORY) {
                fs::create_dir_all(&directory)?;
            }
            let mut file = BufWriter::new(File::create(directory.join(number.to_string()))?);
            for _ in 0..bytes.div_ceil(8) {
                file.write_all(&noise.next().to_le_bytes())?;
            }
            file.flush()?;
        }
        Ok(())
    }
}

/// Marsaglia's xorshift.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_said_as_it_is_read() {
        for text in ["1MB", "100MB", "1GB", "100000files"] {
            assert_eq!(text.parse::<Tree>().map(|tree| tree.to_string()).as_deref(), Ok(text));
        }
        for text in ["", "MB", "0MB", "1", "1KB", "1 MB", "-1MB", "99999999GB"] {
            assert!(text.parse::<Tree>().is_err(), "{text:?} was accepted");
        }
    }

    #[test]
    fn a_tree_has_as_much_as_it_says() {
        let top = tempfile::tempdir().expect("a directory");
        Tree::Files(1_001).make(&top.path().join("files")).expect("made");
        let count = |name: &str| fs::read_dir(top.path().join(name)).expect("it is there").count();
        assert_eq!((count("files/0"), count("files/1")), (1_000, 1));
        Tree::Mebibytes(2).make(&top.path().join("bytes")).expect("made");
        let size = |name: &str| fs::metadata(top.path().join(name)).expect("it is there").len();
        assert_eq!((count("bytes/0"), size("bytes/0/1")), (2, MIB));
    }
}
