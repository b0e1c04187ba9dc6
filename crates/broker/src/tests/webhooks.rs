//! Webhooks whose rows and positions cannot be written, and whose receivers fail for days.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::world::{World, create, me};
use crate::{Broker, error::Error, recorded_events};
use sandkeep_core::api::{CreateWebhook, WebhookState};
use sandkeep_core::event::{Event, EventKind, EventSeq};
use sandkeep_core::{Principal, Scope, WebhookId, limits};

/// Generous: the machine may be busy.
const WAIT: Duration = Duration::from_secs(60);

/// A receiver that answers 410 to its first message; returns its URL and how many messages it got.
async fn receiver() -> (String, watch::Receiver<usize>) {
    answering(|count| if count == 0 { "410 Gone" } else { "204 Yes" }).await
}

/// One that answers each message as the number of those before it says.
async fn answering(
    status: impl Fn(usize) -> &'static str + Send + 'static,
) -> (String, watch::Receiver<usize>) {
    sandkeep_outgoing::crypto::provide();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}/", listener.local_addr().expect("an address"));
    let (count, counted) = watch::channel(0);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let status = status(*count.borrow());
            if answer(stream, status).await.is_some() {
                count.send_modify(|count| *count += 1);
            }
        }
    });
    (url, counted)
}

/// `None`: the message was cut off.
async fn answer(stream: TcpStream, status: &str) -> Option<()> {
    let (mut stream, mut length) = (BufReader::new(stream), 0);
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await.ok().filter(|read| *read > 0)?;
        match line.trim_end().split_once(": ") {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                length = value.parse().ok()?;
            }
            Some(_) => {}
            None if line.trim_end().is_empty() => break,
            None => {}
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    let head = format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
    stream.write_all(head.as_bytes()).await.ok()
}

async fn at_least(counted: &mut watch::Receiver<usize>, count: usize) {
    let waited = tokio::time::timeout(WAIT, counted.wait_for(|got| *got >= count)).await;
    waited.expect("the messages come").expect("the receiver lives");
}

