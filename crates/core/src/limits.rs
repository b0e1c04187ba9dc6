//! Every bound in one place: sizes, counts, waits. Units come last in the names of numbers;
//! waits are `Duration`s.

mod audit;
mod bench;
mod client;
mod connect;
mod events;
mod host;
mod messages;
mod nats;
mod pool;
mod volumes;
mod workspace;

use std::time::Duration;

pub use audit::*;
pub use bench::*;
pub use client::*;
pub use connect::*;
pub use events::*;
pub use host::*;
pub use messages::*;
pub use nats::*;
pub use pool::*;
pub use volumes::*;
pub use workspace::*;

/// The unit of `memory_mb` and `disk_mb`, in bytes.
pub const MIB: u64 = 1024 * 1024;

/// The largest request body the API reads.
pub const BODY_MAX_BYTES: usize = 8 * 1024 * 1024;

/// How much stdin the CLI sends with an exec: what fits a body once it is base64.
pub const EXEC_STDIN_MAX_BYTES: usize = 5 * 1024 * 1024;
/// How much stdin `run` and `exec` pass on at once.
pub const STDIN_CHUNK_BYTES: usize = 64 * 1024;
/// Stdin that `exec` gets later than this after what came before has a request of its own. Well below
/// [`BODY_READ`].
pub const STDIN_PAUSE: Duration = Duration::from_secs(10);
/// How long the end of an exec may be on its way when its stdin is refused.
pub const EXEC_END_TOLD: Duration = Duration::from_secs(5);
/// How long the rest of a refused upload is read and thrown away, so that its sender gets to hear why.
pub const REFUSED_UPLOAD_READ: Duration = Duration::from_secs(20);
/// How long a client may take to send the body, and the headers, of a request.
pub const BODY_READ: Duration = Duration::from_secs(60);
pub const HEADERS_READ: Duration = Duration::from_secs(60);
/// The most connections served at once; more wait in the listener's backlog.
pub const CONNECTIONS_MAX: usize = 16_384;
/// How many of them one principal keeps for good; more are served, but others may take their places.
pub const CONNECTIONS_EACH_MAX: usize = CONNECTIONS_MAX / 4;
/// Connections that have not shown a credential: in all, from one address, and of one other user of this machine in
/// local mode. When one more comes, the oldest is closed.
pub const STRANGERS_MAX: usize = 4_096;
pub const STRANGERS_OF_ADDRESS_MAX: usize = 1_024;
pub const STRANGERS_OF_USER_MAX: usize = 64;
/// How long they may take for the head of their first request.
pub const STRANGER_HEAD: Duration = Duration::from_secs(10);
/// How long to wait after a connection could not be accepted for want of descriptors.
pub const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// How many items a list answers with unless asked otherwise, and at most.
pub const PAGE_DEFAULT: usize = 100;
pub const PAGE_MAX: usize = 1_000;

/// How much of each stream a blocking exec keeps from the start of the output …
pub const OUTPUT_HEAD_MAX_BYTES: usize = 4 * 1024 * 1024;
/// … and from its end; what lies between is counted and left out.
pub const OUTPUT_TAIL_MAX_BYTES: usize = 1024 * 1024;

/// The smallest journal of an exec: a head and two tails of some records each.
pub const JOURNAL_MIN_BYTES: u64 = MIB;
/// How much of an exec's output is written on the thread that got it; the rest by one that may wait.
pub const JOURNAL_AT_ONCE_BYTES: u64 = 512 * 1024;

/// How long the processes of a sandbox have between SIGTERM and SIGKILL on `stop`.
pub const STOP_GRACE: Duration = Duration::from_secs(10);

/// How long a guest may take to answer a request that needs no work.
pub const GUEST_ANSWER: Duration = Duration::from_secs(10);

/// How long a guest may take until a shell it opened is ready.
pub const SHELL_OPEN: Duration = Duration::from_secs(15);

/// How long a guest that left an exec unanswered is asked what became of it.
pub const EXEC_CLEAN_UP: Duration = Duration::from_secs(60);

/// How long to wait while others fill the guest's queue: the kernel does not tell when it has room.
pub const GUEST_QUEUE_PAUSE: Duration = Duration::from_millis(1);

/// Connections that one guest has dialed and nobody has taken; it opens `guest_proto::DIALS_IDLE`.
pub const DIALS_QUEUED_MAX: usize = 16;
/// Connections that have not yet shown the guest's token, and how long one may take to.
pub const DIALS_UNPROVEN_MAX: usize = 16;
pub const DIAL_PROOF: Duration = Duration::from_secs(5);
/// How many connections that are not the guest's are looked at within a while; the rest waits.
pub const DIALS_REFUSED_MAX: usize = 10;
pub const DIALS_REFUSED_WITHIN: Duration = Duration::from_millis(10);

