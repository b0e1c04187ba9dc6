//! Webhooks: events of an owner, delivered to a URL at least once and in order.
//!
//! ```text
//!   row in the store      what was asked for, the secret, whether it is disabled
//!   <data>/events/positions/webhook-<id>   the last event that needs no further delivery
//!   worker                a task each, so a bad receiver delays nobody else
//! ```
//!
//! A webhook delivers what the principal who made it could see then. It goes where the rule for outgoing requests lets
//! callers go, and nowhere else.

mod delivery;
mod row;
mod secret;
mod worker;

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use jiff::Timestamp;
use reqwest::Url;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tracing::warn;

use crate::Broker;
use crate::error::Error;
use crate::policy::slots::check_share;
use crate::records::events::{Consumer, EVENTS, StartAt};
use crate::shared::Shared;
use delivery::{Failure, Receiver};
use row::Row;
use sandkeep_core::api::{CreateWebhook, NewWebhook, WebhookState, WebhookTest};
use sandkeep_core::event::{CloudEvent, EventKind, EventSeq, Subject};
use sandkeep_core::{Owner, Principal, WebhookId, api, limits, with_causes};
use sandkeep_outgoing::{Chosen, OutgoingError};
use secret::Secret;
use worker::{Command, Courier, Reply, Worker};

/// How many changes of one webhook may wait.
const COMMANDS_MAX: usize = 8;

/// All webhooks of this node.
#[derive(Default)]
pub(crate) struct Webhooks {
    all: RwLock<BTreeMap<WebhookId, Arc<Webhook>>>,
    /// Held by whoever makes one, so that none is made beyond the limits.
    making: tokio::sync::Mutex<()>,
}

/// A webhook, and the way to its worker.
struct Webhook {
    id: WebhookId,
    owner: Owner,
    url: Url,
    secret: Secret,
    /// As it was last written, or could not be.
    row: Mutex<Row>,
    health: Mutex<DeliveryHealth>,
    commands: mpsc::Sender<(Command, Reply)>,
    /// One test at a time.
    testing: Semaphore,
}

/// How deliveries go, as far as the row does not say.
#[derive(Clone, Default)]
struct DeliveryHealth {
    acknowledged: EventSeq,
    failures: u64,
    last_error: Option<String>,
    last_delivered_at: Option<Timestamp>,
}

impl DeliveryHealth {
    fn succeeded(&mut self, now: Timestamp) {
        *self = Self {
            last_delivered_at: Some(now),
            acknowledged: self.acknowledged,
            ..Self::default()
        };
    }

    /// Returns how many deliveries have failed in a row.
    fn failed(&mut self, failure: &Failure) -> u64 {
        self.failures = self.failures.saturating_add(1);
        self.last_error = Some(failure.to_string());
        self.failures
    }
}

fn consumer_name(id: &WebhookId) -> String {
    format!("webhook-{id}")
}

impl Webhooks {
    /// Nothing panics while a lock is held.
    fn find(&self, who: &Principal, id: &WebhookId) -> Result<Arc<Webhook>, Error> {
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        let found = all.get(id).filter(|webhook| who.may_see(&webhook.owner));
        found.cloned().ok_or_else(|| Error::WebhookNotFound { id: id.clone() })
    }

    fn list(&self) -> Vec<Arc<Webhook>> {
        self.all.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    fn insert(&self, webhook: Arc<Webhook>) {
        let mut all = self.all.write().unwrap_or_else(PoisonError::into_inner);
        all.insert(webhook.id.clone(), webhook);
    }

    fn remove(&self, id: &WebhookId) {
        self.all.write().unwrap_or_else(PoisonError::into_inner).remove(id);
    }

    /// Whether this principal may make one more.
    fn admit(&self, who: &Principal) -> Result<(), Error> {
        let all = self.list();
        let of_user = |webhook: &&Arc<Webhook>| {
            webhook.owner.organization == who.organization && webhook.owner.user == who.user
        };
        if all.iter().filter(of_user).count() >= limits::WEBHOOKS_PER_USER_MAX {
            let (what, limit) = ("webhooks of one user", limits::WEBHOOKS_PER_USER_MAX);
            return Err(Error::LimitReached { what, limit });
        }
        let of_organization =
            |webhook: &&Arc<Webhook>| webhook.owner.organization == who.organization;
        let own = all.iter().filter(of_organization).count();
        check_share(("webhooks of one organization", limits::WEBHOOKS_MAX), all.len(), own)
    }
}

impl Webhook {
    fn row(&self) -> Row {
        self.row.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_row(&self, row: Row) {
        *self.row.lock().unwrap_or_else(PoisonError::into_inner) = row;
    }

    fn health(&self) -> MutexGuard<'_, DeliveryHealth> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn view(&self) -> api::Webhook {
        let Row { id, url, kinds, project, created_at, disabled, failing_since, .. } = self.row();
        let health = self.health().clone();
        api::Webhook {
            id,
            url,
            kinds,
            organization: self.owner.organization.clone(),
            user: self.owner.user.clone(),
            project,
            state: if disabled.is_some() { WebhookState::Disabled } else { WebhookState::Enabled },
            reason: disabled,
            created_at,
            acknowledged: health.acknowledged,
            failing_since,
            failures: health.failures,
            last_error: health.last_error,
            last_delivered_at: health.last_delivered_at,
        }
    }

