//! The filesystem: what is known, under one lock, and the handlers of requests in the modules below.
//!
//! The lock is held for everything but the transfer of data. Nothing that waits for the kernel's page cache (an
//! invalidation) happens under it, because the kernel may hold pages until a request is answered.

mod attributes;
mod change;
mod contents;
mod create;
mod entry;
mod find;
mod listing;
mod opening;
mod remove;
mod written;

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, Stat, statat};
use rustix::io::Errno;
use sandkeep_core::limits;
use sandkeep_core::rules::{Permission, Rules, State};
use serde::{Deserialize, Serialize};

use crate::control::{Action, Ids, Mode, Refusal, Refusals, Writers};
use crate::journal::{Backed, Files};
use crate::notices::Notices;
use crate::opened::Opened;
use crate::peers::Peers;
use crate::table::{Key, Kind, Restored, Table};
use crate::wire::{Fields, Header, ROOT, Reply, op};
use written::Written;

pub struct Filesystem {
    pub mode: Mode,
    ids: Ids,
    /// The connection, for files that the kernel reads by itself.
    connection: Arc<OwnedFd>,
    /// Whether names can be invalidated all at once: otherwise hidden ones are not cached.
    epochs: Epochs,
    locked: Mutex<Locked>,
    notices: Arc<Notices>,
    /// The other servers of this tree.
    peers: Arc<Peers>,
    pub requests: AtomicU64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Epochs {
    Known,
    /// Before Linux 6.16.
    Unknown,
}

/// What a mount serves, and how.
pub struct Served<'a> {
    pub tree: &'a OwnedFd,
    pub mode: Mode,
    pub ids: Ids,
    pub connection: Arc<OwnedFd>,
    pub epochs: Epochs,
    pub notices: Arc<Notices>,
    pub peers: Arc<Peers>,
    pub writers: Writers,
}

pub struct Locked {
    pub rules: Rules,
    pub table: Table,
    pub opened: Opened,
    refused: Refused,
    /// Files that the kernel reads and writes by itself, by node.
    backings: HashMap<u64, Backed>,
    written: Written,
}

/// What a handler answers.
pub enum Answer {
    Reply(Reply),
    /// Requests that have no answer.
    Nothing,
    /// The mount is gone.
    End,
}

type Handled = Result<Answer, Errno>;

/// A name in a directory that the kernel asks about.
struct Place<'a> {
    dir: u64,
    name: &'a [u8],
    permission: Permission,
    /// The state, if it is or becomes a directory.
    state: State,
}

impl Filesystem {
    /// Serves a tree for the first time.
    pub fn new(served: &Served<'_>, rules: Rules, journal: &Files) -> Result<Self, Errno> {
        let stat = rustix::fs::fstat(&opening::open_directory_beneath(served.tree, b".")?)?;
        let root = key(&stat, rules.of_root());
        let mut table = Table::new(root, Arc::new(rules.root()));
        let backings = HashMap::new();
        table.record_in(journal.begin(&table.image(&rules, &backings, served.epochs))?);
        let epochs = served.epochs;
        Self::with(served, Restored { table, rules, backings, epochs })
    }

    /// Goes on where a killed server was.
    pub fn take_over(served: &Served<'_>, known: Restored) -> Result<Self, Errno> {
        let fs = Self::with(served, known)?;
        fs.rewrite_journal(&mut fs.lock());
        Ok(fs)
    }

    fn with(served: &Served<'_>, known: Restored) -> Result<Self, Errno> {
        // The mount itself can be named, not read.
        let root = opening::open_directory_beneath(served.tree, b".")?;
        let Restored { table, rules, backings, epochs } = known;
        let (opened, refused) = (Opened::new(root), Refused::default());
        let written = Written::new(served.writers);
        Ok(Self {
            mode: served.mode,
            ids: served.ids,
            connection: Arc::clone(&served.connection),
            epochs,
            locked: Mutex::new(Locked { rules, table, opened, refused, backings, written }),
            notices: Arc::clone(&served.notices),
            peers: Arc::clone(&served.peers),
            requests: AtomicU64::new(0),
        })
    }

