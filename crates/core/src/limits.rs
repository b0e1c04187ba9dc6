//! All limits in one place: sizes, counts, timeouts. Names of numbers end with their unit; timeouts are `Duration`s.

mod agentfense;
mod audit;
mod bench;
mod builds;
mod caught;
mod client;
mod codebases;
mod connect;
mod egress;
mod engines;
mod events;
mod grpc;
mod host;
mod messages;
mod nats;
mod network;
mod network_use;
mod pool;
mod race;
mod rules;
mod tenants;
mod traces;
mod usage;
mod volumes;

use std::time::Duration;

pub use agentfense::*;
pub use audit::*;
pub use bench::*;
pub use builds::*;
pub use caught::*;
pub use client::*;
pub use codebases::*;
pub use connect::*;
pub use egress::*;
pub use engines::*;
pub use events::*;
pub use grpc::*;
pub use host::*;
pub use messages::*;
pub use nats::*;
pub use network::*;
pub use network_use::*;
pub use pool::*;
pub use race::*;
pub use rules::*;
pub use tenants::*;
pub use traces::*;
pub use usage::*;
pub use volumes::*;

/// The unit of `memory_mb` and `disk_mb`, in bytes.
pub const MIB: u64 = 1024 * 1024;

/// Maximum size of a request body.
pub const BODY_MAX_BYTES: usize = 8 * 1024 * 1024;

/// Maximum stdin that the CLI sends with an exec: it must fit a body once it is base64.
pub const EXEC_STDIN_MAX_BYTES: usize = 5 * 1024 * 1024;
/// Chunk size for the stdin of `run` and `exec`.
pub const STDIN_CHUNK_BYTES: usize = 64 * 1024;
/// If `exec` gets no more stdin for this long, it ends the request and sends later input in a new one. Well below
/// [`BODY_READ`].
pub const STDIN_PAUSE: Duration = Duration::from_secs(10);
/// How long to wait for the end of an exec after its stdin was refused.
pub const EXEC_END_TOLD: Duration = Duration::from_secs(5);
/// How long a refused upload is drained, so that the client reads our error.
pub const REFUSED_UPLOAD_READ: Duration = Duration::from_secs(20);

/// How much of a request that is answered already is still read, and for how long, so that its connection can be used
/// for the next one.
pub const UNREAD_MAX_BYTES: usize = MIB as usize;
pub const UNREAD_READ: Duration = Duration::from_secs(5);
/// How long a client may take to send the body, and the headers, of a request.
pub const BODY_READ: Duration = Duration::from_secs(60);
pub const HEADERS_READ: Duration = Duration::from_secs(60);
/// Maximum number of concurrent connections; more wait in the listener's backlog.
pub const CONNECTIONS_MAX: usize = 16_384;
/// How many of them one principal keeps permanently; more are served, but may be displaced.
pub const CONNECTIONS_EACH_MAX: usize = CONNECTIONS_MAX / 4;
/// Unauthenticated connections: in total, from one address, and of one other user of this machine in local mode. One
/// more closes the oldest.
pub const STRANGERS_MAX: usize = 4_096;
pub const STRANGERS_OF_ADDRESS_MAX: usize = 1_024;
pub const STRANGERS_OF_USER_MAX: usize = 64;
/// How long they may take for the headers of their first request.
pub const STRANGER_HEAD: Duration = Duration::from_secs(10);
/// How long to wait after a connection could not be accepted because file descriptors ran out.
pub const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Number of items in a list: default and maximum.
pub const PAGE_DEFAULT: usize = 100;
pub const PAGE_MAX: usize = 1_000;

/// How much of each stream a blocking exec keeps from the start of the output …
pub const OUTPUT_HEAD_MAX_BYTES: usize = 4 * 1024 * 1024;
/// … and from its end; bytes in between are counted and omitted.
pub const OUTPUT_TAIL_MAX_BYTES: usize = 1024 * 1024;

/// The smallest journal of an exec: a head and two tails of a few records each.
pub const JOURNAL_MIN_BYTES: u64 = MIB;
/// How much of an exec's output is written on the thread that received it; the rest on a thread that may block.
pub const JOURNAL_AT_ONCE_BYTES: u64 = 512 * 1024;

/// How long the processes of a sandbox have between SIGTERM and SIGKILL on `stop`.
pub const STOP_GRACE: Duration = Duration::from_secs(10);

