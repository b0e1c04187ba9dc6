//! The build cache: rows that map a step's key to its resulting layers, which are kept as long as the row. One owner's
//! outcomes are not used for another's builds. If there are too many rows, or their layers are too large, the least
//! recently used rows are removed.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use tracing::{debug, warn};

use crate::error::Error;
use crate::images::pins::Pin;
use crate::images::record::KeptLayer;
use crate::records::rows;
use crate::shared::Shared;
use sandkeep_core::{Owner, failpoint, limits};
use sandkeep_image::recipe;
use sandkeep_storage::LayerId;
use sandkeep_store::{Entry, Key, Prefix, StoreError};

/// The first segment of every row's key.
const STEPS: &str = "build-steps";

#[derive(Serialize, Deserialize)]
struct Row {
    /// All layers after the step, lowest first.
    layers: Vec<KeptLayer>,
    used_at: jiff::Timestamp,
}

impl Row {
    fn read(entry: &Entry) -> Option<Self> {
        // An unreadable row counts as missing.
        serde_json::from_slice(&entry.value).ok()
    }

    fn layer_ids(&self) -> Vec<LayerId> {
        self.layers.iter().map(|layer| layer.id.clone()).collect()
    }

    fn encoded(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a row holds only strings and numbers")
    }
}

fn key_of(owner: &Owner, key: &recipe::Key) -> Key {
    let Owner { organization, user, project } = owner;
    Key::new([STEPS, organization, user, project, &key.digest().hex()])
}

/// The layers of a cached step; they are kept until the pin is dropped.
pub async fn find(
    shared: &Shared,
    owner: &Owner,
    key: &recipe::Key,
) -> Result<Option<(Vec<KeptLayer>, Pin)>, Error> {
    let store = shared.images.records.store();
    let key = key_of(owner, key);
    // Not while layers are being removed: these may be among them.
    let _kept = shared.images.gate.read().await;
    let Some(entry) = store.get(&key).await? else { return Ok(None) };
    let Some(row) = Row::read(&entry) else { return Ok(None) };
    let (ids, kept) = (row.layer_ids(), shared.storage.layers().await?);
    let whole = (1..=ids.len()).all(|end| {
        let key = shared.storage.layer_key(&ids[..end]);
        key.is_some_and(|key| kept.contains(&key))
    });
    if !whole {
        return Ok(None);
    }
    let pin = shared.images.pins.set(ids);
    let used = Row { layers: row.layers.clone(), used_at: shared.clock.wall() };
    if let Err(error) = rows::put(&**store, &key, used.encoded(), Some(entry.revision)).await {
        // The row is only evicted earlier than it should be.
        debug!(%error, "cannot note down that a step was used again");
    }
    Ok(Some((row.layers, pin)))
}

