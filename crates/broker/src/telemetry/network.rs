//! What the gateway decided about connections, requests and look-ups of all sandboxes.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::{Registry, Unit};

use sandkeep_core::network::{Decision, DecisionKind, NetworkVerdict};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    kind: &'static str,
    verdict: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DirectionLabels {
    direction: &'static str,
}

#[derive(Clone, Default)]
pub struct NetworkMetrics {
    decisions: Family<Labels, Counter>,
    bytes: Family<DirectionLabels, Counter>,
    /// Lines of network logs and events that the disk was too slow for.
    pub lost: Counter,
}

impl NetworkMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let help = "Decisions about connections, requests and look-ups of sandboxes";
        registry.register("network_decisions", help, metrics.decisions.clone());
        let help = "Bytes of ended connections of sandboxes";
        registry.register_with_unit("network", help, Unit::Bytes, metrics.bytes.clone());
        let help = "Decisions that could not be written to a log, as the disk was too slow";
        registry.register("network_log_lost", help, metrics.lost.clone());
        metrics
    }

    pub fn count(&self, decision: &Decision) {
        let kind = match decision.kind {
            DecisionKind::Name => "name",
            DecisionKind::Connection => "connection",
            DecisionKind::Request => "request",
            DecisionKind::Closed => {
                for (direction, bytes) in [("up", decision.bytes_up), ("down", decision.bytes_down)]
                {
                    let labels = DirectionLabels { direction };
                    self.bytes.get_or_create(&labels).inc_by(bytes.unwrap_or_default());
                }
                return;
            }
        };
        let verdict = match decision.verdict {
            NetworkVerdict::Allowed => "allowed",
            NetworkVerdict::Denied => "denied",
            NetworkVerdict::Audited => "audited",
            NetworkVerdict::Failed => "failed",
        };
        self.decisions.get_or_create(&Labels { kind, verdict }).inc();
    }
}
