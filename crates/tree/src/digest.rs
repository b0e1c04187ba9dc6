//! Content digests: `sha256:<64 hex digits>`. Data requested by digest is hashed while it is read, and reading to the
//! end fails unless it matches.

use std::fmt;
use std::io::{self, Read};
use std::str::FromStr;

use ring::digest::{Context, SHA256};
use serde::{Deserialize, Serialize};

const PREFIX: &str = "sha256:";
const BYTES: usize = 32;

/// A SHA-256 digest. No other algorithm is supported, because no registry uses one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest([u8; BYTES]);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no digest: it must be sha256: and 64 lower-case hexadecimal digits")]
pub struct NotADigest {
    pub text: String,
}

impl Digest {
    pub fn of(bytes: &[u8]) -> Self {
        let mut hasher = Hasher::new();
        hasher.update(bytes);
        hasher.finish()
    }

    /// The 64 digits alone, as in the file names of a layout.
    pub fn hex(&self) -> String {
        hex::encode(self.0)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = NotADigest;

    fn from_str(text: &str) -> Result<Self, NotADigest> {
        let refused = || NotADigest { text: text.chars().take(PREFIX.len() + 2 * BYTES).collect() };
        let digits = text.strip_prefix(PREFIX).ok_or_else(refused)?;
        let mut bytes = [0; BYTES];
        hex::decode_to_slice(digits, &mut bytes).map_err(|_| refused())?;
        // Upper case is refused, so that one content has one name.
        if digits.contains(|c: char| c.is_ascii_uppercase()) {
            Err(refused())
        } else {
            Ok(Self(bytes))
        }
    }
}

impl TryFrom<String> for Digest {
    type Error = NotADigest;

    fn try_from(text: String) -> Result<Self, NotADigest> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

/// A digest under construction.
#[derive(Clone)]
pub struct Hasher(Context);

impl Hasher {
    #[expect(clippy::new_without_default, reason = "a hasher is begun, not defaulted to")]
    pub fn new() -> Self {
        Self(Context::new(&SHA256))
    }

    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub fn finish(self) -> Digest {
        let mut bytes = [0; BYTES];
        bytes.copy_from_slice(self.0.finish().as_ref());
        Digest(bytes)
    }
}

impl io::Write for Hasher {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The data does not match its digest or size. Transported as the inner error of an [`io::Error`] of kind
/// `InvalidData`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    #[error("the content is {found}, not {expected}: it was damaged or exchanged on the way")]
    Digest { expected: Digest, found: Digest },
    #[error("the content of {expected} has {found_bytes} bytes or more, not {expected_bytes}")]
    Size { expected: Digest, expected_bytes: u64, found_bytes: u64 },
}

impl From<Mismatch> for io::Error {
    fn from(mismatch: Mismatch) -> Self {
        Self::new(io::ErrorKind::InvalidData, mismatch)
    }
}

/// A verifying reader. If the content does not match, the read that would return the end fails instead; bytes beyond
/// the size fail at once.
pub struct Verified<R> {
    inner: R,
    hasher: Option<Hasher>,
    expected: Digest,
    expected_bytes: Option<u64>,
    read_bytes: u64,
}

impl<R: Read> Verified<R> {
    pub fn new(inner: R, expected: Digest, expected_bytes: Option<u64>) -> Self {
        Self { inner, hasher: Some(Hasher::new()), expected, expected_bytes, read_bytes: 0 }
    }

    fn size_mismatch(&self, expected_bytes: u64) -> io::Error {
        let (expected, found_bytes) = (self.expected, self.read_bytes);
        Mismatch::Size { expected, expected_bytes, found_bytes }.into()
    }

    fn end(&mut self) -> io::Result<()> {
        if let Some(expected) = self.expected_bytes.filter(|bytes| *bytes != self.read_bytes) {
            return Err(self.size_mismatch(expected));
        }
        // After the end was returned once it is not verified again.
        let Some(hasher) = self.hasher.take() else { return Ok(()) };
        let found = hasher.finish();
        if found == self.expected {
            Ok(())
        } else {
            Err(Mismatch::Digest { expected: self.expected, found }.into())
        }
    }
}

impl<R: Read> Read for Verified<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        if read == 0 && !buffer.is_empty() {
            self.end()?;
            return Ok(0);
        }
        self.read_bytes += read as u64;
        if let Some(expected) = self.expected_bytes.filter(|bytes| self.read_bytes > *bytes) {
            return Err(self.size_mismatch(expected));
        }
        if let Some(hasher) = &mut self.hasher {
            hasher.update(&buffer[..read]);
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn read(content: &[u8], expected: &[u8], bytes: Option<u64>) -> io::Result<Vec<u8>> {
        let mut read = Vec::new();
        Verified::new(content, Digest::of(expected), bytes).read_to_end(&mut read)?;
        Ok(read)
    }

    fn mismatch(result: io::Result<Vec<u8>>) -> Mismatch {
        let error = result.expect_err("a mismatch");
        error.into_inner().expect("an inner error").downcast_ref::<Mismatch>().unwrap().clone()
    }

    #[test]
    fn a_digest_is_written_as_it_is_read() {
        assert_eq!(Digest::of(b"").to_string(), EMPTY);
        assert_eq!(EMPTY.parse::<Digest>(), Ok(Digest::of(b"")));
        let json = serde_json::to_string(&Digest::of(b"")).unwrap();
        assert_eq!(serde_json::from_str::<Digest>(&json).unwrap(), Digest::of(b""));
        assert_eq!(json, format!("\"{EMPTY}\""));
    }

    #[test]
    fn what_is_no_sha256_is_refused() {
        let upper = EMPTY.to_uppercase().replace("SHA256", "sha256");
        let (short, long) = (&EMPTY[..70], format!("{EMPTY}0"));
        let sha512 = EMPTY.replace("sha256", "sha512");
        let slashes = format!("sha256:{}", "../".repeat(22));
        for text in
            ["", "sha256:", &EMPTY[7..], &upper, short, &long, &sha512, &slashes, "sha256:é"]
        {
            assert!(text.parse::<Digest>().is_err(), "{text}");
        }
    }

    #[test]
    fn content_that_is_as_named_is_read_to_its_end() {
        assert_eq!(read(b"layer", b"layer", None).unwrap(), b"layer");
        assert_eq!(read(b"layer", b"layer", Some(5)).unwrap(), b"layer");
        assert_eq!(read(b"", b"", Some(0)).unwrap(), b"");
    }

    #[test]
    fn content_that_is_not_as_named_fails_at_its_end() {
        let expected = Digest::of(b"layer");
        let found = Digest::of(b"laser");
        assert_eq!(mismatch(read(b"laser", b"layer", None)), Mismatch::Digest { expected, found });
        let size = |found_bytes| Mismatch::Size { expected, expected_bytes: 5, found_bytes };
        assert_eq!(mismatch(read(b"lay", b"layer", Some(5))), size(3));
        assert_eq!(mismatch(read(b"layers", b"layer", Some(5))), size(6));
    }

    #[test]
    fn content_past_its_size_fails_at_once() {
        let mut endless = Verified::new(io::repeat(0), Digest::of(b""), Some(1000));
        let error = io::copy(&mut endless, &mut io::sink()).expect_err("too much");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
