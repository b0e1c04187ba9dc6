//! Terminals, seen from a real one: the binary runs in a pseudo-terminal that the test types into, resizes and reads.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{LocalModes, Termios, Winsize, tcgetattr, tcsetwinsize};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::{Message, WebSocket, client};

use crate::daemon;
use crate::support::{Daemon, Patience, binary, until};

/// A window with a terminal in it.
struct Window {
    keyboard: File,
    line: OwnedFd,
    shown: Arc<Mutex<Vec<u8>>>,
}

impl Window {
    fn open(rows: u16, cols: u16) -> Self {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)
            .expect("a terminal");
        unlockpt(&ours).expect("it can be opened");
        let line = ioctl_tiocgptpeer(
            &ours,
            OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC,
        )
        .expect("its line");
        let keyboard = File::from(ours);
        let shown = Arc::new(Mutex::new(Vec::new()));
        let (mut screen, seen) = (keyboard.try_clone().expect("a copy"), Arc::clone(&shown));
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // It ends by an error when the last end of the line is closed.
            while let Ok(count @ 1..) = screen.read(&mut buffer) {
                seen.lock().expect("nobody panics with it").extend_from_slice(&buffer[..count]);
            }
        });
        let window = Self { keyboard, line, shown };
        window.resize(rows, cols);
        window
    }

    fn resize(&self, rows: u16, cols: u16) {
        let size = Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.keyboard, size).expect("it has a size");
    }

    fn settings(&self) -> Termios {
        tcgetattr(&self.line).expect("it has settings")
    }

    /// Runs the binary in it, as the leader of a session as a login would be.
    fn run(&self, daemon: &Daemon, arguments: &[&str]) -> Child {
        let end = || self.line.try_clone().expect("a copy");
        let mut command = Command::new("setsid");
        command.arg("--ctty").arg(binary().get_program()).args(arguments);
        command.env("SANDKEEP_URL", daemon.url()).env("SANDKEEP_CONFIG", "/dev/null");
        command.env("TERM", "xterm").stdin(end()).stdout(end()).stderr(end());
        command.spawn().expect("the binary runs")
    }

    fn type_in(&self, keys: &str) {
        (&self.keyboard).write_all(keys.as_bytes()).expect("it takes keys");
    }

    fn text(&self) -> String {
        let shown = self.shown.lock().expect("nobody panics with it");
        String::from_utf8_lossy(&shown).into_owned()
    }

    fn wait_for(&self, text: &str) {
        let seen = || self.text().contains(text);
        until(&format!("{text:?} is shown"), Patience::Short, seen);
    }
}

fn assert_restored(window: &Window, before: &Termios) {
    let now = window.settings();
    let modes = |t: &Termios| (t.input_modes, t.output_modes, t.local_modes, t.control_modes);
    assert_eq!(modes(&now), modes(before), "{}", window.text());
}

/// Waits until the command has the keyboard to itself.
fn until_raw(window: &Window) {
    until("the terminal is lent", Patience::Short, || {
        !window.settings().local_modes.contains(LocalModes::ICANON)
    });
}

#[test]
fn a_shell_feels_like_one_and_leaves_the_terminal_as_it_was() {
    let daemon = daemon!();
    let id = daemon.create();
    let window = Window::open(33, 101);
    let before = window.settings();
    let mut shell = window.run(&daemon, &["shell", &id]);
    until_raw(&window);
    window.type_in("stty size; echo mark-$((40 + 2)); echo $TERM; tty\r");
    window.wait_for("33 101\r\n");
    window.wait_for("mark-42\r\nxterm\r\n/dev/pts/");
    window.resize(44, 122);
    until("the new size is there", Patience::Short, || {
        window.type_in("stty size\r");
        window.text().contains("44 122\r\n")
    });
    // Before it says so, Ctrl-C might still be for the shell.
    window.type_in("sh -c 'echo in-$((1 + 1)); exec sleep 1000'\r");
    window.wait_for("in-2\r\n");
    window.type_in("\x03");
    window.wait_for("^C");
    window.type_in("echo after-$((1 + 1)); (exit 7)\r");
    window.wait_for("after-2\r\n");
    window.type_in("\x04");
    assert_eq!(shell.wait().expect("it ends").code(), Some(7), "{}", window.text());
    assert_restored(&window, &before);
}

#[test]
fn a_prompt_shows_the_name_that_the_sandbox_has_now() {
    let daemon = daemon!();
    let id = daemon.create_with(&json!({ "name": "web" }));
    let prompt_of = |command: &[&str]| {
        let window = Window::open(33, 101);
        let mut shell = window.run(&daemon, command);
        until_raw(&window);
        until("a prompt is shown", Patience::Short, || window.text().contains('$'));
        window.type_in("exit\r");
        shell.wait().expect("it ends");
        window.text()
    };
    let first = prompt_of(&["shell", "web"]);
    assert!(first.contains("user@web:~$ "), "{first:?}");
    daemon.expect(200, "PATCH", &format!("/api/v1/sandboxes/{id}"), &json!({ "name": "shop" }));
    let second = prompt_of(&["shell", "shop"]);
    assert!(second.contains("user@shop:~$ ") && !second.contains("web"), "{second:?}");
    let own = "echo 'PS1=mine-\\$' > ~/.bashrc";
    daemon.sh(&id, own).ok();
    let chosen = prompt_of(&["shell", "shop"]);
    assert!(chosen.contains("mine-$") && !chosen.contains("user@shop"), "{chosen:?}");
}