/// How long a container engine may take to answer, and how long when it is only asked whether it is there.
pub const ENGINE_ANSWER: Duration = Duration::from_secs(60);
pub const ENGINE_IS_THERE: Duration = Duration::from_secs(5);
/// The largest answer of an engine: a list of as many containers as one daemon may have.
pub const ENGINE_ANSWER_MAX_BYTES: usize = 64 * 1024 * 1024;
/// How long an engine may take to notice that a container has ended or is gone, and how often it is asked.
pub const ENGINE_SETTLES: Duration = Duration::from_secs(30);
pub const ENGINE_LOOK_AGAIN: Duration = Duration::from_millis(10);

/// How long to wait for the end of a killed sandbox before thawing it once more: the guest may have
/// frozen something in its last moment.
pub const KILL_LOOK_AGAIN: Duration = Duration::from_millis(50);

/// How long to wait until the kernel tells how a guest that is dead has died.
pub const DEATH_TOLD: Duration = Duration::from_secs(1);

/// How long nobody must have asked the launcher for anything before it makes namespaces ahead.
pub const LAUNCHER_QUIET: Duration = Duration::from_millis(10);

/// How long to wait before another launcher is started after one could not be.
pub const LAUNCHER_RETRY: Duration = Duration::from_secs(1);

/// How long the launcher may take for one request.
pub const LAUNCHER_ANSWER: Duration = Duration::from_secs(10);

/// How long a foreign tool may take to start a guest: it may be the first of many on a busy machine.
pub const STAGE_ANSWER: Duration = Duration::from_secs(30);
/// How long to listen for the rest of what a tool that ended has written.
pub const STAGE_LAST_WORDS: Duration = Duration::from_millis(500);
/// How much of what a tool writes is kept; its last line is told.
pub const STAGE_SAID_MAX_BYTES: usize = 4 * 1024;
/// How long a tool may take to tell its version.
pub const TOOL_VERSION: Duration = Duration::from_secs(5);

/// How long the sweeper waits for the locks of a `run` that was killed, and how often it looks.
pub const RUN_DIES_WITHIN: Duration = Duration::from_secs(10);
pub const RUN_DIES_POLL: Duration = Duration::from_millis(20);

/// How long a request for an exec of an earlier daemon waits until this daemon has joined that exec.
pub const REJOIN_WITHIN: Duration = Duration::from_secs(10);

/// How long reconcile waits between two looks at the world.
pub const RECONCILE_INTERVAL: Duration = Duration::from_secs(30);

/// How long requests may go on after the daemon was asked to stop.
pub const SHUTDOWN_DRAIN: Duration = Duration::from_secs(5);

/// The most sandboxes of one daemon: each has its own id range.
pub const SANDBOXES_MAX: usize = 10_000;

/// The most snapshots of one sandbox, as an operator can allow, and as is allowed unless one does.
pub const SNAPSHOTS_MAX: usize = 10_000;
pub const SNAPSHOTS_DEFAULT: usize = 100;
/// The longest note of a snapshot.
pub const SNAPSHOT_NOTE_MAX_BYTES: usize = 1024;
/// The most forks of one request, and how many of them are made at once.
pub const FORKS_MAX: usize = 100;
pub const FORKS_AT_ONCE: usize = 8;

/// The most execs at once in one sandbox.
pub const EXECS_PER_SANDBOX_MAX: usize = 1_000;

/// The most shells of one sandbox; each may have `guest_proto::SHELL_QUEUE_MAX` commands that wait.
pub const SHELLS_PER_SANDBOX_MAX: usize = guest_proto::SHELLS_MAX;
/// The longest command of a shell; it must fit a frame of the guest protocol.
pub const SHELL_COMMAND_MAX_BYTES: usize = guest_proto::SHELL_COMMAND_MAX;

/// Events of one exec, and chunks of its stdin, that may wait inside the daemon.
pub const EXEC_EVENTS_MAX: usize = 16;

pub const LABELS_MAX: usize = 64;
pub const LABEL_MAX_BYTES: usize = 1024;
pub const ENV_MAX: usize = 1024;
/// One environment entry, name and value; the kernel takes at most 128 KiB for one string.
pub const ENV_ENTRY_MAX_BYTES: usize = 64 * 1024;
/// The environment of a sandbox, all entries together: an exec adds its own to it.
pub const ENV_TOTAL_MAX_BYTES: usize = 256 * 1024;
/// Who a command runs as: a name and a group, each of which Linux bounds at 32.
pub const USER_MAX_BYTES: usize = 256;
/// The kernel takes at most 128 KiB for one argument, its end included.
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
/// A sandbox that does not say how much disk it needs gets this much, or its share of a small pool.
pub const DISK_DEFAULT_MB: u64 = 4096;
pub const DISK_DEFAULT_POOL_SHARE: u64 = 4;
/// A petabyte: beyond it a size in bytes comes near the end of its type.
pub const DISK_MAX_MB: u64 = 1024 * 1024 * 1024;

