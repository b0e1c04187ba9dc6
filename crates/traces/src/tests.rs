use std::io;

use sandkeep_core::TraceParent;
use tracing::info_span;
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::{EnvFilter, Registry, fmt};

use crate::{
    FinishedSpan, FinishedSpans, Otherwise, Recorder, Sampler, SpanKind, Step, TraceContext, Value,
    current, step, within,
};

const SENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn sent() -> TraceParent {
    SENT.parse().expect("valid")
}

/// As the program sets it up, with a log that shows only errors.
fn with(recorder: Recorder) -> tracing::subscriber::DefaultGuard {
    let filter = recorder.filter();
    let log = fmt::layer().with_writer(io::sink).with_filter(EnvFilter::new("error"));
    let subscriber = Registry::default().with(log).with(recorder.with_filter(filter));
    tracing::subscriber::set_default(subscriber)
}

fn request(place: TraceContext) -> Step {
    let span = info_span!("request", trace_id = %place.own.trace, correlation_id = "c");
    Step::request(&span, place, || "GET /x".to_owned())
}

fn finished(spans: &mut FinishedSpans) -> Vec<FinishedSpan> {
    std::iter::from_fn(|| spans.queue.try_recv().ok()).collect()
}

#[tokio::test]
async fn steps_are_below_the_request_that_led_to_them_also_in_other_tasks() {
    let (recorder, mut spans) = Recorder::exporting(Sampler::default());
    let _here = with(recorder);
    let place = TraceContext::of(Some(sent()));
    let asked = request(place);
    let outer = asked.span().in_scope(|| step!("outer", sandbox = "sb1", count = 7_u64));
    let span = outer.span().clone();
    let inner = async {
        let failed: Result<(), _> =
            within(step!("inner", "otel.name" = "named"), async { Err(io::Error::other("no")) })
                .await;
        assert!(failed.is_err());
    };
    // Instrumented code keeps its span open; the step ends all the same.
    let kept = span.clone();
    tracing::Instrument::instrument(inner, span).await;
    drop((outer, asked));
    let found = finished(&mut spans);
    let [inner, outer, asked] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!((inner.name.as_ref(), outer.name.as_ref()), ("named", "outer"));
    assert_eq!((asked.name.as_ref(), asked.kind), ("GET /x", SpanKind::Server));
    assert_eq!(asked.parent, Some(sent().span));
    assert_eq!((outer.parent, inner.parent), (Some(asked.span), Some(outer.span)));
    assert!(found.iter().all(|span| span.trace == sent().trace && span.flags == 1));
    assert!(found.iter().all(|span| span.began <= span.ended));
    let attributes = [("sandbox", Value::Text("sb1".to_owned())), ("count", Value::Number(7))];
    assert_eq!(outer.attributes, attributes);
    assert_eq!(inner.error.as_deref(), Some("no"));
    drop(kept);
    assert!(finished(&mut spans).is_empty(), "each ends once");
}

#[test]
fn what_is_not_sampled_leaves_no_span_and_is_seen_only_by_a_caller_that_traces() {
    let (recorder, mut spans) = Recorder::exporting(Sampler::AsCaller(Otherwise::None));
    let _here = with(recorder);
    for (given, is_seen) in [(None, false), (Some(sent().unsampled()), true)] {
        let place = TraceContext::of(given);
        let asked = request(place);
        asked.span().in_scope(|| {
            let step = step!("step");
            let seen = step.span().in_scope(current);
            assert_eq!(seen, is_seen.then_some(place.own), "{given:?}");
        });
        assert!(!place.own.is_sampled());
    }
    assert!(finished(&mut spans).is_empty());
}

#[test]
fn without_an_exporter_a_request_has_its_place_although_nothing_is_logged() {
    let _here = with(Recorder::idle());
    let place = TraceContext::of(Some(sent()));
    let asked = request(place);
    assert_eq!(place.own.flags, sent().flags, "what the caller says is passed on");
    let (seen, disabled) = asked.span().in_scope(|| (current(), step!("x").span().is_disabled()));
    assert_eq!(seen, Some(place.own));
    assert!(disabled, "a step costs nothing");
    let own = request(TraceContext::of(None));
    assert_eq!(own.span().in_scope(current), None, "nobody could see it");
    assert_eq!(current(), None);
}

#[test]
fn a_full_queue_drops_spans_and_counts_them() {
    let (recorder, mut spans) = Recorder::bounded(Sampler::default(), 3);
    let _here = with(recorder);
    for _ in 0..10 {
        drop(request(TraceContext::of(None)));
    }
    assert_eq!((spans.take_overflown(), finished(&mut spans).len()), (7, 3));
    drop(request(TraceContext::of(None)));
    assert_eq!((spans.take_overflown(), finished(&mut spans).len()), (0, 1));
}

#[test]
fn names_and_values_are_cut_to_their_bounds() {
    let (recorder, mut spans) = Recorder::exporting(Sampler::default());
    let _here = with(recorder);
    let asked = request(TraceContext::of(None));
    asked.set("path", || Value::Text("é".repeat(1_000)));
    asked.fail(|| "x".repeat(1_000));
    drop(asked);
    let span = finished(&mut spans).remove(0);
    assert_eq!(span.attributes, [("path", Value::Text("é".repeat(128)))]);
    assert_eq!(span.error.map(|error| error.len()), Some(256));
}
