//! The task that reads the log and keeps the durable position, so that the one that publishes never waits for a disk.
//! The other task says how often the position is written: ids tell what is sent twice after a crash.

use std::io;

use tokio::sync::{mpsc, watch};
use tracing::warn;

use sandkeep_broker::{Consumer, Delivery};
use sandkeep_core::event::EventSeq;
use sandkeep_core::limits;

/// Reads ahead until nobody takes it any more, and saves positions until there are no more.
pub async fn read(
    mut consumer: Consumer,
    deliveries: mpsc::Sender<Delivery>,
    mut arrived: watch::Receiver<EventSeq>,
) {
    let mut saving = Saving::default();
    let mut held = None;
    loop {
        tokio::select! {
            changed = arrived.changed() => match changed {
                Ok(()) => {
                    let seq = *arrived.borrow_and_update();
                    saving.note(consumer.acknowledge(seq));
                }
                Err(_) => {
                    let seq = *arrived.borrow();
                    saving.note(consumer.acknowledge(seq));
                    return;
                }
            },
            permit = deliveries.reserve(), if held.is_some() => {
                if let (Ok(permit), Some(delivery)) = (permit, held.take()) {
                    permit.send(delivery);
                }
            }
            next = consumer.next(), if held.is_none() => match next {
                Ok(delivery) => held = Some(delivery),
                Err(error) => {
                    warn!(%error, "cannot read the events; trying again");
                    tokio::time::sleep(limits::NATS_LOG_RETRY).await;
                }
            },
        }
    }
}

/// Tells a disk that cannot be written once, not at every attempt.
#[derive(Default)]
struct Saving {
    fails: bool,
}

impl Saving {
    fn note(&mut self, saved: io::Result<()>) {
        if let Err(error) = &saved
            && !self.fails
        {
            warn!(%error, "cannot save how far events are published; after a restart some are sent again");
        }
        self.fails = saved.is_err();
    }
}