/// How many changes a store remembers for watchers; an older revision is `Compacted`.
pub const STORE_CHANGES_MAX: usize = 16_384;
/// The largest value the store takes.
pub const STORE_VALUE_MAX_BYTES: usize = 1024 * 1024;
/// How much of a value is kept free for what a sandbox's row has beside its record, as which node has it, and for what
/// it gains after its first writing: a longer state, and a reason, of which a byte may take six in JSON.
pub const ROW_RESERVE_BYTES: usize = 64 * 1024;
/// The longest reason that is kept; the rest is cut off.
pub const REASON_MAX_BYTES: usize = 8 * 1024;
/// Requests that may wait for the store's writer.
pub const STORE_QUEUE_MAX: usize = 4_096;
/// Changes that a watcher of the store reads, and that may wait for it, at once.
pub const STORE_WATCH_BATCH_MAX: usize = 256;
/// Reads of the store that run at once.
pub const STORE_READERS_MAX: usize = 4;
/// How much is written ahead before the store's file itself is brought up to date.
pub const STORE_WRITE_AHEAD_MAX_BYTES: usize = 4 * 1024 * 1024;
/// How long the store waits for a lock that another process holds on its file.
pub const STORE_BUSY: Duration = Duration::from_secs(5);
/// Lifecycle verbs that may wait for one sandbox's supervisor.
pub const SUPERVISOR_QUEUE_MAX: usize = 32;

/// Connections into one sandbox at once, through its ports.
pub const PORT_CONNECTIONS_MAX: usize = 512;
/// Sockets of the host that may lead to the ports of one sandbox.
pub const PORT_LISTENERS_MAX: usize = 64;
/// How long a connection into a sandbox may be silent in both directions.
pub const PORT_IDLE: Duration = Duration::from_secs(60 * 60);
/// How often the use of such a connection is noted as activity of the sandbox, at most. Well below the
/// shortest idle timeout.
pub const PORT_TOUCH: Duration = Duration::from_millis(250);
/// How long connections into sandboxes go on after the daemon was asked to stop. A stream may have no end
/// of its own, and what reads from one can come again.
pub const PORT_DRAIN: Duration = Duration::from_millis(500);
/// What a server in a sandbox may answer before the body: lines, and bytes of them.
pub const PORT_HEADERS_MAX: usize = 128;
pub const PORT_HEADERS_MAX_BYTES: usize = 128 * 1024;
/// How long a signed URL holds unless it says otherwise, and at most.
pub const PORT_PASS_DEFAULT: Duration = Duration::from_secs(60 * 60);
pub const PORT_PASS_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Processes that run at once in one sandbox, and that it had in its life.
pub const PROCESSES_PER_SANDBOX_MAX: usize = 64;
pub const PROCESSES_KEPT_MAX: usize = 1_000;
/// How long the start of a process waits for it to be ready unless told otherwise, and at most.
pub const PROCESS_READY_DEFAULT: Duration = Duration::from_secs(30);
pub const PROCESS_READY_MAX: Duration = Duration::from_secs(10 * 60);
/// How long it may take until all processes of a sandbox stand still.
pub const FREEZE_SETTLES: Duration = Duration::from_secs(5);
/// The pause between two looks whether they do.
pub const FREEZE_LOOK_AGAIN: Duration = Duration::from_millis(1);
/// How long a pause lets running execs end, unless it is said, and at most.
pub const PAUSE_DRAIN_DEFAULT: Duration = Duration::from_secs(10);
pub const PAUSE_DRAIN_MAX: Duration = Duration::from_secs(600);
/// How many execs are named that hinder something.
pub const EXECS_NAMED_MAX: usize = 10;

/// How long a process has for one question whether it is ready, and the pauses between two.
pub const PROCESS_PROBE: Duration = Duration::from_secs(5);
pub const PROCESS_PROBE_PAUSE_MIN: Duration = Duration::from_millis(5);
pub const PROCESS_PROBE_PAUSE_MAX: Duration = Duration::from_millis(500);
/// How much of each stream is told of a process that ended before it was ready.
pub const PROCESS_LAST_OUTPUT_BYTES: u64 = 4 * 1024;

