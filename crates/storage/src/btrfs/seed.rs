//! An empty btrfs file system, embedded, so that no `mkfs` is needed at run time.
//!
//! `seed.zst` contains the non-zero blocks written by `mkfs.btrfs`; the rest of a new image is zero anyway. A copy gets
//! new ids, because the kernel takes two file systems with one id for the same. The old ids are replaced everywhere,
//! and every block's checksum is recomputed.
//!
//! To regenerate the file: `cargo nextest run --run-ignored only -E 'test(regenerate_the_seed)'`.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

/// zstd of: for each block its offset (u64, little-endian) and its [`BLOCK_LEN`] bytes.
const SEED: &[u8] = include_bytes!("seed.zst");
/// The size of the seed's file system; an image must be at least this large.
pub(super) const SEED_BYTES: u64 = 128 * 1024 * 1024;

/// A tree node. A superblock occupies the first [`SUPER_LEN`] bytes of such a block.
const BLOCK_LEN: usize = 16 * 1024;
const SUPER_LEN: usize = 4096;
const RECORD_LEN: usize = 8 + BLOCK_LEN;
/// Offset of the first superblock.
const SUPER_OFFSET: u64 = 64 * 1024;
const MAGIC: &[u8; 8] = b"_BHRfS_M";

/// Offsets within a block. The first two are the same in superblocks and nodes.
const CHECKSUM_LEN: usize = 32;
const FSID_AT: usize = 0x20;
const MAGIC_AT: usize = 0x40;
const DEVICE_ID_AT: usize = 0x10B;
const ID_LEN: usize = 16;

type Id = [u8; ID_LEN];

/// Writes an empty file system with new ids. The rest of the file must be zero.
pub(super) fn write(image: &File) -> io::Result<()> {
    let mut records = zstd::decode_all(SEED)?;
    let old = records.chunks_exact(RECORD_LEN).map(|record| &record[8..]).find_map(ids);
    let old = old.ok_or_else(|| io::Error::other("the embedded seed has no superblock"))?;
    let new = (fresh_id(), fresh_id());
    for record in records.chunks_exact_mut(RECORD_LEN) {
        let (offset, block) = record.split_at_mut(8);
        replace(block, &old.0, &new.0);
        replace(block, &old.1, &new.1);
        sign(block);
        let offset = u64::from_le_bytes(offset.try_into().expect("split at 8"));
        image.write_all_at(block, offset)?;
    }
    Ok(())
}

/// The id of the file system in an image; `None` if there is none.
pub(super) fn filesystem_id(image: &File) -> io::Result<Option<Id>> {
    let mut block = [0; SUPER_LEN];
    match image.read_exact_at(&mut block, SUPER_OFFSET) {
        Ok(()) => Ok(ids(&block).map(|(filesystem, _)| filesystem)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_super(block: &[u8]) -> bool {
    block[MAGIC_AT..].starts_with(MAGIC)
}

/// The ids of the file system and its device, if this is a superblock.
fn ids(block: &[u8]) -> Option<(Id, Id)> {
    let id = |at: usize| block[at..at + ID_LEN].try_into().expect("a slice of that length");
    is_super(block).then(|| (id(FSID_AT), id(DEVICE_ID_AT)))
}

fn fresh_id() -> Id {
    let mut id = [0; ID_LEN];
    getrandom::fill(&mut id).expect("the kernel's random source always answers once booted");
    // A version 4 UUID of the usual variant, as other tools expect.
    id[6] = id[6] & 0x0F | 0x40;
    id[8] = id[8] & 0x3F | 0x80;
    id
}

fn replace(block: &mut [u8], old: &Id, new: &Id) {
    let mut at = 0;
    while at + ID_LEN <= block.len() {
        if block[at..at + ID_LEN] == *old {
            block[at..at + ID_LEN].copy_from_slice(new);
            at += ID_LEN;
        } else {
            at += 1;
        }
    }
}

fn checksum(block: &[u8]) -> u32 {
    let len = if is_super(block) { SUPER_LEN } else { BLOCK_LEN };
    crc32c(&block[CHECKSUM_LEN..len])
}

fn sign(block: &mut [u8]) {
    let checksum = checksum(block);
    block[..4].copy_from_slice(&checksum.to_le_bytes());
}

/// CRC-32C (Castagnoli), bit by bit: a few hundred kilobytes once per image need no table.
fn crc32c(bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0x82F6_3B78;
    let mut crc = !0;
    for &byte in bytes {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ (POLYNOMIAL & (crc & 1).wrapping_neg());
        }
    }
    !crc
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn blocks() -> Vec<(u64, Vec<u8>)> {
        let records = zstd::decode_all(SEED).expect("zstd");
        assert_eq!(records.len() % RECORD_LEN, 0);
        records
            .chunks_exact(RECORD_LEN)
            .map(|record| {
                (u64::from_le_bytes(record[..8].try_into().expect("8")), record[8..].to_vec())
            })
            .collect()
    }

    #[test]
    fn the_checksum_is_crc32c() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
    }

    #[test]
    fn every_block_of_the_seed_is_a_superblock_or_a_node_with_a_right_checksum() {
        let blocks = blocks();
        let (filesystem, _) =
            blocks.iter().find_map(|(_, block)| ids(block)).expect("a superblock");
        for (offset, block) in &blocks {
            assert_eq!(block[FSID_AT..FSID_AT + ID_LEN], filesystem, "at {offset:#x}");
            let stored = u32::from_le_bytes(block[..4].try_into().expect("4"));
            assert_eq!(stored, checksum(block), "at {offset:#x}");
            assert!(offset + BLOCK_LEN as u64 <= SEED_BYTES);
        }
        assert_eq!(blocks.iter().filter(|(_, block)| is_super(block)).count(), 2);
    }

    #[test]
    fn two_images_have_different_ids() {
        let image = || {
            let image = tempfile::tempfile().expect("a file");
            image.set_len(SEED_BYTES).expect("its size");
            write(&image).expect("the seed");
            filesystem_id(&image).expect("readable").expect("a superblock")
        };
        assert_ne!(image(), image());
    }

    /// Regenerates `seed.zst` with `mkfs.btrfs`. The features are those of Linux 5.15 and later; simple quotas are
    /// enabled after mounting.
    #[test]
    #[ignore = "writes src/storage/btrfs/seed.zst; needs btrfs-progs"]
    fn regenerate_the_seed() {
        let image = tempfile::NamedTempFile::new().expect("a file");
        image.as_file().set_len(SEED_BYTES).expect("its size");
        let made = Command::new("mkfs.btrfs")
            .args(["--quiet", "--data", "single", "--metadata", "single", "--nodesize", "16384"])
            .args(["--sectorsize", "4096", "--checksum", "crc32c"])
            .args(["-O", "extref,skinny-metadata,no-holes", "-R", "free-space-tree"])
            .arg(image.path())
            .status()
            .expect("mkfs.btrfs");
        assert!(made.success());
        let bytes = std::fs::read(image.path()).expect("the image");
        let mut records = Vec::new();
        for (offset, block) in (0..).step_by(BLOCK_LEN).zip(bytes.chunks(BLOCK_LEN)) {
            if block.iter().any(|byte| *byte != 0) {
                records.extend(u64::to_le_bytes(offset));
                records.extend(block);
            }
        }
        let seed = zstd::encode_all(&records[..], 19).expect("zstd");
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/btrfs/seed.zst");
        std::fs::write(path, seed).expect("the seed");
    }
}
