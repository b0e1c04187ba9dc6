//! The registration with Urule's registry, of which a small server here has the three answers that matter.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::broker::World;
use crate::support::eventually;
use sandkeep_nats::urule::{Registration, RegistryOptions};
use sandkeep_outgoing::Outgoing;

/// What the registry has, and what it was asked.
#[derive(Default)]
struct State {
    /// How many requests are refused before one is served.
    failing: usize,
    entries: BTreeSet<String>,
    posted: Vec<Value>,
    asked: Vec<String>,
    tokens: BTreeSet<String>,
}

struct Registry {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl Registry {
    fn start(failing: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let state = Arc::new(Mutex::new(State { failing, ..State::default() }));
        let served = Arc::clone(&state);
        // It ends with the process of the test.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                serve(stream, &served);
            }
        });
        Self { address, state }
    }

    fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.state.lock().expect("no server panicked"))
    }

    fn options(&self, world: &World) -> RegistryOptions {
        RegistryOptions {
            url: format!("http://{}/", self.address),
            token: Some("hush".to_owned()),
            workspaces: vec!["ws-1".to_owned(), "ws-2".to_owned()],
            profile: "default".to_owned(),
            outgoing: Outgoing::default(),
            saved: world.data().join("registrations.json"),
        }
    }
}

/// Answers one request and closes the connection.
fn serve(mut stream: TcpStream, state: &Mutex<State>) {
    let mut reader = BufReader::new(stream.try_clone().expect("a second handle"));
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        match line.trim() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let header = |name: &str| {
        let found = lines.iter().filter_map(|line| line.split_once(": "));
        let mut found = found.filter(|(key, _)| key.eq_ignore_ascii_case(name));
        found.next().map(|(_, value)| value.to_owned())
    };
    let length = header("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    if reader.read_exact(&mut body).is_err() {
        return;
    }
    let mut state = state.lock().expect("no server panicked");
    state.tokens.extend(header("authorization"));
    let request = lines[0].trim_end_matches(" HTTP/1.1").to_owned();
    state.asked.push(request.clone());
    let (status, answer) = match request.split_once(" /api/v1/runtimes") {
        _ if state.failing > 0 => {
            state.failing -= 1;
            ("500 Internal Server Error", json!({ "error": "down" }))
        }
        Some(("POST", "")) => {
            let id = format!("01ENTRY{}", state.posted.len());
            state.posted.push(serde_json::from_slice(&body).expect("JSON"));
            state.entries.insert(id.clone());
            ("201 Created", json!({ "id": id, "status": "available" }))
        }
        Some(("GET", id)) if state.entries.contains(id.trim_start_matches('/')) => {
            ("200 OK", json!({ "id": id }))
        }
        _ => ("404 Not Found", json!({ "error": { "code": "RUNTIME_NOT_FOUND" } })),
    };
    let answer = answer.to_string();
    let _ = write!(
        stream,
        "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{answer}",
        answer.len()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runtimes_are_registered_once_and_again_when_their_entry_is_gone() {
    let world = World::new().await;
    let registry = Registry::start(2);
    let registration = Registration::start(&world.broker, registry.options(&world));
    eventually("two workspaces have their entry, after failures", || {
        registry.with(|state| state.posted.len() == 2)
    })
    .await;
    let saved = || {
        let text = std::fs::read_to_string(world.data().join("registrations.json"));
        text.is_ok_and(|text| text.contains("01ENTRY1"))
    };
    eventually("the ids are saved", saved).await;
    registration.stop().await;
    registry.with(|state| {
        let posted = &state.posted[0];
        assert_eq!((&posted["workspaceId"], &posted["provider"]), (&json!("ws-1"), &json!("mock")));
        assert!(posted["capabilities"]["maxConcurrentTasks"].is_number(), "{posted}");
        assert_eq!(state.tokens, ["Bearer hush".to_owned()].into());
        state.entries.remove("01ENTRY1");
        state.asked.clear();
    });
    // The next daemon finds one entry and makes the other anew.
    let registration = Registration::start(&world.broker, registry.options(&world));
    eventually("the entry is there again", || registry.with(|state| state.posted.len() == 3)).await;
    registration.stop().await;
    registry.with(|state| {
        assert_eq!(
            state.asked,
            [
                "GET /api/v1/runtimes/01ENTRY0",
                "GET /api/v1/runtimes/01ENTRY1",
                "POST /api/v1/runtimes"
            ]
        );
        assert_eq!(state.posted[2]["workspaceId"], "ws-2");
    });
}
