//! The tasks of a broker. They end with it, and their log lines belong to the request that started them.

use std::ops::Deref;

use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, Span};

#[derive(Clone, Default)]
pub(crate) struct Tasks(TaskTracker);

impl Tasks {
    pub fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.0.spawn(work.in_current_span())
    }

    pub fn spawn_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let span = Span::current();
        self.0.spawn_blocking(move || span.in_scope(work))
    }

    /// A task that outlives the request that started it.
    pub fn spawn_apart(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.0.spawn(work);
    }
}

impl Deref for Tasks {
    type Target = TaskTracker;

    fn deref(&self) -> &TaskTracker {
        &self.0
    }
}
