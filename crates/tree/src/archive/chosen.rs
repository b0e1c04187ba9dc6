//! Selected files of a tree as an archive: a stream that is generated while it is read, in the given order. A file that
//! is gone when its turn comes is left out; a file that shrinks while it is read is an error.

use std::collections::HashMap;
use std::io::{self, Read};

use rustix::fs::FileType;

use super::header;
use super::tree::Content;
use crate::Node;

/// The next part of the archive.
pub enum Piece {
    /// A file that is in no tree.
    Note {
        path: Vec<u8>,
        bytes: Vec<u8>,
    },
    Node {
        path: Vec<u8>,
        node: Node,
    },
    /// The metadata of an entry without its content; only the toolbox understands this kind.
    Metadata {
        path: Vec<u8>,
        node: Node,
    },
    /// The removal of a name; likewise.
    Gone {
        path: Vec<u8>,
    },
}

/// Whether two names of one file are two files in the archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hardlinks {
    Kept,
    Separate,
}

/// A reader of the tar of an iterator's pieces.
pub struct ChosenArchive<I> {
    /// `None` at the end.
    pieces: Option<I>,
    hardlinks: Hardlinks,
    /// The first names of files with several, by device and inode.
    linked: HashMap<(u64, u64), Vec<u8>>,
    ready: io::Cursor<Vec<u8>>,
    file: Option<Content>,
}

impl<I: Iterator<Item = io::Result<Piece>>> ChosenArchive<I> {
    pub fn new(pieces: I, hardlinks: Hardlinks) -> Self {
        let (linked, ready) = (HashMap::new(), io::Cursor::default());
        Self { pieces: Some(pieces), hardlinks, linked, ready, file: None }
    }

    /// Prepares the next header, or the end mark.
    fn advance(&mut self) -> io::Result<()> {
        let Some(piece) = self.pieces.as_mut().and_then(Iterator::next) else {
            self.pieces = None;
            self.ready = io::Cursor::new(header::END_MARK.to_vec());
            return Ok(());
        };
        match piece? {
            Piece::Note { path, bytes } => {
                let attributes = super::Attributes { mode: 0o644, ..Default::default() };
                let size_bytes = bytes.len() as u64;
                let mut whole = header::file(&path, size_bytes, &attributes).into_inner();
                whole.extend(bytes);
                whole.resize(whole.len() + header::padding(size_bytes), 0);
                self.ready = io::Cursor::new(whole);
                Ok(())
            }
            Piece::Gone { path } => {
                self.ready = header::gone(&path);
                Ok(())
            }
            Piece::Metadata { path, node } => {
                self.ready = header::metadata(&path, &super::attributes::of_node(&node)?);
                Ok(())
            }
            Piece::Node { path, node } => {
                let shown = String::from_utf8_lossy(&path).into_owned();
                self.node(path, &node)
                    .map_err(|error| io::Error::new(error.kind(), format!("{shown}: {error}")))
            }
        }
    }

    fn node(&mut self, mut path: Vec<u8>, node: &Node) -> io::Result<()> {
        let attributes = super::attributes::of_node(node)?;
        match node.kind() {
            FileType::Directory => {
                path.push(b'/');
                self.ready = header::directory(&path, &attributes);
            }
            FileType::RegularFile => {
                let (stat, file) = (node.stat(), node.open_whole()?);
                if self.hardlinks == Hardlinks::Kept && stat.st_nlink > 1 {
                    if let Some(first) = self.linked.get(&(stat.st_dev, stat.st_ino)) {
                        self.ready = header::hardlink(&path, first, &attributes);
                        return Ok(());
                    }
                    self.linked.insert((stat.st_dev, stat.st_ino), path.clone());
                }
                let size_bytes = u64::try_from(stat.st_size).unwrap_or(0);
                self.ready = header::file(&path, size_bytes, &attributes);
                self.file = Some(Content::new(file));
            }
            FileType::Symlink => {
                self.ready = header::symlink(&path, &node.read_link()?, &attributes);
            }
            FileType::Fifo => self.ready = header::fifo(&path, &attributes),
            // None of these is useful elsewhere.
            FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => {}
        }
        Ok(())
    }
}

impl<I: Iterator<Item = io::Result<Piece>>> Read for ChosenArchive<I> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = Content::read_from(&mut self.ready, &mut self.file, buffer)?;
            if read > 0 || buffer.is_empty() || self.pieces.is_none() {
                return Ok(read);
            }
            self.advance()?;
        }
    }
}
