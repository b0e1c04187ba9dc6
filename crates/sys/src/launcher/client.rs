//! The daemon's side of the launcher: starts it, sends requests, replaces it when it dies.

use std::ffi::OsString;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::Arc;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Mutex;

use super::{Answer, Launch, MESSAGE_MAX_BYTES, Request};
use crate::{pidfd, reactor, socket};
use sandkeep_core::limits;

/// A running sandbox.
#[derive(Debug)]
pub struct Launched {
    pub pid: u32,
    pub pidfd: OwnedFd,
}

#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// Nothing runs.
    #[error("could not {step}: {source}")]
    Failed {
        step: String,
        #[source]
        source: io::Error,
    },
    /// The launcher died, or did not answer; a guest may or may not run.
    #[error("the launcher died: {0}")]
    Died(#[source] io::Error),
}

impl LaunchError {
    fn failed(step: String, errno: i32) -> Self {
        Self::Failed { step, source: io::Error::from_raw_os_error(errno) }
    }

    /// It answered a different request.
    fn out_of_step() -> Self {
        Self::Died(io::ErrorKind::InvalidData.into())
    }
}

/// The current launcher process.
pub struct Launcher {
    command: Vec<OsString>,
    connection: Mutex<Connection>,
}

struct Connection {
    socket: AsyncFd<OwnedFd>,
    process: Child,
    state: Talk,
}

/// Whether an answer is pending. A caller that stopped waiting leaves `Asked` behind: that answer must not be read by
/// the next request, so the launcher is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Talk {
    Quiet,
    Asked,
}

impl Launcher {
    /// Starts a launcher by executing `command` with the socket as its stdin, and keeps one running.
    pub async fn start(command: Vec<OsString>) -> io::Result<Arc<Self>> {
        let connection = connect(&command)?;
        let pidfd = pidfd::open(connection.process.id())?;
        let launcher = Arc::new(Self { command, connection: Mutex::new(connection) });
        tokio::spawn(keep_running(Arc::downgrade(&launcher), pidfd));
        Ok(launcher)
    }

    /// Whether it can create sandboxes at all. Without root only an attempt tells.
    pub async fn hello(&self) -> Result<(), LaunchError> {
        match self.request(&Request::Hello, &[]).await? {
            (Answer::Ready, _) => Ok(()),
            (Answer::Failed { step, errno }, _) => Err(LaunchError::failed(step, errno)),
            (Answer::Launched { .. }, _) => Err(LaunchError::out_of_step()),
        }
    }

    /// Launches a sandbox. Requests are answered one after the other.
    pub async fn launch(
        &self,
        launch: Launch,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Launched, LaunchError> {
        match self.request(&Request::Launch(Box::new(launch)), fds).await? {
            (Answer::Launched { pid }, Some(pidfd)) => Ok(Launched { pid, pidfd }),
            (Answer::Launched { .. }, None) | (Answer::Ready, _) => Err(LaunchError::out_of_step()),
            (Answer::Failed { step, errno }, _) => Err(LaunchError::failed(step, errno)),
        }
    }

    async fn request(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Answer, Option<OwnedFd>), LaunchError> {
        let request = postcard::to_allocvec(request).map_err(|error| LaunchError::Failed {
            step: "tell the launcher".to_owned(),
            source: io::Error::other(error),
        })?;
        let mut connection = self.connection.lock().await;
        self.revive(&mut connection).map_err(|source| LaunchError::Failed {
            step: "start a launcher".to_owned(),
            source,
        })?;
        connection.state = Talk::Asked;
        let asked = connection.ask(&request, fds);
        let answer = match tokio::time::timeout(limits::LAUNCHER_ANSWER, asked).await {
            Ok(answer) => answer,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        };
        match answer {
            Ok(_) => connection.state = Talk::Quiet,
            // A caller that looks for a possibly started guest must not find the launcher still at work.
            Err(_) => connection.end().map_err(LaunchError::Died)?,
        }
        answer.map_err(LaunchError::Died)
    }

    /// The current process.
    pub async fn pid(&self) -> u32 {
        self.connection.lock().await.process.id()
    }

    /// Replaces a launcher that is dead or out of step with us.
    fn revive(&self, connection: &mut Connection) -> io::Result<()> {
        if connection.state == Talk::Asked {
            connection.end()?;
        } else if connection.process.try_wait()?.is_none() {
            return Ok(());
        }
        tracing::warn!(pid = connection.process.id(), "the launcher is gone; starting another");
        *connection = connect(&self.command)?;
        Ok(())
    }

    /// Replaces the launcher if it is dead and returns the running one.
    async fn watch_next(&self) -> io::Result<OwnedFd> {
        let mut connection = self.connection.lock().await;
        self.revive(&mut connection)?;
        pidfd::open(connection.process.id())
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        let connection = self.connection.get_mut();
        if let Ok(bytes) = postcard::to_allocvec(&Request::Goodbye) {
            // If it is gone already, nobody needs the message.
            let _ = socket::send_with_fds(connection.socket.get_ref(), &bytes, &[]);
        }
        let _ = connection.process.wait();
    }
}

impl Connection {
    /// Kills the launcher, if it is not dead already.
    fn end(&mut self) -> io::Result<()> {
        self.process.kill()?;
        self.process.wait().map(|_| ())
    }

    async fn ask(
        &self,
        request: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<(Answer, Option<OwnedFd>)> {
        let socket = &self.socket;
        socket.async_io(Interest::WRITABLE, |fd| socket::send_with_fds(fd, request, fds)).await?;
        let mut buffer = vec![0; MESSAGE_MAX_BYTES];
        let (len, fds) = socket
            .async_io(Interest::READABLE, |fd| socket::receive_with_fds(fd, &mut buffer))
            .await?;
        if len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let answer = postcard::from_bytes(&buffer[..len]).map_err(io::Error::other)?;
        Ok((answer, fds.into_iter().next()))
    }
}

fn connect(command: &[OsString]) -> io::Result<Connection> {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::io::ioctl_fionbio(&ours, true)?;
    let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let process = Command::new(program)
        .arg0("sandkeep-launcher")
        .args(arguments)
        .env_clear()
        .stdin(theirs)
        .process_group(0)
        .spawn()?;
    Ok(Connection {
        socket: reactor::watch(ours, Interest::READABLE | Interest::WRITABLE)?,
        process,
        state: Talk::Quiet,
    })
}

/// Replaces the launcher whenever it dies, until the daemon drops it.
async fn keep_running(launcher: std::sync::Weak<Launcher>, pidfd: OwnedFd) {
    let mut pidfd = pidfd;
    loop {
        let Ok(watched) = reactor::watch(pidfd, Interest::READABLE) else { return };
        if watched.readable().await.is_err() {
            return;
        }
        let Some(launcher) = launcher.upgrade() else { return };
        pidfd = loop {
            match launcher.watch_next().await {
                Ok(next) => break next,
                Err(error) => {
                    tracing::error!(%error, "no launcher can be started; sandboxes cannot be");
                    tokio::time::sleep(limits::LAUNCHER_RETRY).await;
                }
            }
        };
    }
}
