//! Reading, writing, and comparing before writing.

use std::sync::Arc;

use super::{Factory, Failure, Verdict, ensure};
use crate::{Entry, Key, Prefix, Revision, StateStore, StoreError};
use sandkeep_core::limits;

fn key(name: &str) -> Key {
    Key::new(["comparing", name])
}

pub async fn a_write_is_read_back_until_it_is_deleted(factory: Factory) -> Verdict {
    let (store, key) = (factory(64), key("a"));
    ensure!(store.get(&key).await?.is_none(), "a new store holds the key");
    let created = store.create(&key, b"one".to_vec()).await?;
    let entry = |value: &[u8], revision| Entry { key: key.clone(), value: value.into(), revision };
    ensure!(store.get(&key).await? == Some(entry(b"one", created)), "create is not read back");
    let updated = store.update(&key, b"two".to_vec(), created).await?;
    ensure!(store.get(&key).await? == Some(entry(b"two", updated)), "update is not read back");
    store.update(&key, Vec::new(), updated).await?;
    let Some(empty) = store.get(&key).await? else {
        return Err(Failure("an empty value is taken for a deletion".to_owned()));
    };
    store.delete(&key, empty.revision).await?;
    ensure!(store.get(&key).await?.is_none(), "delete leaves the key");
    Ok(())
}

pub async fn every_write_gets_the_next_revision(factory: Factory) -> Verdict {
    let store = factory(64);
    let mut last = store.list(&Prefix::all()).await?.revision;
    for name in ["a", "b", "c"] {
        let created = store.create(&key(name), b"1".to_vec()).await?;
        let updated = store.update(&key(name), b"2".to_vec(), created).await?;
        let deleted = store.delete(&key(name), updated).await?;
        for revision in [created, updated, deleted] {
            ensure!(revision == Revision(last.0 + 1), "{revision:?} follows {last:?}");
            last = revision;
        }
        let listed = store.list(&Prefix::all()).await?.revision;
        ensure!(listed == last, "the listing is of {listed:?}, the last write of {last:?}");
    }
    Ok(())
}

pub async fn a_conflict_changes_nothing(factory: Factory) -> Verdict {
    let (store, key) = (factory(64), key("a"));
    let old = store.create(&key, b"1".to_vec()).await?;
    let new = store.update(&key, b"2".to_vec(), old).await?;
    let before = store.list(&Prefix::all()).await?;

    let answer = store.create(&key, b"x".to_vec()).await;
    let expected = matches!(answer, Err(StoreError::Exists { current }) if current == new);
    ensure!(expected, "create of an existing key answered {answer:?}");
    for answer in [store.update(&key, b"x".to_vec(), old).await, store.delete(&key, old).await] {
        let expected =
            matches!(answer, Err(StoreError::Conflict { current }) if current == Some(new));
        ensure!(expected, "a write with an old revision answered {answer:?}");
    }
    let missing = super::keys::key(["missing"]);
    let answers =
        [store.update(&missing, b"x".to_vec(), old).await, store.delete(&missing, old).await];
    for answer in answers {
        let expected = matches!(answer, Err(StoreError::Conflict { current: None }));
        ensure!(expected, "a write to a missing key answered {answer:?}");
    }
    let after = store.list(&Prefix::all()).await?;
    ensure!(before == after, "{before:?} became {after:?}");
    Ok(())
}

/// Starts all writes at once and counts those that won; the others must name the winner.
async fn race<F>(count: usize, write: impl Fn(usize) -> F) -> Result<Revision, Failure>
where
    F: Future<Output = Result<Revision, StoreError>> + Send + 'static,
{
    let tasks: Vec<_> = (0..count).map(|n| tokio::spawn(write(n))).collect();
    let (mut winners, mut named) = (Vec::new(), Vec::new());
    for task in tasks {
        match task.await.map_err(|error| Failure(error.to_string()))? {
            Ok(revision) => winners.push(revision),
            Err(
                StoreError::Exists { current } | StoreError::Conflict { current: Some(current) },
            ) => {
                named.push(current);
            }
            Err(error) => return Err(error.into()),
        }
    }
    let [winner] = winners[..] else {
        return Err(Failure(format!("{} writes won: {winners:?}", winners.len())));
    };
    ensure!(named.iter().all(|n| *n == winner), "losers of {winner:?} were told {named:?}");
    Ok(winner)
}

