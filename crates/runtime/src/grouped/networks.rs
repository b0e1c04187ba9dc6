//! How the networks of sandboxes are entered to catch what they send out: with root by a thread, without by a stage.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use tokio::sync::OnceCell;

use crate::RuntimeError;
use sandkeep_sys::{
    egress::{self, Sockets, Unavailable},
    launcher::LauncherRights,
    stage::Stage,
};

pub enum Networks {
    Root,
    Owner {
        stage: Stage,
        /// Why it cannot.
        lack: Option<Unavailable>,
    },
}

impl Networks {
    pub async fn of(standing: LauncherRights, stage: &Stage) -> Self {
        match standing {
            LauncherRights::Root => Self::of_root(),
            LauncherRights::User => {
                // The same for all runtimes of a daemon.
                static TRIED: OnceCell<Option<Unavailable>> = OnceCell::const_new();
                let tried = || async {
                    stage.try_catching().await.err().map(|error| Unavailable::because(&error))
                };
                let lack = TRIED.get_or_init(tried).await.clone();
                Self::Owner { stage: stage.clone(), lack }
            }
        }
    }

    /// The kernel is tried out meanwhile: nobody has to wait for that later.
    pub fn of_root() -> Self {
        // Without another thread it is tried when it is needed.
        let _ = std::thread::Builder::new().name("try-out".to_owned()).spawn(egress::available);
        Self::Root
    }

    pub fn check(&self, runtime: &'static str) -> Result<(), RuntimeError> {
        let lack = match self {
            Self::Root => egress::available().err(),
            Self::Owner { lack, .. } => lack.as_ref(),
        };
        match lack {
            None => Ok(()),
            Some(reason) => Err(RuntimeError::NoNetwork { runtime, reason: reason.to_string() }),
        }
    }

    /// Catches what the network of a running process sends out.
    pub async fn catch(&self, process: OwnedFd) -> io::Result<Sockets> {
        let network = egress::network_of(process)?;
        match self {
            Self::Root => egress::set_up(network).await,
            Self::Owner { stage, .. } => stage.catch(network.as_fd()).await,
        }
    }
}
