//! Common parts of the tests: a separate daemon, requests to it, bounded waits, and inspection of the host independent
//! of the daemon.

mod cli;
mod daemon;
mod engines;
mod exec;
mod ground;
mod host;
mod http;
mod leaks;
mod pool;
mod raw_http;
mod wait;

use std::path::Path;

pub use cli::{Ran, binary, run_with_stdin, sandkeep};
pub use daemon::{Daemon, Setup};
pub use engines::{Engine, Kind};
pub use exec::{Finished, bytes, file_server, joined};
pub use ground::{Ground, on_ground};
pub use host::{children_named, cpu_seconds, kill_sandbox, processes_in_cgroup, wait_gone};
pub use leaks::{assert_nothing_left, cgroups_of, doctor};
pub use pool::{NoPool, Pool, zfs};
pub use raw_http::{Raw, Reply};
pub use wait::{Patience, until, until_some};

/// The top of the repository: `./test` installs programs beneath its `target`.
pub fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/sandkeep")
}

/// Why this machine cannot run the tests that need a real sandbox; `None` if it can.
pub fn obstacle() -> Option<&'static str> {
    (!rustix::process::geteuid().is_root()).then_some("needs root")
}

/// The full name of the test it stands in, without the name of the binary.
#[macro_export]
macro_rules! test_name {
    () => {{
        fn here() {}
        let path = std::any::type_name_of_val(&here);
        path.trim_end_matches("::here").split_once("::").map_or(path, |(_, name)| name)
    }};
}

/// Leaves the test, saying why, if this machine cannot run it.
#[macro_export]
macro_rules! skip_if {
    ($reason:expr) => {
        if let Some(reason) = $reason {
            eprintln!("SKIP {}: {reason}", $crate::test_name!());
            return;
        }
    };
}

/// A separate daemon, or a skip.
#[macro_export]
macro_rules! daemon {
    () => {{
        $crate::skip_if!($crate::support::obstacle());
        $crate::support::Daemon::start()
    }};
}
