//! The directory on a store with revisions: on one machine, the same store that holds everything else.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tracing::info;

use super::{
    Directory, DirectoryError, FoundRequest, FoundRow, NewRow, Node, Placement, RequestRecord,
    Rows, name_key, slot_name,
};
use crate::records::rows;
use sandkeep_core::{KeyId, Owner, SandboxId, SandboxName, SlotName, limits};
use sandkeep_store::{Entry, Key, Prefix, Revision, StateStore, StoreError};

pub(super) const SLOTS: &str = "slots";
pub(super) const NAMES: &str = "names";
pub(super) const REQUESTS: &str = "idempotency";
const ROWS: &str = "sandboxes";
const API_KEYS: &str = "keys";

/// A single node is never given up.
const FIRST_EPOCH: u64 = 1;

pub struct LocalDirectory {
    store: Arc<dyn StateStore>,
    node: Node,
    /// Distinguishes this process's writes from those of an earlier process of the same node.
    writer: String,
}

impl LocalDirectory {
    /// For the node with this name.
    pub fn new(store: Arc<dyn StateStore>, node: &str) -> Self {
        let node = Node { node: node.to_owned(), epoch: FIRST_EPOCH };
        Self { store, node, writer: SandboxId::random().as_str().to_owned() }
    }

    /// The stored form of a row.
    fn encode(&self, row: NewRow<'_>) -> (Key, Vec<u8>) {
        let NewRow { owner, id, phase, slot, names, share, record } = row;
        let (at, writer) = (self.node.clone(), self.writer.clone());
        let placement = Placement { phase, at, slot: slot.cloned(), names, share, writer };
        (row_key(owner, id), encode(placement, record))
    }

    fn wrote(&self, entry: &Entry) -> bool {
        placement(&entry.value).is_some_and(|placement| placement.writer == self.writer)
    }

    /// Whether a slot or a name that was claimed for a sandbox is its own still. A slot is for as long as there is a row;
    /// a name can change, so the row has to list it.
    async fn leads_to(&self, key: &Key, owner: &Owner, id: &SandboxId) -> Result<bool, StoreError> {
        let Some(row) = self.store.get(&row_key(owner, id)).await? else { return Ok(false) };
        match key.segments().as_slice() {
            [kind, .., name] if kind == NAMES => {
                let names = placement(&row.value).map(|placement| placement.names);
                Ok(names.is_some_and(|names| names.iter().any(|listed| listed.as_str() == name)))
            }
            _ => Ok(true),
        }
    }

