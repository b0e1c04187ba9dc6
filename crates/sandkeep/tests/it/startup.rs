//! Starting: every failure is one clear line and a documented exit code.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use sandkeep_bench::http::Connection;
use serde_json::{Value, json};

use crate::daemon;
use crate::support::{Daemon, Ran, Setup, binary, obstacle};

/// A `serve` that ends by itself because it cannot start.
fn serve_in(data_dir: &Path, arguments: &[&str]) -> Ran {
    let output = binary()
        .arg("serve")
        .arg("--data-dir")
        .arg(data_dir)
        .args(arguments)
        .env("SANDKEEP_STORAGE_SIZE_MB", "512")
        .output();
    output.expect("the binary runs").into()
}

fn assert_refused(ran: &Ran, code: i32, word: &str) {
    ran.assert_no_panic();
    assert_eq!(ran.code, code, "{ran:?}");
    assert!(ran.complaint().contains(word), "no {word:?} in {:?}", ran.complaint());
    let lines = ran.stderr.lines().filter(|line| line.starts_with("sandkeep: ")).count();
    assert_eq!(lines, 1, "one clear line: {ran:?}");
}

#[test]
fn a_second_daemon_on_one_data_directory_refuses() {
    let daemon = daemon!();
    let id = daemon.create();
    let ran = serve_in(&daemon.data_dir(), &["--listen", "127.0.0.1:0"]);
    assert_refused(&ran, 5, "another sandkeep");
    assert!(ran.complaint().contains(&daemon.pid().to_string()), "it does not say which: {ran:?}");
    assert_eq!(daemon.sh(&id, "echo alive").ok(), "alive", "the first one is not harmed");
}

#[test]
fn a_taken_port_is_said_and_leaves_nothing() {
    crate::skip_if!(obstacle());
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("bound").to_string();
    let data = tempfile::tempdir().expect("a temp dir");
    let ran = serve_in(data.path(), &["--listen", &address]);
    assert_refused(&ran, 3, &address);
    crate::support::assert_nothing_left(data.path());
}

#[test]
fn an_address_that_others_could_reach_is_refused() {
    let data = tempfile::tempdir().expect("a temp dir");
    assert_refused(&serve_in(data.path(), &["--listen", "0.0.0.0:0"]), 3, "loopback");
    assert_refused(&serve_in(data.path(), &["--listen", "[::]:0"]), 3, "loopback");
}

#[test]
fn a_data_directory_that_cannot_be_used_is_said() {
    let parent = tempfile::tempdir().expect("a temp dir");
    let file = parent.path().join("file");
    fs::write(&file, "not a directory").expect("it is ours");
    assert_refused(&serve_in(&file, &["--listen", "127.0.0.1:0"]), 4, "file");
    let nowhere = Path::new("/proc/sandkeep");
    assert_refused(&serve_in(nowhere, &["--listen", "127.0.0.1:0"]), 4, "/proc/sandkeep");
}

#[test]
fn a_wrong_option_is_a_usage_error() {
    let data = tempfile::tempdir().expect("a temp dir");
    let ran = serve_in(data.path(), &["--storage", "nonsense"]);
    ran.assert_no_panic();
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.stderr.contains("btrfs") && ran.stderr.contains("local"), "{ran:?}");
}

#[test]
fn a_storage_that_cannot_be_made_is_said() {
    crate::skip_if!(obstacle());
    let data = tempfile::tempdir().expect("a temp dir");
    // Larger than any disk: the image cannot be allocated.
    let output = binary()
        .args(["serve", "--listen", "127.0.0.1:0", "--storage", "btrfs", "--data-dir"])
        .arg(data.path())
        .env("SANDKEEP_STORAGE_SIZE_MB", "900000000")
        .output()
        .expect("the binary runs");
    assert_refused(&output.into(), 6, "storage");
    crate::support::assert_nothing_left(data.path());
}

#[test]
fn a_pool_size_that_cannot_be_had_is_never_worked_around() {
    crate::skip_if!(obstacle());
    let data = tempfile::tempdir().expect("a temp dir");
    for size in ["1", "900000000", "18446744073709551615"] {
        let output = binary()
            .args(["serve", "--listen", "127.0.0.1:0", "--storage", "auto", "--data-dir"])
            .arg(data.path())
            .env("SANDKEEP_STORAGE_SIZE_MB", size)
            .output()
            .expect("the binary runs");
        assert_refused(&output.into(), 6, "256 MiB");
    }
    crate::support::assert_nothing_left(data.path());
}

