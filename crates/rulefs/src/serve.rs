//! The threads of a server: those that answer the kernel, one that tells it what changed, and one for the daemon.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::Errno;
use rustix::net::sockopt;
use sandkeep_core::limits;
use sandkeep_core::rules::Rules;
use sandkeep_sys::socket;

use crate::control::{self, Answer as Told, Request, Stats};
use crate::fs::{Answer, Filesystem};
use crate::notices::Notices;
use crate::peers::Peers;
use crate::wire::{self, Header, Reply};

/// Answers requests until the connection ends.
pub fn answer_requests(connection: &OwnedFd, fs: &Filesystem) {
    let mut buffer = vec![0; limits::RULEFS_WRITE_MAX_BYTES + wire::REQUEST_EXTRA_BYTES];
    loop {
        let len = match rustix::io::read(connection, &mut buffer) {
            Ok(len) => len,
            // The request was withdrawn before it was read.
            Err(Errno::INTR | Errno::NOENT | Errno::AGAIN) => continue,
            Err(_) => return,
        };
        let Ok((header, fields)) = Header::read(&buffer[..len]) else { return };
        // A bug in a handler must not leave a process waiting.
        let handled = std::panic::catch_unwind(AssertUnwindSafe(|| fs.handle(&header, fields)));
        let message = match handled.unwrap_or(Err(Errno::IO)) {
            Ok(Answer::Reply(reply)) => reply.finish(header.unique, 0),
            Ok(Answer::Nothing) => continue,
            Ok(Answer::End) => return,
            Err(errno) => Reply::default().finish(header.unique, -errno.raw_os_error()),
        };
        match rustix::io::write(connection, &message) {
            // ENOENT: the request was aborted meanwhile.
            Ok(_) | Err(Errno::NOENT) => {}
            Err(_) => return,
        }
    }
}

/// What the control thread knows of its server.
pub struct Control {
    pub fs: Arc<Filesystem>,
    pub notices: Arc<Notices>,
    pub peers: Arc<Peers>,
    pub connection: u32,
    pub takeovers: u32,
}

impl Control {
    /// Serves the daemon, one connection after the other, until it asks for the end.
    pub fn serve(&self, listener: &OwnedFd) {
        loop {
            match rustix::net::accept(listener) {
                Ok(stream) => {
                    if self.converse(stream).is_ok_and(|next| next == Next::End) {
                        return;
                    }
                }
                Err(Errno::INTR | Errno::CONNABORTED | Errno::MFILE | Errno::NFILE) => {}
                Err(_) => return,
            }
        }
    }

    fn converse(&self, stream: OwnedFd) -> std::io::Result<Next> {
        // A daemon that was killed half-way must not keep the next one out.
        for timeout in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
            sockopt::set_socket_timeout(&stream, timeout, Some(limits::RULEFS_ANSWER))?;
        }
        let mut len = [0; 4];
        read_exact(&stream, &mut len)?;
        let len = u32::from_be_bytes(len) as usize;
        if len > limits::RULEFS_MESSAGE_MAX_BYTES {
            return Err(std::io::ErrorKind::InvalidData.into());
        }
        let mut request = vec![0; len];
        read_exact(&stream, &mut request)?;
        let board = [self.peers.board().file()];
        let mut passed: &[BorrowedFd<'_>] = &[];
        let (answer, next) = match control::decode(&request) {
            Ok(Request::Join) => {
                passed = &board;
                (Told::Joined { mode: self.fs.mode }, Next::Continue)
            }
            Ok(Request::Stop) => (Told::Done, Next::End),
            Ok(request) => (self.answer(request), Next::Continue),
            Err(error) => (Told::Failed { problem: error.to_string() }, Next::Continue),
        };
        let answer = control::encode(&answer)?;
        socket::send_with_fds(&stream, &(answer.len() as u32).to_be_bytes(), passed)?;
        write_all(&stream, &answer)?;
        Ok(next)
    }

    fn answer(&self, request: Request) -> Told {
        match request {
            Request::ReplaceRules(rules) => match Rules::try_from(rules) {
                Ok(rules) => self.replace(rules),
                Err(error) => Told::Failed { problem: error.to_string() },
            },
            Request::Invalidate { dir, name } => {
                let notices = self.fs.invalidate(&dir, &name);
                self.tell(&notices).map_or_else(failed, |()| Told::Done)
            }
            Request::Stats => Told::Stats(self.stats()),
            Request::Refusals => Told::Refusals(self.fs.lock().take_refusals()),
            Request::Permissions(inodes) => Told::Permissions(self.fs.lock().permissions(&inodes)),
            Request::Stop | Request::Join => Told::Done,
        }
    }

    fn replace(&self, rules: Rules) -> Told {
        let changed = self.fs.replace_rules(rules);
        self.tell(&changed.notices).map_or_else(failed, |()| Told::Replaced(changed.replaced))
    }

    fn tell(&self, notices: &[crate::notices::Notice]) -> Result<(), Errno> {
        notices.iter().try_for_each(|notice| self.notices.tell(notice))
    }

    fn stats(&self) -> Stats {
        let locked = self.fs.lock();
        Stats {
            requests: self.fs.requests.load(Ordering::Relaxed),
            nodes: locked.table.len() as u64,
            descriptors: locked.opened.len() as u64,
            refusals: locked.refusals_count(),
            connection: self.connection,
            version: control::VERSION,
            takeovers: self.takeovers,
        }
    }
}

#[derive(PartialEq, Eq)]
enum Next {
    Continue,
    End,
}

fn failed(errno: Errno) -> Told {
    Told::Failed { problem: format!("the kernel refused an invalidation: {errno}") }
}

fn read_exact(stream: &OwnedFd, buffer: &mut [u8]) -> Result<(), Errno> {
    let mut done = 0;
    while done < buffer.len() {
        match rustix::io::read(stream, &mut buffer[done..]) {
            Ok(0) => return Err(Errno::CONNRESET),
            Ok(len) => done += len,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn write_all(stream: &OwnedFd, bytes: &[u8]) -> Result<(), Errno> {
    let mut done = 0;
    while done < bytes.len() {
        match rustix::net::send(stream, &bytes[done..], rustix::net::SendFlags::NOSIGNAL) {
            Ok(len) => done += len,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
