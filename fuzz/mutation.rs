//! The short way to fuzz, for tests that have no fuzzer: inputs that are known to be interesting, and
//! the same ones damaged in the usual ways, always in the same order.

use std::path::PathBuf;

/// The inputs that are kept for a target: these, which a peer would send that keeps to the rules, and what
/// a fuzzer has found. With `SANDKEEP_REGENERATE` the former are written, for a fuzzer to begin with.
pub fn corpus(target: &str, known: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let directory =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    if std::env::var_os("SANDKEEP_REGENERATE").is_some() {
        std::fs::create_dir_all(&directory).expect("the corpus can be written");
        for (number, bytes) in known.iter().enumerate() {
            let file = directory.join(format!("conversation-{number}"));
            std::fs::write(file, bytes).expect("the corpus can be written");
        }
    }
    let mut files: Vec<_> =
        std::fs::read_dir(&directory).expect("the corpus is there").flatten().collect();
    files.sort_by_key(std::fs::DirEntry::file_name);
    files.iter().map(|file| std::fs::read(file.path()).expect("a file of the corpus")).collect()
}

/// Endless damaged inputs.
pub struct Mutations {
    seeds: Vec<Vec<u8>>,
    state: u64,
}

impl Mutations {
    pub fn of(seeds: Vec<Vec<u8>>) -> Self {
        assert!(!seeds.is_empty(), "there is something to damage");
        Self { seeds, state: 0x9E37_79B9_7F4A_7C15 }
    }

    /// A number below `end`.
    fn below(&mut self, end: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        usize::try_from(self.state >> 11).unwrap_or(0) % end.max(1)
    }

    fn seed(&mut self) -> Vec<u8> {
        let index = self.below(self.seeds.len());
        self.seeds[index].clone()
    }

    fn damage(&mut self, bytes: &mut Vec<u8>) {
        let at = self.below(bytes.len());
        let until = at + self.below(bytes.len() - at + 1);
        match self.below(8) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..until)),
            2 => bytes.extend_from_within(at..until),
            3 => {
                let other = self.seed();
                bytes.truncate(at);
                bytes.extend(other.iter().skip(at));
            }
            4 => bytes.insert(at, [0, 1, 0x7F, 0x80, 0xFF][self.below(5)]),
            5 if !bytes.is_empty() => bytes[at] = [0, 1, 0x7F, 0x80, 0xFF][self.below(5)],
            _ if !bytes.is_empty() => bytes[at] ^= 1 << self.below(8),
            _ => bytes.push(0),
        }
    }
}

impl Iterator for Mutations {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        let mut bytes = self.seed();
        for _ in 0..1 + self.below(4) {
            self.damage(&mut bytes);
        }
        Some(bytes)
    }
}
