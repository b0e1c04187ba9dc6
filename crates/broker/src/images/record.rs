//! The record of a template: one row, under its owner's name or among the shared ones.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::records::rows;
use sandkeep_core::network::Network;
use sandkeep_core::{Owner, Principal, StartUp, TemplateName, limits};
use sandkeep_image::image::ImageConfig;
use sandkeep_storage::LayerId;
use sandkeep_store::{Entry, Key, Prefix, StateStore, StoreError};

/// The first segment of every template's key, and the second.
const TEMPLATES: &str = "templates";
const OWN: &str = "own";
const SHARED: &str = "shared";

const VERSION: u32 = 1;

/// Who can create sandboxes from a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whose {
    Own(Owner),
    Shared,
}

impl Whose {
    pub fn is_visible_to(&self, who: &Principal) -> bool {
        match self {
            Self::Own(owner) => who.may_see(owner),
            Self::Shared => true,
        }
    }

    /// Whether this owner can create sandboxes from it.
    pub fn includes(&self, owner: &Owner) -> bool {
        match self {
            Self::Own(own) => own == owner,
            Self::Shared => true,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    version: u32,
    pub name: TemplateName,
    pub digest: String,
    /// Its source, in words.
    pub source: String,
    /// Lowest first.
    pub layers: Vec<KeptLayer>,
    /// The built-in template that shows through.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over: Option<String>,
    /// The image's config, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<ImageConfig>,
    /// The program that runs in every sandbox from its creation on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<StartUp>,
    /// The policy of sandboxes that name none, as its creator chose it. Never that of a sandbox it was made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    pub created_at: jiff::Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptLayer {
    pub id: LayerId,
    /// Size of its files when it was applied.
    pub bytes: u64,
}

/// A record without its creation time.
pub struct Content {
    pub name: TemplateName,
    pub digest: String,
    pub source: String,
    pub layers: Vec<KeptLayer>,
    pub over: Option<String>,
    pub config: Option<ImageConfig>,
    pub start: Option<StartUp>,
}

impl Record {
    pub fn new(content: Content, created_at: jiff::Timestamp) -> Self {
        let Content { name, digest, source, layers, over, config, start } = content;
        let (version, network) = (VERSION, None);
        Self { version, name, digest, source, layers, over, config, start, network, created_at }
    }

    pub fn layer_ids(&self) -> Vec<LayerId> {
        self.layers.iter().map(|layer| layer.id.clone()).collect()
    }

    pub fn bytes(&self) -> u64 {
        self.layers.iter().map(|layer| layer.bytes).sum()
    }
}

/// The key of a template in the store. No two owners' keys can be equal, whatever their strings contain.
pub fn key(whose: &Whose, name: &TemplateName) -> Key {
    match whose {
        Whose::Own(Owner { organization, user, project }) => {
            Key::new([TEMPLATES, OWN, organization, user, project, name.as_str()])
        }
        Whose::Shared => Key::new([TEMPLATES, SHARED, name.as_str()]),
    }
}

#[derive(Clone)]
pub struct Records {
    store: Arc<dyn StateStore>,
}

/// A record that exceeds the store's size limit.
#[derive(Debug, thiserror::Error)]
#[error("its description has {bytes} bytes, more than {}", limits::STORE_VALUE_MAX_BYTES)]
pub struct TooLong {
    bytes: usize,
}

impl Records {
    pub fn new(store: Arc<dyn StateStore>) -> Self {
        Self { store }
    }

    pub fn store(&self) -> &Arc<dyn StateStore> {
        &self.store
    }

    pub async fn get(
        &self,
        whose: &Whose,
        name: &TemplateName,
    ) -> Result<Option<Record>, StoreError> {
        let entry = self.store.get(&key(whose, name)).await?;
        Ok(entry.and_then(|entry| serde_json::from_slice(&entry.value).ok()))
    }

    /// All records, by owner and name.
    pub async fn all(&self) -> Result<Vec<(Whose, Record)>, StoreError> {
        let listing = self.store.list(&Prefix::new([TEMPLATES])).await?;
        Ok(listing.entries.into_iter().filter_map(read).collect())
    }

    /// All records, or `None` if one of them cannot be read.
    pub async fn all_or_none(&self) -> Result<Option<Vec<(Whose, Record)>>, StoreError> {
        let listing = self.store.list(&Prefix::new([TEMPLATES])).await?;
        Ok(listing.entries.into_iter().map(read).collect())
    }

    /// The size of a layer, as measured when it was applied.
    pub async fn bytes_of(&self, id: &LayerId) -> Result<Option<u64>, StoreError> {
        let records = self.all().await?;
        let mut layers = records.iter().flat_map(|(_, record)| &record.layers);
        Ok(layers.find(|layer| layer.id == *id).map(|layer| layer.bytes))
    }

    /// Writes a record, replacing one of the same name.
    pub async fn put(&self, whose: &Whose, record: &Record) -> Result<(), StoreError> {
        rows::replace(&*self.store, &key(whose, &record.name), encode(record)).await.map(|_| ())
    }

    pub async fn remove(&self, whose: &Whose, name: &TemplateName) -> Result<(), StoreError> {
        rows::remove(&*self.store, &key(whose, name), None).await
    }
}

fn encode(record: &Record) -> Vec<u8> {
    serde_json::to_vec(record).expect("a record holds only strings, numbers and maps of strings")
}

/// Whether the store would accept it.
pub fn check_len(record: &Record) -> Result<(), TooLong> {
    match encode(record).len() {
        bytes if bytes > limits::STORE_VALUE_MAX_BYTES => Err(TooLong { bytes }),
        _ => Ok(()),
    }
}

/// An unreadable row names nothing usable; it is left alone.
fn read(entry: Entry) -> Option<(Whose, Record)> {
    let segments = entry.key.segments();
    let words: Vec<&str> = segments.iter().map(String::as_str).collect();
    let whose = match words[..] {
        [TEMPLATES, SHARED, _] => Whose::Shared,
        [TEMPLATES, OWN, organization, user, project, _] => {
            let [organization, user, project] = [organization, user, project].map(str::to_owned);
            Whose::Own(Owner { organization, user, project })
        }
        _ => return None,
    };
    Some((whose, serde_json::from_slice(&entry.value).ok()?))
}