#[test]
fn a_registry_that_cannot_be_used_is_said_with_the_one_thing_to_do() {
    crate::skip_if!(obstacle());
    let data = tempfile::tempdir().expect("a temp dir");
    fs::write(data.path().join("registry.sqlite3"), "no database at all").expect("it is ours");
    let ran = serve_in(data.path(), &["--listen", "127.0.0.1:0"]);
    assert_refused(&ran, 4, "move it away");
    assert!(!ran.complaint().contains("try again"), "{ran:?}");
}

#[test]
fn the_greeting_says_where_it_is_and_what_to_try() {
    let daemon = daemon!();
    let said = daemon.said();
    for part in [daemon.url(), daemon.data_dir().display().to_string(), "native".to_owned()] {
        assert!(said.contains(&part), "no {part} in {said}");
    }
    assert!(said.contains("create") && said.contains("exec"), "{said}");
    let health = daemon.expect(200, "GET", "/healthz", &Value::Null);
    assert_eq!(health["status"], "ok");
}

#[test]
fn the_data_directory_is_for_its_owner_alone() {
    let daemon = daemon!();
    let id = daemon.create();
    let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    assert_eq!(mode(&daemon.data_dir()), 0o700);
    assert_eq!(mode(&daemon.home(&id).join("meta.json")), 0o600);
}

#[test]
fn the_mock_is_there_only_when_asked_for() {
    let plain = daemon!();
    let problem = plain.expect(400, "POST", "/api/v1/sandboxes", &json!({ "runtime": "mock" }));
    assert!(problem["detail"].as_str().is_some_and(|d| d.contains("mock")), "{problem}");
    let listing = plain.expect(200, "GET", "/api/v1/runtimes", &Value::Null);
    let listed = listing["runtimes"].as_array().expect("a list");
    assert!(listed.iter().all(|runtime| runtime["name"] != "mock"), "{listing}");
    assert_eq!(listing["runtimes"][0]["name"], "native");
    assert_eq!(listing["runtimes"][0]["default"], true);

    let mocking = Daemon::start_with(&Setup::default().argument("--enable-mock"));
    let id = mocking.create_with(&json!({ "runtime": "mock" }));
    assert_eq!(mocking.get(&id)["runtime"], "mock");
    assert_eq!(mocking.get(&mocking.create())["runtime"], "native", "the default does not change");
}

/// The next word from a daemon to its service manager.
fn heard(manager: &UnixDatagram) -> String {
    let mut buffer = [0; 512];
    let length = manager.recv(&mut buffer).expect("it says something before the test is given up");
    String::from_utf8_lossy(&buffer[..length]).into_owned()
}

#[test]
fn the_service_manager_hears_when_the_api_answers_and_when_it_ends() {
    crate::skip_if!(obstacle());
    let place = tempfile::tempdir().expect("a temp dir");
    let path = place.path().join("notify");
    let manager = UnixDatagram::bind(&path).expect("it is ours");
    // Asked at the moment of READY, and not once the test has waited for an answer itself.
    let asked = std::thread::spawn(move || {
        let ready = loop {
            let heard = heard(&manager);
            assert!(!heard.contains("STOPPING"), "{heard}");
            if heard.starts_with("READY=1\n") {
                break heard;
            }
        };
        let address = sandkeep_bench::announced(&ready).expect("it says where it listens");
        let mut connection = Connection::open(address).expect("somebody listens");
        let answer = connection.request("GET", "/healthz", "").expect("it is answered");
        (answer.status, manager)
    });
    let path = path.display().to_string();
    let mut daemon = Daemon::start_with(&Setup::default().env("NOTIFY_SOCKET", &path));
    let (status, manager) = asked.join().expect("it was answered");
    assert_eq!(status, 200);
    let id = daemon.create();
    assert!(daemon.stop().success());
    assert!(heard(&manager).starts_with("STOPPING=1\n"));
    daemon.start_again(&Setup::default());
    assert_eq!(daemon.state(&id), "running", "sandboxes go on without the daemon");
}