async fn until(broker: &Broker, id: &WebhookId, state: WebhookState) {
    let wait = async {
        while broker.webhook(&me(), id).expect("it is there").state != state {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(WAIT, wait).await.expect("it is in that state");
}

#[tokio::test]
async fn a_webhook_that_cannot_be_written_down_is_no_reason_to_stop_its_delivery() {
    let world = World::new();
    let broker = world.open().await;
    let (url, mut counted) = receiver().await;
    let draft = CreateWebhook { url, ..CreateWebhook::default() };
    let id = broker.create_webhook(&me(), draft).await.expect("a webhook").webhook.id;
    until(&broker, &id, WebhookState::Disabled).await;
    world.failing_writes.store(1, Ordering::SeqCst);
    let failed = broker.enable_webhook(&me(), &id).await;
    assert!(matches!(failed, Err(Error::Store(_))), "{failed:?}");
    until(&broker, &id, WebhookState::Disabled).await;
    broker.enable_webhook(&me(), &id).await.expect("the disk has room again");
    at_least(&mut counted, 2).await;
    // No position can be written from now on.
    std::fs::remove_dir_all(world.data().join("events/positions")).expect("removed");
    let before = *counted.borrow();
    broker.replay_webhook(&me(), &id, EventSeq::START).await.expect_err("it is not durable");
    create(&broker).await;
    // All from the beginning again, and the new one.
    at_least(&mut counted, before + 3).await;
    world.failing_writes.store(1, Ordering::SeqCst);
    broker.delete_webhook(&me(), &id).await.expect_err("its row stays");
    assert!(broker.webhook(&me(), &id).is_ok());
    broker.delete_webhook(&me(), &id).await.expect("it goes");
    assert!(broker.webhook(&me(), &id).is_err());
}

#[tokio::test]
async fn a_webhook_is_the_affair_of_its_owner_and_outlives_the_daemon() {
    let world = World::new();
    let broker = world.open().await;
    let (url, _counted) = receiver().await;
    let who = |user: &str| Principal {
        organization: "acme".to_owned(),
        user: user.to_owned(),
        project: None,
        scopes: [Scope::Read, Scope::Write].into_iter().collect(),
    };
    let draft = CreateWebhook { url, ..CreateWebhook::default() };
    let id = broker.create_webhook(&who("ann"), draft).await.expect("a webhook").webhook.id;
    assert!(broker.webhooks(&who("bob")).is_empty());
    let foreign = broker.delete_webhook(&who("bob"), &id).await;
    assert!(matches!(foreign, Err(Error::WebhookNotFound { .. })), "{foreign:?}");
    until(&broker, &id, WebhookState::Disabled).await;
    let before = broker.webhook(&who("ann"), &id).expect("it is there");
    let broker = world.reopen(broker).await;
    let after = broker.webhook(&who("ann"), &id).expect("it is there again");
    assert_eq!((&after.url, after.state, after.reason), (&before.url, before.state, before.reason));
    assert_eq!(after.acknowledged, before.acknowledged);
}

/// How many events tell that a webhook was disabled.
fn told_disabled(world: &World) -> usize {
    let events = recorded_events(&world.data()).expect("a readable log");
    let disabled = |event: &&Event| matches!(event.kind, EventKind::WebhookDisabled { .. });
    events.iter().filter(disabled).count()
}

#[tokio::test]
async fn three_days_of_failure_disable_a_webhook_also_over_a_restart_and_nothing_is_lost() {
    let world = World::new();
    let broker = world.open().await;
    let works = Arc::new(AtomicBool::new(false));
    let switch = Arc::clone(&works);
    let status = move |_| if switch.load(Ordering::SeqCst) { "204 Yes" } else { "500 No" };
    let (url, mut counted) = answering(status).await;
    let draft = CreateWebhook { url, ..CreateWebhook::default() };
    let id = broker.create_webhook(&me(), draft).await.expect("a webhook").webhook.id;
    create(&broker).await;
    at_least(&mut counted, 2).await;
    let before = broker.webhook(&me(), &id).expect("it is there");
    assert_eq!(before.state, WebhookState::Enabled, "{before:?}");
    world.clock.advance(limits::WEBHOOK_FAILING_MAX - Duration::from_secs(60));
    let count = *counted.borrow();
    at_least(&mut counted, count + 1).await;
    assert_eq!(broker.webhook(&me(), &id).expect("it is there").state, WebhookState::Enabled);
    // The three days go on while there is no daemon.
    let broker = world.reopen(broker).await;
    assert_eq!(told_disabled(&world), 0);
    world.clock.advance(Duration::from_secs(61));
    until(&broker, &id, WebhookState::Disabled).await;
    let disabled = broker.webhook(&me(), &id).expect("it is there");
    assert!(disabled.reason.as_ref().is_some_and(|why| why.contains("3 days")), "{disabled:?}");
    assert_eq!((disabled.acknowledged, told_disabled(&world)), (before.acknowledged, 1));
    let count = *counted.borrow();
    let broker = world.reopen(broker).await;
    assert_eq!(broker.webhook(&me(), &id).expect("it is there").state, WebhookState::Disabled);
    create(&broker).await;
    assert_eq!(*counted.borrow(), count, "nothing is sent to it");
    works.store(true, Ordering::SeqCst);
    broker.enable_webhook(&me(), &id).await.expect("it is enabled");
    let last = broker.last_event();
    let delivered = async {
        while broker.webhook(&me(), &id).expect("it is there").acknowledged < last {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(WAIT, delivered).await.expect("all of them arrive");
    // Two sandboxes were made, and it was disabled.
    assert!(*counted.borrow() >= count + 3, "each event of the meantime was sent");
}

#[tokio::test]
async fn an_organization_of_many_users_leaves_webhooks_to_others() {
    let world = World::new();
    let broker = world.open().await;
    let (url, _counted) = receiver().await;
    let who = |organization: &str, user: usize| Principal {
        organization: organization.to_owned(),
        user: user.to_string(),
        project: None,
        scopes: [Scope::Read, Scope::Write].into_iter().collect(),
    };
    let draft = CreateWebhook { url, ..CreateWebhook::default() };
    let mut made = 0;
    let refused = loop {
        let user = who("greedy", made / limits::WEBHOOKS_PER_USER_MAX);
        match broker.create_webhook(&user, draft.clone()).await {
            Ok(_) => made += 1,
            Err(refused) => break refused,
        }
    };
    assert!(matches!(refused, Error::LimitReached { .. }), "{refused:?}");
    assert_eq!(made, limits::WEBHOOKS_MAX / 2);
    broker.create_webhook(&who("other", 0), draft).await.expect("some are left");
}