#[test]
fn a_shell_may_be_named_or_given_by_its_path() {
    let daemon = daemon!();
    let id = daemon.create();
    for (program, code) in [("sh", 3), ("/bin/sh", 3), ("/no/such 'shell", 127)] {
        let window = Window::open(24, 80);
        let mut shell = window.run(&daemon, &["shell", "--shell", program, &id]);
        if code != 127 {
            until_raw(&window);
            window.type_in("echo runs-$((1 + 1))-$0; exit 3\r");
            window.wait_for(&format!("runs-2-{program}\r\n"));
        }
        assert_eq!(shell.wait().expect("it ends").code(), Some(code), "{}", window.text());
    }
}

#[test]
fn a_command_in_a_terminal_gives_its_exit_code() {
    let daemon = daemon!();
    let id = daemon.create();
    let window = Window::open(24, 80);
    let before = window.settings();
    let script = "test -t 0 && test -t 1 && read line && echo got-$line; exit 5";
    let mut exec = window.run(&daemon, &["exec", "-it", &id, "--", "sh", "-c", script]);
    until_raw(&window);
    window.type_in("keys\r");
    assert_eq!(exec.wait().expect("it ends").code(), Some(5), "{}", window.text());
    window.wait_for("got-keys\r\n");
    assert_restored(&window, &before);
}

#[test]
fn a_terminal_whose_owner_is_asked_to_go_is_given_back_and_its_command_ends() {
    let daemon = daemon!();
    let id = daemon.create();
    for (signal, code) in [(Signal::TERM, 143), (Signal::HUP, 129)] {
        let window = Window::open(24, 80);
        let before = window.settings();
        let mut shell = window.run(&daemon, &["shell", &id]);
        until_raw(&window);
        window.type_in("echo up-$((1 + 1))\r");
        window.wait_for("up-2\r\n");
        let pid = Pid::from_child(&shell);
        kill_process(pid, signal).expect("it lives");
        assert_eq!(shell.wait().expect("it ends").code(), Some(code), "{}", window.text());
        assert_restored(&window, &before);
    }
    until("the shells have ended", Patience::Short, || {
        let execs =
            daemon.expect(200, "GET", &format!("/api/v1/sandboxes/{id}/execs"), &Value::Null);
        let execs = execs["items"].as_array().expect("a list").clone();
        execs.len() == 2 && execs.iter().all(|exec| exec["status"] == "canceled")
    });
}

#[test]
fn a_terminal_is_given_back_when_the_daemon_dies() {
    let mut daemon = daemon!();
    let id = daemon.create();
    let window = Window::open(24, 80);
    let before = window.settings();
    let mut shell = window.run(&daemon, &["shell", &id]);
    until_raw(&window);
    window.type_in("echo up-$((1 + 1))\r");
    window.wait_for("up-2\r\n");
    daemon.kill_9();
    assert_eq!(shell.wait().expect("it ends").code(), Some(125), "{}", window.text());
    window.wait_for("lost the connection");
    assert_restored(&window, &before);
    daemon.start_again(&crate::support::Setup::default());
}

