//! What the servers of one tree tell each other, each for a sandbox of its own: the kernel caches names, attributes and
//! pages without end, so a server that changes something must have the others drop what their kernels know of it.
//!
//! ```text
//! server A   changes the tree ─▶ appends to the board ─▶ answers its kernel
//! server B   wakes ─▶ finds its nodes by device and inode ─▶ invalidates them
//! ```
//!
//! The board is shared memory (`sys::board`): nobody waits for anybody, no daemon has to run, and a server that takes a
//! mount over finds it where the last one left it. A server that has its tree alone appends nothing.

use serde::{Deserialize, Serialize};

use sandkeep_sys::board::{Board, News, Position};

use crate::control;
use crate::fs::Filesystem;
use crate::notices::Notices;
use crate::table::FileId;

/// Files are named by device and inode, which are the same to all servers of a tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Told {
    /// A name in a directory is new, gone, or another file's.
    Name {
        dir: FileId,
        name: Vec<u8>,
    },
    /// A file or directory has this name now, so that those who have it open find it.
    Found {
        file: FileId,
        dir: FileId,
        name: Vec<u8>,
    },
    /// The contents or attributes of a file or directory are different.
    File(FileId),
    /// The last name of a file is gone; its number may be used again.
    Part(FileId),
    /// The file may be written without further messages, until it is `Written`.
    Writing(FileId),
    Written(FileId),
    /// Somebody new reads, or has missed something: all that is being written is to be told again.
    Joined,
    /// The server was replaced. It may have changed anything, and tells again what it is writing.
    Again,
    /// A server has ended.
    Left(u32),
}

/// A server's place among those of its tree.
pub struct Peers {
    board: Board,
    /// The pid of its keeper.
    member: u32,
}

impl Peers {
    pub fn new(board: Board, member: u32) -> Self {
        Self { board, member }
    }

    pub fn board(&self) -> &Board {
        &self.board
    }

    /// To be called after the change itself, and before anybody is answered that it was made.
    pub fn tell(&self, told: &Told) {
        if self.board.is_shared() {
            append(&self.board, self.member, told);
        }
    }

    /// Does what the others tell, for ever.
    pub fn follow(&self, mut position: Position, fs: &Filesystem, notices: &Notices) {
        loop {
            self.board.wait(&position);
            let records = match self.board.read(&mut position) {
                Ok(News::Records(records)) => records,
                Ok(News::Lost) => {
                    fs.has_missed_something();
                    self.tell(&Told::Joined);
                    continue;
                }
                // Only a file that is no board any more.
                Err(_) => return,
            };
            for record in records {
                match control::decode::<(u32, Told)>(&record) {
                    Ok((from, _)) if from == self.member => {}
                    Ok((from, told)) => {
                        for notice in fs.hear(from, told) {
                            // It fails only for what the kernel has forgotten, or with the connection.
                            let _ = notices.tell(&notice);
                        }
                    }
                    Err(_) => fs.has_missed_something(),
                }
            }
        }
    }
}

fn append(board: &Board, from: u32, told: &Told) {
    // A record that cannot be encoded is one that is lost, which the readers learn in the same way.
    board.append(&control::encode(&(from, told)).unwrap_or_default());
}

/// Tells the others of a tree that a server has ended.
pub fn left(board: &Board, member: u32) {
    append(board, member, &Told::Left(member));
}
