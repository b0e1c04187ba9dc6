//! A span, from its beginning to the queue.

use std::borrow::Cow;
use std::fmt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sandkeep_core::limits::{SPAN_ATTRIBUTES_MAX, SPAN_VALUE_MAX_BYTES};
use sandkeep_core::{SpanId, TraceId};
use tracing::field::{Field, Visit};

use crate::place::TraceContext;
use crate::{NAME_FIELD, REQUEST_FIELD};

/// What a span is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    Internal,
    /// A request of somebody outside.
    Server,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Text(String),
    Number(i64),
    Switch(bool),
}

pub type Attribute = (&'static str, Value);

/// A span that ended.
#[derive(Clone, Debug)]
pub struct FinishedSpan {
    pub trace: TraceId,
    pub span: SpanId,
    pub parent: Option<SpanId>,
    pub flags: u8,
    pub name: Cow<'static, str>,
    pub kind: SpanKind,
    /// Since the Unix epoch.
    pub began: Duration,
    pub ended: Duration,
    pub attributes: Vec<Attribute>,
    /// What went wrong.
    pub error: Option<String>,
}

/// A span that goes on, in the extensions of its `tracing` span.
pub(crate) struct Recording {
    place: TraceContext,
    name: Cow<'static, str>,
    kind: SpanKind,
    at: SystemTime,
    began: Instant,
    attributes: Vec<Attribute>,
    error: Option<String>,
}

impl Recording {
    pub fn new(place: TraceContext, name: &'static str, kind: SpanKind) -> Self {
        Self {
            place,
            name: name.into(),
            kind,
            at: SystemTime::now(),
            began: Instant::now(),
            attributes: Vec::new(),
            error: None,
        }
    }

    pub fn rename(&mut self, name: String) {
        self.name = short(name).into();
    }

    pub fn set(&mut self, name: &'static str, value: Value) {
        let value = match value {
            Value::Text(text) => Value::Text(short(text)),
            value @ (Value::Number(_) | Value::Switch(_)) => value,
        };
        match self.attributes.iter().position(|(of, _)| *of == name) {
            Some(at) => self.attributes[at].1 = value,
            None if self.attributes.len() < SPAN_ATTRIBUTES_MAX => {
                self.attributes.push((name, value));
            }
            None => {}
        }
    }

    pub fn fail(&mut self, problem: String) {
        self.error = Some(short(problem));
    }

    pub fn finish(self) -> FinishedSpan {
        let Self { place, name, kind, at, began, attributes, error } = self;
        let at = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        FinishedSpan {
            trace: place.own.trace,
            span: place.own.span,
            parent: place.parent.map(|parent| parent.span),
            flags: place.own.flags,
            name,
            kind,
            began: at,
            ended: at + began.elapsed(),
            attributes,
            error,
        }
    }
}

/// Cut to its bound, at a whole character.
fn short(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(SPAN_VALUE_MAX_BYTES));
    text
}

/// Fields become attributes, but for the one that names the span.
impl Visit for Recording {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            NAME_FIELD => self.rename(value.to_owned()),
            // The span has it itself.
            REQUEST_FIELD => {}
            name => self.set(name, Value::Text(value.to_owned())),
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field.name(), Value::Number(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field.name(), Value::Number(i64::try_from(value).unwrap_or(i64::MAX)));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field.name(), Value::Switch(value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}