/// How long the benchmark waits for an answer; then something is wrong.
pub const BENCH_ANSWER: Duration = Duration::from_secs(60);
/// The rest before every operation of a paced benchmark.
pub const BENCH_PAUSE: Duration = Duration::from_millis(20);
/// How many samples of each rate are taken, how much a streamed command says (what a journal keeps whole), and
/// for how long wrk asks.
pub const BENCH_RATE_SAMPLES: usize = 5;
pub const BENCH_STREAM_BYTES: u64 = 40 * 1024 * 1024;
pub const BENCH_WRK_SECS: u64 = 2;
pub const BENCH_ROUNDS_MAX: i64 = 100_000;
/// Idle sandboxes of each runtime that are weighed together.
pub const BENCH_IDLE_SANDBOXES: u32 = 10;
/// Rounds that run before those that count.
pub const BENCH_WARMUP_ROUNDS: usize = 5;
/// Yardsticks that take a good part of a second run in every so-manieth round only.
pub const BENCH_SLOW_EVERY: usize = 10;

/// How deep a volume's tree is looked into to measure it; every level holds a descriptor.
pub const WALK_DEPTH_MAX: usize = 128;
/// How many changes a diff tells, unless asked otherwise, and at most; and how many names it looks at.
pub const DIFF_CHANGES_DEFAULT: usize = 10_000;
pub const DIFF_CHANGES_MAX: usize = 200_000;
pub const DIFF_ENTRIES_MAX: usize = 5_000_000;
/// How long before a snapshot a file must have been left alone for its times to tell that it is still the same.
pub const DIFF_SETTLED: Duration = Duration::from_secs(2);
/// How many files that are gone, and that are new, are looked at for renames, and how much of what they hold.
pub const DIFF_RENAME_FILES_MAX: usize = 1_000;
pub const DIFF_RENAME_MAX_BYTES: u64 = 256 * MIB;
/// How large a file may be for its lines to be compared, how large all texts of a diff together, and how long
/// one comparison may look for the shortest text.
pub const DIFF_TEXT_FILE_MAX_BYTES: u64 = MIB;
pub const DIFF_TEXT_MAX_BYTES: usize = 8 * 1024 * 1024;
pub const DIFF_TEXT_EFFORT: Duration = Duration::from_millis(500);
/// How many pieces of a diff's files wait for its client, how long one may take to take one, and to take all.
pub const DIFF_CHUNKS_QUEUED: usize = 16;
pub const DIFF_STALL: Duration = Duration::from_secs(60);
pub const DIFF_STREAM_MAX: Duration = Duration::from_secs(3600);
/// How many paths are brought back at once, and how long that may take.
pub const REVERT_PATHS_MAX: usize = 1_000;
pub const REVERT_MAX: Duration = Duration::from_secs(600);
/// After so many daemons that did not live to finish a revert, it is given up.
pub const REVERT_ATTEMPTS_MAX: u32 = 3;
/// The largest list of changes that is brought home, and how many pieces of the stream wait to be written.
pub const APPLY_MANIFEST_MAX_BYTES: u64 = 256 * MIB;
pub const APPLY_CHUNKS_QUEUED: usize = 16;
/// The most names of one directory that are looked at, and that are kept of it in memory.
pub const DIRECTORY_ENTRIES_MAX: usize = 1_000_000;
/// What the kernel lets the attributes of a file take, their names together or one value.
pub const ATTRIBUTE_MAX_BYTES: usize = 64 * 1024;
/// On how many layers a volume can stand: as many as images have elsewhere. The kernel would stack 500.
pub const LAYERS_MAX: usize = 128;
/// A file that changed so recently when a snapshot was made is copied again for the next one: the clock of the
/// filesystem has a grain, and another change might have the same time.
pub const SNAPSHOT_SETTLED: Duration = Duration::from_secs(1);
/// After so many destroyed volumes `btrfs` storage looks for quota groups that outlived theirs.
pub const QUOTA_SWEEP_EVERY: usize = 256;

/// How long a look at the pool and the store is good for, and how long somebody who asks for the daemon's
/// health waits for one.
pub const HEALTH_FRESH: Duration = Duration::from_secs(1);
pub const HEALTH_ANSWER: Duration = Duration::from_secs(2);
/// The longest `x-correlation-id` that is taken over.
pub const CORRELATION_ID_MAX_BYTES: usize = 128;

/// Sandboxes that reconcile deals with at once.
pub const RECOVERIES_AT_ONCE: usize = 32;

/// How long `doctor` waits before it looks again at something that seems to be nobody's.
pub const DOCTOR_LOOK_AGAIN: Duration = Duration::from_millis(100);