#[test]
fn a_wrong_configuration_stops_a_daemon_before_it_touches_anything() {
    let place = tempfile::tempdir().expect("a temp dir");
    let (file, data) = (place.path().join("sandkeep.toml"), place.path().join("data"));
    fs::write(&file, "listen = '127.0.0.1:0'\n[limits]\nmax_sandbox = 3\n").expect("it is ours");
    for command in ["serve", "config"] {
        let output = binary()
            .arg(command)
            .arg("--config")
            .arg(&file)
            .env("SANDKEEP_DATA_DIR", &data)
            .env("LOG_LEVEL", "loud")
            .output();
        let ran: Ran = output.expect("the binary runs").into();
        assert_eq!(ran.assert_no_panic().code, 2, "{ran:?}");
        let place = format!("{}:3: limits.max_sandbox: ", file.display());
        assert!(ran.stderr.contains(&place) && ran.stderr.contains("LOG_LEVEL: "), "{ran:?}");
        assert!(ran.stderr.contains("limits.max_sandboxes"), "no nearest name: {ran:?}");
    }
    assert!(!data.exists(), "it was touched");
}

#[test]
fn the_configuration_is_shown_with_its_sources() {
    let place = tempfile::tempdir().expect("a temp dir");
    let file = place.path().join("sandkeep.toml");
    fs::write(&file, "storage = 'local'\n[profiles.a.env]\nTOKEN = 'hush'\n").expect("it is ours");
    let config = |more: &[&str]| {
        let mut command = binary();
        command.arg("config").env("SANDKEEP_CONFIG", &file).env("PORT", "4501").args(more);
        let ran: Ran = command.output().expect("the binary runs").into();
        assert_eq!(ran.assert_no_panic().code, 0, "{ran:?}");
        assert!(!format!("{ran:?}").contains("hush"), "{ran:?}");
        ran.stdout
    };
    let shown: Value =
        serde_json::from_str(&config(&["--domain", "x.example", "--json"])).expect("JSON");
    assert_eq!(shown["file"], file.display().to_string());
    let settings = shown["settings"].as_array().expect("settings");
    let of =
        |key: &str| settings.iter().find(|setting| setting["key"] == key).expect("it is there");
    assert_eq!(
        of("listen"),
        &json!({ "key": "listen", "value": "127.0.0.1:4501", "source": "env PORT" })
    );
    assert_eq!(of("storage")["source"], format!("file {}:1", file.display()));
    assert_eq!(of("domain"), &json!({ "key": "domain", "value": "x.example", "source": "flag" }));
    assert_eq!(of("enable_mock")["source"], "default");
    assert_eq!(of("profiles.a.env.TOKEN")["value"], "***");
    let table = config(&[]);
    let listen = table.lines().find(|line| line.starts_with("listen ")).expect("a row");
    assert_eq!(
        listen.split_whitespace().collect::<Vec<_>>(),
        ["listen", "127.0.0.1:4501", "env", "PORT"]
    );
}

/// The binary in a place that another user can reach, and a data directory of that user.
struct Nobody {
    place: tempfile::TempDir,
}

const NOBODY: u32 = 65_534;

impl Nobody {
    fn new() -> Self {
        let place = tempfile::tempdir().expect("a temp dir");
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).expect("ours");
        fs::copy(env!("CARGO_BIN_EXE_sandkeep"), place.path().join("sandkeep")).expect("a copy");
        let data = place.path().join("data");
        fs::create_dir(&data).expect("ours");
        chown(&data, Some(NOBODY), Some(NOBODY)).expect("root gives away");
        Self { place }
    }

    fn call(&self, arguments: &[&str]) -> Ran {
        let mut command = Command::new(self.place.path().join("sandkeep"));
        command.args(arguments).uid(NOBODY).gid(NOBODY).current_dir("/").env_clear();
        command.output().expect("the copy runs").into()
    }
}

#[test]
fn another_user_of_the_machine_is_refused() {
    let daemon = daemon!();
    let url = daemon.url();
    let stranger = Nobody::new();
    for arguments in [["ls", "--url", &url], ["create", "--url", &url]] {
        let ran = stranger.call(&arguments);
        ran.assert_no_panic();
        assert_eq!(ran.code, 1, "{ran:?}");
        assert!(ran.complaint().contains("65534"), "{ran:?}");
    }
    assert_eq!(daemon.ids(), [""; 0]);
}
