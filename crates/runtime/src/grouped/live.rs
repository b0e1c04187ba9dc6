//! One running sandbox, as a grouped runtime sees it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::host_resources::IdRange;
use crate::Death;
use sandkeep_core::limits;
use sandkeep_guestlink::{Guest, GuestClient};
use sandkeep_sys::{
    pidfd::{self, Exit},
    reactor,
};

/// A running guest. Its range of ids is returned when it is dead.
pub struct Live {
    pidfd: AsyncFd<OwnedFd>,
    guest: Arc<GuestClient>,
    ids: Mutex<Option<IdRange>>,
    death: OnceLock<Death>,
}

impl Live {
    pub fn new(pidfd: OwnedFd, guest: GuestClient, ids: Option<IdRange>) -> io::Result<Self> {
        Ok(Self {
            pidfd: reactor::watch(pidfd, Interest::READABLE)?,
            guest: Arc::new(guest),
            ids: Mutex::new(ids),
            death: OnceLock::new(),
        })
    }

    pub fn guest(&self) -> Arc<dyn Guest> {
        Arc::clone(&self.guest) as Arc<dyn Guest>
    }

    /// The process whose end ends it.
    pub fn process(&self) -> io::Result<OwnedFd> {
        self.pidfd.get_ref().try_clone()
    }

    pub fn is_dead(&self) -> bool {
        self.death.get().is_some()
    }

    /// Why it died, if that was observed.
    pub fn death(&self) -> Option<Death> {
        self.death.get().cloned()
    }

    /// Waits until every process of the sandbox is gone: the kernel ends all processes of a pid namespace before its
    /// first one.
    pub async fn died(&self) -> Death {
        self.ended().await;
        let told = tokio::time::timeout(limits::DEATH_TOLD, self.exit()).await;
        self.note(told.unwrap_or(Exit::Unknown))
    }

    /// Kills the guest and waits until it has ended: a guest that was just started may not be in its group yet. Its
    /// exit status is not waited for: if the host's init is its parent, it may never be reported.
    pub async fn kill(&self) -> io::Result<Death> {
        pidfd::kill(self.pidfd.get_ref())?;
        self.ended().await;
        Ok(self.note(pidfd::exit(self.pidfd.get_ref())))
    }

    async fn ended(&self) {
        // Another task's wait for the exit status temporarily clears the descriptor's readiness although the process
        // has ended.
        if !pidfd::has_ended(self.pidfd.get_ref()) {
            // An error means that the reactor is gone, and the daemon with it.
            let _ = self.pidfd.readable().await;
        }
    }

    fn note(&self, exit: Exit) -> Death {
        let note = || {
            self.ids.lock().unwrap_or_else(PoisonError::into_inner).take();
            Death { reason: reason(exit) }
        };
        self.death.get_or_init(note).clone()
    }

    /// How the guest ended. If its starter is gone, the host's init is its parent and has to reap it first, which
    /// happens soon or never; that makes the descriptor ready again.
    async fn exit(&self) -> Exit {
        loop {
            let Ok(mut ready) = self.pidfd.readable().await else { return Exit::Unknown };
            match pidfd::exit(self.pidfd.get_ref()) {
                Exit::Untold => ready.clear_ready(),
                exit => return exit,
            }
        }
    }
}

fn reason(exit: Exit) -> String {
    match exit {
        Exit::Code(0) => "the guest ended as asked".to_owned(),
        other => format!("the guest {other}"),
    }
}
