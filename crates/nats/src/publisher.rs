//! Publishes events from a durable position in the log.
//!
//! ```text
//!   log ──▶ reader ──▶ feed ──▶ window ──▶ NATS ──▶ acknowledgement ──▶ window ──▶ position
//!                                  ▲                      │
//!                                  └── again: refused, not answered in time, or a new connection
//! ```
//!
//! The position moves only over events whose messages have all arrived, so a crash on either side repeats some and loses
//! none. A message has the same id every time, by which JetStream, or the consumer, drops repetitions. Sandboxes never
//! wait for any of this: what NATS has not taken yet is in the log.

mod feed;
mod reader;
mod window;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_nats::{Client, PublishErrorKind, StatusCode, Subscriber};
use futures_util::{FutureExt, StreamExt};
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::link::{Link, LinkState};
use crate::stream::{Answer, Stream};
use sandkeep_broker::telemetry::FeedMetrics;
use sandkeep_broker::{Broker, Delivery, Service, ServiceHealth, StartAt};
use sandkeep_core::event::EventSeq;
use sandkeep_core::{limits, with_causes};

pub use feed::{CloudEvents, Feed, Lane, Message};
use window::{Ordinal, Window};

/// How messages arrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Assurance {
    /// Each is stored by a stream, and sent until it is.
    Acknowledged(Stream),
    /// Each is sent once. Those that are on the way when a connection breaks may be lost.
    AtMostOnce,
}

/// A publisher that runs until it is stopped.
pub struct Publisher {
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
    problem: Arc<Problem>,
}

/// Why messages do not arrive; told when it changes.
#[derive(Default)]
struct Problem(Mutex<Option<String>>);

impl Problem {
    fn set(&self, feed: &'static str, problem: Option<String>) {
        let mut current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if *current == problem {
            return;
        }
        match &problem {
            Some(problem) => warn!(feed, "events are not published for now: {problem}"),
            None => info!(feed, "events are published again"),
        }
        *current = problem;
    }

