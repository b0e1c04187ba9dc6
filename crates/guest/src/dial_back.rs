//! Connections to a host that cannot connect to the guest: the guest dials and keeps a few idle connections for the
//! host to use. On each the host still speaks first. When one is used, another is opened.
//!
//! The socket may be missing, refuse, or close at once, because the daemon is down or does not want the connection.
//! Then the guest retries forever, with a pause that doubles up to a maximum: a daemon that comes back finds its
//! sandboxes by itself, and retrying costs next to nothing.
//!
//! The directory of the socket is opened before the root is changed and the socket is looked up in it for each
//! connection, because every daemon binds its own.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use guest_proto::{DIAL_TOKEN_LEN, DIALS_IDLE};

use crate::poll::Id;
use crate::sys;

/// The first pause after a connection was refused or lost; it doubles up to the second value.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// How long to wait in the host's queue behind other clients; everything else waits meanwhile.
const PATIENCE: Duration = Duration::from_millis(50);

/// Authenticates the guest to the host. No process of the sandbox can read our memory.
type DialToken = [u8; DIAL_TOKEN_LEN];

pub struct DialBack {
    directory: OwnedFd,
    /// In the directory; a socket address cannot hold every path.
    name: String,
    token: Option<DialToken>,
    /// The connections that the host has not used yet.
    idle: Vec<Id>,
    /// When to open missing connections.
    due: Option<Instant>,
    pause: Duration,
}

impl DialBack {
    /// Reads the token; its descriptor is closed with the standard ones, or is known to the caller.
    pub fn new(path: &Path, token: Option<RawFd>) -> io::Result<Self> {
        let invalid = || io::Error::other(format!("{} is no path of a socket", path.display()));
        let name = path.file_name().and_then(OsStr::to_str).ok_or_else(invalid)?;
        let parent = path.parent().filter(|parent| parent.is_absolute()).ok_or_else(invalid)?;
        let directory = sys::open_directory(parent.as_os_str().as_bytes())
            .map_err(|error| io::Error::other(format!("{}: {error}", parent.display())))?;
        let token = token.map(read_token).transpose()?;
        let due = Some(Instant::now());
        let name = name.to_owned();
        Ok(Self { directory, name, token, idle: Vec::new(), due, pause: PAUSE_MIN })
    }

    /// When connections are to be opened, unless something happens before.
    pub fn next_tick(&self) -> Option<Instant> {
        self.due
    }

    /// How many connections to open now.
    pub fn wanted(&self, now: Instant) -> usize {
        match self.due {
            Some(due) if now >= due => DIALS_IDLE.saturating_sub(self.idle.len()),
            Some(_) | None => 0,
        }
    }

    /// A connection on which the host may send a request.
    pub fn connect(&self) -> io::Result<OwnedFd> {
        let socket = sys::connect_unix_in(&self.directory, self.name.as_bytes(), PATIENCE)?;
        if let Some(token) = &self.token
            && sys::send(socket.as_fd(), token)? != token.len()
        {
            return Err(io::ErrorKind::WriteZero.into());
        }
        Ok(socket)
    }

    /// One more connection is open and idle.
    pub fn opened(&mut self, id: Id) {
        self.idle.push(id);
        if self.idle.len() >= DIALS_IDLE {
            self.due = None;
        }
    }

    /// The host is not available now.
    pub fn failed(&mut self, now: Instant) {
        self.due = Some(now + self.pause);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }

    /// The host has sent something on this connection: it is available, and needs another one.
    pub fn taken(&mut self, id: Id, now: Instant) {
        if self.forget(id) {
            self.due = Some(now);
            self.pause = PAUSE_MIN;
        }
    }

    /// This connection is closed; if it was never used, the host is gone too.
    pub fn lost(&mut self, id: Id, now: Instant) {
        // The others usually close at the same moment: that counts as one failure, not four.
        if self.forget(id) && self.due.is_none_or(|due| due <= now) {
            self.failed(now);
        }
    }

    /// Whether it was idle.
    fn forget(&mut self, id: Id) -> bool {
        let before = self.idle.len();
        self.idle.retain(|idle| *idle != id);
        self.idle.len() < before
    }
}

fn read_token(fd: RawFd) -> io::Result<DialToken> {
    let mut token = DialToken::default();
    let mut read = 0;
    while read < token.len() {
        let failed = |error| io::Error::other(format!("cannot read the token: {error}"));
        match sys::read_given(fd, &mut token[read..]).map_err(failed)? {
            0 => return Err(failed(io::ErrorKind::UnexpectedEof.into())),
            len => read += len,
        }
    }
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dial_back() -> DialBack {
        DialBack::new(Path::new("/tmp/there-is-no-such-socket"), None).expect("/tmp is there")
    }

    #[test]
    fn as_many_as_are_missing_are_wanted_and_no_more() {
        let (mut dial_back, now) = (dial_back(), Instant::now());
        for id in 0..DIALS_IDLE {
            assert_eq!(dial_back.wanted(now), DIALS_IDLE - id);
            dial_back.opened(Id(id as u64));
        }
        assert_eq!((dial_back.wanted(now), dial_back.next_tick()), (0, None));
        dial_back.taken(Id(2), now);
        assert_eq!(dial_back.wanted(now), 1);
        dial_back.taken(Id(2), now);
        assert_eq!(dial_back.wanted(now), 1);
    }

    #[test]
    fn a_host_that_is_away_is_tried_ever_more_seldom_but_for_ever() {
        let (mut dial_back, mut now) = (dial_back(), Instant::now());
        let mut last = Duration::ZERO;
        for _ in 0..100 {
            assert!(dial_back.connect().is_err());
            dial_back.failed(now);
            let due = dial_back.next_tick().expect("it goes on");
            assert!(due - now >= last && due - now <= PAUSE_MAX);
            assert_eq!(dial_back.wanted(now), 0, "not before the pause is over");
            last = due - now;
            now = due;
        }
        assert_eq!(dial_back.wanted(now), DIALS_IDLE);
    }

    #[test]
    fn a_daemon_that_goes_takes_all_connections_and_is_one_reason_to_wait() {
        let (mut dial_back, now) = (dial_back(), Instant::now());
        (0..DIALS_IDLE as u64).for_each(|id| dial_back.opened(Id(id)));
        (0..DIALS_IDLE as u64).for_each(|id| dial_back.lost(Id(id), now));
        assert_eq!(dial_back.next_tick(), Some(now + PAUSE_MIN));
    }
}
