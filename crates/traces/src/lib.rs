//! The steps of a request, as spans of its trace.
//!
//! ```text
//!   request (door) ─▶ sandbox create (verb) ─▶ admission
//!        │                                  ─▶ supervisor.wait
//!        │                                  ─▶ supervisor create ─▶ storage.create, store.write,
//!        ▼                                                          runtime.create, runtime.start
//!   Place in its trace: answers, events, TRACEPARENT of commands
//! ```
//!
//! Steps are spans of `tracing`, so they follow a request through tasks and queues as its log lines do. The [`Recorder`]
//! enables them only while spans are exported: without an exporter a step costs one look at a flag.
//!
//! Invariant: nothing here waits. A finished span goes into a bounded queue, or is dropped and counted.

#[cfg(feature = "otlp")]
pub mod otlp;
mod place;
mod recorder;
mod sampler;
mod span;
mod step;
#[cfg(test)]
mod tests;

pub use place::{TraceContext, TracedBy, current};
pub use recorder::{ExportMetrics, FinishedSpans, Recorder, WhyDropped};
pub use sampler::{Otherwise, Sampler};
pub use span::{Attribute, FinishedSpan, SpanKind, Value};
pub use step::{Step, within};

/// The target of the spans of steps.
pub const STEPS: &str = "sandkeep::step";

/// The field that makes a span the span of a request.
pub const REQUEST_FIELD: &str = "trace_id";

/// The field that names a span, instead of the name at its place in the code.
pub const NAME_FIELD: &str = "otel.name";

/// A step of the request at hand: a name and attributes, as in `tracing`. Attributes are only evaluated while spans are
/// exported. It ends when it is dropped.
#[macro_export]
macro_rules! step {
    ($name:literal $(, $($field:tt)+)?) => {
        $crate::Step::new(::tracing::debug_span!(target: $crate::STEPS, $name $(, $($field)+)?))
    };
}
