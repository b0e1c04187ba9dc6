//! How far events have come that are passed on to the outside.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    feed: &'static str,
}

/// The metrics of all feeds. A feed passes events on to one place outside, such as a message broker.
#[derive(Default)]
pub struct Feeds {
    connected: Family<Labels, Gauge>,
    published: Family<Labels, Counter>,
    acknowledged: Family<Labels, Counter>,
    refused: Family<Labels, Counter>,
    dropped: Family<Labels, Counter>,
    gaps: Family<Labels, Counter>,
    behind: Family<Labels, Gauge>,
}

/// The metrics of one feed.
#[derive(Clone)]
pub struct FeedMetrics {
    /// 1 while there is a connection.
    pub connected: Gauge,
    /// Messages that were sent, repetitions included.
    pub published: Counter,
    pub acknowledged: Counter,
    /// Attempts that the other side refused or left unanswered; they are repeated.
    pub refused: Counter,
    /// Messages that can never be accepted, and were left out.
    pub dropped: Counter,
    /// How often events were not kept long enough.
    pub gaps: Counter,
    /// Events that are recorded and have not arrived yet.
    pub behind: Gauge,
}

impl Feeds {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let feeds = Self::default();
        let mut add = |name: &str, help: &str, family: &Family<Labels, Counter>| {
            registry.register(name, help, family.clone());
        };
        add("feed_published", "Messages sent, repetitions included", &feeds.published);
        add("feed_acknowledged", "Messages that have arrived", &feeds.acknowledged);
        add(
            "feed_refused",
            "Messages that were refused or not acknowledged in time; they are sent again",
            &feeds.refused,
        );
        add("feed_dropped", "Messages left out because they are too large", &feeds.dropped);
        add("feed_gaps", "Gaps: events that the log no longer had", &feeds.gaps);
        let help = "1 while the feed is connected";
        registry.register("feed_connected", help, feeds.connected.clone());
        let help = "Recorded events that have not arrived yet";
        registry.register("feed_behind", help, feeds.behind.clone());
        feeds
    }

    /// The metrics of a feed; they are shown from now on.
    pub fn of(&self, feed: &'static str) -> FeedMetrics {
        let labels = Labels { feed };
        FeedMetrics {
            connected: self.connected.get_or_create(&labels).clone(),
            published: self.published.get_or_create(&labels).clone(),
            acknowledged: self.acknowledged.get_or_create(&labels).clone(),
            refused: self.refused.get_or_create(&labels).clone(),
            dropped: self.dropped.get_or_create(&labels).clone(),
            gaps: self.gaps.get_or_create(&labels).clone(),
            behind: self.behind.get_or_create(&labels).clone(),
        }
    }
}
