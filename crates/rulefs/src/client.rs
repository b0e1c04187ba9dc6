//! The daemon's side: starts a server, finds it again after a restart, and talks to it.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use sandkeep_core::limits;
use sandkeep_core::rules::{Permission, Rules};
use sandkeep_sys::board::Board;
use sandkeep_sys::{fuse, mount, pidfd, reactor, socket};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;

use crate::control::{
    self, Answer, Ids, Mode, Refusals, Replaced, Request, Setup, Started, Stats, WireRules, Writers,
};

/// What a server is started with.
pub struct Start<'a> {
    /// The program and arguments that make a process call `main` with nothing else running in it.
    pub command: &'a [OsString],
    /// The directory to serve.
    pub tree: &'a Path,
    pub rules: &'a Rules,
    pub mode: Mode,
    pub ids: Ids,
    /// Where the servers of this tree tell each other what they change.
    pub board: &'a Board,
    pub writers: Writers,
    /// The directory in which the control socket gets this name. Only root may have access to it.
    pub home: BorrowedFd<'a>,
    pub socket: &'a str,
}

/// A running server. Dropping it leaves the server alone: it outlives the daemon.
#[derive(Debug)]
pub struct Server {
    home: OwnedFd,
    socket: String,
    /// The keeper, whose end ends the server.
    pidfd: OwnedFd,
    keeper: u32,
    connection: u32,
    /// To be reaped, if it is our child.
    child: Mutex<Option<Child>>,
}

#[derive(Debug, thiserror::Error)]
pub enum RulefsError {
    #[error("cannot serve the directory: could not {step}: {source}")]
    Start {
        step: String,
        #[source]
        source: io::Error,
    },
    #[error("the server of the directory did not answer: {0}")]
    Unreachable(#[source] io::Error),
    #[error("the server of the directory refused: {0}")]
    Refused(String),
    #[error("the server of the directory did not end: {0}")]
    Stop(#[source] io::Error),
}

fn at(step: &str) -> impl FnOnce(io::Error) -> RulefsError {
    let step = step.to_owned();
    move |source| RulefsError::Start { step, source }
}

/// Why no server can be started on this machine, if so.
pub fn unusable() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some(
            "rules other than plain read and write need a daemon that runs as root".to_owned(),
        );
    }
    let reason =
        |error| format!("/dev/fuse cannot be opened: {error}; load the kernel module fuse");
    fuse::open().err().map(reason)
}

impl Server {
    /// Starts a server. Returns it with the mount, detached: whoever attaches it makes the directory visible.
    pub async fn start(start: Start<'_>) -> Result<(Self, OwnedFd), RulefsError> {
        let tree = mount::clone_path(start.tree).map_err(at("open the directory"))?;
        let listener = socket::bind_for_other(start.home, start.socket);
        let listener = listener.map_err(at("create the control socket"))?;
        let home = start.home.try_clone_to_owned().map_err(at("keep the home open"))?;
        let Start { mode, ids, writers, .. } = start;
        let setup = Setup { rules: start.rules.into(), mode, ids, writers };
        let setup = control::encode(&setup).map_err(at("encode the rules"))?;
        let (mut child, ours) = spawn(start.command).map_err(at("start the server"))?;
        let passed = [tree.as_fd(), listener.as_fd(), start.board.file()];
        let asked = ask(&ours, &setup, &passed);
        let answer = match tokio::time::timeout(limits::RULEFS_START, asked).await {
            Ok(answer) => answer,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        };
        let outcome = match answer {
            Ok((Started::Ready { connection }, Some(mount))) => pidfd::open(child.id())
                .map(|pidfd| (connection, mount, pidfd))
                .map_err(at("watch the server")),
            Ok((Started::Failed { step, errno }, _)) => {
                Err(RulefsError::Start { step, source: io::Error::from_raw_os_error(errno) })
            }
            Ok((Started::Ready { .. }, None)) => {
                Err(at("get the mount")(io::ErrorKind::InvalidData.into()))
            }
            Err(error) => Err(at("get an answer from the server")(error)),
        };
        match outcome {
            Ok((connection, mount, pidfd)) => {
                let socket = start.socket.to_owned();
                let (keeper, child) = (child.id(), Mutex::new(Some(child)));
                Ok((Self { home, socket, pidfd, keeper, connection, child }, mount))
            }
            Err(error) => {
                // Its mount was never attached, so nobody can be waiting for it.
                let _ = child.kill().and_then(|()| child.wait());
                Err(error)
            }
        }
    }