    /// Has the worker change something.
    async fn tell(&self, command: Command) -> Result<(), Error> {
        let (reply, answer) = oneshot::channel();
        let sent = self.commands.send((command, reply)).await;
        sent.map_err(|_| Error::ShuttingDown)?;
        answer.await.unwrap_or(Err(Error::ShuttingDown))
    }
}

/// Continues all deliveries of an earlier daemon.
pub(crate) async fn begin(shared: &Arc<Shared>) -> Result<(), Error> {
    for row in row::all(shared).await? {
        let id = row.id.clone();
        // Its position was there before its row. If it is not, all is delivered again.
        if let Err(error) = start(shared, row, StartAt::Oldest) {
            warn!(%id, error = with_causes(&error), "a webhook cannot be continued");
        }
    }
    Ok(())
}

fn start(shared: &Arc<Shared>, row: Row, at: StartAt) -> Result<Arc<Webhook>, Error> {
    let (url, secret) = (url(&row.url)?, Secret::parse(&row.secret)?);
    let consumer = consumer(shared, &row.id, at)?;
    let outgoing = shared.registries.outgoing();
    let receiver = Receiver::new(outgoing, url.clone());
    let who = row.principal();
    let owner = who.owner(None).expect("no project is asked for");
    let (commands, received) = mpsc::channel(COMMANDS_MAX);
    let health =
        DeliveryHealth { acknowledged: consumer.acknowledged(), ..DeliveryHealth::default() };
    let courier = Courier::new(shared, &row, secret.clone(), consumer, receiver);
    let webhook = Arc::new(Webhook {
        id: row.id.clone(),
        owner,
        url,
        secret,
        row: Mutex::new(row),
        health: Mutex::new(health),
        commands,
        testing: Semaphore::new(1),
    });
    shared.webhooks.insert(Arc::clone(&webhook));
    let (shared, its) = (Arc::clone(shared), Arc::clone(&webhook));
    let tasks = shared.tasks.clone();
    tasks.spawn_apart(Worker { shared, webhook: its, commands: received, courier }.run());
    Ok(webhook)
}

fn consumer(shared: &Arc<Shared>, id: &WebhookId, at: StartAt) -> Result<Consumer, Error> {
    let opened = Consumer::open(&shared.events, shared.data.path(), &consumer_name(id), at);
    opened.map_err(|source| data_dir(shared, source))
}

fn data_dir(shared: &Shared, source: io::Error) -> Error {
    Error::DataDir { path: shared.data.path().join(EVENTS).display().to_string(), source }
}

fn url(text: &str) -> Result<Url, Error> {
    let long = text.len() > limits::WEBHOOK_URL_MAX_BYTES;
    let problem = match sandkeep_outgoing::url(text) {
        Ok(url) if !long => return Ok(url),
        Ok(_) => format!("is longer than {} bytes", limits::WEBHOOK_URL_MAX_BYTES),
        Err(error) => with_causes(&error),
    };
    Err(Error::InvalidField { field: "url", problem })
}

impl Broker {
    /// Registers a webhook for events from now on.
    pub async fn create_webhook(
        &self,
        who: &Principal,
        draft: CreateWebhook,
    ) -> Result<NewWebhook, Error> {
        let CreateWebhook { url: text, kinds, secret, project } = draft;
        let shared = &self.shared;
        let other = |error: sandkeep_core::OtherProject| Error::InvalidField {
            field: "project",
            problem: error.to_string(),
        };
        let owner = who.owner(project.as_deref()).map_err(other)?;
        let project = project.or_else(|| who.project.clone());
        if kinds.0.len() > limits::WEBHOOK_KINDS_MAX {
            let problem = format!("has more than {} patterns", limits::WEBHOOK_KINDS_MAX);
            return Err(Error::InvalidField { field: "kinds", problem });
        }
        let place = url(&text)?;
        match shared.registries.outgoing().admit(&place, Chosen::ByOthers).await {
            // It may be there when there is something to deliver.
            Ok(_) | Err(OutgoingError::Resolve { .. } | OutgoingError::Unknown { .. }) => {}
            Err(error) => {
                return Err(Error::InvalidField { field: "url", problem: with_causes(&error) });
            }
        }
        let secret = match secret {
            Some(text) => Secret::parse(&text)?,
            None => Secret::random()?,
        };
        let _making = shared.webhooks.making.lock().await;
        shared.webhooks.admit(who)?;
        let row = Row::new(shared, who, project, text, kinds, secret.reveal());
        // Its position comes before its row: nothing that happens after a success is missed.
        drop(consumer(shared, &row.id, StartAt::Newest)?);
        if let Err(error) = row.write(shared).await {
            let _ = Consumer::forget(shared.data.path(), &consumer_name(&row.id));
            return Err(error);
        }
        let webhook = start(shared, row, StartAt::Newest)?;
        let kind = EventKind::WebhookCreated { webhook: webhook.id.clone() };
        shared.emit(&Subject { owner, sandbox: None }, &kind);
        Ok(NewWebhook { webhook: webhook.view(), secret: secret.reveal().to_owned() })
    }

