//! The UUID of a sandbox. To PURISTA a sandbox's id is a UUID, and ours is not one.
//!
//! A UUID of version 4 holds 122 random bits, our ids 128. The UUID is the first 122 of them; those of the 64 ids that
//! share it cannot be guessed, and only one of them exists. So no table has to be kept, and nobody can claim the UUID of
//! another's sandbox.

use sandkeep_core::SandboxId;

const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
const LETTERS: usize = 26;
/// How many bits of an id are in its UUID.
const KEPT: u32 = 122;

/// The UUID of a sandbox.
pub fn uuid_of(id: &SandboxId) -> String {
    let letters = id.as_str().bytes().skip(SandboxId::PREFIX.len());
    let digit = |byte| ALPHABET.iter().position(|letter| *letter == byte).unwrap_or(0) as u128;
    let bits = letters.zip(0_u32..).fold(0_u128, |bits, (byte, at)| bits | digit(byte) << (5 * at));
    let kept = bits & ((1 << KEPT) - 1);
    let (high, middle, low) = (kept >> 74, (kept >> 62) & 0xfff, kept & ((1 << 62) - 1));
    let uuid = high << 80 | 0x4 << 76 | middle << 64 | 0b10 << 62 | low;
    let hex = format!("{uuid:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// The ids that have this UUID; none if it is not one of ours.
pub fn ids_of(uuid: &str) -> Vec<SandboxId> {
    let dashes = uuid.bytes().enumerate().filter(|(_, byte)| *byte == b'-').map(|(at, _)| at);
    let hex = uuid.replace('-', "");
    if uuid.len() != 36
        || !dashes.eq([8, 13, 18, 23])
        || !hex.bytes().all(|b| b.is_ascii_hexdigit())
    {
        return Vec::new();
    }
    let Ok(uuid) = u128::from_str_radix(&hex, 16) else { return Vec::new() };
    if (uuid >> 76) & 0xf != 0x4 || (uuid >> 62) & 0b11 != 0b10 {
        return Vec::new();
    }
    let kept = (uuid >> 80) << 74 | ((uuid >> 64) & 0xfff) << 62 | uuid & ((1 << 62) - 1);
    (0..1_u128 << (128 - KEPT)).filter_map(|rest| id_of(rest << KEPT | kept)).collect()
}

fn id_of(bits: u128) -> Option<SandboxId> {
    let letter = |at: usize| char::from(ALPHABET[((bits >> (5 * at)) & 31) as usize]);
    let text: String = SandboxId::PREFIX.chars().chain((0..LETTERS).map(letter)).collect();
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_is_found_by_its_uuid_and_by_no_other() {
        for _ in 0..1_000 {
            let id = SandboxId::random();
            let uuid = uuid_of(&id);
            let shape = uuid.as_bytes();
            assert!(shape[14] == b'4' && b"89ab".contains(&shape[19]), "{uuid}");
            let ids = ids_of(&uuid);
            assert_eq!((ids.len(), ids.iter().filter(|one| **one == id).count()), (64, 1));
            assert!(ids_of(&uuid.to_uppercase()).contains(&id));
            assert!(!ids_of(&uuid_of(&SandboxId::random())).contains(&id));
        }
        for none in [
            "",
            "x",
            "not-a-uuid",
            "00000000-0000-0000-0000-000000000000",
            "+0000000-0000-4000-8000-000000000000",
            "00000000-0000-4000-c000-000000000000",
        ] {
            assert!(ids_of(none).is_empty(), "{none}");
        }
    }
}
