//! A collector over real HTTP, of this test's own.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tracing_subscriber::Registry;
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};

use super::encode::{self, Answer};
use super::{ExportOptions, Exporter};
use crate::{ExportMetrics, FinishedSpans, Recorder, Sampler, Step, TraceContext, WhyDropped};
use sandkeep_outgoing::Outgoing;

/// Answers each request with the next of these, and the last one for ever. Hands over the bodies.
async fn collector(answers: &'static [&'static str]) -> (String, mpsc::UnboundedReceiver<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/v1/traces", listener.local_addr().expect("an address"));
    let (told, bodies) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        for count in 0.. {
            let Ok((mut stream, _)) = listener.accept().await else { return };
            let mut seen = Vec::new();
            let whole = loop {
                if stream.read_buf(&mut seen).await.is_ok_and(|read| read > 0)
                    && let Some(body) = whole_body(&seen)
                {
                    break body;
                }
            };
            let _ = told.send(whole);
            let answer = answers[count.min(answers.len() - 1)];
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    (url, bodies)
}

/// The body of a request, when all of it is there.
fn whole_body(seen: &[u8]) -> Option<Vec<u8>> {
    let text = String::from_utf8_lossy(seen).to_ascii_lowercase();
    let head = seen.windows(4).position(|four| four == b"\r\n\r\n")?;
    assert!(text.contains("content-type: application/x-protobuf"), "{text}");
    let length: usize =
        text[..head].split("content-length: ").nth(1)?.lines().next()?.parse().ok()?;
    let body = &seen[head + 4..];
    (body.len() == length).then(|| body.to_vec())
}

const TAKEN: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
const BUSY: &str =
    "HTTP/1.1 503 Busy\r\nretry-after: 0\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
const REFUSED: &str = "HTTP/1.1 401 Who\r\ncontent-length: 4\r\nconnection: close\r\n\r\nwho?";

/// So many spans, of one trace each.
fn spans(count: usize) -> FinishedSpans {
    let (recorder, spans) = Recorder::exporting(Sampler::default());
    let filter = recorder.filter();
    let subscriber = Arc::new(Registry::default().with(recorder.with_filter(filter)));
    tracing::subscriber::with_default(subscriber, || {
        for _ in 0..count {
            let place = TraceContext::of(None);
            let span = tracing::info_span!("request", trace_id = %place.own.trace);
            drop(Step::request(&span, place, || "GET /x".to_owned()));
        }
    });
    spans
}

fn start(url: &str, spans: FinishedSpans) -> (Exporter, ExportMetrics) {
    let metrics = ExportMetrics::default();
    let options = ExportOptions {
        url: url.parse().expect("a URL"),
        headers: Default::default(),
        answer: Duration::from_secs(30),
        resource: vec![("service.name".to_owned(), "test".to_owned())],
        outgoing: Outgoing::default(),
    };
    (Exporter::start(options, spans, metrics.clone()), metrics)
}

#[tokio::test]
async fn a_busy_collector_gets_the_same_spans_again() {
    let (url, mut bodies) = collector(&[BUSY, BUSY, TAKEN]).await;
    let (exporter, metrics) = start(&url, spans(3));
    let first = bodies.recv().await.expect("an attempt");
    for _ in 0..2 {
        assert_eq!(bodies.recv().await.expect("another"), first);
    }
    exporter.stop().await;
    assert_eq!(metrics.exported.get(), 3);
}

#[tokio::test]
async fn a_refusal_is_final_and_counted() {
    let (url, mut bodies) = collector(&[REFUSED, TAKEN]).await;
    let (exporter, metrics) = start(&url, spans(3));
    bodies.recv().await.expect("an attempt");
    exporter.stop().await;
    assert!(bodies.try_recv().is_err(), "it is not sent again");
    assert_eq!(metrics.exported.get(), 0);
    assert_eq!(metrics.dropped_for(WhyDropped::Refused), 3);
}

#[tokio::test]
async fn many_spans_go_in_batches_without_a_pause_between_them() {
    let (url, mut bodies) = collector(&[TAKEN]).await;
    let (exporter, metrics) = start(&url, spans(1_200));
    for _ in 0..3 {
        bodies.recv().await.expect("a batch");
    }
    exporter.stop().await;
    assert_eq!(metrics.exported.get(), 1_200);
}

#[tokio::test]
async fn a_collector_that_is_away_delays_neither_spans_nor_the_end_for_long() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/v1/traces", listener.local_addr().expect("an address"));
    drop(listener);
    let (exporter, metrics) = start(&url, spans(3));
    exporter.stop().await;
    assert_eq!(metrics.exported.get(), 0);
    assert_eq!(metrics.dropped_for(WhyDropped::Unanswered), 3);
}

#[test]
fn an_answer_tells_what_was_rejected_and_nonsense_tells_nothing() {
    let partial = [0x0a, 6, 0x08, 5, 0x12, 2, b'n', b'o'];
    assert_eq!(encode::answer(&partial), Answer { rejected: 5, said: "no".to_owned() });
    for nonsense in [&[][..], b"{}", &[0x0a, 200], &[0xff; 20], &[0x0a, 2, 0x08, 0xff]] {
        assert_eq!(encode::answer(nonsense).rejected, 0, "{nonsense:?}");
    }
    let negative = [0x0a, 11, 0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
    assert_eq!(encode::answer(&negative).rejected, 0);
}

#[test]
fn an_unreadable_answer_is_not_shown() {
    assert_eq!(super::excerpt(b"who?\nyou"), ": who? you");
    assert_eq!(super::excerpt(&[0, 1, 2]), "");
}
