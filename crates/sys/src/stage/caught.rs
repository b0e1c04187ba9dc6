//! A stage that only catches what a sandbox sends out, for a daemon without root: entering the user namespace that a
//! network belongs to takes a process with a single thread, and its owner has all capabilities there.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use serde::{Deserialize, Serialize};
use tokio::io::Interest;

use super::process::during;
use super::{Failure, MESSAGE_MAX_BYTES, Order, Stage};
use crate::egress::{self, Sockets};
use crate::{namespace, socket};
use sandkeep_core::limits;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Catching {
    /// In a network namespace of its own, which ends with it: whether it is possible.
    Try,
    /// In the one that is its descriptor.
    Network,
}

/// Its sockets are the descriptors, those of TCP first.
#[derive(Debug, Serialize, Deserialize)]
enum CaughtAnswer {
    Caught { tcp: usize },
    Failed(Failure),
}

/// Does what is asked and sends the answer.
pub(super) fn perform(catching: Catching, fds: &[OwnedFd]) -> io::Result<()> {
    let (answer, sockets) = match catch(catching, fds) {
        Ok(sockets) => (CaughtAnswer::Caught { tcp: sockets.tcp.len() }, sockets),
        Err(failure) => (CaughtAnswer::Failed(failure), Sockets::default()),
    };
    let fds: Vec<_> = sockets.tcp.iter().chain(&sockets.udp).map(AsFd::as_fd).collect();
    let answer = serde_json::to_vec(&answer)?;
    socket::send_with_fds(rustix::stdio::stdin(), &answer, &fds).map(drop)
}

fn catch(catching: Catching, fds: &[OwnedFd]) -> Result<Sockets, Failure> {
    match (catching, fds) {
        (Catching::Try, _) => {
            namespace::enter_user().map_err(during("enter a user namespace"))?;
            egress::try_out().map_err(during("set up a network"))?;
            Ok(Sockets::default())
        }
        (Catching::Network, [network]) => {
            egress::set_up_as_owner(network.as_fd()).map_err(during("set up its network"))
        }
        (Catching::Network, _) => {
            Err(during("receive its network")(io::Error::from_raw_os_error(libc::EPROTO)))
        }
    }
}

impl Stage {
    /// Whether a stage of this user can catch what a sandbox sends out.
    pub async fn try_catching(&self) -> io::Result<()> {
        self.have_caught(Catching::Try, &[]).await.map(drop)
    }

    /// Like [`egress::set_up`], for a network namespace that belongs to a user namespace of this user's.
    pub async fn catch(&self, network: BorrowedFd<'_>) -> io::Result<Sockets> {
        self.have_caught(Catching::Network, &[network]).await
    }

    async fn have_caught(&self, catching: Catching, fds: &[BorrowedFd<'_>]) -> io::Result<Sockets> {
        let answered = tokio::time::timeout(limits::STAGE_ANSWER, self.ask(catching, fds)).await;
        let (answer, fds) = answered.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
        match answer {
            CaughtAnswer::Caught { tcp } if tcp <= fds.len() => {
                let mut tcp_then_udp = fds;
                let udp = tcp_then_udp.split_off(tcp);
                Ok(Sockets { tcp: tcp_then_udp, udp })
            }
            CaughtAnswer::Caught { .. } => Err(io::ErrorKind::InvalidData.into()),
            // The kind of error says what is missing.
            CaughtAnswer::Failed(Failure { step, errno }) => {
                tracing::debug!(step, "a stage could not catch a network");
                Err(io::Error::from_raw_os_error(errno))
            }
        }
    }

    async fn ask(
        &self,
        catching: Catching,
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<(CaughtAnswer, Vec<OwnedFd>)> {
        let request = serde_json::to_vec(&Order::Catch(catching))?;
        let no_stage = |error| io::Error::other(format!("a stage does not start: {error}"));
        let (ours, mut process) = self.spawn().map_err(no_stage)?;
        ours.async_io(Interest::WRITABLE, |fd| socket::send_with_fds(fd, &request, fds)).await?;
        let mut buffer = vec![0; MESSAGE_MAX_BYTES];
        let heard =
            ours.async_io(Interest::READABLE, |fd| socket::receive_with_fds(fd, &mut buffer)).await;
        // It has nothing left to do.
        process.wait().await?;
        let (length, fds) = heard?;
        Ok((serde_json::from_slice(&buffer[..length])?, fds))
    }
}
