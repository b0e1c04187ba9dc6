//! Resources of the daemon that tenants share: the host's disk outside of sandboxes, and slots for long requests.

use std::time::Duration;

use super::{DISK_DEFAULT_MB, MIB};

/// Default of the host's disk space reserved for the daemon: below it nothing is written for tenants outside of the
/// pool. A growing pool leaves `POOL_HOST_RESERVE_BYTES`, which is more.
pub const HOST_RESERVE_DEFAULT_MB: u64 = 512;
/// How long a reading of the free disk space is valid.
pub const HOST_LOOK_FRESH: Duration = Duration::from_secs(1);

/// Default size of the kept output of one exec, and of one sandbox's execs.
pub const JOURNAL_EXEC_DEFAULT_BYTES: u64 = 64 * MIB;
pub const JOURNAL_EXECS_DEFAULT: u64 = 1_000;
/// The same as a sandbox may write to its own disk.
pub const JOURNAL_SANDBOX_DEFAULT_BYTES: u64 = DISK_DEFAULT_MB * MIB;
/// Every open journal has at least this much for the last output, however little space is left.
pub const JOURNAL_FLOOR_BYTES: u64 = 32 * 1024;
/// Growing data leaves this fraction (one part of so many) of a limit for new data.
pub const GROWTH_SPARE_SHARE: u64 = 8;

/// What a layer's draft uses of a quota for each file, beside its bytes, once it exceeds the free number of files.
pub const DRAFT_ENTRY_BYTES: u64 = 1024;
pub const DRAFT_ENTRIES_FREE: u64 = 4_096;
/// After how many bytes of a draft the pool is checked.
pub const DRAFT_LOOK_BYTES: u64 = 16 * MIB;
/// How many times what its owner may still have an archive can hold: that of an image has more than what is taken of it.
pub const ARCHIVE_SURPLUS: u64 = 4;

/// How much memory an organization and a user may use for unread answers, and what an answer keeps of the end of each
/// stream in any case.
pub const ANSWERS_ORGANIZATION_MB: u64 = 256;
pub const ANSWERS_USER_MB: u64 = 128;
pub const ANSWER_TAIL_BYTES: usize = 16 * 1024;
/// Chunk size for encoding an answer, and how long one may stay unread.
pub const ANSWER_PIECE_BYTES: usize = 64 * 1024;
pub const ANSWER_SILENCE_MAX: Duration = Duration::from_secs(60);

/// Concurrent imports, uploads and builds. An organization may hold as many as it leaves free: alone, half of them.
pub const IMPORTS_MAX: usize = 32;
pub const UPLOADS_MAX: usize = 32;
pub const BUILDS_MAX: usize = 8;
/// How long an upload may stall.
pub const UPLOAD_SILENCE_MAX: Duration = Duration::from_secs(60);
/// Minimum average rate of an upload per second, once it has taken `UPLOAD_SILENCE_MAX`.
pub const UPLOAD_RATE_MIN_BYTES: u64 = 4 * 1024;
/// Maximum total time of an upload, an import and a build.
pub const UPLOAD_MAX: Duration = Duration::from_secs(6 * 60 * 60);
pub const IMPORT_MAX: Duration = Duration::from_secs(6 * 60 * 60);
pub const BUILD_MAX: Duration = Duration::from_secs(6 * 60 * 60);

/// Above this part of the host's memory for TCP the sandbox with most of it is ended, if it has this part of all itself.
pub const TCP_SHARE: u64 = 2;
pub const TCP_CULPRIT_SHARE: u64 = 8;
/// How often that is looked at, and how long to wait after a sandbox was ended for it.
pub const TCP_LOOK_INTERVAL: Duration = Duration::from_millis(100);
pub const TCP_SETTLES: Duration = Duration::from_secs(1);
