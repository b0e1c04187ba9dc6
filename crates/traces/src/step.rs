//! The handle of a step.

use std::error::Error;

use sandkeep_core::with_causes;
use tracing::{Instrument as _, Span};
use tracing_subscriber::Registry;
use tracing_subscriber::registry::{ExtensionsMut, LookupSpan as _};

use crate::place::TraceContext;
use crate::recorder::Recorder;
use crate::span::{Recording, SpanKind, Value};

/// A step that goes on until this is dropped. Tasks that it started may run longer: their steps are below it all the
/// same.
#[derive(Debug)]
pub struct Step(Span);

impl Step {
    /// Of a span that `step!` made.
    pub fn new(span: Span) -> Self {
        Self(span)
    }

    /// A request that came from outside, whose span has this place from now on.
    pub fn request(span: &Span, place: TraceContext, name: impl FnOnce() -> String) -> Self {
        let step = Self(span.clone());
        let exports = span.with_subscriber(|(_, dispatch)| {
            dispatch.downcast_ref::<Recorder>().is_some_and(|recorder| recorder.sampler().is_some())
        });
        step.extensions(|extensions| {
            extensions.replace(place);
            if exports == Some(true) && place.own.is_sampled() {
                let mut recording = Recording::new(place, "request", SpanKind::Server);
                recording.rename(name());
                extensions.replace(recording);
            }
        });
        step
    }

    pub fn span(&self) -> &Span {
        &self.0
    }

    /// Adds an attribute, which is only evaluated if the step is recorded.
    pub fn set(&self, name: &'static str, value: impl FnOnce() -> Value) {
        self.recording(|recording| recording.set(name, value()));
    }

    /// It failed.
    pub fn fail(&self, problem: impl FnOnce() -> String) {
        self.recording(|recording| recording.fail(problem()));
    }

    fn recording(&self, change: impl FnOnce(&mut Recording)) {
        self.extensions(|extensions| {
            extensions.get_mut::<Recording>().map(change);
        });
    }

    fn extensions(&self, change: impl FnOnce(&mut ExtensionsMut<'_>)) {
        self.0.with_subscriber(|(id, dispatch)| {
            let span = dispatch.downcast_ref::<Registry>()?.span(id)?;
            change(&mut span.extensions_mut());
            Some(())
        });
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        let mut ended = None;
        self.extensions(|extensions| ended = extensions.remove::<Recording>());
        let Some(recording) = ended else { return };
        self.0.with_subscriber(|(_, dispatch)| {
            if let Some(recorder) = dispatch.downcast_ref::<Recorder>() {
                recorder.take(recording);
            }
        });
    }
}

/// Does work as a step, whose failure is the work's. Dropping the future ends the step.
pub async fn within<T, E: Error + 'static>(
    step: Step,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let result = work.instrument(step.0.clone()).await;
    if let Err(error) = &result {
        step.fail(|| with_causes(error));
    }
    result
}
