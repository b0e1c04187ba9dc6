//! The layout of a sandbox's records, in `meta.json` and in its row: the versions, and how earlier ones are read.
//!
//! | version | addition |
//! |---|---|
//! | 1 | labels in the spec |
//! | 2 | `terms` (labels and timeouts, which can change), `began`, the slot and the profile |

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// The version that this build writes. It reads all earlier ones; a later one is not interpreted.
pub const VERSION: u32 = 2;

#[derive(Deserialize)]
struct Head {
    version: u32,
}

/// Why a record cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Unread {
    #[error(transparent)]
    Malformed(#[from] serde_json::Error),
    #[error("it has version {found}; this build knows {VERSION}")]
    Version { found: u32 },
}

/// Reads any version up to this one.
pub fn read<T: DeserializeOwned>(content: &[u8]) -> Result<T, Unread> {
    read_value(serde_json::from_slice(content)?)
}

/// The same from parsed JSON.
pub fn read_value<T: DeserializeOwned>(value: Value) -> Result<T, Unread> {
    let Head { version } = Head::deserialize(&value)?;
    match version {
        VERSION => Ok(serde_json::from_value(value)?),
        1 => Ok(serde_json::from_value(second(value))?),
        found => Err(Unread::Version { found }),
    }
}

/// Converts version 1 to version 2.
fn second(mut first: Value) -> Value {
    let labels = first["spec"].get_mut("labels").map(Value::take).unwrap_or_else(|| json!({}));
    first["terms"] = json!({ "labels": labels });
    first["began"] = json!({ "wall": first["created_at"], "boot_id": "", "uptime_ms": 0 });
    first["version"] = json!(2);
    first
}