/// How long a guest may take to answer a trivial request.
pub const GUEST_ANSWER: Duration = Duration::from_secs(10);

/// How long a guest may take to open a shell.
pub const SHELL_OPEN: Duration = Duration::from_secs(15);

/// How long the guest is queried about an exec that it left unanswered.
pub const EXEC_CLEAN_UP: Duration = Duration::from_secs(60);

/// How long to wait while the guest's accept queue is full: the kernel does not signal when it has room.
pub const GUEST_QUEUE_PAUSE: Duration = Duration::from_millis(1);

/// Connections that one guest has dialed and that are unused; it opens `guest_proto::DIALS_IDLE`.
pub const DIALS_QUEUED_MAX: usize = 16;
/// Connections that have not yet sent the guest's token, and how long one may take to do so.
pub const DIALS_UNPROVEN_MAX: usize = 16;
pub const DIAL_PROOF: Duration = Duration::from_secs(5);
/// How many connections from others than the guest are examined in an interval; the rest waits.
pub const DIALS_REFUSED_MAX: usize = 10;
pub const DIALS_REFUSED_WITHIN: Duration = Duration::from_millis(10);

/// How long the sweeper waits for the locks of a `run` that was killed, and how often it looks.
pub const RUN_DIES_WITHIN: Duration = Duration::from_secs(10);
pub const RUN_DIES_POLL: Duration = Duration::from_millis(20);

/// How long a request for an exec of an earlier daemon waits until this daemon has joined that exec.
pub const REJOIN_WITHIN: Duration = Duration::from_secs(10);

/// How long reconcile waits between two looks at the world.
pub const RECONCILE_INTERVAL: Duration = Duration::from_secs(30);

/// How long requests may continue after the daemon was asked to stop.
pub const SHUTDOWN_DRAIN: Duration = Duration::from_secs(5);

/// Maximum number of sandboxes of one daemon: each has its own id range.
pub const SANDBOXES_MAX: usize = 10_000;

/// Maximum number of snapshots of one sandbox that an operator can configure, and the default.
pub const SNAPSHOTS_MAX: usize = 10_000;
pub const SNAPSHOTS_DEFAULT: usize = 100;
/// Maximum length of a snapshot's note.
pub const SNAPSHOT_NOTE_MAX_BYTES: usize = 1024;
/// Maximum number of forks of one request, and how many are created concurrently.
pub const FORKS_MAX: usize = 100;
pub const FORKS_AT_ONCE: usize = 8;

/// Maximum number of concurrent execs in one sandbox.
pub const EXECS_PER_SANDBOX_MAX: usize = 1_000;

/// Maximum number of shells of one sandbox; each may have `guest_proto::SHELL_QUEUE_MAX` queued commands.
pub const SHELLS_PER_SANDBOX_MAX: usize = guest_proto::SHELLS_MAX;
/// Maximum length of a shell command; it must fit a frame of the guest protocol.
pub const SHELL_COMMAND_MAX_BYTES: usize = guest_proto::SHELL_COMMAND_MAX;

/// Events of one exec, and chunks of its stdin, that may be queued inside the daemon.
pub const EXEC_EVENTS_MAX: usize = 16;

pub const LABELS_MAX: usize = 64;
pub const LABEL_MAX_BYTES: usize = 1024;
pub const ENV_MAX: usize = 1024;
/// One environment entry, name and value; the kernel takes at most 128 KiB for one string.
pub const ENV_ENTRY_MAX_BYTES: usize = 64 * 1024;
/// The environment of a sandbox, all entries together; an exec adds its own.
pub const ENV_TOTAL_MAX_BYTES: usize = 256 * 1024;
/// The user of a command: a name and a group, each of which Linux limits to 32 bytes.
pub const USER_MAX_BYTES: usize = 256;
/// The kernel accepts at most 128 KiB for one argument, including its terminator.
pub const ARGUMENT_MAX_BYTES: usize = 128 * 1024 - 1;
/// All strings of one exec together; it must fit a frame of the guest protocol.
pub const EXEC_STRINGS_MAX_BYTES: usize = 512 * 1024;

