//! A broker inside another program, without a daemon.
//!
//! ```no_run
//! use std::process::ExitCode;
//!
//! use sandkeep::embed::{self, Embedded};
//!
//! fn main() -> ExitCode {
//!     // Sandboxes are made by helper processes, which are this very program run again.
//!     if let Some(exit) = embed::helper() {
//!         return exit;
//!     }
//!     # ExitCode::SUCCESS
//! }
//!
//! # async fn example() -> Result<(), sandkeep_broker::error::Error> {
//! let embedded = Embedded::open(Vec::new()).await?;
//! let runtimes = embedded.broker().runtimes();
//! embedded.close().await
//! # }
//! ```
//!
//! The complete program is `examples/embed.rs`.

use std::process::ExitCode;
use std::sync::Arc;

use crate::cli::assemble::{self, Assembled};
use crate::cli::run::place::{self, TempDataDir};
use crate::config::{Settings, Surroundings};
use sandkeep_broker::{Broker, error::Error};
use sandkeep_runtime::Runtime;

/// The first arguments that identify helper processes.
const HELPERS: [&str; 5] = ["launcher", "stage", "jail", "rulefs", "sweep"];

/// Does the work of a helper process, if this process is one. Call it first in `main`, before any thread exists: `Some`
/// is the exit code.
pub fn helper() -> Option<ExitCode> {
    let first = std::env::args_os().nth(1)?;
    HELPERS.iter().any(|helper| first == *helper).then(crate::cli::main)
}

/// A broker with a temporary data directory. Its sandboxes end with this process, however it ends.
pub struct Embedded {
    assembled: Assembled,
    place: TempDataDir,
}

impl Embedded {
    /// Opens a broker with all runtimes of this machine and the caller's `own` ones, which sandboxes select by name.
    pub async fn open(own: Vec<Arc<dyn Runtime>>) -> Result<Self, Error> {
        sandkeep_outgoing::crypto::provide();
        let settings = Settings::defaults(&Surroundings::of_this_process());
        let parent = std::env::temp_dir();
        place::sweep(&parent, &settings).await;
        let data = place::make(&parent)?;
        let place = TempDataDir::of(&data);
        match assemble::embedded(&settings, data, own).await {
            Ok(assembled) => Ok(Self { assembled, place }),
            Err(error) => {
                // The error itself is more useful than a directory that could not be removed.
                let _ = place.remove();
                Err(error)
            }
        }
    }

    pub fn broker(&self) -> &Broker {
        &self.assembled.broker
    }

    /// Destroys the remaining sandboxes, and removes everything.
    pub async fn close(self) -> Result<(), Error> {
        let Self { assembled, place } = self;
        assemble::clear(&assembled.broker).await?;
        drop(assembled);
        place.remove()
    }
}
