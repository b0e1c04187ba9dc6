//! Ids in the form that Urule expects: 26 letters and digits, of which the first ten are a time.

use jiff::Timestamp;
use ring::digest::{SHA256, digest};

const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
const LETTERS: usize = 26;
/// How many bits a letter stands for.
const LETTER_BITS: usize = 5;
const TIME_BITS: u32 = 48;
const HASH_BYTES: usize = 10;

/// The id of what happened at this time under this name: the same for the same, different for anything else.
pub fn ulid(at: Timestamp, name: &str) -> String {
    let millis = u64::try_from(at.as_millisecond()).unwrap_or_default();
    let millis = u128::from(millis) & ((1 << TIME_BITS) - 1);
    let hash = digest(&SHA256, name.as_bytes());
    let hash = hash.as_ref()[..HASH_BYTES].iter();
    let number = hash.fold(millis, |number, byte| (number << u8::BITS) | u128::from(*byte));
    let letter = |place: usize| {
        let index = (number >> (LETTER_BITS * (LETTERS - 1 - place))) & 31;
        char::from(ALPHABET[index as usize])
    };
    (0..LETTERS).map(letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_begins_with_its_time_and_is_the_same_for_the_same() {
        let at = Timestamp::from_millisecond(1_469_918_176_385).expect("a time");
        let id = ulid(at, "a");
        // The time of the example in the specification of ULIDs.
        assert_eq!(&id[..10], "01ARYZ6S41");
        assert_eq!(id.len(), 26);
        assert_eq!(id, ulid(at, "a"));
        assert_ne!(id, ulid(at, "b"));
        assert_eq!(&ulid(Timestamp::UNIX_EPOCH, "a")[..10], "0000000000");
    }
}
