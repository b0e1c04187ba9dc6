//! Publishing to a real nats-server, which every test starts for itself. Without one they skip.

mod broker;
mod logins;
mod publishing;
mod rate;
mod registry;
mod server;
mod stored;

use std::time::{Duration, Instant};

use sandkeep_nats::{Login, Options, Tls};
use server::Server;

/// How long a condition may take before a test fails; a passing test takes as long as the condition does.
const PATIENCE: Duration = Duration::from_secs(60);

fn options(server: &Server) -> Options {
    options_as(server, Login::Anonymous)
}

fn options_as(server: &Server, login: Login) -> Options {
    Options { servers: vec![server.url()], login, tls: Tls::default() }
}

/// Waits until there is a value; fails, saying `what`, if there is none in time.
async fn until_some<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(value) = look().await {
            return value;
        }
        assert!(began.elapsed() < PATIENCE, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    until_some(what, async || condition().then_some(())).await;
}

/// Returns from a test where there is no server, and says so.
#[macro_export]
macro_rules! skip_without_server {
    () => {
        if let Some(reason) = $crate::server::missing() {
            let name = std::thread::current().name().unwrap_or("a test").to_owned();
            eprintln!("SKIP {name}: {reason}");
            return;
        }
    };
}
