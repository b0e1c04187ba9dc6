//! How fast events go from the log to NATS. Run it in a release build:
//! `cargo nextest run --cargo-profile release -p sandkeep-nats --run-ignored all -E 'test(measure_)' --no-capture`

use std::time::{Duration, Instant};

use crate::broker::{STREAM, World, stored};
use crate::server::Server;
use crate::stored::assert_complete;
use crate::support::eventually_some;
use crate::{options, skip_without_server, stored};

const EVENTS: u64 = 50_000;

/// How long this process has run on any processor: what a busy machine does not change much.
fn cpu_time() -> Duration {
    rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime)
        .try_into()
        .expect("time goes forward")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn measure_events_per_second_from_the_log_to_a_stream() {
    skip_without_server!();
    for users in [1_000, 100, 10, 1] {
        let server = Server::start();
        let world = World::new().await;
        let publishing = world.publish(options(&server), stored());
        let (began, used) = (Instant::now(), cpu_time());
        world.emit_many(usize::try_from(EVENTS).expect("few"), users);
        let recorded = began.elapsed();
        eventually_some("all have arrived", async || {
            (world.metric("acknowledged_total").await >= EVENTS).then_some(())
        })
        .await;
        let (took, used) = (began.elapsed(), cpu_time().saturating_sub(used));
        let per_second = |time: Duration| EVENTS as f64 / time.as_secs_f64();
        println!(
            "{users} lanes: {EVENTS} events recorded in {recorded:?}, stored by NATS {took:?} after the first: \
             {:.0} per second, {:.0} per second of our own processor time",
            per_second(took),
            per_second(used)
        );
        if users == 100 {
            let found = stored::stored(&server, STREAM).await;
            assert_complete(&found, &world.events(), world.broker.instance());
        }
        publishing.stop().await;
    }
}
