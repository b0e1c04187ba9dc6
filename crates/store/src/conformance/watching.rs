//! Watches miss nothing, duplicate nothing, and block nobody.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::task::JoinHandle;

use super::{Factory, Failure, Verdict, ensure, take};
use crate::{Change, Key, Prefix, Revision, StateStore, StoreError};

const WRITERS: usize = 8;
const ROUNDS: usize = 20;
/// Every writer creates, updates and deletes in each round; the last round leaves its key.
const WRITES: usize = WRITERS * (ROUNDS * 3 - 1);
const REMEMBERED: usize = 4 * WRITES;

fn key(writer: usize) -> Key {
    Key::new(["watching", &writer.to_string()])
}

async fn write_rounds(store: Arc<dyn StateStore>, writer: usize) -> Verdict {
    let key = key(writer);
    for round in 0..ROUNDS {
        let value = |step: u8| vec![writer as u8, round as u8, step];
        let created = store.create(&key, value(0)).await?;
        let updated = store.update(&key, value(1), created).await?;
        if round + 1 < ROUNDS {
            store.delete(&key, updated).await?;
        }
    }
    Ok(())
}

fn write_from_many(store: &Arc<dyn StateStore>) -> Vec<JoinHandle<Verdict>> {
    (0..WRITERS).map(|writer| tokio::spawn(write_rounds(Arc::clone(store), writer))).collect()
}

async fn joined(tasks: Vec<JoinHandle<Verdict>>) -> Verdict {
    for task in tasks {
        task.await.map_err(|error| Failure(error.to_string()))??;
    }
    Ok(())
}

/// All writes are under the prefix, so a watch from `after` sees each revision once.
fn without_gaps(changes: &[Change], after: Revision) -> Verdict {
    for (change, expected) in changes.iter().zip(after.0 + 1..) {
        let revision = change.revision;
        ensure!(revision == Revision(expected), "{revision:?} came in place of {expected}");
    }
    Ok(())
}

pub async fn a_watch_misses_nothing_and_doubles_nothing(factory: Factory) -> Verdict {
    let store = factory(REMEMBERED);
    let prefix = Prefix::new(["watching"]);
    let mut before = store.watch(&prefix, Revision(0)).await?;
    let writers = write_from_many(&store);
    let middle = take(&mut before, WRITES / 3).await?;
    without_gaps(&middle, Revision(0))?;
    let mut during = store.watch(&prefix, middle[WRITES / 4].revision).await?;
    joined(writers).await?;
    let mut after = store.watch(&prefix, Revision(0)).await?;

    let mut all = middle;
    all.extend(take(&mut before, WRITES - all.len()).await?);
    without_gaps(&all, Revision(0))?;
    ensure!(take(&mut after, WRITES).await? == all, "a later watch saw something else");
    let rest = &all[WRITES / 4 + 1..];
    ensure!(take(&mut during, rest.len()).await? == rest, "a watch from the middle differs");
    let more = before.try_recv();
    ensure!(more.is_err(), "a change came that nobody made: {more:?}");
    Ok(())
}

pub async fn a_watch_sees_only_its_prefix(factory: Factory) -> Verdict {
    let store = factory(64);
    let mut watch = store.watch(&Prefix::new(["a"]), Revision(0)).await?;
    for path in [&["a\0"][..], &["a", "1"], &["ab"], &["b"], &["a", "2"], &["a"], &[""]] {
        store.create(&Key::new(path), Vec::new()).await?;
    }
    let seen: Vec<_> = take(&mut watch, 3).await?.iter().map(|c| c.key.segments()).collect();
    let expected = [vec!["a", "1"], vec!["a", "2"], vec!["a"]];
    ensure!(seen == expected, "the watch of a saw {seen:?}");
    Ok(())
}

type State = BTreeMap<Key, (Vec<u8>, Revision)>;

async fn state(store: &dyn StateStore) -> Result<(State, Revision), StoreError> {
    let listing = store.list(&Prefix::all()).await?;
    let entries = listing.entries.into_iter().map(|e| (e.key, (e.value, e.revision))).collect();
    Ok((entries, listing.revision))
}

