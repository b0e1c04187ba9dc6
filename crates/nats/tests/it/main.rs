//! Publishing to a real nats-server, which every test starts for itself. Without one they skip.

mod broker;
mod logins;
mod publishing;
mod rate;
mod registry;
mod server;
mod stored;
mod support;

use std::time::Duration;

use sandkeep_nats::{Login, Options, Tls};
use server::Server;

/// How long a message may take before a test fails.
const PATIENCE: Duration = Duration::from_secs(60);

fn options(server: &Server) -> Options {
    options_as(server, Login::Anonymous)
}

fn options_as(server: &Server, login: Login) -> Options {
    Options { servers: vec![server.url()], login, tls: Tls::default() }
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