pub const MEMORY_MIN_MB: u64 = 8;
pub const MEMORY_DEFAULT_MB: u64 = 1024;
pub const CPUS_MIN: f64 = 0.01;
pub const CPUS_DEFAULT: f64 = 2.0;
pub const PIDS_MIN: u64 = 4;
pub const PIDS_MAX: u64 = 32_768;
pub const PIDS_DEFAULT: u64 = 512;
pub const DISK_MIN_MB: u64 = 1;
/// Default disk size of a sandbox, or its share of a small pool.
pub const DISK_DEFAULT_MB: u64 = 4096;
pub const DISK_DEFAULT_POOL_SHARE: u64 = 4;
/// A petabyte: larger sizes in bytes come close to the limit of the type.
pub const DISK_MAX_MB: u64 = 1024 * 1024 * 1024;

/// How many changes a store keeps for watchers; older revisions are `Compacted`.
pub const STORE_CHANGES_MAX: usize = 16_384;
/// Maximum size of a value in the store.
pub const STORE_VALUE_MAX_BYTES: usize = 1024 * 1024;
/// The part of a value that is reserved for what a sandbox's row has beside its record, such as its node, and for later
/// additions: a longer state, and a reason, of which one byte may take six in JSON.
pub const ROW_RESERVE_BYTES: usize = 64 * 1024;
/// Maximum length of a stored reason; the rest is cut off.
pub const REASON_MAX_BYTES: usize = 8 * 1024;
/// Queue length of the store's writer.
pub const STORE_QUEUE_MAX: usize = 4_096;
/// Changes that a watcher of the store reads at once, and that may be queued for it.
pub const STORE_WATCH_BATCH_MAX: usize = 256;
/// Concurrent reads of the store.
pub const STORE_READERS_MAX: usize = 4;
/// Size of the write-ahead log before it is checkpointed into the store's file.
pub const STORE_WRITE_AHEAD_MAX_BYTES: usize = 4 * 1024 * 1024;
/// How long the store waits for a lock that another process holds on its file.
pub const STORE_BUSY: Duration = Duration::from_secs(5);
/// Queue length of a sandbox's supervisor.
pub const SUPERVISOR_QUEUE_MAX: usize = 32;

/// Concurrent connections to the ports of one sandbox.
pub const PORT_CONNECTIONS_MAX: usize = 512;
/// Sockets of the host that may forward to the ports of one sandbox.
pub const PORT_LISTENERS_MAX: usize = 64;
/// How long a connection into a sandbox may be idle in both directions.
pub const PORT_IDLE: Duration = Duration::from_secs(60 * 60);
/// How often, at most, the use of such a connection is recorded as activity of the sandbox. Well below the shortest
/// idle timeout.
pub const PORT_TOUCH: Duration = Duration::from_millis(250);
/// How long connections into sandboxes continue after the daemon was asked to stop. A stream may never end by itself,
/// and its client can reconnect.
pub const PORT_DRAIN: Duration = Duration::from_millis(500);
/// Limits of a server's response headers: lines, and bytes.
pub const PORT_HEADERS_MAX: usize = 128;
pub const PORT_HEADERS_MAX_BYTES: usize = 128 * 1024;
/// Validity of a signed URL: default and maximum.
pub const PORT_PASS_DEFAULT: Duration = Duration::from_secs(60 * 60);
pub const PORT_PASS_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Concurrent processes in one sandbox, and processes over its lifetime.
pub const PROCESSES_PER_SANDBOX_MAX: usize = 64;
pub const PROCESSES_KEPT_MAX: usize = 1_000;
/// How long the start of a process waits for it to be ready: default and maximum.
pub const PROCESS_READY_DEFAULT: Duration = Duration::from_secs(30);
pub const PROCESS_READY_MAX: Duration = Duration::from_secs(10 * 60);
/// How long freezing all processes of a sandbox may take.
pub const FREEZE_SETTLES: Duration = Duration::from_secs(5);
/// Polling interval during a freeze.
pub const FREEZE_LOOK_AGAIN: Duration = Duration::from_millis(1);
/// How long a pause waits for running execs: default and maximum.
pub const PAUSE_DRAIN_DEFAULT: Duration = Duration::from_secs(10);
pub const PAUSE_DRAIN_MAX: Duration = Duration::from_secs(600);
/// How many blocking execs an error names.
pub const EXECS_NAMED_MAX: usize = 10;

/// Timeout of one readiness probe, and the pauses between two.
pub const PROCESS_PROBE: Duration = Duration::from_secs(5);
pub const PROCESS_PROBE_PAUSE_MIN: Duration = Duration::from_millis(5);
pub const PROCESS_PROBE_PAUSE_MAX: Duration = Duration::from_millis(500);
/// How much of each stream is reported for a process that ended before it was ready.
pub const PROCESS_LAST_OUTPUT_BYTES: u64 = 4 * 1024;

