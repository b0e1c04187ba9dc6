//! Verbs: count, result and duration, by runtime.

use std::fmt::Write;
use std::time::Instant;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use tracing::Instrument as _;

use super::durations;
use crate::error::Error;
use sandkeep_core::Verb;
use sandkeep_traces::step;

/// The code of a successful verb.
const OK: &str = "ok";
/// The code of a verb whose caller disconnected before its end; the broker finishes it all the same.
const ABANDONED: &str = "abandoned";
/// The runtime label of a create that names an unknown one.
pub const NO_RUNTIME: &str = "unknown";

/// Verbs whose series exist from the start, so that a rate includes the first one.
const FROM_THE_START: [Verb; 11] = [
    Verb::Create,
    Verb::Start,
    Verb::Stop,
    Verb::Destroy,
    Verb::Exec,
    Verb::Amend,
    Verb::Capture,
    Verb::Snapshot,
    Verb::Rollback,
    Verb::Fork,
    Verb::Revert,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Name(Verb);

impl EncodeLabelValue for Name {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        write!(encoder, "{}", self.0)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CountLabels {
    verb: Name,
    runtime: &'static str,
    code: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DurationLabels {
    verb: Name,
    runtime: &'static str,
}

pub struct Verbs {
    count: Family<CountLabels, Counter>,
    durations: Family<DurationLabels, Histogram>,
}

impl Verbs {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let count = Family::default();
        let help = "Verbs by result: ok, abandoned by the client, or an error code";
        registry.register("verbs", help, count.clone());
        let durations = Family::new_with_constructor(durations as fn() -> Histogram);
        let help = "Time from admission to answer; for an exec, to its start";
        registry.register_with_unit("verb_duration", help, Unit::Seconds, durations.clone());
        Self { count, durations }
    }

    /// Creates the series of a runtime, with value zero.
    pub fn announce(&self, runtime: &'static str) {
        for verb in FROM_THE_START.map(Name) {
            drop(self.count.get_or_create(&CountLabels { verb, runtime, code: OK }));
            drop(self.durations.get_or_create(&DurationLabels { verb, runtime }));
        }
    }

    /// Runs `work` and counts it, even if its caller stops waiting.
    pub async fn measure<T>(
        &self,
        verb: Verb,
        runtime: &'static str,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let mut under_way = UnderWay {
            verbs: self,
            verb: Name(verb),
            runtime,
            code: ABANDONED,
            began: Instant::now(),
        };
        let step = step!("verb", "otel.name" = %format_args!("sandbox {verb}"), runtime);
        let result = work.instrument(step.span().clone()).await;
        under_way.code = result.as_ref().map_or_else(|error| error.code().as_str(), |_| OK);
        if result.is_err() {
            step.fail(|| under_way.code.to_owned());
        }
        result
    }
}

/// Counts a verb when dropped, however it ended.
struct UnderWay<'a> {
    verbs: &'a Verbs,
    verb: Name,
    runtime: &'static str,
    code: &'static str,
    began: Instant,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let Self { verbs, verb, runtime, code, began } = *self;
        verbs.count.get_or_create(&CountLabels { verb, runtime, code }).inc();
        let labels = DurationLabels { verb, runtime };
        verbs.durations.get_or_create(&labels).observe(began.elapsed().as_secs_f64());
    }
}