    fn get(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Publisher {
    /// Begins where the last one stopped, or with the next event if there was none. Blocks for a moment.
    pub fn start(
        broker: &Broker,
        link: &Link,
        feed: impl Feed,
        assurance: Assurance,
    ) -> std::io::Result<Self> {
        let consumer = broker.event_consumer(feed.name(), StartAt::Newest)?;
        let metrics = broker.telemetry().feeds().of(feed.name());
        let stop = CancellationToken::new();
        let problem = Arc::<Problem>::default();
        broker.report_on(Arc::new(Report {
            feed: feed.name(),
            link: link.clone(),
            behind: metrics.behind.clone(),
            problem: Arc::clone(&problem),
        }));
        let from = consumer.acknowledged();
        let (to_pump, deliveries) = mpsc::channel(limits::NATS_WINDOW_MAX);
        let (arrived, to_save) = watch::channel(from);
        let reader = tokio::spawn(reader::read(consumer, to_pump, to_save));
        let pump = Pump {
            broker: broker.clone(),
            link: link.clone(),
            feed,
            assurance,
            metrics,
            problem: Arc::clone(&problem),
            deliveries,
            arrived,
            window: Window::new(from),
            sent: BTreeMap::new(),
            refusals: 0,
            paused_until: None,
            is_prepared: false,
            stop: stop.clone(),
        };
        let task = tokio::spawn(async move {
            pump.run().await;
            // The last position is written when the pump is gone.
            let _ = reader.await;
        });
        Ok(Self { stop, task, problem })
    }

    pub fn problem(&self) -> Option<String> {
        self.problem.get()
    }

    /// Ends it at once, as the death of the daemon does.
    pub fn abort(self) {
        self.task.abort();
    }

    /// Waits for a bounded time for what is on its way, and saves the position.
    pub async fn stop(self) {
        self.stop.cancel();
        let _ = self.task.await;
    }
}

/// What the health check tells of a publisher.
struct Report {
    feed: &'static str,
    link: Link,
    behind: Gauge,
    problem: Arc<Problem>,
}

impl Service for Report {
    fn health(&self) -> ServiceHealth {
        let link = self.link.report();
        ServiceHealth {
            name: self.feed,
            connected: link.state == LinkState::Connected,
            behind: u64::try_from(self.behind.get()).unwrap_or_default(),
            problem: link.problem.or_else(|| self.problem.get()),
        }
    }
}

struct Pump<F> {
    broker: Broker,
    link: Link,
    feed: F,
    assurance: Assurance,
    metrics: FeedMetrics,
    problem: Arc<Problem>,
    deliveries: mpsc::Receiver<Delivery>,
    arrived: watch::Sender<EventSeq>,
    window: Window<Lane, Message>,
    /// What is in flight, and since when.
    sent: BTreeMap<Ordinal, Instant>,
    /// How many attempts in a row were refused.
    refusals: u32,
    paused_until: Option<Instant>,
    /// The stream was found since the connection was opened.
    is_prepared: bool,
    stop: CancellationToken,
}

impl<F: Feed> Pump<F> {
    async fn run(mut self) {
        // Counted before there is a connection, so that a lag is seen also then.
        let mut ticks = tokio::time::interval(limits::NATS_TICK);
        let client = loop {
            tokio::select! {
                () = self.stop.cancelled() => return,
                _ = ticks.tick() => self.measure(),
                client = self.link.client() => match client {
                    Some(client) => break client,
                    None => return,
                },
            }
        };
        let inbox = client.new_inbox();
        let Ok(mut answers) = client.subscribe(format!("{inbox}.*")).await else { return };
        let mut state = self.link.watch();
        state.mark_changed();
        let mut is_connected = false;
        loop {
            if is_connected && self.paused_until.is_none() {
                self.publish(&client, &inbox).await;
            }
            let room = limits::NATS_WINDOW_MAX.saturating_sub(self.window.len());
            let mut batch = Vec::new();
            tokio::select! {
                () = self.stop.cancelled() => break,
                answer = answers.next() => match answer {
                    Some(answer) => self.answers(&inbox, answer, &mut answers),
                    None => return,
                },
                changed = state.changed() => {
                    // A link that is closed has no more states.
                    is_connected =
                        changed.is_ok() && *state.borrow_and_update() == LinkState::Connected;
                    self.metrics.connected.set(i64::from(is_connected));
                    self.start_again();
                }
                read = self.deliveries.recv_many(&mut batch, room), if room > 0 => {
                    if read == 0 {
                        return;
                    }
                    batch.drain(..).for_each(|delivery| self.put(&delivery));
                }
                _ = ticks.tick() => self.tick(),
            }
        }
        self.finish(&inbox, &mut answers).await;
    }

    /// With every new connection: what was on its way on the last one is sent again, and the stream is looked for.
    fn start_again(&mut self) {
        self.is_prepared = false;
        self.paused_until = None;
        self.sent.clear();
        self.window.all_again();
    }

    /// Looks for the stream, before the first message of a connection.
    async fn prepare(&mut self, client: &Client) {
        if let Assurance::Acknowledged(stream) = &self.assurance {
            let ensured = tokio::select! {
                () = self.stop.cancelled() => return,
                ensured = stream.ensure(client) => ensured,
            };
            if let Err(error) = ensured {
                return self.pause(with_causes(&error));
            }
        }
        self.is_prepared = true;
    }

    fn put(&mut self, delivery: &Delivery) {
        if let Delivery::Gap { after, oldest } = delivery {
            self.metrics.gaps.inc();
            warn!(feed = self.feed.name(), %after, %oldest, "events were not kept long enough to be published");
        }
        let mut messages = self.feed.messages(delivery);
        if let Assurance::Acknowledged(stream) = &self.assurance {
            messages.iter_mut().for_each(|message| message.expect_stream(&stream.name));
        }
        self.window.put(delivery.position(), &Lane::of(delivery), messages);
    }

    /// Sends what may be sent.
    async fn publish(&mut self, client: &Client, inbox: &str) {
        if !self.is_prepared && self.window.len() > 0 {
            self.prepare(client).await;
        }
        if !self.is_prepared {
            return;
        }
        let mut once = Vec::new();
        while let Some((ordinal, message)) = self.window.take() {
            let Message { subject, headers, payload } = message.clone();
            let published = match self.assurance {
                Assurance::Acknowledged(_) => {
                    let reply = format!("{inbox}.{ordinal}");
                    let sent =
                        client.publish_with_reply_and_headers(subject, reply, headers, payload);
                    tokio::select! {
                        () = self.stop.cancelled() => return,
                        sent = sent => sent,
                    }
                }
                Assurance::AtMostOnce => {
                    let sent = client.publish_with_headers(subject, headers, payload);
                    tokio::select! {
                        () = self.stop.cancelled() => return,
                        sent = sent => sent,
                    }
                }
            };
            self.metrics.published.inc();
            match (published, &self.assurance) {
                (Ok(()), Assurance::Acknowledged(_)) => {
                    self.sent.insert(ordinal, Instant::now());
                }
                (Ok(()), Assurance::AtMostOnce) => {
                    once.push(ordinal);
                    self.window.acknowledge(ordinal);
                }
                (Err(error), _) if error.kind() == PublishErrorKind::MaxPayloadExceeded => {
                    self.drop_message(ordinal, &error.to_string());
                }
                (Err(error), _) => {
                    self.window.again(ordinal);
                    self.pause(error.to_string());
                    break;
                }
            }
        }
        if !once.is_empty() {
            let flushed = tokio::select! {
                () = self.stop.cancelled() => return,
                flushed = client.flush() => flushed,
            };
            if flushed.is_ok() {
                self.metrics.acknowledged.inc_by(once.len() as u64);
                self.succeeded();
            }
        }
    }

    /// Takes an answer, and all others that are there already.
    fn answers(&mut self, inbox: &str, first: async_nats::Message, more: &mut Subscriber) {
        self.answer(inbox, &first);
        while let Some(Some(answer)) = more.next().now_or_never() {
            self.answer(inbox, &answer);
        }
    }

    fn answer(&mut self, inbox: &str, answer: &async_nats::Message) {
        let number = answer.subject.strip_prefix(inbox).and_then(|rest| rest.strip_prefix('.'));
        let Some(ordinal) = number.and_then(|number| number.parse::<Ordinal>().ok()) else {
            return;
        };
        if answer.status == Some(StatusCode::NO_RESPONDERS) {
            let problem = "no stream takes the subjects of our events, or JetStream is off; \
                           create the stream, or set nats.create_stream";
            return self.refused(ordinal, problem.to_owned());
        }
        match serde_json::from_slice::<Answer>(&answer.payload) {
            Ok(Answer { error: None }) => {
                self.sent.remove(&ordinal);
                if self.window.acknowledge(ordinal) {
                    self.metrics.acknowledged.inc();
                    self.succeeded();
                }
            }
            Ok(Answer { error: Some(refusal) }) if refusal.is_for_good() => {
                self.sent.remove(&ordinal);
                self.drop_message(ordinal, &refusal.description);
            }
            Ok(Answer { error: Some(refusal) }) => self.refused(ordinal, refusal.description),
            Err(error) => self.refused(ordinal, format!("an answer that is no answer: {error}")),
        }
    }

    fn succeeded(&mut self) {
        self.refusals = 0;
        self.problem.set(self.feed.name(), None);
    }

    fn refused(&mut self, ordinal: Ordinal, problem: String) {
        if self.sent.remove(&ordinal).is_some() {
            self.window.again(ordinal);
            self.pause(problem);
        }
    }

    fn drop_message(&mut self, ordinal: Ordinal, problem: &str) {
        self.metrics.dropped.inc();
        warn!(feed = self.feed.name(), "an event cannot be published and is left out: {problem}");
        self.window.acknowledge(ordinal);
    }

    /// Sends nothing for a while, longer each time in a row.
    fn pause(&mut self, problem: String) {
        self.metrics.refused.inc();
        self.problem.set(self.feed.name(), Some(problem));
        if self.paused_until.is_none() {
            let longest = limits::NATS_REFUSED_FIRST * (1 << self.refusals.min(10));
            self.paused_until = Some(Instant::now() + longest.min(limits::NATS_REFUSED_MAX));
            self.refusals = self.refusals.saturating_add(1);
        }
    }

    fn tick(&mut self) {
        let now = Instant::now();
        if self.paused_until.is_some_and(|until| until <= now) {
            self.paused_until = None;
        }
        let is_late = |sent: &Instant| now.duration_since(*sent) > limits::NATS_ACK;
        let late: Vec<Ordinal> = self
            .sent
            .iter()
            .filter(|(_, sent)| is_late(sent))
            .map(|(ordinal, _)| *ordinal)
            .collect();
        for ordinal in late {
            self.refused(ordinal, "an acknowledgement did not come in time".to_owned());
        }
        let arrived = self.window.arrived();
        self.arrived.send_if_modified(|last| std::mem::replace(last, arrived) != arrived);
        self.measure();
    }

    fn measure(&self) {
        let behind = self.broker.last_event().get().saturating_sub(self.window.arrived().get());
        self.metrics.behind.set(i64::try_from(behind).unwrap_or(i64::MAX));
    }

    /// Messages in flight may still arrive.
    async fn finish(mut self, inbox: &str, answers: &mut Subscriber) {
        let rest = async {
            while !self.sent.is_empty() {
                let Some(answer) = answers.next().await else { return };
                self.answer(inbox, &answer);
            }
        };
        let _ = tokio::time::timeout(limits::NATS_DRAIN, rest).await;
        self.tick();
    }
}
