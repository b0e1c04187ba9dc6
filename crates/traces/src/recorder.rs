//! Decides which spans there are, and takes them when they end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry as Metrics;
use sandkeep_core::limits::SPANS_QUEUE_MAX;
use tokio::sync::mpsc;
use tracing::span::{Attributes, Id, Record};
use tracing::{Metadata, Subscriber};
use tracing_subscriber::filter::{FilterFn, LevelFilter};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

use crate::place::TraceContext;
use crate::sampler::Sampler;
use crate::span::{FinishedSpan, Recording, SpanKind};
use crate::{REQUEST_FIELD, STEPS};

/// A layer of `tracing`. It keeps the spans of requests enabled whatever is logged, so that each request has its place in
/// a trace, and those of steps while spans are exported.
pub struct Recorder {
    export: Option<Export>,
}

struct Export {
    sampler: Sampler,
    queue: mpsc::Sender<FinishedSpan>,
    overflown: Arc<AtomicU64>,
}

/// The exporter's end of the queue.
pub struct FinishedSpans {
    pub(crate) queue: mpsc::Receiver<FinishedSpan>,
    overflown: Arc<AtomicU64>,
}

impl FinishedSpans {
    /// How many spans found no place in the queue since this was last asked.
    pub fn take_overflown(&self) -> u64 {
        self.overflown.swap(0, Ordering::Relaxed)
    }

    /// The next one.
    pub async fn next(&mut self) -> Option<FinishedSpan> {
        self.queue.recv().await
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Dropped {
    reason: &'static str,
}

/// What became of spans.
#[derive(Clone, Default)]
pub struct ExportMetrics {
    pub exported: Counter,
    dropped: Family<Dropped, Counter>,
}

/// Why a span was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhyDropped {
    /// The queue was full.
    Full,
    /// The collector does not want it.
    Refused,
    /// The collector could not be reached, or was too busy, for too long.
    Unanswered,
}

impl WhyDropped {
    const ALL: [Self; 3] = [Self::Full, Self::Refused, Self::Unanswered];

    fn as_str(self) -> &'static str {
        match self {
            Self::Full => "queue_full",
            Self::Refused => "refused",
            Self::Unanswered => "unanswered",
        }
    }
}

impl ExportMetrics {
    pub fn register(registry: &mut Metrics) -> Self {
        let metrics = Self::default();
        for why in WhyDropped::ALL {
            metrics.dropped(why, 0);
        }
        let help = "Spans that the OpenTelemetry collector has taken";
        registry.register("spans_exported", help, metrics.exported.clone());
        let help = "Spans that were not exported: the queue was full, or the collector refused them or did not answer";
        registry.register("spans_dropped", help, metrics.dropped.clone());
        metrics
    }

    /// How many spans were dropped for this reason.
    pub fn dropped_for(&self, why: WhyDropped) -> u64 {
        self.dropped.get_or_create(&Dropped { reason: why.as_str() }).get()
    }

    pub fn dropped(&self, why: WhyDropped, count: u64) {
        self.dropped.get_or_create(&Dropped { reason: why.as_str() }).inc_by(count);
    }
}

impl Recorder {
    /// Requests have their place in a trace; no span is recorded.
    pub fn idle() -> Self {
        Self { export: None }
    }

    /// Records what the sampler takes.
    pub fn exporting(sampler: Sampler) -> (Self, FinishedSpans) {
        Self::bounded(sampler, SPANS_QUEUE_MAX)
    }

    pub(crate) fn bounded(sampler: Sampler, max: usize) -> (Self, FinishedSpans) {
        let (queue, spans) = mpsc::channel(max);
        let overflown = Arc::<AtomicU64>::default();
        let finished = FinishedSpans { queue: spans, overflown: Arc::clone(&overflown) };
        (Self { export: Some(Export { sampler, queue, overflown }) }, finished)
    }

    /// `None` if nothing is exported.
    pub(crate) fn sampler(&self) -> Option<Sampler> {
        self.export.as_ref().map(|export| export.sampler)
    }

    /// Takes a span that ended.
    pub(crate) fn take(&self, recording: Recording) {
        if let Some(export) = &self.export
            && export.queue.try_send(recording.finish()).is_err()
        {
            export.overflown.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Which spans this layer wants, for `with_filter`.
    pub fn filter(&self) -> FilterFn<impl Fn(&Metadata<'_>) -> bool + use<>> {
        let exports = self.export.is_some();
        let filter = FilterFn::new(move |metadata: &Metadata<'_>| {
            let is_request = || metadata.fields().field(REQUEST_FIELD).is_some();
            metadata.is_span() && (is_request() || (exports && metadata.target() == STEPS))
        });
        // Lower levels cost a comparison, as without this layer.
        filter.with_max_level_hint(if exports { LevelFilter::DEBUG } else { LevelFilter::INFO })
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Recorder {
    /// A step begins at the place of the step or request around it.
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if attributes.metadata().target() != STEPS {
            return;
        }
        let Some(span) = context.span(id) else { return };
        let around = span
            .scope()
            .skip(1)
            .find_map(|span| span.extensions().get::<TraceContext>().copied())
            .filter(|place| place.own.is_sampled());
        let Some(place) = around.map(TraceContext::child) else { return };
        let mut recording = Recording::new(place, attributes.metadata().name(), SpanKind::Internal);
        attributes.record(&mut recording);
        let mut extensions = span.extensions_mut();
        extensions.replace(place);
        extensions.replace(recording);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(recording) = span.extensions_mut().get_mut::<Recording>() {
            values.record(recording);
        }
    }
}
