//! HTTP requests: count, route, status, duration.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use super::durations;

/// The route of a request that matches none.
const NO_ROUTE: &str = "unmatched";

/// The templates of all routes, shared by all labels: a request looks up its own and copies nothing.
pub struct RouteTable {
    routes: HashMap<Box<str>, Arc<str>>,
    none: Arc<str>,
}

impl RouteTable {
    pub fn new<'a>(templates: impl IntoIterator<Item = &'a str>) -> Self {
        let entry = |template: &str| (Box::from(template), Arc::from(template));
        Self { routes: templates.into_iter().map(entry).collect(), none: Arc::from(NO_ROUTE) }
    }

    /// The label of a route; a template that is not in the table has none of its own.
    pub fn label(&self, template: Option<&str>) -> Arc<str> {
        let known = template.and_then(|template| self.routes.get(template));
        Arc::clone(known.unwrap_or(&self.none))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CountLabels {
    method: &'static str,
    route: Arc<str>,
    status: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DurationLabels {
    method: &'static str,
    route: Arc<str>,
}

/// One request and its answer.
pub struct Exchange<'a> {
    pub method: &'a str,
    pub route: Arc<str>,
    pub status: u16,
    pub took: Duration,
}

pub struct Http {
    count: Family<CountLabels, Counter>,
    durations: Family<DurationLabels, Histogram>,
}

impl Http {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let count = Family::default();
        let help = "Answered HTTP requests by method, route and status";
        registry.register("http_requests", help, count.clone());
        let durations = Family::new_with_constructor(durations as fn() -> Histogram);
        let help = "Time from the request's headers to the response's headers";
        registry.register_with_unit(
            "http_request_duration",
            help,
            Unit::Seconds,
            durations.clone(),
        );
        Self { count, durations }
    }

    pub fn record(&self, exchange: Exchange<'_>) {
        let Exchange { method, route, status, took } = exchange;
        let method = known_method(method);
        let labels = DurationLabels { method, route: Arc::clone(&route) };
        self.durations.get_or_create(&labels).observe(took.as_secs_f64());
        self.count.get_or_create(&CountLabels { method, route, status }).inc();
    }
}

/// Callers can invent methods; only these get a series of their own.
fn known_method(method: &str) -> &'static str {
    const KNOWN: [&str; 7] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];
    KNOWN.into_iter().find(|known| *known == method).unwrap_or("other")
}
