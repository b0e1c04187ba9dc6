//! Bytes as a JSON field: `data` if they are UTF-8, otherwise `data_b64`. For serde's `flatten` and `with`.

use std::borrow::Cow;

use base64::Engine;
use base64::display::Base64Display;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Written<'a> {
    Data(&'a str),
    DataB64(Base64<'a>),
}

/// Encoded while it is serialized, without an intermediate copy.
struct Base64<'a>(&'a [u8]);

impl Serialize for Base64<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&Base64Display::new(self.0, &STANDARD))
    }
}

pub fn serialize<S: Serializer>(data: &Bytes, to: S) -> Result<S::Ok, S::Error> {
    match std::str::from_utf8(data) {
        Ok(text) => Written::Data(text).serialize(to),
        Err(_) => Written::DataB64(Base64(data)).serialize(to),
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Read<'a> {
    Data(String),
    DataB64(Cow<'a, str>),
}

pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
    match Read::deserialize(from)? {
        Read::Data(text) => Ok(text.into()),
        Read::DataB64(text) => STANDARD.decode(&*text).map(Bytes::from).map_err(de::Error::custom),
    }
}