/// How long the benchmark waits for an answer before it fails.
pub const BENCH_ANSWER: Duration = Duration::from_secs(60);
/// The pause before every operation of a paced benchmark.
pub const BENCH_PAUSE: Duration = Duration::from_millis(20);
/// How many samples of each rate are taken, how much a streamed command prints (what a journal keeps completely), and
/// how long wrk runs.
pub const BENCH_RATE_SAMPLES: usize = 5;
pub const BENCH_STREAM_BYTES: u64 = 40 * 1024 * 1024;
pub const BENCH_WRK_SECS: u64 = 2;
pub const BENCH_ROUNDS_MAX: i64 = 100_000;
/// Idle sandboxes of each runtime whose memory is measured together.
pub const BENCH_IDLE_SANDBOXES: u32 = 10;
/// Warm-up rounds.
pub const BENCH_WARMUP_ROUNDS: usize = 5;
/// Yardsticks that take a good part of a second run only in every n-th round.
pub const BENCH_SLOW_EVERY: usize = 10;

/// Maximum depth of a volume's tree when it is measured; every level holds a file descriptor.
pub const WALK_DEPTH_MAX: usize = 128;
/// Number of changes in a diff: default and maximum; and how many names it examines.
pub const DIFF_CHANGES_DEFAULT: usize = 10_000;
pub const DIFF_CHANGES_MAX: usize = 200_000;
pub const DIFF_ENTRIES_MAX: usize = 5_000_000;
/// How long before a snapshot a file must have been unchanged for its timestamps to prove that it is still the same.
pub const DIFF_SETTLED: Duration = Duration::from_secs(2);
/// How many removed and added files are compared to detect renames, and how much of their content.
pub const DIFF_RENAME_FILES_MAX: usize = 1_000;
pub const DIFF_RENAME_MAX_BYTES: u64 = 256 * MIB;
/// Line diffs: the maximum size of a file and of all texts of a diff together, and how long one comparison may search
/// for the shortest result.
pub const DIFF_TEXT_FILE_MAX_BYTES: u64 = MIB;
pub const DIFF_TEXT_MAX_BYTES: usize = 8 * 1024 * 1024;
pub const DIFF_TEXT_EFFORT: Duration = Duration::from_millis(500);
/// Streaming of a diff's files: queued pieces, how long the client may take for one piece, and for all.
pub const DIFF_CHUNKS_QUEUED: usize = 16;
pub const DIFF_STALL: Duration = Duration::from_secs(60);
pub const DIFF_STREAM_MAX: Duration = Duration::from_secs(3600);
/// How many paths one revert may restore, and how long it may take.
pub const REVERT_PATHS_MAX: usize = 1_000;
pub const REVERT_MAX: Duration = Duration::from_secs(600);
/// A revert that this many daemons died on is abandoned.
pub const REVERT_ATTEMPTS_MAX: u32 = 3;
/// The largest list of changes that is transferred, and how many pieces of the stream are queued for writing.
pub const APPLY_MANIFEST_MAX_BYTES: u64 = 256 * MIB;
pub const APPLY_CHUNKS_QUEUED: usize = 16;
/// The maximum number of names of one directory that are read, and that are kept in memory.
pub const DIRECTORY_ENTRIES_MAX: usize = 1_000_000;
/// The kernel's limit for a file's extended attributes, for all names together and for one value.
pub const ATTRIBUTE_MAX_BYTES: usize = 64 * 1024;
/// Maximum number of layers of a volume: the same as for images elsewhere. The kernel would stack 500.
pub const LAYERS_MAX: usize = 128;
/// A file that changed this recently before a snapshot is copied again for the next one: timestamps have a granularity,
/// and another change might get the same one.
pub const SNAPSHOT_SETTLED: Duration = Duration::from_secs(1);
/// After this many destroyed volumes `btrfs` storage removes orphaned quota groups.
pub const QUOTA_SWEEP_EVERY: usize = 256;

/// How long a check of the pool and the store is valid, and how long a health request waits for one.
pub const HEALTH_FRESH: Duration = Duration::from_secs(1);
pub const HEALTH_ANSWER: Duration = Duration::from_secs(2);
/// Maximum length of a client's `x-correlation-id`.
pub const CORRELATION_ID_MAX_BYTES: usize = 128;