pub async fn list_then_watch_sees_everything(factory: Factory) -> Verdict {
    let store = factory(REMEMBERED);
    let writers = write_from_many(&store);
    let mut followers = Vec::new();
    for _ in 0..10 {
        let (listed, revision) = state(&*store).await?;
        let watch = store.watch(&Prefix::all(), revision).await?;
        followers.push((listed, revision, watch));
        tokio::task::yield_now().await;
    }
    joined(writers).await?;
    let (end, last) = state(&*store).await?;
    for (mut state, revision, mut watch) in followers {
        let missing = usize::try_from(last.0 - revision.0).unwrap_or(usize::MAX);
        let changes = take(&mut watch, missing).await?;
        without_gaps(&changes, revision)?;
        for Change { key, value, revision } in changes {
            match value {
                Some(value) => state.insert(key, (value, revision)),
                None => state.remove(&key),
            };
        }
        ensure!(state == end, "following from {revision:?} led to another state");
    }
    Ok(())
}

/// Writes so often that a store with 32 remembered changes has forgotten the first ones.
async fn write_past_memory(store: &dyn StateStore) -> Result<Revision, StoreError> {
    let mut revision = store.create(&key(0), Vec::new()).await?;
    for n in 0..200_u8 {
        revision = store.update(&key(0), vec![n], revision).await?;
    }
    Ok(revision)
}

pub async fn a_forgotten_revision_is_compacted(factory: Factory) -> Verdict {
    let store = factory(32);
    let still_current = store.create(&Key::new(["old"]), b"kept".to_vec()).await?;
    let last = write_past_memory(&*store).await?;
    let answer = store.watch(&Prefix::all(), Revision(0)).await;
    let Err(StoreError::Compacted { oldest }) = answer else {
        return Err(Failure(format!("a watch from the beginning answered {answer:?}")));
    };
    let remembered = last.0 + 1 - oldest.0;
    ensure!(remembered <= 33, "{remembered} changes are remembered");
    let mut watch = store.watch(&Prefix::all(), Revision(oldest.0 - 1)).await?;
    let count = usize::try_from(remembered).unwrap_or(usize::MAX);
    without_gaps(&take(&mut watch, count).await?, Revision(oldest.0 - 1))?;
    let kept = store.get(&Key::new(["old"])).await?.map(|e| (e.value, e.revision));
    ensure!(kept == Some((b"kept".to_vec(), still_current)), "compaction made it {kept:?}");
    Ok(())
}

pub async fn a_slow_watcher_holds_up_nobody(factory: Factory) -> Verdict {
    let store = factory(32);
    let mut watch = store.watch(&Prefix::all(), Revision(0)).await?;
    // The watch is not read, and more is written than fits any channel.
    for _ in 0..8 {
        let last = write_past_memory(&*store).await?;
        store.delete(&key(0), last).await?;
    }
    let mut expected = 1;
    let end = loop {
        match watch.recv().await {
            Some(Ok(change)) => {
                let revision = change.revision;
                ensure!(revision == Revision(expected), "{revision:?} in place of {expected}");
                expected += 1;
            }
            Some(Err(error)) => break error,
            None => return Err(Failure("the watch ended without saying why".to_owned())),
        }
    };
    ensure!(matches!(end, StoreError::Compacted { .. }), "the watch ended with {end:?}");
    ensure!(watch.recv().await.is_none(), "the watch went on after its end");
    Ok(())
}

pub async fn a_watch_ends_with_its_store(factory: Factory) -> Verdict {
    let store = factory(64);
    let mut watch = store.watch(&Prefix::all(), Revision(0)).await?;
    store.create(&key(0), Vec::new()).await?;
    take(&mut watch, 1).await?;
    drop(store);
    let end = watch.recv().await;
    ensure!(end.is_none(), "a watch of a dropped store gave {end:?}");
    Ok(())
}