    /// Finds the server whose socket is in this home again; `None` if it is not running any more.
    pub async fn reconnect(
        home: BorrowedFd<'_>,
        socket: &str,
    ) -> Result<Option<Self>, RulefsError> {
        let home = home.try_clone_to_owned().map_err(RulefsError::Unreachable)?;
        let stream = match connect(&home, socket).await {
            Ok(stream) => stream,
            Err(error) => {
                use io::ErrorKind::{ConnectionRefused, NotFound};
                return match error.kind() {
                    ConnectionRefused | NotFound => Ok(None),
                    _ => Err(RulefsError::Unreachable(error)),
                };
            }
        };
        let pidfd = pidfd::of_peer(&stream).map_err(RulefsError::Unreachable)?;
        let peer = stream.peer_cred().map_err(RulefsError::Unreachable)?;
        let keeper = peer.pid().and_then(|pid| u32::try_from(pid).ok()).ok_or_else(out_of_step)?;
        let (answer, _) = talk(stream, &Request::Stats).await.map_err(RulefsError::Unreachable)?;
        let Answer::Stats(stats) = answer else { return Err(out_of_step()) };
        let (socket, child, connection) = (socket.to_owned(), Mutex::new(None), stats.connection);
        Ok(Some(Self { home, socket, pidfd, keeper, connection, child }))
    }

    /// Ready to be read when the server has ended; then the mount answers ENOTCONN.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    pub fn has_ended(&self) -> bool {
        pidfd::has_ended(&self.pidfd)
    }

    /// The number of its connection, which is that of the mount's device.
    pub fn connection(&self) -> u32 {
        self.connection
    }

    /// Its number on the board of its tree.
    pub fn member(&self) -> u32 {
        self.keeper
    }

    /// The board of the tree, and how the server serves it.
    pub async fn join(&self) -> Result<(Board, Mode), RulefsError> {
        match self.exchange(&Request::Join).await? {
            (Answer::Joined { mode }, Some(board)) => {
                Ok((Board::of(board).map_err(RulefsError::Unreachable)?, mode))
            }
            _ => Err(out_of_step()),
        }
    }

    /// Replaces all rules. When it returns, they are in force as far as the answer says.
    pub async fn replace_rules(&self, rules: &Rules) -> Result<Replaced, RulefsError> {
        match self.request(&Request::ReplaceRules(WireRules::from(rules))).await? {
            Answer::Replaced(replaced) => Ok(replaced),
            _ => Err(out_of_step()),
        }
    }

    /// Tells the server that this name in this directory, relative to the root, was changed by somebody else.
    pub async fn invalidate(&self, dir: &Path, name: &OsStr) -> Result<(), RulefsError> {
        let (dir, name) = (dir.as_os_str().as_bytes().to_vec(), name.as_bytes().to_vec());
        match self.request(&Request::Invalidate { dir, name }).await? {
            Answer::Done => Ok(()),
            _ => Err(out_of_step()),
        }
    }

    /// What files that the kernel knows allow, by their inodes.
    pub async fn permissions(&self, inodes: &[u64]) -> Result<Vec<Permission>, RulefsError> {
        match self.request(&Request::Permissions(inodes.to_vec())).await? {
            Answer::Permissions(permissions) if permissions.len() == inodes.len() => {
                Ok(permissions)
            }
            _ => Err(out_of_step()),
        }
    }

    pub async fn stats(&self) -> Result<Stats, RulefsError> {
        match self.request(&Request::Stats).await? {
            Answer::Stats(stats) => Ok(stats),
            _ => Err(out_of_step()),
        }
    }

    /// What the rules have refused since the last call.
    pub async fn refusals(&self) -> Result<Refusals, RulefsError> {
        match self.request(&Request::Refusals).await? {
            Answer::Refusals(refusals) => Ok(refusals),
            _ => Err(out_of_step()),
        }
    }

    /// Ends the server and its connection; every process that still waits for it gets an error. Succeeds if it has
    /// ended already.
    pub async fn stop(&self) -> Result<(), RulefsError> {
        pidfd::kill(&self.pidfd).map_err(RulefsError::Stop)?;
        let gone = async {
            let pidfd = self.pidfd.try_clone()?;
            drop(reactor::watch(pidfd, Interest::READABLE)?.readable().await?);
            // The server dies with its keeper. Once nobody has the socket, nobody has the connection.
            while connect(&self.home, &self.socket).await.is_ok() {
                tokio::time::sleep(limits::RULEFS_LOOK_AGAIN).await;
            }
            io::Result::Ok(())
        };
        match tokio::time::timeout(limits::RULEFS_ENDS, gone).await {
            Ok(gone) => gone.map_err(RulefsError::Stop)?,
            // It waits for its disk, and everybody for it. Its connection still exists, so the number is its own.
            Err(_) => fuse::abort(self.connection).map_err(RulefsError::Stop)?,
        }
        self.reap();
        let removed = rustix::fs::unlinkat(&self.home, &self.socket, rustix::fs::AtFlags::empty());
        match removed {
            Ok(()) | Err(rustix::io::Errno::NOENT) => {}
            Err(error) => return Err(RulefsError::Stop(error.into())),
        }
        Ok(())
    }

    /// Removes the entry of a process that has ended.
    fn reap(&self) {
        let mut child = self.child.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // One that does not end although it was killed is left behind.
        if child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(Some(_)))) {
            *child = None;
        }
    }

    async fn request(&self, request: &Request) -> Result<Answer, RulefsError> {
        Ok(self.exchange(request).await?.0)
    }

    async fn exchange(&self, request: &Request) -> Result<(Answer, Option<OwnedFd>), RulefsError> {
        let asked = async { talk(connect(&self.home, &self.socket).await?, request).await };
        let answer = match tokio::time::timeout(limits::RULEFS_ANSWER, asked).await {
            Ok(answer) => answer.map_err(RulefsError::Unreachable)?,
            Err(_) => return Err(RulefsError::Unreachable(io::ErrorKind::TimedOut.into())),
        };
        match answer {
            (Answer::Failed { problem }, _) => Err(RulefsError::Refused(problem)),
            answered => Ok(answered),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.has_ended() {
            self.reap();
        }
    }
}