    fn rewrite_journal(&self, locked: &mut Locked) {
        let image = locked.table.image(&locked.rules, &locked.backings, self.epochs);
        locked.table.rewrite_journal(&image);
    }

    /// A handler that panicked has answered EIO; what it left is as consistent as a crash of the kernel's client would.
    pub fn lock(&self) -> MutexGuard<'_, Locked> {
        self.locked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn handle(&self, header: &Header, mut fields: Fields<'_>) -> Handled {
        self.requests.fetch_add(1, Ordering::Relaxed);
        match header.opcode {
            op::LOOKUP => self.look_up(header, fields.name()?),
            op::FORGET => self.forget(header, fields),
            op::BATCH_FORGET => self.forget_many(fields),
            op::GETATTR => self.get_attributes(header),
            op::SETATTR => self.set_attributes(header, fields),
            op::READLINK => self.read_link(header),
            op::SYMLINK => self.symlink(header, fields),
            op::MKNOD => self.make_node(header, fields),
            op::MKDIR => self.make_directory(header, fields),
            op::CREATE => self.create(header, fields),
            op::TMPFILE => self.create_nameless(header, fields),
            op::UNLINK => self.remove(header, fields.name()?, AtFlags::empty()),
            op::RMDIR => self.remove(header, fields.name()?, AtFlags::REMOVEDIR),
            op::RENAME | op::RENAME2 => self.rename(header, fields),
            op::LINK => self.link(header, fields),
            op::OPEN => self.open(header, fields),
            op::OPENDIR => self.open_directory(header),
            op::RELEASE => self.release(header, fields),
            op::RELEASEDIR => Ok(done()),
            // No request takes long, so the answer comes anyway.
            op::INTERRUPT => Ok(Answer::Nothing),
            op::READ => self.read(header, fields),
            op::WRITE => self.write(header, fields),
            op::FSYNC | op::FSYNCDIR => self.sync(header, fields),
            op::FALLOCATE => self.allocate(header, fields),
            op::LSEEK => self.seek(header, fields),
            op::COPY_FILE_RANGE => self.copy_range(header, fields),
            op::READDIR | op::READDIRPLUS => self.list(header, fields),
            op::STATFS => self.statfs(),
            op::SETXATTR => self.set_xattr(header, fields),
            op::GETXATTR => self.get_xattr(header, fields),
            op::LISTXATTR => self.list_xattr(header, fields),
            op::REMOVEXATTR => self.remove_xattr(header, fields),
            op::IOCTL => Err(Errno::NOTTY),
            op::DESTROY => Ok(Answer::End),
            // The kernel does these by itself (locks, access checks, flushes, statx), or not at all.
            _ => Err(Errno::NOSYS),
        }
    }

    fn forget(&self, header: &Header, mut fields: Fields<'_>) -> Handled {
        let count = fields.u64()?;
        let mut locked = self.lock();
        locked.forget(header.node, count);
        self.tidy(&mut locked);
        Ok(Answer::Nothing)
    }

    fn forget_many(&self, mut fields: Fields<'_>) -> Handled {
        let count = fields.u32()?;
        fields.skip(4)?;
        let mut locked = self.lock();
        for _ in 0..count {
            let (node, count) = (fields.u64()?, fields.u64()?);
            locked.forget(node, count);
        }
        self.tidy(&mut locked);
        Ok(Answer::Nothing)
    }

    /// The kernel forgets unused nodes sooner or later, and their records go with them.
    fn tidy(&self, locked: &mut Locked) {
        if locked.table.has_long_journal() {
            self.rewrite_journal(locked);
        }
    }