    /// The webhooks that this principal may see, the oldest first.
    pub fn webhooks(&self, who: &Principal) -> Vec<api::Webhook> {
        let all = self.shared.webhooks.list().into_iter();
        let mut views: Vec<_> = all
            .filter(|webhook| who.may_see(&webhook.owner))
            .map(|webhook| webhook.view())
            .collect();
        views.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        views
    }

    pub fn webhook(&self, who: &Principal, id: &WebhookId) -> Result<api::Webhook, Error> {
        Ok(self.shared.webhooks.find(who, id)?.view())
    }

    /// Nothing more is delivered to it.
    pub async fn delete_webhook(&self, who: &Principal, id: &WebhookId) -> Result<(), Error> {
        self.shared.webhooks.find(who, id)?.tell(Command::Delete).await
    }

    /// Delivers from where it stopped, at once. One that is not disabled and waits makes its next attempt.
    pub async fn enable_webhook(
        &self,
        who: &Principal,
        id: &WebhookId,
    ) -> Result<api::Webhook, Error> {
        let webhook = self.shared.webhooks.find(who, id)?;
        webhook.tell(Command::Enable).await?;
        Ok(webhook.view())
    }

    /// Delivers the events after this one again.
    pub async fn replay_webhook(
        &self,
        who: &Principal,
        id: &WebhookId,
        after: EventSeq,
    ) -> Result<api::Webhook, Error> {
        let webhook = self.shared.webhooks.find(who, id)?;
        let last = self.last_event();
        if after > last {
            let problem = format!("is {after}, but the last event is {last}");
            return Err(Error::InvalidField { field: "after", problem });
        }
        webhook.tell(Command::Replay(after)).await?;
        Ok(webhook.view())
    }

    /// Sends one message to it now, whatever is due, and says what became of it.
    pub async fn test_webhook(
        &self,
        who: &Principal,
        id: &WebhookId,
    ) -> Result<WebhookTest, Error> {
        let webhook = self.shared.webhooks.find(who, id)?;
        let busy = |_| Error::LimitReached { what: "tests at once of one webhook", limit: 1 };
        let _one = webhook.testing.try_acquire().map_err(busy)?;
        let (now, nonce) = (self.shared.clock.wall(), WebhookId::random());
        let message = CloudEvent::test(self.instance(), id.as_str(), nonce.as_str(), now);
        let mut receiver = Receiver::new(self.shared.registries.outgoing(), webhook.url.clone());
        let sent = receiver.send(&message, &webhook.secret, now.as_second()).await;
        let error = sent.err().map(|failure| failure.to_string());
        Ok(WebhookTest { delivered: error.is_none(), error })
    }
}
