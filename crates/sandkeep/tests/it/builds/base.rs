//! The ready-made recipe, from a Debian installed by mmdebstrap if a mirror is reachable.

use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::sandbox;
use crate::skip_if;
use crate::support::{Daemon, Ran, binary};

const MIRROR: &str = "deb.debian.org:80";

/// Why no Debian can be brought here; `None` if it can.
fn obstacle() -> Option<&'static str> {
    if !Path::new("/usr/bin/mmdebstrap").exists() {
        return Some("needs the package mmdebstrap");
    }
    let reached = MIRROR.to_socket_addrs().is_ok_and(|mut addresses| {
        addresses.any(|to| TcpStream::connect_timeout(&to, Duration::from_secs(5)).is_ok())
    });
    if reached {
        crate::support::obstacle()
    } else {
        Some("needs a Debian mirror, and none can be reached")
    }
}

fn make(daemon: &Daemon, arguments: &[&str]) {
    let recipe = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes/base/make");
    let mut command = Command::new(recipe);
    command.args(arguments).env("SANDKEEP", binary().get_program());
    let ran: Ran = command.env("SANDKEEP_URL", daemon.url()).output().expect("it runs").into();
    assert_eq!(ran.code, 0, "{ran:?}\n{}", daemon.said());
}

fn assert_is_at_home(daemon: &Daemon) -> String {
    let id = sandbox(daemon, "base");
    let said =
        daemon.sh(&id, "id -un; id -u; pwd; sudo id -un; touch mine && stat -c %U mine").ok();
    assert_eq!(said, "user\n1000\n/home/user\nroot\nuser");
    id
}

#[test]
fn the_minimal_base_recipe_has_a_user_who_may_use_sudo() {
    skip_if!(obstacle());
    let daemon = Daemon::start();
    make(&daemon, &["--minimal"]);
    assert_is_at_home(&daemon);
}

#[test]
#[ignore = "brings some hundred megabytes of Debian"]
fn the_base_recipe_has_what_everybody_expects() {
    skip_if!(obstacle());
    let daemon = Daemon::start();
    make(&daemon, &[]);
    let id = assert_is_at_home(&daemon);
    daemon
        .sh(
            &id,
            "python3 -c 'print(1)' && node -e 'console.log(2)' && git --version && curl --version",
        )
        .ok();
}