/// Sandboxes that reconcile handles concurrently.
pub const RECOVERIES_AT_ONCE: usize = 32;

/// How long `doctor` waits before it checks a suspected leak again.
pub const DOCTOR_LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Maximum lifetime of a sandbox: ten years, which no clock of ours overflows.
pub const TIMEOUT_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);
pub const PROFILE_NAME_MAX_BYTES: usize = 128;
/// DNS allows 253 bytes; the names of ports below it need about 40.
pub const DOMAIN_MAX_BYTES: usize = 200;
/// Maximum size of a configuration file.
pub const CONFIG_FILE_MAX_BYTES: u64 = 1024 * 1024;
/// How long the CLI waits before it shows a spinner, and how often that turns.
pub const SPINNER_AFTER: Duration = Duration::from_millis(200);
pub const SPINNER_TICK: Duration = Duration::from_millis(100);
/// Maximum number of API keys of one daemon.
pub const KEYS_MAX: usize = 10_000;
/// Maximum length of the name of an organization, a user or a project.
pub const OWNER_MAX_BYTES: usize = 256;
/// Maximum length of a token; tokens with many claims have a few KiB.
pub const TOKEN_MAX_BYTES: usize = 16 * 1024;
/// Tolerated clock difference between a token issuer and this machine.
pub const TOKEN_LEEWAY: Duration = Duration::from_secs(30);
/// How long an issuer's keys are used before they are fetched again …
pub const JWKS_FRESH: Duration = Duration::from_secs(5 * 60);
/// … and how long while the issuer does not answer.
pub const JWKS_KEEP: Duration = Duration::from_secs(60 * 60);
/// How often an issuer's keys may be fetched: this many times within this period.
pub const JWKS_FETCHES_MAX: usize = 4;
pub const JWKS_FETCHES_WITHIN: Duration = Duration::from_secs(10);
/// Limits of an issuer's answer: time, size, and number of keys.
pub const JWKS_ANSWER: Duration = Duration::from_secs(5);
pub const JWKS_MAX_BYTES: usize = 256 * 1024;
pub const JWKS_KEYS_MAX: usize = 64;
/// Timeouts of an outgoing call: resolving the host, and connecting to it.
pub const OUTGOING_RESOLVE: Duration = Duration::from_secs(10);
pub const OUTGOING_CONNECT: Duration = Duration::from_secs(10);
/// How often the key of an open stream is checked.
pub const LEASE_LOOK: Duration = Duration::from_secs(1);
/// Timeout of the TLS handshake.
pub const TLS_HANDSHAKE: Duration = Duration::from_secs(10);
pub const SLOT_MAX_BYTES: usize = 128;
/// Maximum length of an idempotency key.
pub const IDEMPOTENCY_KEY_MAX_BYTES: usize = 255;
/// How long an idempotency key is kept, and how many at most: beyond that the oldest are removed.
pub const IDEMPOTENCY_KEPT: Duration = Duration::from_secs(24 * 60 * 60);
pub const IDEMPOTENCY_KEYS_MAX: usize = 100_000;
/// Interval for removing expired idempotency keys.
pub const IDEMPOTENCY_SWEEP: Duration = Duration::from_secs(10 * 60);
/// How long a create waits for the outcome of earlier creates of the same owner, if the owner's quota does not allow
/// all of them.
pub const QUOTA_DECISION: Duration = Duration::from_secs(30);
/// How long `ensure` waits for a verb that another caller started on the sandbox.
pub const ENSURE_WAIT: Duration = Duration::from_secs(60);
/// How long a guest may take to answer the ping of `ensure`.
pub const ENSURE_PING: Duration = Duration::from_secs(5);
/// How often `ensure` starts over when other requests change the slot meanwhile.
pub const ENSURE_ATTEMPTS_MAX: usize = 8;
/// Maximum interval of the reaper; it also records the activity of sandboxes then.
pub const REAPER_INTERVAL: Duration = Duration::from_secs(30);
/// How soon the reaper checks an expired sandbox that still exists.
pub const REAPER_AGAIN: Duration = Duration::from_secs(1);
/// A wall clock that differs by no more than this has drifted and was not set.
pub const CLOCK_DRIFT: Duration = Duration::from_secs(2);
/// How long the measured size of a volume is recent enough for displaying one sandbox.
pub const SPACE_USED_FRESH: Duration = Duration::from_secs(5);
/// Callers whose rate is tracked; beyond it those with a full bucket are forgotten.
pub const RATE_BUCKETS_MAX: usize = 65_536;
/// When to retry after a limit that only other callers can free.
pub const LIMIT_RETRY_AFTER: Duration = Duration::from_secs(5);

