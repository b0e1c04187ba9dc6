//! Secrets of sandboxes on disk: encrypted by whoever writes them, `<home>/secrets`. And the key of this data directory
//! for that, `<data>/secrets.key`, or `<data>/secrets.key.wrapped` if another service keeps what decrypts it. All 0600
//! and durable: what was sealed with a lost key is lost.

use std::fs;
use std::io;
use std::path::Path;

use super::{Home, file};
use sandkeep_core::limits::KMS_ANSWER_MAX_BYTES;

const KEY: &str = "secrets.key";
const WRAPPED: &str = "secrets.key.wrapped";
const SECRETS: &str = "secrets";

/// The length of a key.
pub const KEY_BYTES: usize = 32;

/// What a data directory holds of its key.
#[derive(Clone, PartialEq, Eq)]
pub enum StoredKey {
    None,
    Plain([u8; KEY_BYTES]),
    Wrapped(Vec<u8>),
}

impl StoredKey {
    /// Reads the key. One that is damaged is an error: a new one would decrypt nothing.
    pub fn read(data: &Path) -> io::Result<Self> {
        if let Some(bytes) = content(&data.join(WRAPPED))? {
            return if bytes.is_empty() || bytes.len() > KMS_ANSWER_MAX_BYTES {
                Err(damaged(WRAPPED))
            } else {
                Ok(Self::Wrapped(bytes))
            };
        }
        match content(&data.join(KEY))? {
            None => Ok(Self::None),
            Some(bytes) => bytes.try_into().map(Self::Plain).map_err(|_| damaged(KEY)),
        }
    }

    /// Writes the key of a directory that has none yet, or the same key in another form.
    pub fn write(&self, data: &Path) -> io::Result<()> {
        match self {
            Self::None => Ok(()),
            Self::Plain(key) => durable(data, KEY, key),
            Self::Wrapped(key) => {
                durable(data, WRAPPED, key)?;
                match fs::remove_file(data.join(KEY)) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                    _ => file::sync(data),
                }
            }
        }
    }
}

fn damaged(name: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the file {name} is damaged"))
}

fn content(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn durable(dir: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    file::replace(dir, name, bytes)?;
    file::sync(&dir.join(name))?;
    file::sync(dir)
}

impl Home {
    /// Replaces the sealed secrets of a sandbox, durably.
    pub fn keep_secrets(&self, sealed: &[u8]) -> io::Result<()> {
        durable(self.path(), SECRETS, sealed)
    }

    /// `None` if it has none.
    pub fn secrets(&self) -> io::Result<Option<Vec<u8>>> {
        content(&self.path().join(SECRETS))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_is_read_as_it_was_written_and_a_damaged_one_is_no_absence() {
        let dir = tempfile::tempdir().expect("a directory");
        assert!(StoredKey::read(dir.path()).expect("no file is no error") == StoredKey::None);
        let plain = StoredKey::Plain([7; KEY_BYTES]);
        plain.write(dir.path()).expect("a writable directory");
        assert!(StoredKey::read(dir.path()).expect("it is readable") == plain);
        let mode = fs::metadata(dir.path().join(KEY)).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        fs::write(dir.path().join(KEY), "short").expect("it is ours");
        assert!(StoredKey::read(dir.path()).is_err());
        let wrapped = StoredKey::Wrapped(vec![1, 2, 3]);
        wrapped.write(dir.path()).expect("a writable directory");
        assert!(StoredKey::read(dir.path()).expect("it is readable") == wrapped);
    }
}
