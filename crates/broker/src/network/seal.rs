//! Values of secrets at rest: AES-256-GCM with the key of the data directory, one file in the home of each sandbox.
//!
//! The sandbox's id is authenticated with them, so the file of one home is worthless in another. The key is read when
//! the first secret is written or read; from then on the daemon leaves no core dump, which would contain it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use tokio::sync::OnceCell;
use tracing::warn;

use super::KmsCommand;
use crate::error::Error;
use sandkeep_core::SandboxId;
use sandkeep_core::network::SecretValue;
use sandkeep_home::{KEY_BYTES, StoredKey};

/// Values by the names of their variables.
pub(crate) type Values = BTreeMap<String, SecretValue>;
/// Values by the names under which they are kept: see `SecretTerms::value_name`.
pub(crate) type KeptValues = BTreeMap<String, SecretValue>;

/// The version of the format, and the first byte of a file.
const VERSION: u8 = 1;

pub(super) struct Seal {
    data: PathBuf,
    kms: Option<KmsCommand>,
    key: OnceCell<LessSafeKey>,
}

impl Seal {
    pub fn new(data: &Path, kms: Option<KmsCommand>) -> Self {
        Self { data: data.to_owned(), kms, key: OnceCell::new() }
    }

    pub async fn close(&self, id: &SandboxId, values: &Values) -> Result<Vec<u8>, Error> {
        let key = self.key().await?;
        let mut bytes = serde_json::to_vec(values).expect("values are strings");
        let nonce: [u8; NONCE_LEN] = random()?;
        let sealed = Nonce::assume_unique_for_key(nonce);
        key.seal_in_place_append_tag(sealed, Aad::from(about(id)), &mut bytes)
            .map_err(|_| wrong("they are too large to encrypt"))?;
        Ok([&[VERSION][..], &nonce, &bytes].concat())
    }

    pub async fn open(&self, id: &SandboxId, sealed: &[u8]) -> Result<Values, Error> {
        let key = self.key().await?;
        let damaged = || wrong("the file was changed, or is of another sandbox or key");
        let (version, rest) = sealed.split_first().ok_or_else(damaged)?;
        if *version != VERSION {
            return Err(wrong(format!("they have version {version}; this build knows {VERSION}")));
        }
        let (nonce, bytes) = rest.split_at_checked(NONCE_LEN).ok_or_else(damaged)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| damaged())?;
        let mut bytes = bytes.to_vec();
        let plain = key.open_in_place(nonce, Aad::from(about(id)), &mut bytes);
        serde_json::from_slice(plain.map_err(|_| damaged())?).map_err(|_| damaged())
    }

    async fn key(&self) -> Result<&LessSafeKey, Error> {
        self.key.get_or_try_init(|| self.find_key()).await
    }

    /// The key of this data directory, made if there is none. One that was kept in a file before a KMS command was set
    /// is wrapped by that.
    async fn find_key(&self) -> Result<LessSafeKey, Error> {
        if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
            warn!(%error, "cannot turn off core dumps, which would contain secrets");
        }
        let unreadable = |error: std::io::Error| wrong(format!("the key: {error}"));
        let stored = StoredKey::read(&self.data).map_err(unreadable)?;
        let key = match (stored, &self.kms) {
            (StoredKey::Plain(key), None) => key,
            (StoredKey::None, None) => {
                let key = random()?;
                StoredKey::Plain(key).write(&self.data).map_err(unreadable)?;
                key
            }
            (stored @ (StoredKey::None | StoredKey::Plain(_)), Some(kms)) => {
                let key = match stored {
                    StoredKey::Plain(key) => key,
                    StoredKey::None | StoredKey::Wrapped(_) => random()?,
                };
                let wrapped = kms.encrypt(&key).await.map_err(|error| wrong(error.to_string()))?;
                StoredKey::Wrapped(wrapped).write(&self.data).map_err(unreadable)?;
                key
            }
            (StoredKey::Wrapped(wrapped), Some(kms)) => {
                let key = kms.decrypt(&wrapped).await;
                let key = key.map_err(|error| wrong(error.to_string()))?;
                let problem = format!("the KMS command decrypted a key of {} bytes", key.len());
                key.try_into().map_err(|_| wrong(problem))?
            }
            (StoredKey::Wrapped(_), None) => {
                return Err(wrong("a KMS command keeps their key: set egress_kms_command again"));
            }
        };
        let key = UnboundKey::new(&AES_256_GCM, &key).expect("a key has 32 bytes");
        Ok(LessSafeKey::new(key))
    }
}

fn about(id: &SandboxId) -> String {
    format!("sandkeep secrets of {id}")
}

fn random<const N: usize>() -> Result<[u8; N], Error> {
    const { assert!(KEY_BYTES == 32) };
    let mut bytes = [0; N];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| wrong("the system has no random bytes"))?;
    Ok(bytes)
}

pub(super) fn wrong(problem: impl Into<String>) -> Error {
    Error::Secrets { problem: problem.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(value: &str) -> Values {
        [("TOKEN".to_owned(), SecretValue::new(value.to_owned()))].into()
    }

    #[tokio::test]
    async fn values_are_read_by_the_next_daemon_and_by_no_other_sandbox() {
        let dir = tempfile::tempdir().expect("a directory");
        let (id, other) = (SandboxId::random(), SandboxId::random());
        let sealed = Seal::new(dir.path(), None).close(&id, &values("hush")).await.expect("sealed");
        assert!(!sealed.windows(4).any(|part| part == b"hush"));
        let next = Seal::new(dir.path(), None);
        assert_eq!(next.open(&id, &sealed).await.expect("it is whole"), values("hush"));
        assert!(next.open(&other, &sealed).await.is_err(), "another sandbox's file");
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert!(next.open(&id, &changed).await.is_err(), "byte {at} was changed");
        }
        for len in 0..sealed.len() {
            assert!(next.open(&id, &sealed[..len]).await.is_err(), "cut off at {len}");
        }
        let elsewhere = tempfile::tempdir().expect("a directory");
        assert!(Seal::new(elsewhere.path(), None).open(&id, &sealed).await.is_err());
    }

    #[tokio::test]
    async fn a_kms_command_takes_the_key_over_and_is_needed_from_then_on() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().expect("a directory");
        let id = SandboxId::random();
        let sealed = Seal::new(dir.path(), None).close(&id, &values("hush")).await.expect("sealed");
        let program = dir.path().join("kms");
        let script = "#!/bin/sh\n[ $1 = encrypt ] && exec base64 -w0; exec base64 -d\n";
        std::fs::write(&program, script).expect("a script");
        let executable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&program, executable).expect("executable");
        for _ in 0..2 {
            let kept = Seal::new(dir.path(), Some(KmsCommand(program.clone())));
            assert_eq!(kept.open(&id, &sealed).await.expect("it is whole"), values("hush"));
            assert!(!dir.path().join("secrets.key").exists(), "the plain key stays on disk");
        }
        let without = Seal::new(dir.path(), None).open(&id, &sealed).await;
        assert!(without.is_err_and(|error| error.to_string().contains("egress_kms_command")));
    }
}
