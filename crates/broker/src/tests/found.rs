//! How a new broker handles what it finds.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::world::{World, create, list, me, reaches};
use crate::error::Error;
use crate::{Broker, ExecDraft};
use sandkeep_core::{SandboxId, SpecDraft, State};
use sandkeep_runtime::{MissingRuntime, Runtime};
use sandkeep_storage::{Base, Quota, Storage};
use sandkeep_store::{MemoryStore, Prefix, StateStore};

#[tokio::test]
async fn a_running_sandbox_is_adopted_and_watched() {
    let world = World::new();
    let broker = world.open().await;
    let before = create(&broker).await;
    let broker = world.reopen(broker).await;
    assert_eq!(broker.get(&me(), &before.id).await.expect("adopted"), before);
    world.runtime.kill(&before.id);
    reaches(&broker, &before.id, State::Failed).await;
}

#[tokio::test]
async fn a_stopped_sandbox_stays_stopped() {
    let world = World::new();
    let broker = world.open().await;
    let id = create(&broker).await.id;
    let before = broker.stop(&me(), &id).await.expect("stops");
    let broker = world.reopen(broker).await;
    assert_eq!(broker.get(&me(), &id).await.expect("it is there"), before);
}

#[tokio::test]
async fn a_sandbox_that_died_unwatched_is_failed_and_says_so() {
    let world = World::new();
    let broker = world.open().await;
    let id = create(&broker).await.id;
    world.crash(broker).await;
    world.runtime.kill(&id);
    let broker = world.open().await;
    let view = broker.get(&me(), &id).await.expect("it is there");
    assert_eq!(view.state, State::Failed);
    assert!(view.reason.expect("why").contains("no daemon"));
}

#[tokio::test]
async fn without_its_row_a_ready_sandbox_is_adopted_as_it_was() {
    let mut world = World::new();
    let broker = world.open().await;
    let labels = [("team".to_owned(), "blue".to_owned())].into();
    let draft = SpecDraft { labels: Some(labels), ..SpecDraft::default() };
    let running = broker.create(&me(), draft).await.expect("a sandbox");
    let stopped = create(&broker).await.id;
    broker.stop(&me(), &stopped).await.expect("stops");
    world.crash(broker).await;
    world.store = Arc::new(MemoryStore::new());
    let broker = world.open().await;
    assert_eq!(broker.get(&me(), &running.id).await.expect("adopted"), running);
    assert_eq!(broker.get(&me(), &stopped).await.expect("adopted").state, State::Stopped);
    // The rows are back: the next daemon does not need the files.
    let rows = world.rows().await;
    assert_eq!(rows.len(), 2);
}

/// What the first version wrote, in a row and in a meta.json alike.
fn as_first_version(content: &[u8]) -> Vec<u8> {
    let mut value: serde_json::Value = serde_json::from_slice(content).expect("JSON");
    let fields = value.as_object_mut().expect("an object");
    let terms = fields.remove("terms").expect("terms");
    fields.remove("began").expect("when it began");
    fields.insert("version".to_owned(), 1.into());
    fields["spec"]["labels"] = terms["labels"].clone();
    value.to_string().into_bytes()
}

#[tokio::test]
async fn a_data_directory_of_the_first_version_opens_and_can_be_used() {
    let world = World::new();
    let broker = world.open().await;
    let labels = [("team".to_owned(), "blue".to_owned())].into();
    let draft = SpecDraft { labels: Some(labels), ..SpecDraft::default() };
    let before = broker.create(&me(), draft).await.expect("a sandbox");
    world.crash(broker).await;
    let rows = world.store.list(&Prefix::new(["sandboxes"])).await.expect("rows").entries;
    for row in rows {
        let first = as_first_version(&row.value);
        world.store.update(&row.key, first, row.revision).await.expect("written");
    }
    let meta = world.home(&before.id).join("meta.json");
    fs::write(&meta, as_first_version(&fs::read(&meta).expect("a file"))).expect("written");
    let broker = world.open().await;
    assert_eq!(broker.get(&me(), &before.id).await.expect("adopted"), before);
    let view = broker.keepalive(&me(), &before.id, Some(60)).await.expect("changed");
    assert!(view.expires_at.is_some());
    let broker = world.reopen(broker).await;
    let after = broker.get(&me(), &before.id).await.expect("kept");
    assert_eq!((after.labels, after.expires_at), (before.labels, view.expires_at));
}

