//! What the kernel is told unasked. Telling may wait for pages that are being read, so it never happens while a
//! request is handled: notices that a handler causes go through a thread of their own.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use rustix::io::Errno;

use crate::fs::Epochs;
use crate::wire::{Reply, notice};

pub enum Notice {
    /// The attributes and all pages of a node: mapped ones are unmapped.
    Contents(u64),
    Name {
        dir: u64,
        name: Vec<u8>,
    },
    /// All names, known and unknown.
    AllNames,
}

pub struct Notices {
    connection: Arc<OwnedFd>,
    epochs: Epochs,
    /// Nodes whose contents have to be read again. A node is in it once, so it is never larger than the table.
    waiting: Mutex<BTreeSet<u64>>,
    added: Condvar,
}

impl Notices {
    pub fn new(connection: Arc<OwnedFd>, epochs: Epochs) -> Self {
        Self { connection, epochs, waiting: Mutex::default(), added: Condvar::new() }
    }

    /// To be told soon.
    pub fn add(&self, node: u64) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(node);
        self.added.notify_one();
    }

    /// Tells what handlers add, for ever.
    pub fn run(&self) {
        loop {
            let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            let waiting = self.added.wait_while(waiting, |waiting| waiting.is_empty());
            let nodes = std::mem::take(&mut *waiting.unwrap_or_else(PoisonError::into_inner));
            for node in nodes {
                // It fails only for a node that the kernel has forgotten, or with the connection.
                let _ = self.tell(&Notice::Contents(node));
            }
        }
    }

    /// Tells it now, and returns when the kernel has done what it means.
    pub fn tell(&self, notice: &Notice) -> Result<(), Errno> {
        let (code, message) = match notice {
            // From the first byte to the end.
            Notice::Contents(node) => {
                (notice::INVAL_INODE, Reply::default().u64(*node).u64(0).u64(0))
            }
            Notice::Name { dir, name } => {
                let message = Reply::default().u64(*dir).u32(name.len() as u32).u32(0);
                (notice::INVAL_ENTRY, message.bytes(name).bytes(&[0]))
            }
            // Older kernels were given no negative answers for hidden names, so the names that are known suffice.
            Notice::AllNames if self.epochs == Epochs::Unknown => return Ok(()),
            Notice::AllNames => (notice::INC_EPOCH, Reply::default()),
        };
        match rustix::io::write(&self.connection, &message.finish(0, code)) {
            // The kernel does not know the node or the name, or knows that it does not exist.
            Ok(_) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Has the kernel send all requests again that were read and not answered.
    pub fn resend(&self) -> Result<(), Errno> {
        let message = Reply::default().finish(0, notice::RESEND);
        rustix::io::write(&self.connection, &message).map(drop)
    }
}