/// The longest life that a sandbox can be given: ten years, which no clock of ours runs past.
pub const TIMEOUT_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);
pub const PROFILE_NAME_MAX_BYTES: usize = 128;
/// DNS allows 253; the names of ports below it need about 40.
pub const DOMAIN_MAX_BYTES: usize = 200;
/// The largest configuration file that is read.
pub const CONFIG_FILE_MAX_BYTES: u64 = 1024 * 1024;
/// How long the CLI waits before it shows that something takes its time, and how often that turns.
pub const SPINNER_AFTER: Duration = Duration::from_millis(200);
pub const SPINNER_TICK: Duration = Duration::from_millis(100);
/// The most API keys of one daemon.
pub const KEYS_MAX: usize = 10_000;
/// The longest name of an organization, a user or a project.
pub const OWNER_MAX_BYTES: usize = 256;
/// The longest token that is looked at; those with many claims have a few KiB.
pub const TOKEN_MAX_BYTES: usize = 16 * 1024;
/// How far the clocks of an issuer of tokens and of this machine may differ.
pub const TOKEN_LEEWAY: Duration = Duration::from_secs(30);
/// How long the keys of an issuer are used before they are asked for again …
pub const JWKS_FRESH: Duration = Duration::from_secs(5 * 60);
/// … and how long while the issuer does not answer.
pub const JWKS_KEEP: Duration = Duration::from_secs(60 * 60);
/// How often an issuer is asked for its keys: so many times within this while.
pub const JWKS_FETCHES_MAX: usize = 4;
pub const JWKS_FETCHES_WITHIN: Duration = Duration::from_secs(10);
/// How long an issuer may take to answer, how large its answer may be and how many keys may be in it.
pub const JWKS_ANSWER: Duration = Duration::from_secs(5);
pub const JWKS_MAX_BYTES: usize = 256 * 1024;
pub const JWKS_KEYS_MAX: usize = 64;
/// How long to look for the address of a host that is to be called, and to connect to it.
pub const OUTGOING_RESOLVE: Duration = Duration::from_secs(10);
pub const OUTGOING_CONNECT: Duration = Duration::from_secs(10);
/// How often it is looked whether the key of an open stream still holds.
pub const LEASE_LOOK: Duration = Duration::from_secs(1);
/// How long a client may take for the TLS handshake.
pub const TLS_HANDSHAKE: Duration = Duration::from_secs(10);
pub const SLOT_MAX_BYTES: usize = 128;
/// The longest name of an idempotency key.
pub const IDEMPOTENCY_KEY_MAX_BYTES: usize = 255;
/// How long an idempotency key is remembered, and how many there are at most: beyond that the oldest go.
pub const IDEMPOTENCY_KEPT: Duration = Duration::from_secs(24 * 60 * 60);
pub const IDEMPOTENCY_KEYS_MAX: usize = 100_000;
/// How long between two looks for idempotency keys that are too old.
pub const IDEMPOTENCY_SWEEP: Duration = Duration::from_secs(10 * 60);
/// How long a create waits for others of the same owner, begun before it, to be made or given up, when
/// the owner's quota does not hold them all.
pub const QUOTA_DECISION: Duration = Duration::from_secs(30);
/// How long `ensure` waits for a verb on the sandbox that another caller began.
pub const ENSURE_WAIT: Duration = Duration::from_secs(60);
/// How long a guest may take to show `ensure` that it is well.
pub const ENSURE_PING: Duration = Duration::from_secs(5);
/// How often `ensure` begins anew when others change the slot under it.
pub const ENSURE_ATTEMPTS_MAX: usize = 8;
/// The reaper looks at least so often; it also notes down the activity of sandboxes then.
pub const REAPER_INTERVAL: Duration = Duration::from_secs(30);
/// How soon the reaper looks again at a sandbox whose time is over and that is still there.
pub const REAPER_AGAIN: Duration = Duration::from_secs(1);
/// A wall clock that differs by no more than this was not set; it drifts.
pub const CLOCK_DRIFT: Duration = Duration::from_secs(2);
/// For how long the measured size of a volume is good enough for a look at one sandbox.
pub const SPACE_USED_FRESH: Duration = Duration::from_secs(5);
/// Callers whose rate is counted; beyond it those who have their full allowance are forgotten.
pub const RATE_BUCKETS_MAX: usize = 65_536;
/// When to try again what a limit refused that only others can make room for.
pub const LIMIT_RETRY_AFTER: Duration = Duration::from_secs(5);

