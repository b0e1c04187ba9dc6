//! The signing key of a data directory: only this instance can create its signatures, and it accepts no others.

use std::fs;
use std::io;
use std::path::Path;

use super::file;

const SECRET: &str = "secret";

/// Random bytes that never leave the machine.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; 32]);

impl Secret {
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The key of this directory, created if it does not exist. One that was torn by a power loss is replaced: its
    /// signatures are then refused, which is the only consequence.
    pub(super) fn of(data: &Path) -> io::Result<Self> {
        match fs::read(data.join(SECRET)) {
            Ok(bytes) => match bytes.try_into() {
                Ok(bytes) => Ok(Self(bytes)),
                Err(_torn) => Self::make(data),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::make(data),
            Err(error) => Err(error),
        }
    }

    fn make(data: &Path) -> io::Result<Self> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        file::replace(data, SECRET, &bytes)?;
        Ok(Self(bytes))
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}