#[tokio::test]
async fn a_row_without_its_sandbox_is_failed_until_somebody_decides() {
    let world = World::new();
    let broker = world.open().await;
    let id = create(&broker).await.id;
    world.crash(broker).await;
    world.runtime.destroy(&id).await.expect("gone");
    fs::remove_dir_all(world.home(&id)).expect("gone");
    let broker = world.open().await;
    let view = broker.get(&me(), &id).await.expect("it is not forgotten");
    assert_eq!(view.state, State::Failed);
    assert_eq!(view.reason.as_deref(), Some("missing: its home directory"));
    // Its volume is there still, so it can be started again.
    assert_eq!(broker.start(&me(), &id).await.expect("starts").state, State::Running);
    let broker = world.reopen(broker).await;
    assert_eq!(broker.get(&me(), &id).await.expect("whole again").state, State::Running);
}

#[tokio::test]
async fn after_a_reboot_what_ran_is_stopped_and_can_be_started() {
    let world = World::new();
    let broker = world.open().await;
    let (ran, stopped) = (create(&broker).await.id, create(&broker).await.id);
    broker.stop(&me(), &stopped).await.expect("stops");
    world.crash(broker).await;
    let broker = reboot(&world).await;
    let view = broker.get(&me(), &ran).await.expect("it is there");
    assert_eq!((view.state, view.reason.as_deref()), (State::Stopped, Some("host_rebooted")));
    assert_eq!(broker.get(&me(), &stopped).await.expect("it is there").reason, None);
    assert_eq!(broker.start(&me(), &ran).await.expect("starts").state, State::Running);
    world.crash(broker).await;
    let broker = reboot_again(&world, "second boot").await;
    assert_eq!(broker.get(&me(), &ran).await.expect("same boot").state, State::Running);
}

#[tokio::test]
async fn a_start_after_one_that_was_refused_is_known_to_be_of_this_boot() {
    let world = World::new();
    let broker = world.open().await;
    let id = create(&broker).await.id;
    world.crash(broker).await;
    let broker = reboot(&world).await;
    world.failing_writes.store(1, Ordering::SeqCst);
    broker.start(&me(), &id).await.expect_err("the intent cannot be written");
    assert_eq!(broker.start(&me(), &id).await.expect("starts").state, State::Running);
    let meta = fs::read_to_string(world.home(&id).join("meta.json")).expect("a file");
    assert!(meta.contains("second boot"), "{meta}");
}

#[tokio::test]
async fn what_runs_is_adopted_whatever_its_metadata_say_of_the_boot() {
    let world = World::new();
    let broker = world.open().await;
    let before = create(&broker).await;
    world.crash(broker).await;
    let broker = reboot_again(&world, "another boot").await;
    assert_eq!(broker.get(&me(), &before.id).await.expect("adopted"), before);
}

#[tokio::test]
async fn a_start_fills_an_empty_home() {
    let world = World::new();
    let broker = world.open().await;
    let id = create(&broker).await.id;
    broker.stop(&me(), &id).await.expect("stops");
    fs::remove_file(world.home(&id).join("meta.json")).expect("emptied");
    broker.start(&me(), &id).await.expect("starts");
    let broker = world.reopen(broker).await;
    assert_eq!(broker.get(&me(), &id).await.expect("adopted").state, State::Running);
}

#[tokio::test]
async fn a_recovery_that_cannot_be_written_is_watched_all_the_same() {
    let world = World::new();
    let broker = world.open().await;
    let id = create(&broker).await.id;
    broker.stop(&me(), &id).await.expect("stops");
    sandkeep_core::failpoint::simulated::arm("start.after_launch");
    broker.start(&me(), &id).await.expect_err("a crash");
    world.crash(broker).await;
    world.failing_writes.store(1, Ordering::SeqCst);
    let broker = world.open().await;
    assert_eq!(world.failing_writes.load(Ordering::SeqCst), 0, "nothing was written");
    assert_eq!(broker.get(&me(), &id).await.expect("adopted").state, State::Running);
    let argv = vec!["true".to_owned()];
    broker.exec(&me(), &id, ExecDraft { argv, ..ExecDraft::default() }).await.expect("a way in");
    world.runtime.kill(&id);
    reaches(&broker, &id, State::Failed).await;
}