/// The largest message of a client at a terminal: a paste comes in pieces.
pub const TERMINAL_MESSAGE_MAX_BYTES: usize = 256 * 1024;
/// How much of what is typed the command line passes on at once.
pub const TERMINAL_READ_BYTES: usize = 16 * 1024;
/// How often a client at a terminal is asked whether it is still there, and how long it may say nothing.
pub const TERMINAL_PING: Duration = Duration::from_secs(20);
pub const TERMINAL_SILENCE_MAX: Duration = Duration::from_secs(65);
/// How long a client at a terminal has to take in the end and close its side.
pub const TERMINAL_GOODBYE: Duration = Duration::from_secs(5);

/// How long one command of the escape battery may take, and how long a sandbox has to come to itself after a bomb.
pub const BATTERY_EXEC: Duration = Duration::from_secs(60);
pub const BATTERY_RECOVERY: Duration = Duration::from_secs(5);
/// What is read of what the attempts say.
pub const BATTERY_OUTPUT_MAX_BYTES: usize = 256 * 1024;
/// What the sandbox may have in which the bombs go off: enough for a kernel in user space, and little for a host.
pub const BATTERY_MEMORY_MB: u64 = 192;
pub const BATTERY_PIDS: u64 = 128;
pub const BATTERY_DISK_MB: u64 = 3;
/// How many files and open files a bomb makes where nothing stops it.
pub const BATTERY_INODES_MAX: u64 = 50_000;
pub const BATTERY_DESCRIPTORS_MAX: u64 = 1 << 20;
/// The pool in which the battery's sandboxes have their volumes.
pub const BATTERY_POOL_BYTES: u64 = POOL_MIN_BYTES;

/// The largest manifest, index and config of an image that is read; registries keep to 4 MiB.
pub const IMAGE_MANIFEST_MAX_BYTES: usize = 4 * 1024 * 1024;
pub const IMAGE_CONFIG_MAX_BYTES: usize = 4 * 1024 * 1024;
/// The most layers of an image, as with Docker, and the most manifests that an index may name.
pub const IMAGE_LAYERS_MAX: usize = 128;
pub const IMAGE_INDEX_MAX: usize = 1_024;
/// The largest archive with an image in it, uncompressed, and the most of its files that are looked at.
pub const IMAGE_ARCHIVE_MAX_BYTES: u64 = 128 * 1024 * MIB;
pub const IMAGE_ARCHIVE_FILES_MAX: usize = 65_536;
/// What a layer may hold: bytes once uncompressed, headers of its archive, bytes of one that extends
/// another, parts of one sparse file.
pub const LAYER_MAX_BYTES: u64 = 64 * 1024 * MIB;
pub const LAYER_ENTRIES_MAX: u64 = 2_000_000;
pub const LAYER_EXTENSION_MAX_BYTES: u64 = MIB;
pub const LAYER_SPARSE_PARTS_MAX: usize = 65_536;
/// So many bytes may come out of a compressed one, once there are more than these in all.
pub const LAYER_RATIO_MAX: u64 = 200;
pub const LAYER_RATIO_FREE_BYTES: u64 = 1024 * MIB;
/// The longest path of a layer, links in it followed; the kernel takes no longer one at once.
pub const LAYER_PATH_MAX_BYTES: usize = 4_095;
/// The paths of all directories of a layer, which are kept until its end.
pub const LAYER_DIRECTORIES_MAX_BYTES: usize = 256 * 1024 * 1024;
/// The most links that one path may lead through, as in the kernel.
pub const LAYER_LINKS_MAX: usize = 40;
/// The highest id of a file's owner: what a sandbox has is a range of 65,536.
pub const LAYER_ID_MAX: u64 = 65_535;
/// How much of a file is copied at once while a layer is applied, and after how much it is told.
pub const LAYER_COPY_BYTES: usize = 256 * 1024;
pub const LAYER_PROGRESS_BYTES: u64 = MIB;
/// How many indexes may lead from one to the next until there is a manifest.
pub const IMAGE_INDEX_DEPTH_MAX: usize = 3;
/// The longest name of an image, its registry included, and the longest tag: as Docker has them.
pub const IMAGE_NAME_MAX_BYTES: usize = 255;
pub const IMAGE_TAG_MAX_BYTES: usize = 128;