    /// Takes a slot or a name; `Some` is the sandbox that has it instead.
    async fn claim(
        &self,
        key: Key,
        owner: &Owner,
        id: &SandboxId,
    ) -> Result<Option<SandboxId>, DirectoryError> {
        let claim = NameHolder { id: id.clone(), at: Some(self.node.clone()) };
        let claim = serde_json::to_vec(&claim).expect("a claim holds strings and a number");
        loop {
            match self.store.create(&key, claim.clone()).await {
                Ok(_) => return Ok(None),
                Err(StoreError::Exists { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            let Some(entry) = self.store.get(&key).await? else { continue };
            match holder(&entry.value) {
                // An earlier write of this very claim, whose answer was lost.
                Some(holder) if holder.id == *id => return Ok(None),
                Some(holder) if self.leads_to(&key, owner, &holder.id).await? => {
                    return Ok(Some(holder.id));
                }
                Some(_) | None => self.remove(&key, entry.revision).await?,
            }
        }
    }

    async fn free(&self, key: Key, id: &SandboxId) -> Result<(), DirectoryError> {
        match self.store.get(&key).await? {
            Some(entry) if holder(&entry.value).is_some_and(|holder| holder.id == *id) => {
                self.remove(&key, entry.revision).await
            }
            Some(_) | None => Ok(()),
        }
    }

    /// If another write was faster, it has decided.
    async fn remove(&self, key: &Key, revision: Revision) -> Result<(), DirectoryError> {
        match self.store.delete(key, revision).await {
            Ok(_) | Err(StoreError::Conflict { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Rows are keyed by owner first, so that one owner's can be listed without the others'.
fn row_key(owner: &Owner, id: &SandboxId) -> Key {
    let Owner { organization, user, project } = owner;
    Key::new([ROWS, organization, user, project, id.as_str()])
}

fn encode(placement: Placement, record: Map<String, Value>) -> Vec<u8> {
    #[derive(Serialize)]
    struct Row {
        placement: Placement,
        #[serde(flatten)]
        record: Map<String, Value>,
    }
    serde_json::to_vec(&Row { placement, record }).expect("a row holds strings, numbers and maps")
}

fn placement(value: &[u8]) -> Option<Placement> {
    #[derive(Deserialize)]
    struct Row {
        placement: Placement,
    }
    serde_json::from_slice::<Row>(value).ok().map(|row| row.placement)
}

/// A key without a valid sandbox id is not ours.
fn found(entry: Entry) -> Option<FoundRow> {
    let segments = entry.key.segments();
    let (id, owner) = match segments.as_slice() {
        [_, id] => (id, None),
        [_, organization, user, project, id] => {
            let [organization, user, project] = [organization, user, project].map(Clone::clone);
            (id, Some(Owner { organization, user, project }))
        }
        _ => return None,
    };
    let Entry { value, revision, .. } = entry;
    Some(FoundRow { id: id.parse().ok()?, owner, revision, placement: placement(&value), value })
}

/// The prefix of all rows, for a read-only look at a file.
pub(crate) fn rows_prefix() -> Prefix {
    Prefix::new([ROWS])
}

/// The sandbox of an entry.
pub(crate) fn row_id(entry: Entry) -> Option<SandboxId> {
    found(entry).map(|row| row.id)
}

/// Who has a slot or a name.
#[derive(Serialize, Deserialize)]
struct NameHolder {
    id: SandboxId,
    #[serde(flatten)]
    at: Option<Node>,
}

/// Earlier versions wrote only the id.
fn holder(value: &[u8]) -> Option<NameHolder> {
    let text = std::str::from_utf8(value).ok()?;
    let bare = || text.parse().ok().map(|id| NameHolder { id, at: None });
    serde_json::from_str(text).ok().or_else(bare)
}

fn request(value: &[u8]) -> Option<RequestRecord> {
    serde_json::from_slice(value).ok()
}

fn api_key_key(id: &KeyId) -> Key {
    Key::new([API_KEYS, id.as_str()])
}

/// The requests beyond the maximum, of a list with the newest first: always the oldest of the organization that has the
/// most, so that none loses entries because of a larger one.
fn beyond<T>(requests: Vec<(Key, T)>, max: usize) -> Vec<(Key, T)> {
    let mut of_each: HashMap<String, usize> = HashMap::new();
    let placed = |(key, rest): (Key, T)| {
        let organization = key.segments().into_iter().nth(1).unwrap_or_default();
        let place = of_each.entry(organization).or_default();
        *place += 1;
        (*place, (key, rest))
    };
    let mut placed: Vec<_> = requests.into_iter().map(placed).collect();
    placed.sort_by_key(|(place, _)| *place);
    placed.into_iter().skip(max).map(|(_, request)| request).collect()
}

#[async_trait]
impl Directory for LocalDirectory {
    fn node(&self) -> &Node {
        &self.node
    }

    async fn put_row(
        &self,
        row: NewRow<'_>,
        mut known: Option<Revision>,
    ) -> Result<Revision, DirectoryError> {
        let what = format!("the row of {}", row.id);
        let (key, value) = self.encode(row);
        loop {
            let written = match known {
                Some(revision) => self.store.update(&key, value.clone(), revision).await,
                None => self.store.create(&key, value.clone()).await,
            };
            match written {
                Err(StoreError::Exists { .. } | StoreError::Conflict { .. }) => {}
                other => return Ok(other?),
            }
            match self.store.get(&key).await? {
                // Our own earlier write, whose answer was lost.
                Some(entry) if self.wrote(&entry) => known = Some(entry.revision),
                Some(_) | None => return Err(DirectoryError::Fenced { what }),
            }
        }
    }

    async fn remove_row(
        &self,
        owner: &Owner,
        id: &SandboxId,
        mut known: Option<Revision>,
    ) -> Result<(), DirectoryError> {
        let key = row_key(owner, id);
        loop {
            let revision = match known.take() {
                Some(revision) => revision,
                None => match self.store.get(&key).await? {
                    None => return Ok(()),
                    Some(entry) if self.wrote(&entry) => entry.revision,
                    Some(_) => {
                        return Err(DirectoryError::Fenced { what: format!("the row of {id}") });
                    }
                },
            };
            match self.store.delete(&key, revision).await {
                Err(StoreError::Conflict { current: Some(_) }) => {}
                Ok(_) | Err(StoreError::Conflict { current: None }) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn row(&self, owner: &Owner, id: &SandboxId) -> Result<Option<FoundRow>, DirectoryError> {
        Ok(self.store.get(&row_key(owner, id)).await?.and_then(found))
    }

    async fn rows(&self, organization: Option<&str>) -> Result<Rows, DirectoryError> {
        let prefix = Prefix::new([ROWS].into_iter().chain(organization));
        let listing = self.store.list(&prefix).await?;
        let rows = listing.entries.into_iter().filter_map(found).collect();
        Ok(Rows { rows, revision: listing.revision })
    }

    async fn adopt_row(&self, old: &FoundRow, row: NewRow<'_>) -> Result<(), DirectoryError> {
        let (key, value) = self.encode(row);
        if old.owner.is_some() {
            self.store.update(&key, value, old.revision).await?;
            return Ok(());
        }
        match self.store.create(&key, value).await {
            Ok(_) | Err(StoreError::Exists { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        self.remove(&Key::new([ROWS, old.id.as_str()]), old.revision).await
    }

    async fn row_changes(&self, organization: &str, after: Revision) -> Result<(), DirectoryError> {
        match self.store.watch(&Prefix::new([ROWS, organization]), after).await {
            Ok(mut changes) => {
                changes.recv().await.transpose()?;
                Ok(())
            }
            // The history was compacted: there were many changes.
            Err(StoreError::Compacted { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    async fn claim_slot(
        &self,
        owner: &Owner,
        slot: &SlotName,
        id: &SandboxId,
    ) -> Result<Option<SandboxId>, DirectoryError> {
        self.claim(slot_name(owner, slot), owner, id).await
    }

    async fn slot_holder(
        &self,
        owner: &Owner,
        slot: &SlotName,
    ) -> Result<Option<SandboxId>, DirectoryError> {
        let entry = self.store.get(&slot_name(owner, slot)).await?;
        Ok(entry.and_then(|entry| holder(&entry.value)).map(|holder| holder.id))
    }

    async fn free_slot(
        &self,
        owner: &Owner,
        slot: &SlotName,
        id: &SandboxId,
    ) -> Result<(), DirectoryError> {
        self.free(slot_name(owner, slot), id).await
    }

    async fn claim_name(
        &self,
        owner: &Owner,
        name: &SandboxName,
        id: &SandboxId,
    ) -> Result<Option<SandboxId>, DirectoryError> {
        self.claim(name_key(owner, name), owner, id).await
    }

    async fn name_holder(
        &self,
        owner: &Owner,
        name: &SandboxName,
    ) -> Result<Option<SandboxId>, DirectoryError> {
        let key = name_key(owner, name);
        let entry = self.store.get(&key).await?;
        let Some(NameHolder { id, .. }) = entry.and_then(|entry| holder(&entry.value)) else {
            return Ok(None);
        };
        Ok(self.leads_to(&key, owner, &id).await?.then_some(id))
    }

    async fn free_name(
        &self,
        owner: &Owner,
        name: &SandboxName,
        id: &SandboxId,
    ) -> Result<(), DirectoryError> {
        self.free(name_key(owner, name), id).await
    }

    async fn sweep_claims(&self) -> Result<(), DirectoryError> {
        for kind in [SLOTS, NAMES] {
            for entry in self.store.list(&Prefix::new([kind])).await?.entries {
                let segments = entry.key.segments();
                let [_, organization, user, project, _] = segments.as_slice() else { continue };
                let [organization, user, project] = [organization, user, project].map(Clone::clone);
                let owner = Owner { organization, user, project };
                let Some(NameHolder { id, at }) = holder(&entry.value) else { continue };
                let ours = at.is_none_or(|at| at.node == self.node.node);
                if ours && !self.leads_to(&entry.key, &owner, &id).await? {
                    self.remove(&entry.key, entry.revision).await?;
                    info!(key = ?entry.key, %id, "freed a slot or name whose sandbox is gone");
                }
            }
        }
        Ok(())
    }

    async fn request(&self, name: &Key) -> Result<Option<FoundRequest>, DirectoryError> {
        let entry = self.store.get(name).await?;
        let found = |entry: Entry| {
            let Entry { value, revision, .. } = entry;
            FoundRequest { record: request(&value), revision }
        };
        Ok(entry.map(found))
    }

    async fn put_request(
        &self,
        name: &Key,
        record: &RequestRecord,
        known: Option<Revision>,
    ) -> Result<Revision, DirectoryError> {
        let record = RequestRecord { node: Some(self.node.node.clone()), ..record.clone() };
        let value = serde_json::to_vec(&record).expect("a record holds only strings");
        match rows::put(&*self.store, name, value, known).await {
            Err(StoreError::Exists { .. } | StoreError::Conflict { .. }) => {
                let what = "what was asked for under this Idempotency-Key".to_owned();
                Err(DirectoryError::Fenced { what })
            }
            other => Ok(other?),
        }
    }

    async fn remove_request(&self, name: &Key, known: Revision) -> Result<(), DirectoryError> {
        self.remove(name, known).await
    }

    async fn sweep_requests(&self, now: jiff::Timestamp) -> Result<(), DirectoryError> {
        let listing = self.store.list(&Prefix::new([REQUESTS])).await?;
        let dated = |entry: Entry| (request(&entry.value), entry.key, entry.revision);
        let ours = |record: &RequestRecord| {
            record.node.as_ref().is_none_or(|node| *node == self.node.node)
        };
        let mut entries: Vec<_> = listing.entries.into_iter().map(dated).collect();
        entries.retain(|(record, ..)| record.as_ref().is_none_or(ours));
        entries.sort_by_key(|(record, ..)| std::cmp::Reverse(record.as_ref().map(|kept| kept.at)));
        let mut young = Vec::with_capacity(entries.len());
        for (record, key, revision) in entries {
            if record.is_none_or(|record| record.is_old(now)) {
                self.remove(&key, revision).await?
            } else {
                young.push((key, revision))
            }
        }
        for (key, revision) in beyond(young, limits::IDEMPOTENCY_KEYS_MAX) {
            self.remove(&key, revision).await?;
        }
        Ok(())
    }

    async fn api_key(&self, id: &KeyId) -> Result<Option<Vec<u8>>, DirectoryError> {
        Ok(self.store.get(&api_key_key(id)).await?.map(|entry| entry.value))
    }

    async fn api_keys(&self) -> Result<Vec<Vec<u8>>, DirectoryError> {
        let listing = self.store.list(&Prefix::new([API_KEYS])).await?;
        Ok(listing.entries.into_iter().map(|entry| entry.value).collect())
    }

    async fn add_api_key(&self, id: &KeyId, value: Vec<u8>) -> Result<(), DirectoryError> {
        self.store.create(&api_key_key(id), value).await?;
        Ok(())
    }

    async fn remove_api_key(&self, id: &KeyId) -> Result<bool, DirectoryError> {
        let key = api_key_key(id);
        loop {
            let Some(entry) = self.store.get(&key).await? else { return Ok(false) };
            match self.store.delete(&key, entry.revision).await {
                Ok(_) => return Ok(true),
                // It was removed concurrently: the next read finds nothing.
                Err(StoreError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_the_most_requests_loses_the_oldest() {
        let request = |organization: &str, n: u32| {
            (Key::new([REQUESTS, organization, "user", &n.to_string()]), n)
        };
        let all = || {
            let flood = (0..10).map(|n| request("flood", n));
            // The oldest of all belongs to another organization.
            flood.chain([request("other", 10), request("other", 11)]).collect()
        };
        let gone = |max| beyond(all(), max).into_iter().map(|(_, n)| n).collect::<Vec<u32>>();
        assert_eq!(gone(12), Vec::<u32>::new());
        assert_eq!(gone(9), [7, 8, 9]);
        assert_eq!(gone(4), [2, 3, 4, 5, 6, 7, 8, 9]);
    }
}
