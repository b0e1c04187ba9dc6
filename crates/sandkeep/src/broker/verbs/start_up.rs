//! What the template of a sandbox runs in it from the creation on: launched as a process when the sandbox
//! comes up, and waited for until it is ready. A sandbox whose start-up fails when it is created is not
//! made; one that is started again stays, and whoever asked is told.

use std::sync::Arc;

use crate::broker::processes;
use crate::broker::supervisor::Supervisor;
use crate::error::Error;
use crate::failpoint;

impl Supervisor {
    /// Launches what the template starts, if it starts anything. The sandbox runs, and is shown to.
    pub(in crate::broker) async fn start_up(&self) -> Result<(), Error> {
        let defaults = self.meta.spec.image_defaults();
        let Some(start) = defaults.and_then(|defaults| defaults.start.clone()) else {
            return Ok(());
        };
        // Nobody else could have taken it off the list.
        let Some(handle) = self.shared.supervised(self.id()) else { return Ok(()) };
        let failed = |problem: String| Error::StartUpFailed { id: self.id().clone(), problem };
        let begun = processes::begin(&self.shared, &handle, &start).await;
        let journal = begun.map_err(|error| failed(error.to_string()))?;
        failpoint!("start_up.after_launch");
        let shared = Arc::clone(&self.shared);
        let problem = tokio::select! {
            problem = processes::settled(&shared, &handle, &journal, &start.terms) => problem,
            // Whoever destroys it need not wait for what it starts.
            () = self.destroy_awaited() => None,
        };
        match problem {
            None => Ok(()),
            Some(problem) => Err(failed(problem)),
        }
    }
}
