//! DNS messages, as far as a resolver needs them that answers everything itself: one question, few answers, no names in
//! the data but the answer's own.

use std::net::{Ipv4Addr, Ipv6Addr};

use sandkeep_core::limits::{EGRESS_NAME_TTL, HOST_LABEL_MAX_BYTES};

const HEADER_BYTES: usize = 12;
/// Maximum length of a name in a message.
const NAME_MAX_BYTES: usize = 255;

const CLASS_IN: u16 = 1;
const CLASS_ANY: u16 = 255;

/// What a query asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    /// In lower case, without the final dot. `None` if a label has bytes that no host name has.
    pub(crate) name: Option<String>,
    pub(crate) kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    A,
    Aaaa,
    Ptr,
    Any,
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Addresses(Vec<Ipv4Addr>, Vec<Ipv6Addr>),
    Name(String),
    /// The name exists, without records of this kind.
    Empty,
    NotFound,
    Refused,
}

/// Response codes.
const NO_ERROR: u8 = 0;
const FORMAT_ERROR: u8 = 1;
const NAME_ERROR: u8 = 3;
const NOT_IMPLEMENTED: u8 = 4;
const REFUSED: u8 = 5;

/// The answer to a message. `None` if it is no query, which gets none.
pub(crate) fn answer(message: &[u8], decide: impl FnOnce(&Question) -> Answer) -> Option<Vec<u8>> {
    let header = message.get(..HEADER_BYTES)?;
    let is_response = header[2] & 0x80 != 0;
    if is_response {
        return None;
    }
    let opcode = header[2] >> 3 & 0x0f;
    if opcode != 0 {
        return Some(reply(header, &[], NOT_IMPLEMENTED, &[]));
    }
    let questions = u16::from_be_bytes([header[4], header[5]]);
    let read = (questions == 1).then(|| question(&message[HEADER_BYTES..])).flatten();
    let Some((question, class, len)) = read else {
        return Some(reply(header, &[], FORMAT_ERROR, &[]));
    };
    let asked = &message[HEADER_BYTES..HEADER_BYTES + len];
    if class != CLASS_IN && class != CLASS_ANY {
        return Some(reply(header, asked, REFUSED, &[]));
    }
    let (code, records) = match decide(&question) {
        Answer::Addresses(v4, v6) => (NO_ERROR, address_records(question.kind, &v4, &v6)),
        Answer::Name(name) => (NO_ERROR, vec![(PTR, encoded(&name))]),
        Answer::Empty => (NO_ERROR, Vec::new()),
        Answer::NotFound => (NAME_ERROR, Vec::new()),
        Answer::Refused => (REFUSED, Vec::new()),
    };
    Some(reply(header, asked, code, &records))
}

const A: u16 = 1;
const PTR: u16 = 12;
const AAAA: u16 = 28;
const ANY: u16 = 255;

/// The kind and data of a record.
type Record = (u16, Vec<u8>);

fn address_records(kind: Kind, v4: &[Ipv4Addr], v6: &[Ipv6Addr]) -> Vec<Record> {
    let v4 = v4.iter().map(|address| (A, address.octets().to_vec()));
    let v6 = v6.iter().map(|address| (AAAA, address.octets().to_vec()));
    match kind {
        Kind::A => v4.collect(),
        Kind::Aaaa => v6.collect(),
        Kind::Any => v4.chain(v6).collect(),
        Kind::Ptr | Kind::Other => Vec::new(),
    }
}

/// Reads a question: with its class, and the number of its bytes.
fn question(bytes: &[u8]) -> Option<(Question, u16, usize)> {
    let mut at = 0;
    let mut labels = Vec::new();
    loop {
        let len = usize::from(*bytes.get(at)?);
        at += 1;
        if len == 0 {
            break;
        }
        // Two high bits are a pointer: there is nothing before the first name that it could point to.
        if len > HOST_LABEL_MAX_BYTES {
            return None;
        }
        labels.push(bytes.get(at..at + len)?);
        at += len;
        if at >= NAME_MAX_BYTES {
            return None;
        }
    }
    let number = |at: usize| Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]));
    let kind = match number(at)? {
        A => Kind::A,
        AAAA => Kind::Aaaa,
        PTR => Kind::Ptr,
        ANY => Kind::Any,
        _ => Kind::Other,
    };
    Some((Question { name: text(&labels), kind }, number(at + 2)?, at + 4))
}

fn text(labels: &[&[u8]]) -> Option<String> {
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && *byte != b'.';
    let labels = labels.iter().map(|label| {
        let plain = label.iter().all(is_plain).then_some(*label)?;
        std::str::from_utf8(plain).ok().map(str::to_ascii_lowercase)
    });
    labels.collect::<Option<Vec<_>>>().map(|labels| labels.join("."))
}

fn encoded(name: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(name.len() + 2);
    for label in name.split('.') {
        // Names come from questions, whose labels are short.
        bytes.push(u8::try_from(label.len()).unwrap_or_default());
        bytes.extend_from_slice(label.as_bytes());
    }
    bytes.push(0);
    bytes
}

fn reply(header: &[u8], question: &[u8], code: u8, records: &[Record]) -> Vec<u8> {
    /// Points to the name of the question.
    const SAME_NAME: [u8; 2] = [0xc0, HEADER_BYTES as u8];
    const RESPONSE: u8 = 0x80;
    const RECURSION_DESIRED: u8 = 0x01;
    const RECURSION_AVAILABLE: u8 = 0x80;
    let opcode_and_desired = header[2] & (0x78 | RECURSION_DESIRED);
    let count = |some: bool| u16::from(some).to_be_bytes();
    let answers = u16::try_from(records.len()).unwrap_or_default().to_be_bytes();
    let mut bytes = Vec::with_capacity(HEADER_BYTES + question.len() + records.len() * 32);
    bytes.extend_from_slice(&header[..2]);
    bytes.extend_from_slice(&[RESPONSE | opcode_and_desired, RECURSION_AVAILABLE | code]);
    bytes.extend_from_slice(&count(!question.is_empty()));
    bytes.extend_from_slice(&answers);
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(question);
    let ttl = u32::try_from(EGRESS_NAME_TTL.as_secs()).unwrap_or_default().to_be_bytes();
    for (kind, data) in records {
        bytes.extend_from_slice(&SAME_NAME);
        bytes.extend_from_slice(&kind.to_be_bytes());
        bytes.extend_from_slice(&CLASS_IN.to_be_bytes());
        bytes.extend_from_slice(&ttl);
        bytes.extend_from_slice(&u16::try_from(data.len()).unwrap_or_default().to_be_bytes());
        bytes.extend_from_slice(data);
    }
    bytes
}

#[cfg(test)]
pub(crate) mod tests;
