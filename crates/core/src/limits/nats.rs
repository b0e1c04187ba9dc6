//! Bounds of the connection to NATS and of the publishing of events.

use std::time::Duration;

/// How long one attempt to connect to a server may take, handshakes included.
pub const NATS_CONNECT: Duration = Duration::from_secs(10);
/// The pause before the second attempt to connect. It doubles up to [`NATS_RETRY_MAX`], and up to half of it is random.
pub const NATS_RETRY_FIRST: Duration = Duration::from_millis(100);
pub const NATS_RETRY_MAX: Duration = Duration::from_secs(5);
/// How often a silent server is asked for a sign of life. After three without an answer the connection is given up.
pub const NATS_PING: Duration = Duration::from_secs(10);
/// How long a request to the server waits for its answer.
pub const NATS_REQUEST: Duration = Duration::from_secs(10);
/// How many operations may wait to be written to one connection.
pub const NATS_QUEUE_MAX: usize = 2_048;
/// How long shutting down waits for what is still on its way.
pub const NATS_DRAIN: Duration = Duration::from_secs(3);

/// Events that are published and not yet acknowledged, or read and not yet published.
pub const NATS_WINDOW_MAX: usize = 4_096;
/// How long an acknowledgement may take before the event is published again.
pub const NATS_ACK: Duration = Duration::from_secs(10);
/// How often is looked whether an acknowledgement is late. The position is saved as often.
pub const NATS_TICK: Duration = Duration::from_millis(250);
/// How long the publisher waits after the log of events could not be read.
pub const NATS_LOG_RETRY: Duration = Duration::from_secs(1);
/// The pause before an event that the server refused is published again; it doubles up to [`NATS_REFUSED_MAX`].
pub const NATS_REFUSED_FIRST: Duration = Duration::from_millis(250);
pub const NATS_REFUSED_MAX: Duration = Duration::from_secs(30);
/// How long JetStream remembers message ids in streams that we create.
pub const NATS_DUPLICATES: Duration = Duration::from_secs(600);
/// The size of a stream that we create, unless configured.
pub const NATS_STREAM_DEFAULT_MB: u64 = 1_024;
/// The longest subject prefix.
pub const NATS_PREFIX_MAX_BYTES: usize = 256;
/// The longest name of a stream.
pub const NATS_STREAM_NAME_MAX_BYTES: usize = 255;
/// The largest file with a seed or credentials.
pub const NATS_SECRET_MAX_BYTES: u64 = 64 * 1024;

/// How often is looked whether Urule's registry still has our entries, and how long it may take to answer.
pub const URULE_REFRESH: Duration = Duration::from_secs(60);
pub const URULE_ANSWER: Duration = Duration::from_secs(30);
/// The pause after a failure; it doubles up to [`URULE_RETRY_MAX`].
pub const URULE_RETRY_FIRST: Duration = Duration::from_secs(1);
pub const URULE_RETRY_MAX: Duration = Duration::from_secs(300);
pub const URULE_ANSWER_MAX_BYTES: usize = 64 * 1024;
/// The longest id that its registry may give an entry.
pub const URULE_ID_MAX_BYTES: usize = 128;