/// The largest message of a terminal client: a paste is sent in pieces.
pub const TERMINAL_MESSAGE_MAX_BYTES: usize = 256 * 1024;
/// Chunk size for terminal input in the CLI.
pub const TERMINAL_READ_BYTES: usize = 16 * 1024;
/// Ping interval of terminal clients, and how long a client may be silent.
pub const TERMINAL_PING: Duration = Duration::from_secs(20);
pub const TERMINAL_SILENCE_MAX: Duration = Duration::from_secs(65);
/// How long a terminal client has to read the end and close its side.
pub const TERMINAL_GOODBYE: Duration = Duration::from_secs(5);

/// Isolation tests: timeout of one command, and how long a sandbox has to recover after a bomb.
pub const BATTERY_EXEC: Duration = Duration::from_secs(60);
pub const BATTERY_RECOVERY: Duration = Duration::from_secs(5);
/// How much output of an isolation test is read.
pub const BATTERY_OUTPUT_MAX_BYTES: usize = 256 * 1024;
/// Memory of the sandbox in which the bombs run: enough for a kernel in user space, and little for a host.
pub const BATTERY_MEMORY_MB: u64 = 192;
pub const BATTERY_PIDS: u64 = 128;
pub const BATTERY_DISK_MB: u64 = 3;
/// How many files and open files a bomb creates if nothing stops it.
pub const BATTERY_INODES_MAX: u64 = 50_000;
pub const BATTERY_DESCRIPTORS_MAX: u64 = 1 << 20;
/// The pool for the volumes of the isolation tests' sandboxes.
pub const BATTERY_POOL_BYTES: u64 = POOL_MIN_BYTES;

/// Maximum size of an image's manifest, index and config; registries limit them to 4 MiB.
pub const IMAGE_MANIFEST_MAX_BYTES: usize = 4 * 1024 * 1024;
pub const IMAGE_CONFIG_MAX_BYTES: usize = 4 * 1024 * 1024;
/// Maximum number of layers of an image, as with Docker, and of manifests in an index.
pub const IMAGE_LAYERS_MAX: usize = 128;
pub const IMAGE_INDEX_MAX: usize = 1_024;
/// Maximum size of an image archive, uncompressed, and number of its files that are examined.
pub const IMAGE_ARCHIVE_MAX_BYTES: u64 = 128 * 1024 * MIB;
pub const IMAGE_ARCHIVE_FILES_MAX: usize = 65_536;
/// Limits of a layer: uncompressed bytes, archive headers, bytes of a header that extends another, parts of one sparse
/// file.
pub const LAYER_MAX_BYTES: u64 = 64 * 1024 * MIB;
pub const LAYER_ENTRIES_MAX: u64 = 2_000_000;
pub const LAYER_EXTENSION_MAX_BYTES: u64 = MIB;
pub const LAYER_SPARSE_PARTS_MAX: usize = 65_536;
/// Maximum compression ratio, checked once the output exceeds the second limit.
pub const LAYER_RATIO_MAX: u64 = 200;
pub const LAYER_RATIO_FREE_BYTES: u64 = 1024 * MIB;
/// Maximum length of a path in a layer, with links resolved; the kernel accepts no longer one.
pub const LAYER_PATH_MAX_BYTES: usize = 4_095;
/// Total length of all directory paths of a layer, which are kept until its end.
pub const LAYER_DIRECTORIES_MAX_BYTES: usize = 256 * 1024 * 1024;
/// Maximum number of links in one path, as in the kernel.
pub const LAYER_LINKS_MAX: usize = 40;
/// The highest uid or gid in a layer: a sandbox has a range of 65,536.
pub const LAYER_ID_MAX: u64 = 65_535;
/// Chunk size for copying files while a layer is applied, and after how much the progress is reported.
pub const LAYER_COPY_BYTES: usize = 256 * 1024;
pub const LAYER_PROGRESS_BYTES: u64 = MIB;
/// Maximum nesting of indexes before a manifest.
pub const IMAGE_INDEX_DEPTH_MAX: usize = 3;
/// Maximum length of an image name, including its registry, and of a tag: as in Docker.
pub const IMAGE_NAME_MAX_BYTES: usize = 255;
pub const IMAGE_TAG_MAX_BYTES: usize = 128;

