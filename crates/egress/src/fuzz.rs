//! Arbitrary bytes from a sandbox, through the reader of DNS messages. An answer always belongs to its query, and is not
//! much longer.

#[path = "../../../fuzz/mutation.rs"]
pub mod mutation;

use std::net::{Ipv4Addr, Ipv6Addr};

use super::dns::{Answer, Kind, Question, answer};

/// The records that an answer adds: an address of each kind, or a name.
const ADDED_MAX_BYTES: usize = 300;

/// Takes the bytes as a query.
pub fn ask_resolver(bytes: &[u8]) {
    let answered = answer(bytes, |question: &Question| {
        let name = question.name.clone().unwrap_or_default();
        assert!(name.len() < 255, "{name:?} is longer than a name");
        assert!(!name.bytes().any(|byte| byte.is_ascii_uppercase() || !byte.is_ascii_graphic()));
        match question.kind {
            Kind::Ptr => Answer::Name(name),
            _ => Answer::Addresses(vec![Ipv4Addr::LOCALHOST], vec![Ipv6Addr::LOCALHOST]),
        }
    });
    if let Some(answer) = answered {
        assert!(answer.len() <= bytes.len() + ADDED_MAX_BYTES, "it grew to {}", answer.len());
        assert_eq!(answer[..2], bytes[..2], "another query's number");
        assert_eq!(answer[2] >> 7, 1, "it is no answer");
    }
}

#[cfg(test)]
mod tests {
    use super::mutation::{Mutations, corpus};
    use super::*;
    use crate::dns::tests::query;

    const ROUNDS: usize = 100_000;

    #[test]
    fn no_bytes_from_a_sandbox_break_the_resolver() {
        let kinds = [1, 12, 28, 65, 255].into_iter();
        let mut seeds: Vec<Vec<u8>> = kinds.map(|kind| query("api.example.com", kind)).collect();
        seeds.extend(corpus("ask_resolver", &seeds));
        seeds.iter().for_each(|seed| ask_resolver(seed));
        Mutations::of(seeds).take(ROUNDS).for_each(|bytes| ask_resolver(&bytes));
    }
}