/// How long a registry may take to answer a request, or to send a small document, and how long it may send
/// nothing in the midst of a layer.
pub const REGISTRY_ANSWER: Duration = Duration::from_secs(60);
pub const REGISTRY_IDLE: Duration = Duration::from_secs(60);
/// How often in a row something is tried with a registry, and the pauses between: each is twice the one before.
pub const REGISTRY_ATTEMPTS_MAX: u32 = 6;
pub const REGISTRY_RETRY_MIN: Duration = Duration::from_millis(200);
pub const REGISTRY_RETRY_MAX: Duration = Duration::from_secs(10);
/// The longest pause that a registry may ask for; beyond it the caller is told instead.
pub const REGISTRY_RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
/// How much a connection must have brought before it broke, so that it counts as none of those attempts.
pub const REGISTRY_PROGRESS_MIN_BYTES: u64 = MIB;
pub const REGISTRY_REDIRECTS_MAX: usize = 5;
/// Layers of one image that are fetched at once, and pieces of each that may wait for the disk.
pub const REGISTRY_DOWNLOADS_MAX: usize = 4;
pub const REGISTRY_CHUNKS_MAX: usize = 64;
/// How much of a file is hashed at once.
pub const REGISTRY_CHUNK_BYTES: usize = 256 * 1024;
/// The largest layer, compressed as it comes.
pub const REGISTRY_LAYER_MAX_BYTES: u64 = 32 * 1024 * MIB;
/// The largest answer of a token realm, and the largest file of credentials.
pub const REGISTRY_TOKEN_MAX_BYTES: usize = 256 * 1024;
pub const REGISTRY_AUTH_MAX_BYTES: u64 = MIB;
/// What is read of the reason that a registry gives for an error, and how many characters of it are told.
pub const REGISTRY_SAID_MAX_BYTES: usize = 64 * 1024;
pub const REGISTRY_SAID_SHOWN: usize = 200;
/// How long a layer that was fetched, by half or whole, is kept for a pull that goes on with it.
pub const REGISTRY_SPOOL_KEPT: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// The longest name of a template; references of images are no longer.
pub const TEMPLATE_NAME_MAX_BYTES: usize = 255;
/// The most templates of one daemon.
pub const TEMPLATES_MAX: usize = 10_000;
/// How often it is told how far an import is.
pub const IMPORT_PROGRESS_PAUSE: Duration = Duration::from_millis(100);
/// The largest template that is uploaded, unless configured otherwise.
pub const UPLOAD_DEFAULT_BYTES: u64 = 16 * 1024 * MIB;

/// The longest path of a workspace, and the longest URL of one.
pub const SOURCE_PATH_MAX_BYTES: usize = 1_024;
pub const SOURCE_URL_MAX_BYTES: usize = 2_048;
/// What a directory may hold that becomes a workspace.
pub const SOURCE_MAX_BYTES: u64 = 64 * 1024 * MIB;
pub const SOURCE_ENTRIES_MAX: u64 = 2_000_000;
/// How long one command of git may take that brings a workspace, and what is kept of what it says.
pub const SOURCE_GIT: Duration = Duration::from_secs(10 * 60);
pub const SOURCE_SAID_MAX_BYTES: usize = 2 * 1024;
/// How long an archive is kept for workspaces to be made of, and how many of one user's and in all, of which one
/// organization alone gets half.
pub const UPLOAD_KEPT: Duration = Duration::from_secs(60 * 60);
pub const UPLOADS_KEPT_PER_USER_MAX: usize = 16;
pub const UPLOADS_KEPT_MAX: usize = 128;

/// How long what a template starts may take to be ready.
pub const START_UP_READY: Duration = Duration::from_secs(120);

/// Pieces of what a build copies that wait to be sent.
pub const UPLOAD_CHUNKS_MAX: usize = 8;
/// The time for one step of a build.
pub const BUILD_STEP_MAX: Duration = Duration::from_secs(60 * 60);
/// What a build may have said that nobody has taken yet.
pub const BUILD_EVENTS_MAX: usize = 64;
/// How much of a failed step's output is in the error.
pub const BUILD_TAIL_BYTES: usize = 2 * 1024;
/// The steps of builds whose outcome is kept, and how much all of them may hold.
pub const BUILD_CACHE_MAX: usize = 1_000;
pub const BUILD_CACHE_MAX_BYTES: u64 = 16 * 1024 * MIB;
/// What comes with a build file: how many files, and how long all their names may be.
pub const CONTEXT_ENTRIES_MAX: usize = 500_000;
pub const CONTEXT_NAMES_MAX_BYTES: usize = 64 * 1024 * 1024;
/// The largest list of users or groups that is read to find one.
pub const BUILD_USERS_MAX_BYTES: u64 = MIB;

/// A build file, or a list of what one leaves out: how large it may be, and how many lines and steps.
pub const RECIPE_MAX_BYTES: usize = 1024 * 1024;
pub const RECIPE_LINES_MAX: usize = 20_000;
pub const RECIPE_STEPS_MAX: usize = 1_000;
/// The longest text that variables may come to, how deep they may stand within each other, and how many
/// ports an image may say that it listens on.
pub const RECIPE_EXPANDED_MAX_BYTES: usize = 2 * 1024 * 1024;
pub const RECIPE_NESTING_MAX: usize = 32;
pub const RECIPE_PORTS_MAX: usize = 1_024;