    fn statfs(&self) -> Handled {
        let root = self.lock().opened.root();
        let found = rustix::fs::fstatfs(root)?;
        let counts = [found.f_blocks, found.f_bfree, found.f_bavail, found.f_files, found.f_ffree];
        let reply = counts.into_iter().fold(Reply::default(), Reply::u64);
        let sizes = [found.f_bsize as u32, found.f_namelen as u32, found.f_frsize as u32];
        let reply = sizes.into_iter().fold(reply, Reply::u32);
        Ok(Answer::Reply((0..7).fold(reply, |reply, _| reply.u32(0))))
    }

    /// A refusal by the rules, recorded.
    fn refuse(&self, locked: &mut Locked, header: &Header, id: u64, action: Action) -> Errno {
        let path = locked.path(id);
        self.record(locked, header, path, action);
        Errno::ACCESS
    }

    fn refuse_name(
        &self,
        locked: &mut Locked,
        header: &Header,
        place: &Place<'_>,
        action: Action,
    ) -> Errno {
        let mut path = locked.path(place.dir);
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend(place.name);
        self.record(locked, header, path, action);
        Errno::ACCESS
    }

    fn record(&self, locked: &mut Locked, header: &Header, path: Vec<u8>, action: Action) {
        let permission = locked.rules.decide(&path).permission;
        let surplus = path.len().saturating_sub(limits::RULEFS_REFUSAL_PATH_MAX_BYTES);
        let path = path[surplus..].to_vec();
        locked.refused.add(Refusal { path, action, permission, pid: header.pid });
    }
}

impl Locked {
    fn forget(&mut self, id: u64, count: u64) {
        for gone in self.table.forget(id, count) {
            self.opened.close(gone);
        }
    }

    /// The permission of a name in a known directory.
    fn place<'a>(&self, dir: u64, name: &'a [u8]) -> Result<Place<'a>, Errno> {
        let (permission, state) = self.rules.step(self.table.directory(dir)?, name);
        Ok(Place { dir, name, permission, state })
    }

    /// What has this name, without following a link.
    fn stat_name(&mut self, dir: u64, name: &[u8]) -> Result<Stat, Errno> {
        let dir = self.directory(dir)?;
        statat(dir.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// The path of a node relative to the root, as far as it is known.
    pub fn path(&self, id: u64) -> Vec<u8> {
        let mut names = VecDeque::new();
        let mut at = id;
        while at != ROOT {
            let Some(name) = self.table.get(at).ok().and_then(|node| node.names.as_slice().first())
            else {
                break;
            };
            names.push_front(&*name.name);
            at = name.dir;
        }
        Vec::from(names).join(&b'/')
    }

    pub fn refusals_count(&self) -> u64 {
        self.refused.total
    }

    pub fn take_refusals(&mut self) -> Refusals {
        self.refused.take()
    }
}

pub fn key(stat: &Stat, permission: Permission) -> Key {
    Key { device: stat.st_dev, inode: stat.st_ino, permission }
}

/// The kind of a file that is not a directory.
fn kind_of(stat: &Stat) -> Kind {
    use rustix::fs::FileType;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Kind::File,
        FileType::Symlink => Kind::Symlink,
        _ => Kind::Special,
    }
}

fn is_directory(stat: &Stat) -> bool {
    rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir()
}

fn done() -> Answer {
    Answer::Reply(Reply::default())
}

/// The newest refusals.
#[derive(Default)]
struct Refused {
    newest: VecDeque<Refusal>,
    omitted: u64,
    total: u64,
}

impl Refused {
    fn add(&mut self, refusal: Refusal) {
        self.total += 1;
        if self.newest.len() == limits::RULEFS_REFUSALS_MAX {
            self.newest.pop_front();
            self.omitted += 1;
        }
        self.newest.push_back(refusal);
    }

    fn take(&mut self) -> Refusals {
        let newest = std::mem::take(&mut self.newest).into();
        Refusals { newest, omitted: std::mem::take(&mut self.omitted) }
    }
}
