//! Java's own client trusts the daemon's certificates without configuration.

use std::process::Command;

use serde_json::json;
use tempfile::TempDir;

use super::upstream::{Authority, World};
use crate::skip_if;
use crate::support::obstacle;

const CLIENT: &str = r#"
import java.net.URI;
import java.net.http.*;

class Client {
    public static void main(String[] arguments) throws Exception {
        var request = HttpRequest.newBuilder(URI.create(arguments[0])).header("x-token", System.getenv("TOKEN")).build();
        System.out.print(HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString()).body());
        System.out.print(System.getProperty("own", ""));
    }
}
"#;

fn no_java() -> Option<&'static str> {
    let found = std::path::Path::new("/usr/bin/jlink").exists();
    obstacle().or((!found).then_some("there is no JDK"))
}

/// A Java of its own, with the program. That of Debian has its settings in `/etc`, which sandboxes of the host's files do
/// not see.
fn java() -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("Client.java"), CLIENT).expect("a file");
    for command in [
        &["jlink", "--add-modules", "java.net.http,jdk.crypto.ec", "--output", "java"][..],
        &["javac", "Client.java"],
    ] {
        let ran = Command::new(command[0]).args(&command[1..]).current_dir(dir.path()).status();
        assert!(ran.expect("it runs").success(), "{command:?}");
    }
    dir
}

#[test]
fn javas_client_trusts_a_host_that_gets_a_secret() {
    skip_if!(no_java());
    let authority = Authority::new();
    let (api, world) = (authority.https(&["api.test"]), World::new().trusting(&authority));
    let daemon = world.daemon();
    let host = api.entry("api.test");
    let java = java();
    let id = daemon.create_with(&json!({
        "source": { "dir": java.path(), "path": "own" },
        "network": { "allow": [host] },
        "secrets": { "TOKEN": { "hosts": [host], "value": "hush" } },
        "resources": { "memory_mb": 1024 },
    }));
    let ran = daemon.sh(&id, &format!("java/bin/java Client https://{host}/"));
    assert_eq!(ran.ok(), "hello", "{ran:?}");
    let got = api.requests().pop().expect("a request");
    assert!(got.contains("hush"), "{got}");
    // Options of the user's own come after ours.
    let own = format!(
        "JAVA_TOOL_OPTIONS=\"$JAVA_TOOL_OPTIONS -Down=yes\" java/bin/java Client https://{host}/"
    );
    assert_eq!(daemon.sh(&id, &own).ok(), "hello\nyes");
}
