//! Bounds of the spans that requests leave, and of their export.

use std::time::Duration;

/// Spans that wait to be exported. More are dropped and counted.
pub const SPANS_QUEUE_MAX: usize = 8_192;
/// Spans in one message to the collector.
pub const SPANS_BATCH_MAX: usize = 512;
/// How long a batch waits for more spans.
pub const SPANS_DELAY: Duration = Duration::from_secs(1);
/// How long the collector may take to answer, unless configured.
pub const SPANS_ANSWER_DEFAULT: Duration = Duration::from_secs(10);
pub const SPANS_ANSWER_MAX: Duration = Duration::from_secs(300);
/// The pause before a batch is sent again. It doubles up to [`SPANS_RETRY_MAX`].
pub const SPANS_RETRY_FIRST: Duration = Duration::from_secs(1);
pub const SPANS_RETRY_MAX: Duration = Duration::from_secs(30);
/// How often one batch is sent before its spans are dropped.
pub const SPANS_ATTEMPTS_MAX: u32 = 5;
/// How long the addresses of the collector are used before its name is resolved again.
pub const SPANS_CLIENT: Duration = Duration::from_secs(60);
/// How long shutting down waits for spans that are not exported yet.
pub const SPANS_DRAIN: Duration = Duration::from_secs(3);
/// Attributes of one span, and the size of one value.
pub const SPAN_ATTRIBUTES_MAX: usize = 16;
pub const SPAN_VALUE_MAX_BYTES: usize = 256;
/// How much of the collector's answer is read.
pub const SPANS_ANSWER_MAX_BYTES: usize = 64 * 1024;