#[tokio::test]
async fn a_reboot_without_the_registry_is_noticed_too() {
    let mut world = World::new();
    let broker = world.open().await;
    let id = create(&broker).await.id;
    world.crash(broker).await;
    world.store = Arc::new(MemoryStore::new());
    let broker = reboot(&world).await;
    let view = broker.get(&me(), &id).await.expect("adopted");
    assert_eq!((view.state, view.reason.as_deref()), (State::Stopped, Some("host_rebooted")));
}

async fn reboot(world: &World) -> Broker {
    for found in world.runtime.list().await.expect("a list") {
        world.runtime.kill(&found.id);
    }
    reboot_again(world, "second boot").await
}

async fn reboot_again(world: &World, boot_id: &str) -> Broker {
    let mut parts = world.parts();
    parts.data.pretend_boot(boot_id);
    Broker::open(parts).await.expect("a broker")
}

#[tokio::test]
async fn unreadable_metadata_without_a_row_is_put_aside() {
    let mut world = World::new();
    let broker = world.open().await;
    let id = create(&broker).await.id;
    world.crash(broker).await;
    world.store = Arc::new(MemoryStore::new());
    fs::write(world.home(&id).join("meta.json"), "{").expect("damaged");
    let broker = world.open().await;
    assert_eq!(list(&broker).await, []);
    let survey = sandkeep_home::survey(&world.data()).expect("a look");
    assert_eq!(survey.quarantined, [id.to_string()]);
    assert_eq!(world.storage.list().await.expect("volumes"), [id], "its volume is kept");
}

#[tokio::test]
async fn damaged_metadata_with_a_row_is_mended() {
    let world = World::new();
    let broker = world.open().await;
    let before = create(&broker).await;
    world.crash(broker).await;
    let meta = world.home(&before.id).join("meta.json");
    let good = fs::read(&meta).expect("a file");
    fs::write(&meta, "{").expect("damaged");
    let broker = world.open().await;
    assert_eq!(broker.get(&me(), &before.id).await.expect("kept"), before);
    assert_eq!(fs::read(&meta).expect("a file"), good);
}

#[tokio::test]
async fn what_belongs_to_nobody_is_left_alone() {
    let world = World::new();
    let orphan = SandboxId::random();
    world.storage.create(&orphan, &Base::Empty, &Quota::NONE).await.expect("a volume");
    let broker = world.open().await;
    let broker = world.reopen(broker).await;
    assert_eq!(list(&broker).await, []);
    assert_eq!(world.storage.list().await.expect("volumes"), [orphan]);
}

#[tokio::test]
async fn an_empty_home_is_removed() {
    let world = World::new();
    world.crash(world.open().await).await;
    let id = SandboxId::random();
    fs::create_dir(world.home(&id)).expect("a home");
    let _broker = world.open().await;
    assert_eq!(world.remains().await, [""; 0]);
}

#[tokio::test]
async fn a_sandbox_whose_runtime_is_not_offered_is_listed_and_waits_for_it() {
    let world = World::new();
    let broker = world.open().await;
    let before = create(&broker).await;
    world.crash(broker).await;
    let broker = without_its_runtime(&world).await;
    let [view] = &list(&broker).await[..] else { panic!("not listed") };
    assert_eq!(view.state, State::Failed);
    let reason = view.reason.as_deref();
    assert_eq!(reason, Some("missing: runtime mock is not offered by this daemon"));
    let refused = broker.start(&me(), &before.id).await;
    assert!(matches!(refused, Err(Error::UnknownRuntime { .. })), "{refused:?}");
    let broker = world.reopen(broker).await;
    assert_eq!(broker.get(&me(), &before.id).await.expect("as it was"), before);
    world.crash(broker).await;
    let broker = without_its_runtime(&world).await;
    let refused = broker.destroy(&me(), &before.id).await;
    assert!(matches!(refused, Err(Error::UnknownRuntime { .. })), "{refused:?}");
    assert_eq!(list(&broker).await.len(), 1, "nothing says it is gone");
    let _broker = world.reopen(broker).await;
    assert_eq!(world.remains().await, [""; 0], "the destroy is finished by who can");
}

async fn without_its_runtime(world: &World) -> Broker {
    let mut parts = world.parts();
    parts.runtimes = vec![MissingRuntime::listed("other", &"it is not here")];
    Broker::open(parts).await.expect("a broker")
}
