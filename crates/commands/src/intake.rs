//! Messages come in through subscriptions, each is worked on in a task of its own, and there are only so many tasks. At
//! the end no more come in, and those under way are answered.

use std::sync::Arc;

use futures_util::StreamExt;
use sandkeep_core::limits::{MESSAGES_AT_ONCE_MAX, NATS_DRAIN, SHUTDOWN_DRAIN};
use sandkeep_nats::async_nats::{Client, Message, Subscriber};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// What all subscriptions of one connection share. Cheap to clone.
#[derive(Clone)]
pub struct Intake {
    places: Arc<Semaphore>,
    tasks: TaskTracker,
    readers: TaskTracker,
    /// No more messages.
    closing: CancellationToken,
    /// Cancelled when there is no more time: the rest is answered with an error.
    ending: CancellationToken,
}

/// What comes of messages.
pub trait Work: Send + Sync + 'static {
    fn work(&self, message: Message) -> impl Future<Output = ()> + Send;

    /// There is no room for one more.
    fn refuse(&self, message: Message) -> impl Future<Output = ()> + Send;
}

impl Default for Intake {
    fn default() -> Self {
        Self {
            places: Arc::new(Semaphore::new(MESSAGES_AT_ONCE_MAX)),
            tasks: TaskTracker::new(),
            readers: TaskTracker::new(),
            closing: CancellationToken::new(),
            ending: CancellationToken::new(),
        }
    }
}

impl Intake {
    /// Works on everything that a subscription brings.
    pub fn read<W: Work>(&self, mut subscriber: Subscriber, work: Arc<W>) {
        let intake = self.clone();
        self.readers.spawn(async move {
            loop {
                tokio::select! {
                    message = subscriber.next() => match message {
                        Some(message) => intake.take(message, &work).await,
                        None => return,
                    },
                    () = intake.closing.cancelled() => break,
                }
            }
            // The server has sent some that are not read yet. It sends them to nobody else.
            if subscriber.drain().await.is_err() {
                return;
            }
            let rest = async {
                while let Some(message) = subscriber.next().await {
                    intake.take(message, &work).await;
                }
            };
            let _ = timeout(NATS_DRAIN, rest).await;
        });
    }

    async fn take<W: Work>(&self, message: Message, work: &Arc<W>) {
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            return work.refuse(message).await;
        };
        let work = Arc::clone(work);
        self.tasks.spawn(async move {
            work.work(message).await;
            drop(place);
        });
    }

    /// Does something beside the answers, until no more messages are taken in.
    pub fn beside(&self, work: impl Future<Output = ()> + Send + 'static) {
        let closing = self.closing.clone();
        self.readers.spawn(async move {
            tokio::select! {
                () = work => {}
                () = closing.cancelled() => {}
            }
        });
    }

    /// Resolves when there is no more time to answer.
    pub fn ending(&self) -> CancellationToken {
        self.ending.clone()
    }

    /// Takes in no more, waits until what is under way is answered, or tells that it will not be.
    pub async fn drain(&self, client: &Client) {
        self.closing.cancel();
        self.readers.close();
        self.readers.wait().await;
        self.tasks.close();
        if timeout(SHUTDOWN_DRAIN, self.tasks.wait()).await.is_err() {
            tracing::warn!("{} messages were not answered in time", self.tasks.len());
            self.ending.cancel();
            self.tasks.wait().await;
        }
        let _ = timeout(NATS_DRAIN, client.flush()).await;
    }
}
