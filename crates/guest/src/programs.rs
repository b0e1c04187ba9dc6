//! Programs supplied by the host, by name. They are in no directory: no process inside can find, replace or change one,
//! and a sandbox without a single file can run it.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;

use guest_proto::{NAME_MAX, PROGRAM_MAX, PROGRAMS_MAX};

use crate::sys;

#[derive(Default)]
pub struct Programs {
    /// Oldest first.
    kept: Vec<(String, OwnedFd)>,
}

impl Programs {
    pub fn keep(&mut self, name: String, file: OwnedFd) {
        self.kept.retain(|(kept, _)| *kept != name);
        if self.kept.len() >= PROGRAMS_MAX {
            self.kept.remove(0);
        }
        self.kept.push((name, file));
    }

    /// A separate descriptor, so that it can be executed while another program replaces it.
    pub fn find(&self, name: &str) -> Option<io::Result<OwnedFd>> {
        self.kept.iter().find(|(kept, _)| kept == name).map(|(_, file)| file.try_clone())
    }
}

/// A program whose bytes have not all arrived.
pub struct Arriving {
    name: String,
    file: File,
    left: u64,
}

/// The result of some more bytes.
pub enum Arrived {
    /// More bytes are expected.
    Partly,
    Whole {
        name: String,
        file: OwnedFd,
    },
}

/// Why a program is refused.
pub enum Untakable {
    /// The host violates the protocol.
    AgainstTheRules,
    Io(io::Error),
}

impl Arriving {
    pub fn new(name: String, len: u64) -> Result<Self, Untakable> {
        if len == 0 || len > PROGRAM_MAX || name.len() > NAME_MAX {
            return Err(Untakable::AgainstTheRules);
        }
        let file = sys::program_file().map_err(Untakable::Io)?;
        Ok(Self { name, file, left: len })
    }

    pub fn take(&mut self, bytes: &[u8]) -> Result<Arrived, Untakable> {
        let len = bytes.len() as u64;
        self.left = self.left.checked_sub(len).ok_or(Untakable::AgainstTheRules)?;
        self.file.write_all(bytes).map_err(Untakable::Io)?;
        if self.left > 0 {
            return Ok(Arrived::Partly);
        }
        let file = self.file.try_clone().map_err(Untakable::Io)?;
        let file = sys::seal_program(file).map_err(Untakable::Io)?;
        Ok(Arrived::Whole { name: std::mem::take(&mut self.name), file })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn whole(arrived: Result<Arrived, Untakable>) -> Option<(String, OwnedFd)> {
        match arrived {
            Ok(Arrived::Whole { name, file }) => Some((name, file)),
            Ok(Arrived::Partly) | Err(_) => None,
        }
    }

    #[test]
    fn a_program_is_whole_when_its_last_byte_is_there_and_no_one_changes_it_then() {
        let Ok(mut arriving) = Arriving::new("a".to_owned(), 3) else { panic!("refused") };
        assert!(matches!(arriving.take(b"ab"), Ok(Arrived::Partly)));
        let (name, file) = whole(arriving.take(b"c")).expect("whole");
        let mut file = File::from(file);
        let mut content = String::new();
        file.read_to_string(&mut content).expect("readable from its start");
        assert_eq!((name.as_str(), content.as_str()), ("a", "abc"));
        assert!(file.write_all(b"d").is_err());
    }

    #[test]
    fn more_than_was_said_or_may_be_is_refused() {
        assert!(Arriving::new("a".to_owned(), 0).is_err());
        assert!(Arriving::new("a".to_owned(), PROGRAM_MAX + 1).is_err());
        assert!(Arriving::new("a".repeat(NAME_MAX + 1), 1).is_err());
        let Ok(mut arriving) = Arriving::new("a".to_owned(), 1) else { panic!("refused") };
        assert!(matches!(arriving.take(b"ab"), Err(Untakable::AgainstTheRules)));
    }

    #[test]
    fn the_oldest_program_makes_room() {
        let mut programs = Programs::default();
        for name in ["a", "b", "b", "c"] {
            let file = sys::program_file().expect("a memory file");
            programs.keep(name.to_owned(), file.into());
        }
        assert!(programs.find("a").is_none());
        assert!(programs.find("b").is_some() && programs.find("c").is_some());
    }
}