/// What one call of a model may answer.
pub const MCP_ANSWER_MAX_BYTES: usize = 8 * 1024 * 1024;
/// How large a message of a model's client may be.
pub const MCP_MESSAGE_MAX_BYTES: usize = 8 * 1024 * 1024;
/// Of how many sandboxes files are listed as resources, and how many of each.
pub const MCP_LISTED_SANDBOXES_MAX: usize = 20;
pub const MCP_LISTED_FILES_MAX: u64 = 100;

/// How long a tool for agents may take: a command of `bash`, any other command, one that works on files, and the
/// longest that can be asked for.
pub const BASH_TIMEOUT: Duration = Duration::from_secs(120);
pub const GIT_TIMEOUT: Duration = Duration::from_secs(300);
pub const FILE_TOOL_TIMEOUT: Duration = Duration::from_secs(60);
pub const TOOL_TIMEOUT_MAX: Duration = Duration::from_secs(30 * 60);
/// How much of each stream of a command a tool answers, from its beginning and from its end.
pub const TOOL_OUTPUT_HEAD_BYTES: usize = 20 * 1024;
pub const TOOL_OUTPUT_TAIL_BYTES: usize = 10 * 1024;
/// What a tool that works on files may say to its end, however it is made.
pub const TOOL_ANSWER_MAX_BYTES: usize = 8 * 1024 * 1024;
/// Events of one call of a tool that may wait for whoever watches it.
pub const TOOL_EVENTS_MAX: usize = 16;
/// The longest `tool_call_id`, and for how long, how many and how much of answers are kept under them.
pub const TOOL_CALL_ID_MAX_BYTES: usize = 255;
pub const TOOL_ANSWERS_KEPT: Duration = Duration::from_secs(5 * 60);
pub const TOOL_ANSWERS_MAX: usize = 4_096;
pub const TOOL_ANSWERS_MAX_BYTES: usize = 64 * 1024 * 1024;
/// The most commits that `git_log` answers.
pub const GIT_LOG_COMMITS_MAX: u64 = 200;

/// How long the toolbox may take for what needs no data of the caller's: the removal of a large tree, at most.
pub const TOOLBOX_SHORT: Duration = Duration::from_secs(120);
/// How much of what the toolbox says on stderr is told.
pub const TOOLBOX_COMPLAINT_MAX_BYTES: usize = 2 * 1024;
/// The longest reason that is passed on from inside a sandbox.
pub const FAILURE_MAX_BYTES: usize = 4 * 1024;
/// The longest path of a file, as the kernel has it.
pub const FILE_PATH_MAX_BYTES: usize = 4096;
/// How many can watch the files of one sandbox at once.
pub const FILE_WATCHES_MAX: usize = 64;
/// The longest line that tells of a change: two paths of which every byte is written as a number.
pub const FILE_CHANGE_MAX_BYTES: usize = 64 * 1024;
/// How many entries a page of a directory has unless asked otherwise, and at most; and how deep it may go.
pub const FILES_PAGE_DEFAULT: u64 = 1_000;
pub const FILES_PAGE_MAX: u64 = 10_000;
pub const FILE_DEPTH_MAX: u32 = 100;
/// How long who watches hears nothing at all.
pub const WATCH_SILENCE_MAX: Duration = Duration::from_secs(15);
/// How long the toolbox may take to exit once it has said all.
pub const TOOLBOX_END: Duration = Duration::from_secs(5);
/// How long the toolbox may take to undo an upload that broke off.
pub const TOOLBOX_CLEAN_UP: Duration = Duration::from_secs(5);

/// How long one run of `zfs` may take, how much of what it says is read, and the longest name of a pool or dataset to
/// work in: ZFS itself takes 255 bytes with all that we add.
pub const ZFS_COMMAND: Duration = Duration::from_secs(60);
pub const ZFS_OUTPUT_MAX_BYTES: u64 = 64 * MIB;
pub const ZFS_POOL_NAME_MAX_BYTES: usize = 128;
/// A dataset that was just unmounted may be busy: how often to try again, and after what pause.
pub const ZFS_BUSY_TRIES: usize = 200;
pub const ZFS_BUSY_PAUSE: Duration = Duration::from_millis(50);
/// The same for what was removed and may stay for a while: nobody waits for it for longer.
pub const ZFS_DEAD_TRIES: usize = 40;

/// How many pieces of an archive `cp` holds between the daemon and the disk.
pub const CP_PIECES_MAX: usize = 64;