/// How long a registry may take to answer a request, or to send a small document, and how long it may stall during a
/// layer.
pub const REGISTRY_ANSWER: Duration = Duration::from_secs(60);
pub const REGISTRY_IDLE: Duration = Duration::from_secs(60);
/// How many consecutive attempts are made with a registry, and the pauses between them: each twice the one before.
pub const REGISTRY_ATTEMPTS_MAX: u32 = 6;
pub const REGISTRY_RETRY_MIN: Duration = Duration::from_millis(200);
pub const REGISTRY_RETRY_MAX: Duration = Duration::from_secs(10);
/// The longest `Retry-After` of a registry that is honoured; beyond it the caller gets an error.
pub const REGISTRY_RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
/// A broken connection that transferred at least this much does not count as an attempt.
pub const REGISTRY_PROGRESS_MIN_BYTES: u64 = MIB;
pub const REGISTRY_REDIRECTS_MAX: usize = 5;
/// Layers of one image that are fetched concurrently, and pieces of each that may be queued for the disk.
pub const REGISTRY_DOWNLOADS_MAX: usize = 4;
pub const REGISTRY_CHUNKS_MAX: usize = 64;
/// Chunk size for hashing files.
pub const REGISTRY_CHUNK_BYTES: usize = 256 * 1024;
/// Maximum size of a layer, compressed.
pub const REGISTRY_LAYER_MAX_BYTES: u64 = 32 * 1024 * MIB;
/// Maximum size of a token server's answer, and of a credentials file.
pub const REGISTRY_TOKEN_MAX_BYTES: usize = 256 * 1024;
pub const REGISTRY_AUTH_MAX_BYTES: u64 = MIB;
/// How much of a registry's error message is read, and how many characters of it are reported.
pub const REGISTRY_SAID_MAX_BYTES: usize = 64 * 1024;
pub const REGISTRY_SAID_SHOWN: usize = 200;
/// How long a fetched layer, partial or complete, is kept for a later pull.
pub const REGISTRY_SPOOL_KEPT: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Maximum length of a template name; image references are no longer.
pub const TEMPLATE_NAME_MAX_BYTES: usize = 255;
/// Maximum number of templates of one daemon.
pub const TEMPLATES_MAX: usize = 10_000;
/// How often the progress of an import is reported.
pub const IMPORT_PROGRESS_PAUSE: Duration = Duration::from_millis(100);
/// Default maximum size of an uploaded template.
pub const UPLOAD_DEFAULT_BYTES: u64 = 16 * 1024 * MIB;

/// Maximum length of a workspace's path, and of its URL.
pub const SOURCE_PATH_MAX_BYTES: usize = 1_024;
pub const SOURCE_URL_MAX_BYTES: usize = 2_048;
/// Limits of a directory that becomes a workspace.
pub const SOURCE_MAX_BYTES: u64 = 64 * 1024 * MIB;
pub const SOURCE_ENTRIES_MAX: u64 = 2_000_000;
/// Timeout of one git command for a workspace, and how much of its output is kept.
pub const SOURCE_GIT: Duration = Duration::from_secs(10 * 60);
pub const SOURCE_SAID_MAX_BYTES: usize = 2 * 1024;
/// How long an uploaded archive is kept for workspaces, and how many per user and in total, of which one organization
/// alone gets half.
pub const UPLOAD_KEPT: Duration = Duration::from_secs(60 * 60);
pub const UPLOADS_KEPT_PER_USER_MAX: usize = 16;
pub const UPLOADS_KEPT_MAX: usize = 128;

/// How long a template's start command may take to become ready.
pub const START_UP_READY: Duration = Duration::from_secs(120);

/// Limits of a build file or an ignore file: size, and number of lines and steps.
pub const RECIPE_MAX_BYTES: usize = 1024 * 1024;
pub const RECIPE_LINES_MAX: usize = 20_000;
pub const RECIPE_STEPS_MAX: usize = 1_000;
/// Limits of a build file: expanded text of variables, nesting of expansions, and number of exposed ports.
pub const RECIPE_EXPANDED_MAX_BYTES: usize = 2 * 1024 * 1024;
pub const RECIPE_NESTING_MAX: usize = 32;
pub const RECIPE_PORTS_MAX: usize = 1_024;