#[test]
fn a_keyboard_that_is_none_is_refused_and_a_terminal_without_one_is_not() {
    let daemon = daemon!();
    let id = daemon.create();
    let call = |arguments: &[&str]| {
        let output = binary().env("SANDKEEP_URL", daemon.url()).args(arguments).output();
        crate::support::Ran::from(output.expect("the binary runs"))
    };
    for arguments in [&["exec", "-it", &id, "--", "true"][..], &["shell", &id]] {
        let ran = call(arguments);
        assert_eq!(ran.code, 125, "{ran:?}");
        assert!(ran.complaint().contains("the input is not a terminal"), "{ran:?}");
    }
    let ran = call(&["exec", "-t", &id, "--", "sh", "-c", "test -t 1 && echo shown; exit 6"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (6, "shown\r\n"), "{ran:?}");
}

type Socket = WebSocket<TcpStream>;

fn attach(daemon: &Daemon, target: &str) -> Socket {
    let stream = TcpStream::connect(daemon.address()).expect("it listens");
    let (socket, _) = client(format!("ws://{}{target}", daemon.address()), stream)
        .unwrap_or_else(|error| panic!("{target}: {error}"));
    socket
}

/// Reads until the bytes say this; returns all of them.
fn hear(socket: &mut Socket, text: &str) -> String {
    let mut heard = String::new();
    while !heard.contains(text) {
        if let Message::Binary(bytes) = socket.read().expect("it goes on") {
            heard.push_str(&String::from_utf8_lossy(&bytes));
        }
    }
    heard
}

fn last_event(socket: &mut Socket) -> Value {
    loop {
        if let Message::Text(text) = socket.read().expect("an end comes") {
            let event: Value = serde_json::from_str(&text).expect("JSON");
            if event["type"] != "started" {
                return event;
            }
        }
    }
}

#[test]
fn whoever_attaches_again_goes_on_at_the_byte_where_they_were() {
    let daemon = daemon!();
    let id = daemon.create();
    let execs = format!("/api/v1/sandboxes/{id}/execs");
    let script = "stty -echo; echo ready; read a; echo got-$a; read b; echo and-$b; exit 3";
    let body = json!({
        "argv": ["sh", "-c", script],
        "terminal": { "rows": 30, "cols": 90 },
        "stdin_open": true,
    });
    let begun = daemon.expect(202, "POST", &format!("{execs}?wait=false"), &body);
    let exec = begun["exec_id"].as_str().expect("an id").to_owned();
    let mut socket = attach(&daemon, &format!("{execs}/{exec}/attach"));
    assert_eq!(hear(&mut socket, "ready\r\n"), "ready\r\n");
    socket.send(Message::Binary("one\n".into())).expect("it takes keys");
    assert_eq!(hear(&mut socket, "got-one\r\n"), "got-one\r\n");
    drop(socket);
    let mut socket = attach(&daemon, &format!("{execs}/{exec}/attach?stdout_offset=7"));
    assert_eq!(hear(&mut socket, "one\r\n"), "got-one\r\n");
    socket.send(Message::Binary("two\n".into())).expect("it takes keys");
    assert_eq!(hear(&mut socket, "two\r\n"), "and-two\r\n");
    let event = last_event(&mut socket);
    assert_eq!((&event["type"], &event["exit_code"]), (&json!("exited"), &json!(3)), "{event}");
    assert!(matches!(socket.read(), Ok(Message::Close(Some(_)))), "it is closed in order");
    let seen = daemon.expect(200, "GET", &format!("{execs}/{exec}"), &Value::Null);
    assert_eq!((&seen["terminal"], &seen["exit_code"]), (&json!(true), &json!(3)), "{seen}");
}

#[test]
fn a_terminal_takes_sizes_and_signals_and_no_nonsense() {
    let daemon = daemon!();
    let id = daemon.create();
    let open = |command: &str| {
        let query = format!("rows=30&cols=90&command={}", command.replace(' ', "+"));
        attach(&daemon, &format!("/api/v1/sandboxes/{id}/terminal?{query}"))
    };
    let mut socket = open("trap 'stty size' WINCH; echo ready; while :; do sleep 0.01; done");
    hear(&mut socket, "ready\r\n");
    socket.send(Message::Text(r#"{"type":"resize","rows":50,"cols":150}"#.into())).expect("sent");
    hear(&mut socket, "50 150\r\n");
    socket.send(Message::Text(r#"{"type":"signal","signal":"KILL"}"#.into())).expect("sent");
    let event = last_event(&mut socket);
    assert_eq!((&event["type"], &event["signal"]), (&json!("signaled"), &json!(9)), "{event}");
    let mut socket = open("echo ready; sleep 1000");
    hear(&mut socket, "ready\r\n");
    socket.send(Message::Text("nonsense".into())).expect("sent");
    let closed = loop {
        if let Message::Close(frame) = socket.read().expect("a close") {
            break frame.expect("a reason");
        }
    };
    assert_eq!(u16::from(closed.code), 1008);
}

#[test]
fn only_who_may_reaches_a_terminal_and_only_as_a_websocket() {
    let daemon = daemon!();
    let id = daemon.create();
    let target = format!("/api/v1/sandboxes/{id}/terminal");
    let (status, problem) = daemon.request("GET", &target, &Value::Null);
    assert_eq!((status, &problem["code"]), (426, &json!("upgrade_required")), "{problem}");
    let stream = TcpStream::connect(daemon.address()).expect("it listens");
    let host = daemon.address();
    let page = tokio_tungstenite::tungstenite::http::Request::builder()
        .uri(format!("ws://{host}{target}"))
        .header("host", host.to_string())
        .header("origin", "http://8080-sbx.localhost:4500")
        .header("connection", "Upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-version", "13")
        .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
        .body(())
        .expect("a request");
    let refused = client(page, stream).err().map(|error| error.to_string());
    assert!(refused.as_ref().is_some_and(|text| text.contains("403")), "{refused:?}");
    let done = daemon.exec(&id, &json!({ "argv": ["true"] }));
    assert_eq!(done.outcome, "exited");
    let execs = daemon.expect(200, "GET", &format!("/api/v1/sandboxes/{id}/execs"), &Value::Null);
    assert_eq!(execs["items"].as_array().map(Vec::len), Some(1), "the page has begun nothing");
}
