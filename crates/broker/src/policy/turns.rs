//! Turns at short work that costs the daemon a thread and memory, such as reading a log: whoever comes when all are taken
//! waits. Each organization has a queue of its own and may have a part of all turns at a time, so the queue of one is not
//! in the way of others. Long work takes [`super::slots`] instead, and is refused.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub(crate) struct Turns {
    all: Arc<Semaphore>,
    each: usize,
    queues: Mutex<HashMap<String, Weak<Semaphore>>>,
}

/// A turn, until it is dropped.
pub(crate) struct Turn {
    _all: OwnedSemaphorePermit,
    /// It also keeps the queue.
    _own: OwnedSemaphorePermit,
}

impl Turns {
    /// So many in all, and of one organization.
    pub fn new(all: usize, each: usize) -> Self {
        Self { all: Arc::new(Semaphore::new(all)), each, queues: Mutex::default() }
    }

    /// Waits for a turn.
    pub async fn wait(&self, organization: &str) -> Turn {
        let queue = self.queue(organization);
        let own = queue.acquire_owned().await.expect("it is never closed");
        let all = Arc::clone(&self.all).acquire_owned().await.expect("it is never closed");
        Turn { _all: all, _own: own }
    }

    fn queue(&self, organization: &str) -> Arc<Semaphore> {
        // No code panics while it holds the lock.
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = queues.get(organization).and_then(Weak::upgrade) {
            return queue;
        }
        queues.retain(|_, queue| queue.strong_count() > 0);
        let queue = Arc::new(Semaphore::new(self.each));
        queues.insert(organization.to_owned(), Arc::downgrade(&queue));
        queue
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use futures_util::stream::{FuturesUnordered, StreamExt as _};

    use super::*;

    #[tokio::test]
    async fn the_queue_of_one_is_not_in_the_way_of_others() {
        let turns = Turns::new(8, 3);
        let mut waiting: FuturesUnordered<_> = (0..100).map(|_| turns.wait("greedy")).collect();
        let mut greedy = Vec::new();
        while let Some(Some(turn)) = waiting.next().now_or_never() {
            greedy.push(turn);
        }
        assert_eq!(greedy.len(), 3);
        let other = turns.wait("other").now_or_never().expect("at once");
        greedy.pop();
        greedy.push(waiting.next().now_or_never().flatten().expect("the next in the queue"));
        drop((greedy, waiting, other));
        turns.wait("third").now_or_never().expect("at once");
        assert_eq!(turns.all.available_permits(), 8);
        let queues = turns.queues.lock().expect("no panic");
        assert_eq!(queues.len(), 1, "queues that nobody uses are forgotten");
    }
}