/// Maximum size of an answer to a model.
pub const MCP_ANSWER_MAX_BYTES: usize = 8 * 1024 * 1024;
/// Maximum size of a message of a model's client.
pub const MCP_MESSAGE_MAX_BYTES: usize = 8 * 1024 * 1024;
/// How many sandboxes' files are listed as resources, and how many files of each.
pub const MCP_LISTED_SANDBOXES_MAX: usize = 20;
pub const MCP_LISTED_FILES_MAX: u64 = 100;

/// Timeouts of tools for agents: a `bash` command, any other command, a file tool, and the maximum that can be
/// requested.
pub const BASH_TIMEOUT: Duration = Duration::from_secs(120);
pub const GIT_TIMEOUT: Duration = Duration::from_secs(300);
pub const FILE_TOOL_TIMEOUT: Duration = Duration::from_secs(60);
pub const TOOL_TIMEOUT_MAX: Duration = Duration::from_secs(30 * 60);
/// How much of each stream of a command a tool returns, from its beginning and from its end.
pub const TOOL_OUTPUT_HEAD_BYTES: usize = 20 * 1024;
pub const TOOL_OUTPUT_TAIL_BYTES: usize = 10 * 1024;
/// Maximum total output of a file tool, however it is composed.
pub const TOOL_ANSWER_MAX_BYTES: usize = 8 * 1024 * 1024;
/// Queued events of one tool call.
pub const TOOL_EVENTS_MAX: usize = 16;
/// Maximum length of a `tool_call_id`, and for how long, how many and how many bytes of answers are kept under them.
pub const TOOL_CALL_ID_MAX_BYTES: usize = 255;
pub const TOOL_ANSWERS_KEPT: Duration = Duration::from_secs(5 * 60);
pub const TOOL_ANSWERS_MAX: usize = 4_096;
pub const TOOL_ANSWERS_MAX_BYTES: usize = 64 * 1024 * 1024;
/// Maximum number of commits of `git_log`.
pub const GIT_LOG_COMMITS_MAX: u64 = 200;

/// Timeout of a toolbox operation without data of the caller: at most the removal of a large tree.
pub const TOOLBOX_SHORT: Duration = Duration::from_secs(120);
/// How much of the toolbox's stderr is reported.
pub const TOOLBOX_COMPLAINT_MAX_BYTES: usize = 2 * 1024;
/// Maximum length of an error message from inside a sandbox.
pub const FAILURE_MAX_BYTES: usize = 4 * 1024;
/// Maximum length of a file path, as in the kernel.
pub const FILE_PATH_MAX_BYTES: usize = 4096;
/// Concurrent watches of one sandbox's files.
pub const FILE_WATCHES_MAX: usize = 64;
/// Maximum length of a line that reports a change: two paths of which every byte is written as a number.
pub const FILE_CHANGE_MAX_BYTES: usize = 64 * 1024;
/// Directory listing: default and maximum number of entries per page, and maximum depth.
pub const FILES_PAGE_DEFAULT: u64 = 1_000;
pub const FILES_PAGE_MAX: u64 = 10_000;
pub const FILE_DEPTH_MAX: u32 = 100;
/// Maximum silence of a watch.
pub const WATCH_SILENCE_MAX: Duration = Duration::from_secs(15);
/// How long the toolbox may take to exit after its last output.
pub const TOOLBOX_END: Duration = Duration::from_secs(5);
/// How long the toolbox may take to undo an aborted upload.
pub const TOOLBOX_CLEAN_UP: Duration = Duration::from_secs(5);

/// Timeout of one run of `zfs`, how much of its output is read, and the maximum length of a pool's or dataset's name:
/// ZFS itself accepts 255 bytes including what we add.
pub const ZFS_COMMAND: Duration = Duration::from_secs(60);
pub const ZFS_OUTPUT_MAX_BYTES: u64 = 64 * MIB;
pub const ZFS_POOL_NAME_MAX_BYTES: usize = 128;
/// A dataset that was just unmounted may be busy: how often to retry, and the pause between.
pub const ZFS_BUSY_TRIES: usize = 200;
pub const ZFS_BUSY_PAUSE: Duration = Duration::from_millis(50);
/// The same for removed datasets, which may remain for a while: nothing waits longer for them.
pub const ZFS_DEAD_TRIES: usize = 40;

/// How many pieces of an archive `cp` buffers between the daemon and the disk.
pub const CP_PIECES_MAX: usize = 64;
