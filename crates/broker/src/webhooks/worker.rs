//! The task of one webhook: it delivers its events in order, one at a time, and is the only one that writes its row and
//! its position. What a caller wants changed is a [`Command`] to it.
//!
//! ```text
//!   log ──▶ due ──▶ attempt ──2xx──▶ acknowledged        410, or three days of failure ──▶ disabled
//!              ▲       │ failure
//!              └─ wait ┘ 1 s, 2 s, 4 s … 1 h
//! ```
//!
//! A message is acknowledged after its delivery, so a daemon that dies in between delivers it again.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tracing::{info, warn};

use super::delivery::{Failure, Receiver, backoff};
use super::row::{self, Row};
use super::secret::Secret;
use super::{Webhook, consumer_name};
use crate::error::Error;
use crate::records::events::{Consumer, Delivery, EVENTS};
use crate::records::feed::EventFilter;
use crate::shared::Shared;
use sandkeep_core::event::{CloudEvent, EventKind, EventSeq, Subject};
use sandkeep_core::{Principal, limits};

/// What a caller wants changed.
pub enum Command {
    Enable,
    /// Deliver the events after this one again.
    Replay(EventSeq),
    Delete,
}

pub type Reply = oneshot::Sender<Result<(), Error>>;

/// A message that has to be delivered, and the position after it.
struct Due {
    message: CloudEvent,
    position: EventSeq,
}

pub struct Worker {
    pub shared: Arc<Shared>,
    pub webhook: Arc<Webhook>,
    pub commands: mpsc::Receiver<(Command, Reply)>,
    pub courier: Courier,
}

/// The part of a worker that delivers.
pub struct Courier {
    instance: String,
    shared: Arc<Shared>,
    who: Principal,
    filter: EventFilter,
    secret: Secret,
    consumer: Consumer,
    receiver: Receiver,
    due: Option<Due>,
    /// The next attempt is not before this.
    not_before: Instant,
}

impl Courier {
    pub fn new(
        shared: &Arc<Shared>,
        row: &Row,
        secret: Secret,
        consumer: Consumer,
        receiver: Receiver,
    ) -> Self {
        let (kinds, project) = (row.kinds.clone(), row.project.clone());
        Self {
            instance: shared.data.instance().as_str().to_owned(),
            shared: Arc::clone(shared),
            who: row.principal(),
            filter: EventFilter { kinds, project, sandbox: None },
            secret,
            consumer,
            receiver,
            due: None,
            not_before: Instant::now(),
        }
    }

    /// Makes the next attempt, as soon as there is something to deliver. Cancel-safe: what was under way is begun again.
    async fn attempt(&mut self) -> Result<(), Failure> {
        if self.due.is_none() {
            self.due = Some(self.next_due().await);
        }
        tokio::time::sleep_until(self.not_before).await;
        let due = self.due.as_ref().expect("it was found before");
        let seconds = self.shared.clock.wall().as_second();
        self.receiver.send(&due.message, &self.secret, seconds).await
    }

    /// The next event for this webhook, or the next gap. Cancel-safe.
    async fn next_due(&mut self) -> Due {
        loop {
            let delivery = match self.read().await {
                Ok(delivery) => delivery,
                Err(error) => {
                    warn!(%error, "a webhook cannot read the events");
                    tokio::time::sleep(limits::WEBHOOK_BACKOFF_FIRST).await;
                    continue;
                }
            };
            let position = delivery.position();
            match delivery {
                Delivery::Event(event) if self.filter.admits(&self.who, &event) => {
                    let message = CloudEvent::of(&event, &self.instance);
                    return Due { message, position };
                }
                Delivery::Event(_) => {
                    let skipped = position.get().saturating_sub(self.consumer.acknowledged().get());
                    if skipped >= limits::WEBHOOK_SKIPPED_MAX {
                        self.acknowledge(position);
                    }
                }
                Delivery::Gap { after, oldest } => {
                    let at = self.shared.clock.wall();
                    let message = CloudEvent::gap(&self.instance, after, oldest, at);
                    return Due { message, position };
                }
            }
        }
    }

    async fn read(&mut self) -> std::io::Result<Delivery> {
        if let Some(delivery) = self.consumer.poll().await? {
            return Ok(delivery);
        }
        // Many events in a short time are read together.
        tokio::time::sleep(limits::WEBHOOK_READ_EVERY).await;
        self.consumer.next().await
    }

    /// A position that cannot be written is written with the next one; until then a restart delivers again.
    fn acknowledge(&mut self, position: EventSeq) {
        if let Err(error) = self.consumer.acknowledge(position) {
            warn!(%error, "cannot save how far a webhook has delivered");
        }
    }

    fn delivered(&mut self) {
        if let Some(due) = self.due.take() {
            self.acknowledge(due.position);
        }
        self.not_before = Instant::now();
    }

