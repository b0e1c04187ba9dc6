//! A spinner for a waiting user. It is shown on stderr, only on a terminal, and only after a moment, so that fast
//! operations show nothing.

use std::future::Future;
use std::io::IsTerminal;
use std::pin::pin;

use indicatif::{ProgressBar, ProgressStyle};

use sandkeep_core::limits::{SPINNER_AFTER, SPINNER_TICK};

/// Does the work, with a spinner if it takes long.
pub async fn during<T>(what: &'static str, work: impl Future<Output = T>) -> T {
    if !std::io::stderr().is_terminal() {
        return work.await;
    }
    let mut work = pin!(work);
    tokio::select! {
        done = work.as_mut() => return done,
        () = tokio::time::sleep(SPINNER_AFTER) => {}
    }
    let style = ProgressStyle::with_template("{spinner} {msg} {elapsed}");
    let bar = ProgressBar::new_spinner().with_message(what);
    let bar = bar.with_style(style.expect("the template is a valid one"));
    bar.enable_steady_tick(SPINNER_TICK);
    let done = work.await;
    bar.finish_and_clear();
    done
}
