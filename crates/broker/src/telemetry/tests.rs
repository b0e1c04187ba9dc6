use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::Duration;

use super::*;
use crate::error::Error;
use sandkeep_core::Verb;

fn reading() -> Reading {
    Reading {
        sandboxes: vec![("native", "running", 2), ("native", "stopped", 0)],
        execs_active: 3,
        pool_bytes: Some((100, 40)),
        ready: true,
    }
}

fn exchange<'a>(method: &'a str, routes: &RouteTable, template: &str) -> Exchange<'a> {
    let route = routes.label(Some(template));
    Exchange { method, route, status: 200, took: Duration::from_millis(3) }
}

/// One sample of everything there is.
async fn full() -> String {
    let telemetry = Telemetry::default();
    telemetry.verbs().announce("native");
    let failed = telemetry
        .verbs()
        .measure(Verb::Start, "native", async { Err::<(), Error>(Error::ShuttingDown) });
    assert!(failed.await.is_err());
    let routes = RouteTable::new(["/healthz"]);
    telemetry.http().record(exchange("GET", &routes, "/healthz"));
    telemetry.feeds().of("nats");
    telemetry.render(&reading())
}

#[tokio::test]
async fn a_verb_is_counted_by_how_it_ended_also_if_its_caller_left() {
    let telemetry = Telemetry::default();
    telemetry.verbs().announce("native");
    let ok = telemetry.verbs().measure(Verb::Create, "native", async { Ok(()) });
    assert!(ok.await.is_ok());
    let failing = async { Err::<(), Error>(Error::ShuttingDown) };
    assert!(telemetry.verbs().measure(Verb::Create, "native", failing).await.is_err());
    let hanging = std::future::pending::<Result<(), Error>>();
    let mut left = Box::pin(telemetry.verbs().measure(Verb::Create, "native", hanging));
    assert!(futures_util::poll!(left.as_mut()).is_pending());
    drop(left);
    let page = telemetry.render(&reading());
    for code in ["ok", "shutting_down", "abandoned"] {
        let line = format!(
            "sandkeep_verbs_total{{verb=\"create\",runtime=\"native\",code=\"{code}\"}} 1\n"
        );
        assert!(page.contains(&line), "{line}{page}");
    }
    let count = "sandkeep_verb_duration_seconds_count{verb=\"create\",runtime=\"native\"} 3\n";
    assert!(page.contains(count), "{page}");
    let idle = "sandkeep_verbs_total{verb=\"exec\",runtime=\"native\",code=\"ok\"} 0\n";
    assert!(page.contains(idle), "{page}");
}

#[test]
fn callers_cannot_make_series() {
    let telemetry = Telemetry::default();
    let routes = RouteTable::new(["/healthz"]);
    for number in 0..100 {
        telemetry.http().record(exchange(&format!("M{number}"), &routes, &format!("/{number}")));
    }
    let page = telemetry.render(&reading());
    let series = page.lines().filter(|line| line.starts_with("sandkeep_http_requests_total{"));
    let only =
        "sandkeep_http_requests_total{method=\"other\",route=\"unmatched\",status=\"200\"} 100";
    assert_eq!(series.collect::<Vec<_>>(), [only]);
}

/// Every metric of a page as a row: name, type, labels, help.
fn table(page: &str) -> String {
    let mut text = String::from(
        "# Metrics\n\n\
         `GET /metrics` answers in the OpenMetrics text format, which Prometheus reads. It needs the scope `admin` once\n\
         there are API keys. Histograms have the usual `_bucket`, `_sum` and `_count`.\n\n\
         Each verb is measured once, in the broker, for every API. A request for a sandbox that does not exist is no verb\n\
         and counts only as an HTTP request. Labels hold only values that the code defines (verbs, runtimes, states,\n\
         [error codes](errors.md), methods, statuses, route templates), never caller input, so the number of series is\n\
         bounded.\n\n\
         <!-- Generated: SANDKEEP_REGENERATE=1 cargo nextest run metrics_md -->\n\n\
         | metric | type | labels | meaning |\n|---|---|---|---|\n",
    );
    for line in page.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, kind) = line.split_once(' ').expect("a type");
        let help = page
            .lines()
            .find_map(|line| line.strip_prefix(&format!("# HELP {name} ")))
            .expect("a help");
        let labels: BTreeSet<&str> = page
            .lines()
            .filter(|line| line.starts_with(name))
            .filter_map(|line| line.split_once('{')?.1.split_once('}'))
            .flat_map(|(labels, _)| {
                labels.split(',').filter_map(|label| Some(label.split_once('=')?.0))
            })
            .filter(|label| *label != "le")
            .collect();
        let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
        let suffix = match kind {
            "counter" => "_total",
            "info" => "_info",
            _ => "",
        };
        let (labels, help) = (labels.join(", "), help.trim_end_matches('.'));
        writeln!(text, "| `{name}{suffix}` | {kind} | {labels} | {help} |").expect("a String");
    }
    text
}

#[tokio::test]
async fn metrics_md_lists_every_metric() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/metrics.md");
    let table = table(&full().await);
    if std::env::var_os("SANDKEEP_REGENERATE").is_some() {
        std::fs::write(path, &table).expect("docs can be written");
    }
    let written = std::fs::read_to_string(path).expect("docs/reference/metrics.md exists");
    assert!(written == table, "docs/reference/metrics.md is stale: run with SANDKEEP_REGENERATE=1");
}