    fn rewind(&mut self, after: EventSeq) -> std::io::Result<()> {
        self.due = None;
        self.not_before = Instant::now();
        self.consumer.rewind(after)
    }
}

impl Worker {
    pub async fn run(mut self) {
        loop {
            let enabled = self.webhook.row().disabled.is_none();
            tokio::select! {
                biased;
                () = self.shared.closing.cancelled() => return,
                Some((command, reply)) = self.commands.recv() => {
                    let deleted = matches!(command, Command::Delete);
                    let done = self.obey(command).await;
                    let ends = deleted && done.is_ok();
                    // A caller that has left wanted it all the same.
                    let _ = reply.send(done);
                    if ends {
                        return;
                    }
                }
                result = self.courier.attempt(), if enabled => self.settle(result).await,
            }
            self.publish();
        }
    }

    fn publish(&self) {
        self.webhook.health().acknowledged = self.courier.consumer.acknowledged();
    }

    async fn obey(&mut self, command: Command) -> Result<(), Error> {
        match command {
            Command::Enable => {
                let row = Row { disabled: None, failing_since: None, ..self.webhook.row() };
                row.write(&self.shared).await?;
                self.webhook.set_row(row);
                self.webhook.health().failures = 0;
                self.courier.not_before = Instant::now();
                Ok(())
            }
            Command::Replay(after) => self.courier.rewind(after).map_err(|source| {
                let path = self.shared.data.path().join(EVENTS).display().to_string();
                Error::DataDir { path, source }
            }),
            Command::Delete => {
                row::remove(&self.shared, &self.webhook.id).await?;
                let name = consumer_name(&self.webhook.id);
                if let Err(error) = Consumer::forget(self.shared.data.path(), &name) {
                    warn!(%error, "cannot remove the position of a webhook");
                }
                self.shared.webhooks.remove(&self.webhook.id);
                let webhook = self.webhook.id.clone();
                self.emit(&EventKind::WebhookDeleted { webhook });
                Ok(())
            }
        }
    }

    async fn settle(&mut self, result: Result<(), Failure>) {
        let now = self.shared.clock.wall();
        let Err(failure) = result else {
            self.courier.delivered();
            self.webhook.health().succeeded(now);
            return self.note_failing(None).await;
        };
        let failures = self.webhook.health().failed(&failure);
        let since = self.webhook.row().failing_since.unwrap_or(now);
        self.note_failing(Some(since)).await;
        if failure == Failure::Gone {
            return self.disable(failure.to_string()).await;
        }
        if is_over(since, now) {
            let days = limits::WEBHOOK_FAILING_MAX.as_secs() / (24 * 60 * 60);
            return self.disable(format!("all deliveries failed for {days} days: {failure}")).await;
        }
        self.courier.not_before = Instant::now() + backoff(failures, random());
    }

    /// Since when it fails is in its row, so that a restart does not begin to count again.
    async fn note_failing(&mut self, since: Option<Timestamp>) {
        let row = self.webhook.row();
        if row.failing_since != since {
            self.save(Row { failing_since: since, ..row }).await;
        }
    }

    /// It is told before it is written: a daemon that dies in between tells it again.
    async fn disable(&mut self, reason: String) {
        let webhook = self.webhook.id.clone();
        info!(id = %webhook, reason, "a webhook is disabled");
        self.emit(&EventKind::WebhookDisabled { webhook, reason: reason.clone() });
        self.save(Row { disabled: Some(reason), ..self.webhook.row() }).await;
    }

    /// A row that cannot be written holds until the daemon ends. The next one finds out again.
    async fn save(&self, row: Row) {
        if let Err(error) = row.write(&self.shared).await {
            warn!(id = %row.id, %error, "cannot save the state of a webhook");
        }
        self.webhook.set_row(row);
    }

    fn emit(&self, kind: &EventKind) {
        let subject = Subject { owner: self.webhook.owner.clone(), sandbox: None };
        self.shared.emit(&subject, kind);
    }
}

fn is_over(since: Timestamp, now: Timestamp) -> bool {
    Duration::try_from(now.duration_since(since))
        .is_ok_and(|time| time >= limits::WEBHOOK_FAILING_MAX)
}

fn random() -> u32 {
    use ring::rand::{SecureRandom, SystemRandom};
    let mut bytes = [0; 4];
    // Without randomness the waits are the shortest that they can be.
    let _ = SystemRandom::new().fill(&mut bytes);
    u32::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_webhook_is_given_up_after_three_days_of_failure_and_not_when_a_clock_is_set_back() {
        let since = Timestamp::UNIX_EPOCH;
        let after = |time: Duration| since + time;
        assert!(!is_over(since, since));
        assert!(!is_over(since, after(limits::WEBHOOK_FAILING_MAX - Duration::from_secs(1))));
        assert!(is_over(since, after(limits::WEBHOOK_FAILING_MAX)));
        assert!(!is_over(after(limits::WEBHOOK_FAILING_MAX), since));
    }
}
