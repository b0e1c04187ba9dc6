//! Where a request stands in its trace.

use sandkeep_core::TraceParent;
use tracing::Span;
use tracing::dispatcher::get_default;
use tracing_subscriber::Registry;
use tracing_subscriber::registry::LookupSpan as _;

use crate::recorder::Recorder;

/// Who began a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TracedBy {
    /// The caller, who sees our step in it.
    Caller,
    Us,
}

/// The place of a step in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// The step itself.
    pub own: TraceParent,
    /// The step that led to it.
    pub parent: Option<TraceParent>,
    pub by: TracedBy,
}

impl TraceContext {
    /// The place of a request that came with this, or without any. Whether its steps are recorded is decided here.
    pub fn of(sent: Option<TraceParent>) -> Self {
        let sampler = get_default(|dispatch| dispatch.downcast_ref::<Recorder>()?.sampler());
        let own = sent.map_or_else(TraceParent::random, TraceParent::child);
        let own = match sampler {
            Some(sampler) if sampler.takes(own.trace, sent) => own.sampled(),
            Some(_) => own.unsampled(),
            // Others record it, or not; what the caller says of that is passed on.
            None => own,
        };
        let by = if sent.is_some() { TracedBy::Caller } else { TracedBy::Us };
        Self { own, parent: sent, by }
    }

    /// One step further.
    pub fn child(self) -> Self {
        Self { own: self.own.child(), parent: Some(self.own), by: self.by }
    }

    /// Whether anybody can see this step in a trace.
    fn is_seen(self) -> bool {
        self.by == TracedBy::Caller || self.own.is_sampled()
    }
}

/// The place of the code that runs, for those who continue the trace: events, and commands inside a sandbox. `None` if
/// nobody can see it in a trace, because its caller sent none and its steps are not recorded.
pub fn current() -> Option<TraceParent> {
    let place = Span::current().with_subscriber(|(id, dispatch)| {
        let spans = dispatch.downcast_ref::<Registry>()?.span(id)?.scope();
        spans.into_iter().find_map(|span| span.extensions().get::<TraceContext>().copied())
    });
    place.flatten().filter(|place| place.is_seen()).map(|place| place.own)
}