pub async fn of_many_creates_one_wins(factory: Factory) -> Verdict {
    let store = factory(1024);
    for round in 0..8 {
        let key = key(&round.to_string());
        let winner = race(64, |n| {
            let (store, key) = (Arc::clone(&store), key.clone());
            async move { store.create(&key, n.to_le_bytes().to_vec()).await }
        })
        .await?;
        let current = store.get(&key).await?.map(|entry| entry.revision);
        ensure!(current == Some(winner), "{winner:?} won, but the key is at {current:?}");
    }
    Ok(())
}

pub async fn of_many_updates_one_wins(factory: Factory) -> Verdict {
    let (store, key) = (factory(1024), key("a"));
    let mut expected = store.create(&key, Vec::new()).await?;
    for _ in 0..8 {
        let winner = race(64, |n| {
            let (store, key) = (Arc::clone(&store), key.clone());
            async move { store.update(&key, n.to_le_bytes().to_vec(), expected).await }
        })
        .await?;
        expected = winner;
    }
    Ok(())
}

async fn increment(store: &dyn StateStore, key: &Key) -> Verdict {
    loop {
        let Some(entry) = store.get(key).await? else {
            return Err(Failure("the counter is gone".to_owned()));
        };
        let [count] = entry.value[..] else {
            return Err(Failure(format!("the counter holds {:?}", entry.value)));
        };
        match store.update(key, vec![count + 1], entry.revision).await {
            Ok(_) => return Ok(()),
            Err(StoreError::Conflict { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

pub async fn no_increment_is_lost(factory: Factory) -> Verdict {
    let (store, key) = (factory(1024), key("counter"));
    store.create(&key, vec![0]).await?;
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let (store, key) = (Arc::clone(&store), key.clone());
            tokio::spawn(async move {
                for _ in 0..5 {
                    increment(&*store, &key).await?;
                }
                Verdict::Ok(())
            })
        })
        .collect();
    for task in tasks {
        task.await.map_err(|error| Failure(error.to_string()))??;
    }
    let value = store.get(&key).await?.map(|entry| entry.value);
    ensure!(value == Some(vec![100]), "100 increments made {value:?}");
    Ok(())
}

pub async fn an_old_revision_does_not_fit_a_key_made_anew(factory: Factory) -> Verdict {
    let (store, key) = (factory(64), key("a"));
    let first = store.create(&key, b"same".to_vec()).await?;
    store.delete(&key, first).await?;
    let second = store.create(&key, b"same".to_vec()).await?;
    ensure!(second > first, "{second:?} is not after {first:?}");
    let answer = store.update(&key, b"x".to_vec(), first).await;
    ensure!(matches!(answer, Err(StoreError::Conflict { .. })), "update answered {answer:?}");
    Ok(())
}

pub async fn a_value_over_the_limit_is_refused(factory: Factory) -> Verdict {
    let (store, max) = (factory(64), limits::STORE_VALUE_MAX_BYTES);
    let revision = store.create(&key("a"), vec![7; max]).await?;
    let answers = [
        store.create(&key("b"), vec![7; max + 1]).await,
        store.update(&key("a"), vec![7; max + 1], revision).await,
    ];
    for answer in answers {
        let expected = matches!(answer, Err(StoreError::TooLarge { size, .. }) if size == max + 1);
        ensure!(expected, "a value over the limit answered {answer:?}");
    }
    let listing = store.list(&Prefix::all()).await?;
    ensure!(listing.entries.len() == 1, "{} entries are there", listing.entries.len());
    ensure!(listing.entries[0].value == vec![7; max], "the largest value came back changed");
    Ok(())
}

/// Futures dropped at their first wait leave the store consistent: its list matches its log.
pub async fn a_dropped_write_happened_or_did_not(factory: Factory) -> Verdict {
    let store = factory(1024);
    for n in 0..100_u8 {
        let key = key(&n.to_string());
        let mut write = store.create(&key, vec![n]);
        let _ = futures_util::poll!(&mut write);
        drop(write);
    }
    store.create(&key("last"), Vec::new()).await?;
    let listing = store.list(&Prefix::all()).await?;
    let happened =
        usize::try_from(listing.revision.0).map_err(|error| Failure(error.to_string()))?;
    ensure!(listing.entries.len() == happened, "{happened} writes made {listing:?}");
    let mut watch = store.watch(&Prefix::all(), Revision(0)).await?;
    for change in super::take(&mut watch, happened).await? {
        let entry = listing.entries.iter().find(|entry| entry.key == change.key);
        let same = entry.is_some_and(|entry| {
            Some(&entry.value) == change.value.as_ref() && entry.revision == change.revision
        });
        ensure!(same, "{change:?} is listed as {entry:?}");
    }
    Ok(())
}