/// Records the outcome of a step. The layers are pinned until then.
pub async fn remember(
    shared: &Shared,
    owner: &Owner,
    key: &recipe::Key,
    layers: &[KeptLayer],
) -> Result<(), Error> {
    let store = shared.images.records.store();
    let row = Row { layers: layers.to_vec(), used_at: shared.clock.wall() };
    let value = row.encoded();
    if value.len() > limits::STORE_VALUE_MAX_BYTES {
        warn!("the outcome of a step is too long to be kept; it will be carried out again");
        return Ok(());
    }
    let key = key_of(owner, key);
    match rows::replace(&**store, &key, value).await {
        // A concurrent build has run the same step; the layers of either will do.
        Ok(_) | Err(StoreError::Exists { .. } | StoreError::Conflict { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    failpoint!("build.after_row");
    Ok(())
}

/// The layers of all rows.
pub async fn needed(shared: &Shared) -> Result<Vec<Vec<LayerId>>, StoreError> {
    named(shared, &Prefix::new([STEPS])).await
}

/// The layers of this owner's rows.
pub async fn needed_of(shared: &Shared, owner: &Owner) -> Result<Vec<Vec<LayerId>>, StoreError> {
    let Owner { organization, user, project } = owner;
    named(shared, &Prefix::new([STEPS, organization, user, project])).await
}

async fn named(shared: &Shared, prefix: &Prefix) -> Result<Vec<Vec<LayerId>>, StoreError> {
    let entries = shared.images.records.store().list(prefix).await?.entries;
    Ok(entries.iter().filter_map(Row::read).map(|row| row.layer_ids()).collect())
}

/// Evicts least recently used rows until the rest is within bounds.
pub async fn trim(shared: &Shared) -> Result<(), StoreError> {
    let store = shared.images.records.store();
    let entries = store.list(&Prefix::new([STEPS])).await?.entries;
    let read = |entry: Entry| {
        let row = Row::read(&entry);
        let used_at = row.as_ref().map_or(jiff::Timestamp::MIN, |row| row.used_at);
        ((used_at, entry), row.map(|row| row.layers).unwrap_or_default())
    };
    let mut rows: Rows<Dated> = entries.into_iter().map(read).collect();
    // The cache of a user or an organization may be as large as their templates.
    let quotas = &shared.policy.quotas;
    for (segments, quota) in [(3, &quotas.user), (2, &quotas.organization)] {
        let Some(max_mb) = quota.template_mb else { continue };
        let mut of_each: BTreeMap<Vec<String>, Rows<Dated>> = BTreeMap::new();
        for row in std::mem::take(&mut rows) {
            let whose = row.0.1.key.segments().into_iter().take(segments).collect();
            of_each.entry(whose).or_default().push(row);
        }
        for of_one in of_each.into_values() {
            rows.extend(trimmed(shared, of_one, max_mb.saturating_mul(limits::MIB)).await?);
        }
    }
    trimmed(shared, rows, limits::BUILD_CACHE_MAX_BYTES).await.map(drop)
}

/// A row, and when it was last used.
type Dated = (jiff::Timestamp, Entry);

/// Evicts those of these rows that exceed the bounds, and returns the others.
async fn trimmed(
    shared: &Shared,
    mut rows: Rows<Dated>,
    max_bytes: u64,
) -> Result<Rows<Dated>, StoreError> {
    rows.sort_by_key(|((used_at, _), _)| std::cmp::Reverse(*used_at));
    let (kept, over) = within(rows, max_bytes);
    for ((_, entry), _) in over {
        let store = shared.images.records.store();
        rows::remove(&**store, &entry.key, Some(entry.revision)).await?;
    }
    Ok(kept)
}

type Rows<T> = Vec<(T, Vec<KeptLayer>)>;

/// Splits rows, most recently used first, into those within the bounds and the rest.
fn within<T>(rows: Rows<T>, max_bytes: u64) -> (Rows<T>, Rows<T>) {
    let mut seen: BTreeSet<LayerId> = BTreeSet::new();
    let mut bytes = 0_u64;
    let (mut kept, mut over) = (Vec::new(), Vec::new());
    for (index, (row, layers)) in rows.into_iter().enumerate() {
        let new: BTreeMap<&LayerId, u64> = layers
            .iter()
            .filter(|layer| !seen.contains(&layer.id))
            .map(|layer| (&layer.id, layer.bytes))
            .collect();
        let with = bytes.saturating_add(new.values().sum());
        if index >= limits::BUILD_CACHE_MAX || with > max_bytes {
            over.push((row, layers));
            continue;
        }
        bytes = with;
        seen.extend(layers.iter().map(|layer| layer.id.clone()));
        kept.push((row, layers));
    }
    (kept, over)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::layers::id_of;
    use sandkeep_tree::digest::Digest;

    fn layer(name: usize, bytes: u64) -> KeptLayer {
        KeptLayer { id: id_of(&Digest::of(&name.to_le_bytes())), bytes }
    }

    #[test]
    fn the_steps_used_least_recently_go_when_there_are_too_many_or_they_hold_too_much() {
        let many = (0..limits::BUILD_CACHE_MAX + 2).map(|n| (n, vec![layer(n, 1)])).collect();
        let max_bytes = limits::BUILD_CACHE_MAX_BYTES;
        let gone: Vec<usize> = within(many, max_bytes).1.into_iter().map(|(row, _)| row).collect();
        assert_eq!(gone, [limits::BUILD_CACHE_MAX, limits::BUILD_CACHE_MAX + 1]);
        let (half, whole) = (limits::BUILD_CACHE_MAX_BYTES / 2, limits::BUILD_CACHE_MAX_BYTES);
        let heavy = vec![
            ("last", vec![layer(1, half)]),
            ("shares", vec![layer(1, half), layer(2, half)]),
            ("too much", vec![layer(3, 1)]),
            ("shares, too", vec![layer(2, half)]),
            ("far too much", vec![layer(4, whole)]),
        ];
        let (kept, gone) = within(heavy, max_bytes);
        let names = |rows: Rows<&'static str>| rows.into_iter().map(|(row, _)| row).collect();
        let (kept, gone): (Vec<&str>, Vec<&str>) = (names(kept), names(gone));
        assert_eq!(gone, ["too much", "far too much"]);
        assert_eq!(kept, ["last", "shares", "shares, too"]);
    }
}
