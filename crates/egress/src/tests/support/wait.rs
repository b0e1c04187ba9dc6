//! Waiting for a condition.

use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::tests::world::SOON;

/// How often a condition is looked at.
const PAUSE: Duration = Duration::from_millis(2);

/// Waits until this is so.
pub(crate) async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let waited = timeout(SOON, async {
        while !is_so() {
            sleep(PAUSE).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("{what}: it does not come"));
}
