//! The relay of a clone: it forwards TLS with the host of the URL, and nothing else.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::thread::JoinHandle;

use serde_json::{Value, json};

use crate::skip_if;
use crate::support::{Daemon, Ran, Setup, binary, obstacle};
use crate::templates::images::Image;

/// A git of the image's own, which asks its proxy for the way and then says what it likes.
const GIT: &str = "#!/bin/sh
for word in \"$@\"; do
  case \"$word\" in
    http.proxy=*) proxy=${word##*:} ;;
    https://*) place=${word#https://}; place=${place%%/*} ;;
  esac
done
(printf 'CONNECT %s HTTP/1.1\\r\\n\\r\\n' \"$place\"; printf 'SSH-2.0-tunnel\\r\\n') | nc 127.0.0.1 \"$proxy\" >&2
exit 1
";

/// A server that answers with something that is not TLS; what the first caller said.
fn server() -> (SocketAddr, JoinHandle<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let heard = std::thread::spawn(move || {
        let (mut caller, _) = listener.accept().expect("a caller");
        let _ = caller.write_all(b"SSH-2.0-server\r\n");
        let mut said = Vec::new();
        let _ = caller.read_to_end(&mut said);
        said
    });
    (address, heard)
}

fn allowing(address: SocketAddr) -> Setup {
    Setup::default().argument("--outgoing-allow").argument(&address.to_string())
}

fn refused(daemon: &Daemon, spec: &Value) -> Value {
    let (status, problem) = daemon.request("POST", "/api/v1/sandboxes", spec);
    assert!(status >= 400, "{problem:#}");
    assert!(daemon.ids().is_empty(), "a sandbox is left");
    problem
}

#[test]
fn a_clone_is_no_tunnel_for_other_protocols() {
    skip_if!(crate::templates::images::obstacle());
    let image = Image::busybox().layer(|root| {
        fs::create_dir(root.join("bin")).expect("a directory");
        fs::write(root.join("bin/git"), GIT).expect("a file");
        fs::set_permissions(root.join("bin/git"), fs::Permissions::from_mode(0o755))
            .expect("a mode");
        for applet in ["nc", "printf"] {
            symlink("busybox", root.join("bin").join(applet)).expect("a link");
        }
    });
    let (address, heard) = server();
    let daemon = Daemon::start_with(&allowing(address));
    let archive = image.docker_archive();
    let mut import = binary();
    import.args(["template", "import", archive.to_str().expect("text"), "--name", "tunnel"]);
    let imported: Ran = import.env("SANDKEEP_URL", daemon.url()).output().expect("it runs").into();
    assert_eq!(imported.code, 0, "{imported:?}");
    let url = format!("https://{address}/repo.git");
    let spec = json!({ "template": "tunnel", "source": { "git": url, "path": "app" } });
    let problem = refused(&daemon, &spec);
    assert_eq!(problem["code"], "source_invalid", "{problem:#}");
    assert!(problem["detail"].as_str().is_some_and(|text| text.contains("TLS")), "{problem:#}");
    let said = heard.join().expect("it listened");
    assert_eq!(String::from_utf8_lossy(&said), "", "nothing of it came out");
}

#[test]
fn a_server_that_does_not_speak_tls_is_not_heard_inside() {
    skip_if!(obstacle());
    let (address, heard) = server();
    let daemon = Daemon::start_with(&allowing(address));
    let url = format!("https://{address}/repo.git");
    let problem = refused(&daemon, &json!({ "source": { "git": url, "path": "app" } }));
    assert_eq!(problem["code"], "source_unavailable", "{problem:#}");
    assert!(
        problem["detail"].as_str().is_some_and(|text| text.ends_with("does not speak TLS")),
        "{problem:#}"
    );
    let said = heard.join().expect("it listened");
    assert_eq!(said.first(), Some(&22), "git said hello, as TLS does");
}

#[test]
fn clones_from_elsewhere_can_be_turned_off() {
    skip_if!(obstacle());
    let (address, _) = server();
    let off = allowing(address).argument("--remote-git=false");
    let daemon = Daemon::start_with(&off);
    let url = format!("https://{address}/repo.git");
    let problem = refused(&daemon, &json!({ "source": { "git": url, "path": "app" } }));
    assert!(
        problem["detail"].as_str().is_some_and(|text| text.contains("remote_git")),
        "{problem:#}"
    );
}
