//! `ExportTraceServiceRequest` and its answer in protobuf. Only what we send and read is here: nested messages, texts,
//! bytes, numbers. Numbers of fields are those of `opentelemetry/proto` 1.x, which never change.

use std::time::Duration;

use crate::span::{FinishedSpan, SpanKind, Value};

const SCOPE: &str = "sandkeep";
const STATUS_ERROR: u64 = 2;

/// How a field's value is written.
#[derive(Clone, Copy)]
enum Wire {
    Varint = 0,
    Fixed64 = 1,
    Bytes = 2,
    Fixed32 = 5,
}

/// A message under construction.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn key(&mut self, field: u32, wire: Wire) {
        self.number(u64::from(field << 3 | wire as u32));
    }

    /// Seven bits per byte, the lowest first.
    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    fn varint(&mut self, field: u32, number: u64) {
        self.key(field, Wire::Varint);
        self.number(number);
    }

    fn fixed64(&mut self, field: u32, number: u64) {
        self.key(field, Wire::Fixed64);
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn fixed32(&mut self, field: u32, number: u32) {
        self.key(field, Wire::Fixed32);
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn bytes(&mut self, field: u32, bytes: &[u8]) {
        self.key(field, Wire::Bytes);
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn text(&mut self, field: u32, text: &str) {
        self.bytes(field, text.as_bytes());
    }

    fn message(&mut self, field: u32, fill: impl FnOnce(&mut Self)) {
        let mut inner = Self::default();
        fill(&mut inner);
        self.bytes(field, &inner.0);
    }

    fn attribute(&mut self, field: u32, name: &str, value: &Value) {
        self.message(field, |attribute| {
            attribute.text(1, name);
            attribute.message(2, |any| match value {
                Value::Text(text) => any.text(1, text),
                Value::Switch(switch) => any.varint(2, u64::from(*switch)),
                Value::Number(number) => any.varint(3, number.cast_unsigned()),
            });
        });
    }
}

/// All spans of one resource and one scope.
pub fn request(resource: &[(String, String)], spans: &[FinishedSpan]) -> Vec<u8> {
    let mut request = Message::default();
    request.message(1, |of_resource| {
        of_resource.message(1, |described| {
            for (name, value) in resource {
                described.attribute(1, name, &Value::Text(value.clone()));
            }
        });
        of_resource.message(2, |of_scope| {
            of_scope.message(1, |scope| {
                scope.text(1, SCOPE);
                scope.text(2, env!("CARGO_PKG_VERSION"));
            });
            spans.iter().for_each(|span| of_scope.message(2, |message| fill(message, span)));
        });
    });
    request.0
}

fn fill(message: &mut Message, span: &FinishedSpan) {
    message.bytes(1, &span.trace.to_bytes());
    message.bytes(2, &span.span.to_bytes());
    if let Some(parent) = span.parent {
        message.bytes(4, &parent.to_bytes());
    }
    message.text(5, &span.name);
    let kind = match span.kind {
        SpanKind::Internal => 1,
        SpanKind::Server => 2,
    };
    message.varint(6, kind);
    message.fixed64(7, nanos(span.began));
    message.fixed64(8, nanos(span.ended));
    for (name, value) in &span.attributes {
        let (name, value): (&str, &Value) = (name, value);
        message.attribute(9, name, value);
    }
    if let Some(error) = &span.error {
        message.message(15, |status| {
            status.text(2, error);
            status.varint(3, STATUS_ERROR);
        });
    }
    message.fixed32(16, u32::from(span.flags));
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// What a collector says of a message that it took.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// How many of the spans it did not take.
    pub rejected: u64,
    pub said: String,
}

/// Reads `ExportTraceServiceResponse`. An answer that is something else says that all is well.
pub fn answer(bytes: &[u8]) -> Answer {
    let mut found = Answer::default();
    for (field, value) in Fields(bytes) {
        let (1, Field::Bytes(partial)) = (field, value) else { continue };
        for part in Fields(partial) {
            match part {
                (1, Field::Number(rejected)) => {
                    // A negative number is written like one that is too large.
                    found.rejected = if i64::try_from(rejected).is_ok() { rejected } else { 0 };
                }
                (2, Field::Bytes(said)) => found.said = String::from_utf8_lossy(said).into_owned(),
                _ => {}
            }
        }
    }
    found
}

enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    Skipped,
}

/// The fields of a message, up to the first byte that belongs to none.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn take(&mut self, count: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(usize::try_from(count).ok()?)?;
        self.0 = rest;
        Some(taken)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = (u64, Field<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let key = self.number()?;
        let value = match key & 7 {
            0 => Field::Number(self.number()?),
            1 => self.take(8).map(|_| Field::Skipped)?,
            2 => {
                let count = self.number()?;
                Field::Bytes(self.take(count)?)
            }
            5 => self.take(4).map(|_| Field::Skipped)?,
            _ => return None,
        };
        Some((key >> 3, value))
    }
}
