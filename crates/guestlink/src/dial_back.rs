//! Guests that dial: a socket of the host that is visible in the sandbox, and the idle connections that its guest keeps
//! open for the next operations.
//!
//! Every process inside that may open the socket can dial, so each connection is verified before it is used: it must
//! have been created by one process, the sandbox's init, or start with a token that only the guest was given. All
//! others are closed at once. Limits on how many of them are verified per second, and how many may delay sending their
//! token, ensure that dialing in a loop costs little and gains nothing.
//!
//! A later daemon binds the socket again; the guest finds it by itself.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use guest_proto::DIAL_TOKEN_LEN;
use rustix::io::Errno;
use rustix::net::{self, RecvFlags, SocketFlags};
use subtle::ConstantTimeEq;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt, Interest};
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use sandkeep_core::limits;
use sandkeep_sys::{pidfd, reactor, socket};

/// How many connections may wait to be verified; the guest itself needs few.
const BACKLOG: i32 = 128;

/// The socket that one sandbox's guest dials. Bound before the sandbox is started, so that the guest's first
/// connections are not lost.
pub struct DialBack {
    listener: OwnedFd,
}

impl DialBack {
    /// Binds `name` in the directory, replacing an existing socket. Only the user `owner` (a host uid: the root of the
    /// sandbox's id mapping) can connect.
    pub fn bind(directory: impl AsFd, name: &str, owner: u32) -> io::Result<Self> {
        let listener = socket::listen_for(directory, name, owner, BACKLOG)?;
        Ok(Self { listener })
    }
}

/// How a connection proves that it is the guest's.
pub enum Proof {
    /// It was created by the process that the client is given. For sandboxes on this kernel.
    Process,
    /// It starts with this token. For sandboxes with a kernel of their own, which cannot pass descriptors either: port
    /// traffic goes through the guest.
    Token(DialToken),
}

/// A secret that a guest is given on a descriptor when it is started. It is stored where the sandbox has no access, for
/// later daemons.
#[derive(Clone, PartialEq, Eq)]
pub struct DialToken([u8; DIAL_TOKEN_LEN]);