fn out_of_step() -> RulefsError {
    RulefsError::Unreachable(io::ErrorKind::InvalidData.into())
}

fn spawn(command: &[OsString]) -> io::Result<(Child, OwnedFd)> {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::io::ioctl_fionbio(&ours, true)?;
    let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let child = Command::new(program)
        .arg0("sandkeep-rulefs")
        .args(arguments)
        .env_clear()
        .stdin(theirs)
        .stdout(Stdio::null())
        .process_group(0)
        .spawn()?;
    Ok((child, ours))
}

async fn ask(
    ours: &OwnedFd,
    setup: &[u8],
    fds: &[BorrowedFd<'_>],
) -> io::Result<(Started, Option<OwnedFd>)> {
    let ours = reactor::watch(ours.try_clone()?, Interest::READABLE | Interest::WRITABLE)?;
    ours.async_io(Interest::WRITABLE, |fd| socket::send_with_fds(fd, setup, fds)).await?;
    let mut buffer = vec![0; limits::RULEFS_MESSAGE_MAX_BYTES];
    let receive = |fd: &OwnedFd| socket::receive_with_fds(fd, &mut buffer);
    let (len, fds) = ours.async_io(Interest::READABLE, receive).await?;
    if len == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok((control::decode(&buffer[..len])?, fds.into_iter().next()))
}

async fn connect(home: &OwnedFd, name: &str) -> io::Result<UnixStream> {
    UnixStream::connect(socket::short_path(home, name)).await
}

/// The answer, and the descriptor that came with it.
async fn talk(mut stream: UnixStream, request: &Request) -> io::Result<(Answer, Option<OwnedFd>)> {
    let bytes = control::encode(request)?;
    stream.write_u32(bytes.len() as u32).await?;
    stream.write_all(&bytes).await?;
    let mut len = [0; 4];
    let receive = || socket::receive_with_fds(&stream, &mut len);
    let (read, fds) = stream.async_io(Interest::READABLE, receive).await?;
    if read == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    stream.read_exact(&mut len[read..]).await?;
    let len = u32::from_be_bytes(len) as usize;
    if len > limits::RULEFS_MESSAGE_MAX_BYTES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut answer = vec![0; len];
    stream.read_exact(&mut answer).await?;
    Ok((control::decode(&answer)?, fds.into_iter().next()))
}
