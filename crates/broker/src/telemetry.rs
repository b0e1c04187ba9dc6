//! The daemon's metrics for `/metrics`; `docs/reference/metrics.md` lists them.
//!
//! Each metric is measured in one place: verbs where the broker accepts them, commits in a wrapper around the store
//! ([`ObservedStore`]), requests in one layer of the API. Values that can be read at any time (sandboxes, execs, the
//! pool) are set on a scrape.
//!
//! Invariant: the number of series is bounded by the code, never by what callers send. A label holds a verb, a runtime,
//! a state, an error code, a method, a status or the template of a route.

mod feeds;
mod http;
mod network;
mod store;
mod verbs;

use std::time::Instant;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

pub use feeds::{FeedMetrics, Feeds};
pub use http::{Exchange, Http, RouteTable};
pub use network::NetworkMetrics;
pub use store::ObservedStore;
pub use verbs::{NO_RUNTIME, Verbs};

use sandkeep_traces::ExportMetrics;
use store::Commits;

/// The media type of [`Telemetry::render`].
pub const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// From 50 µs, which an exec in a warm sandbox takes, to over a minute, each twice the one before.
const BUCKETS: u16 = 21;
const BUCKET_FIRST_SECS: f64 = 0.000_05;

fn durations() -> Histogram {
    Histogram::new(exponential_buckets(BUCKET_FIRST_SECS, 2.0, BUCKETS))
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BuildLabels {
    version: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SandboxLabels {
    runtime: &'static str,
    state: &'static str,
}

/// Values that are read on a scrape.
#[derive(Default)]
struct Gauges {
    sandboxes: Family<SandboxLabels, Gauge>,
    execs_active: Gauge,
    pool_total: Gauge,
    pool_used: Gauge,
    ready: Gauge,
    uptime: Gauge,
}

/// The state of the daemon at one moment.
pub struct Reading {
    /// The number of sandboxes per runtime and state: (runtime, state, count). Every pair is in every reading, so that
    /// one without sandboxes reads zero.
    pub sandboxes: Vec<(&'static str, &'static str, usize)>,
    pub execs_active: usize,
    /// Total and used bytes, if the storage answered.
    pub pool_bytes: Option<(u64, u64)>,
    pub ready: bool,
}

/// All metrics of one daemon.
pub struct Telemetry {
    registry: Registry,
    verbs: Verbs,
    http: Http,
    commits: Commits,
    feeds: Feeds,
    network: NetworkMetrics,
    spans: ExportMetrics,
    gauges: Gauges,
    events_lost: Counter,
    audit_lost: Counter,
    began: Instant,
}

impl Default for Telemetry {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("sandkeep");
        let build = Info::new(BuildLabels { version: env!("CARGO_PKG_VERSION") });
        registry.register("build", "Version of the daemon", build);
        let verbs = Verbs::register(&mut registry);
        let http = Http::register(&mut registry);
        let commits = Commits::register(&mut registry);
        let feeds = Feeds::register(&mut registry);
        let network = NetworkMetrics::register(&mut registry);
        let spans = ExportMetrics::register(&mut registry);
        let gauges = Gauges::register(&mut registry);
        let events_lost = Counter::default();
        let help = "Events that could not be written, as the disk was full";
        registry.register("events_lost", help, events_lost.clone());
        let audit_lost = Counter::default();
        let help = "Audit records that could not be written, as the disk was full";
        registry.register("audit_records_lost", help, audit_lost.clone());
        let began = Instant::now();
        Self {
            registry,
            verbs,
            http,
            commits,
            feeds,
            network,
            spans,
            gauges,
            events_lost,
            audit_lost,
            began,
        }
    }
}

impl Telemetry {
    pub fn uptime(&self) -> std::time::Duration {
        self.began.elapsed()
    }

    pub fn verbs(&self) -> &Verbs {
        &self.verbs
    }

    pub fn http(&self) -> &Http {
        &self.http
    }

    pub fn feeds(&self) -> &Feeds {
        &self.feeds
    }

    pub(crate) fn network(&self) -> &NetworkMetrics {
        &self.network
    }

    /// What became of the spans of requests.
    pub fn spans(&self) -> &ExportMetrics {
        &self.spans
    }

    pub(crate) fn events_lost(&self) -> Counter {
        self.events_lost.clone()
    }

    pub fn audit_lost(&self) -> Counter {
        self.audit_lost.clone()
    }

    /// The text of all metrics, with what can only be read off as it is now.
    pub fn render(&self, reading: &Reading) -> String {
        self.gauges.set(reading);
        self.gauges.uptime.set(whole(self.uptime().as_secs()));
        let mut page = String::new();
        text::encode(&mut page, &self.registry).expect("a String can be written to");
        page
    }
}

impl Gauges {
    fn register(registry: &mut Registry) -> Self {
        let gauges = Self::default();
        let sandboxes = gauges.sandboxes.clone();
        registry.register("sandboxes", "Sandboxes by runtime and state", sandboxes);
        let execs = gauges.execs_active.clone();
        registry.register("execs_active", "Running commands", execs);
        let (total, used) = (gauges.pool_total.clone(), gauges.pool_used.clone());
        let bytes = || Unit::Bytes;
        registry.register_with_unit("pool_total", "Size of the storage pool", bytes(), total);
        registry.register_with_unit("pool_used", "Used space of the storage pool", bytes(), used);
        registry.register("ready", "1 while /readyz answers 200", gauges.ready.clone());
        let help = "Uptime of the daemon";
        registry.register_with_unit("uptime", help, Unit::Seconds, gauges.uptime.clone());
        gauges
    }

    fn set(&self, reading: &Reading) {
        for &(runtime, state, count) in &reading.sandboxes {
            let labels = SandboxLabels { runtime, state };
            self.sandboxes.get_or_create(&labels).set(whole(count as u64));
        }
        self.execs_active.set(whole(reading.execs_active as u64));
        if let Some((total, used)) = reading.pool_bytes {
            self.pool_total.set(whole(total));
            self.pool_used.set(whole(used));
        }
        self.ready.set(i64::from(reading.ready));
    }
}

/// A gauge is signed; no value here comes near its maximum.
fn whole(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