impl DialToken {
    pub fn random() -> Self {
        let mut bytes = [0; DIAL_TOKEN_LEN];
        getrandom::fill(&mut bytes).expect("the kernel's random source always answers once booted");
        Self(bytes)
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl TryFrom<&[u8]> for DialToken {
    type Error = std::array::TryFromSliceError;

    fn try_from(bytes: &[u8]) -> Result<Self, Self::Error> {
        Ok(Self(bytes.try_into()?))
    }
}

/// The unused connections that a guest has dialed.
pub(super) struct Dialed {
    queue: Arc<Queue>,
    accepting: AbortHandle,
}

struct Queue {
    sockets: Mutex<VecDeque<OwnedFd>>,
    came: Notify,
    /// The guest's process, or the process that it lives and dies with.
    process: AsyncFd<OwnedFd>,
    refused: AtomicU64,
}

impl Dialed {
    /// Accepts connections until it is dropped.
    pub fn accept(dial_back: DialBack, process: OwnedFd, proof: Proof) -> io::Result<Self> {
        let listener = reactor::watch(dial_back.listener, Interest::READABLE)?;
        let queue = Arc::new(Queue {
            sockets: Mutex::default(),
            came: Notify::new(),
            process: reactor::watch(process, Interest::READABLE)?,
            refused: AtomicU64::new(0),
        });
        let door = Door { listener, queue: Arc::clone(&queue), window: Window::default() };
        let accepting = match proof {
            Proof::Process => tokio::spawn(door.let_in_the_process()),
            Proof::Token(token) => tokio::spawn(door.let_in_who_knows(token)),
        };
        Ok(Self { queue, accepting: accepting.abort_handle() })
    }

    /// The oldest open connection; waits for one. An error: the guest is gone.
    pub async fn take(&self) -> io::Result<OwnedFd> {
        loop {
            let came = self.queue.came.notified();
            tokio::pin!(came);
            came.as_mut().enable();
            while let Some(socket) = self.queue.pop() {
                if is_idle(&socket) {
                    return Ok(socket);
                }
            }
            tokio::select! {
                () = came => {}
                gone = self.queue.process.readable() => {
                    return Err(gone.err().unwrap_or(io::ErrorKind::ConnectionRefused.into()));
                }
            }
        }
    }

    /// How many connections were closed because they were not the guest's.
    pub fn refused(&self) -> u64 {
        self.queue.refused.load(Ordering::Relaxed)
    }
}

impl Drop for Dialed {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// A guest sends nothing before a request: readable data is the end of the connection, or an impostor.
fn is_idle(socket: &OwnedFd) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    matches!(net::recv(socket, &mut [0u8; 1], flags), Err(Errno::AGAIN))
}

impl Queue {
    fn sockets(&self) -> MutexGuard<'_, VecDeque<OwnedFd>> {
        // No code panics while it holds the lock.
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pop(&self) -> Option<OwnedFd> {
        self.sockets().pop_front()
    }

    /// Stores a connection of the guest, and drops the oldest one beyond the limit: a correct guest's connections are
    /// in use by then.
    fn push(&self, socket: OwnedFd) {
        let mut sockets = self.sockets();
        if sockets.len() >= limits::DIALS_QUEUED_MAX {
            sockets.pop_front();
        }
        sockets.push_back(socket);
        drop(sockets);
        self.came.notify_waiters();
    }
}

struct Door {
    listener: AsyncFd<OwnedFd>,
    queue: Arc<Queue>,
    window: Window,
}

/// The number of recently refused connections.
struct Window {
    until: Instant,
    refused: usize,
}

impl Default for Window {
    fn default() -> Self {
        Self { until: Instant::now(), refused: 0 }
    }
}

impl Door {
    async fn let_in_the_process(mut self) {
        loop {
            let socket = self.next().await;
            match pidfd::is_peer(&socket, self.queue.process.get_ref()) {
                Ok(true) => self.queue.push(socket),
                Ok(false) | Err(_) => {
                    drop(socket);
                    self.refuse().await;
                }
            }
        }
    }

    /// The guest sends its token with the connection. Others may stay silent: only the latest few are waited for, and
    /// not for long.
    async fn let_in_who_knows(mut self, token: DialToken) {
        let mut asked = JoinSet::new();
        let mut oldest = VecDeque::<AbortHandle>::new();
        loop {
            tokio::select! {
                biased;
                Some(shown) = asked.join_next() => match shown {
                    Ok(Some(socket)) => self.queue.push(socket),
                    Ok(None) | Err(_) => self.refuse().await,
                },
                socket = self.next() => {
                    oldest.retain(|asked| !asked.is_finished());
                    if oldest.len() >= limits::DIALS_UNPROVEN_MAX
                        && let Some(oldest) = oldest.pop_front()
                    {
                        oldest.abort();
                    }
                    oldest.push_back(asked.spawn(ask(socket, token.clone())));
                }
            }
        }
    }

    /// The next connection. Cancel-safe.
    async fn next(&self) -> OwnedFd {
        loop {
            let accepted = match self.listener.readable().await {
                Ok(mut ready) => ready.try_io(|listener| Ok(accept(listener.get_ref())?)),
                Err(error) => Ok(Err(error)),
            };
            match accepted {
                Ok(Ok(socket)) => return socket,
                // Usually out of file descriptors.
                Ok(Err(_)) => sleep(limits::ACCEPT_RETRY).await,
                Err(_would_block) => {}
            }
        }
    }

    /// Counts a connection that was not the guest's, and pauses when there are too many.
    async fn refuse(&mut self) {
        let total = self.queue.refused.fetch_add(1, Ordering::Relaxed) + 1;
        let now = Instant::now();
        if now >= self.window.until {
            self.window = Window { until: now + limits::DIALS_REFUSED_WITHIN, refused: 0 };
        }
        self.window.refused += 1;
        if total == 1 || self.window.refused == limits::DIALS_REFUSED_MAX {
            tracing::warn!(total, "a process of the sandbox dials in the place of its guest");
        }
        if self.window.refused >= limits::DIALS_REFUSED_MAX {
            sleep_until(self.window.until).await;
        }
    }
}

fn accept(listener: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
}

/// The connection, if it starts with the token.
async fn ask(socket: OwnedFd, token: DialToken) -> Option<OwnedFd> {
    let mut stream = tokio::net::UnixStream::from_std(UnixStream::from(socket)).ok()?;
    let mut shown = [0; DIAL_TOKEN_LEN];
    timeout(limits::DIAL_PROOF, stream.read_exact(&mut shown)).await.ok()?.ok()?;
    let known = bool::from(shown.ct_eq(&token.0));
    known.then(|| stream.into_std()).and_then(Result::ok).map(OwnedFd::from)
}
