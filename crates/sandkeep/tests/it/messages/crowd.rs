//! Many commands at once, commands of those who never read, and commands under way when the daemon stops.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use futures_util::StreamExt;
use sandkeep_core::limits::COMMANDS_AT_ONCE_MAX;
use sandkeep_nats::async_nats::{RequestErrorKind, Subscriber};
use serde_json::{Value, json};

use super::server::{header, headers_of, json_of, missing};
use super::verbs::House;
use crate::keys::{create_key, key_of};
use crate::skip_if;
use crate::support::{Patience, obstacle, processes_in_cgroup, until};

impl House {
    /// Sends a command whose answers come to an inbox of their own.
    fn send(&self, verb: &str, body: &Value) -> Subscriber {
        let inbox = self.caller.client.new_inbox();
        let answers = self.caller.subscribe(&inbox);
        let headers = headers_of(&[("X-API-Key", &self.key)]);
        let subject = format!("sandkeep.v1.{verb}");
        let payload = body.to_string().into();
        let client = &self.caller.client;
        let sent = client.publish_with_reply_and_headers(subject, inbox, headers, payload);
        self.caller.wait(sent).expect("it is sent");
        answers
    }

    fn processes(&self, id: &str) -> usize {
        processes_in_cgroup(&format!("{}/{id}", self.daemon.instance())).len()
    }
}

#[test]
fn a_daemon_that_stops_answers_what_is_under_way_and_takes_no_more() {
    skip_if!(obstacle());
    skip_if!(missing());
    let mut house = House::open(&[]);
    let (quick, slow) = (house.create(), house.create());
    let sleeping = |id: &str, seconds: u32| {
        house.send("exec", &json!({ "id": id, "command": format!("sleep {seconds}; echo done") }))
    };
    let (mut of_quick, mut of_slow) = (sleeping(&quick, 2), sleeping(&slow, 100_000));
    until("both commands run", Patience::Long, || {
        house.processes(&quick) > 1 && house.processes(&slow) > 1
    });
    let pid = rustix::process::Pid::from_raw(house.daemon.pid().cast_signed()).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it lives");
    until("no daemon takes commands any more", Patience::Long, || {
        let asked = house.caller.client.request("sandkeep.v1.list", "{}".into());
        match house.caller.wait(asked) {
            Ok(_) => false,
            Err(error) => error.kind() == RequestErrorKind::NoResponders,
        }
    });
    let answer = house.caller.wait(of_quick.next()).expect("an answer");
    assert_eq!(header(&answer, "Sandkeep-Status"), "200", "{}", json_of(&answer));
    assert_eq!(json_of(&answer)["stdout"], "done\n");
    // The other one is not awaited for ever: its caller is told that the daemon leaves, and it goes on.
    let answer = house.caller.wait(of_slow.next()).expect("an answer");
    assert_eq!(header(&answer, "Sandkeep-Status"), "503", "{}", json_of(&answer));
    assert!(house.daemon.wait_for_end().success());
    assert!(house.processes(&slow) > 1, "the command goes on");
    house.daemon.start_again(&house.server.setup(&["--nats-commands"]));
    super::server::wait_for_answers(&house.daemon);
    for id in [quick, slow] {
        assert_eq!(house.ask("destroy", &[], &json!({ "id": id })).0, 204);
    }
}

#[test]
fn one_organization_cannot_take_all_places_for_commands() {
    skip_if!(obstacle());
    skip_if!(missing());
    let house = House::open(&[]);
    let other = key_of(&create_key(&house.daemon.data_dir(), "other", "bob", &[])).to_owned();
    let id = house.create();
    let half = COMMANDS_AT_ONCE_MAX / 2;
    // Commands that take a place and end only when they are killed.
    let body = json!({ "id": id, "command": "sleep 100000", "on_disconnect": "kill" });
    let mut waiting: Vec<Subscriber> = Vec::new();
    let refused = loop {
        waiting.push(house.send("exec", &body));
        assert!(waiting.len() <= half + 1, "more than half of the places");
        let (status, answer) = house.ask("get", &[], &json!({ "id": id }));
        if status != 200 {
            break (status, answer);
        }
    };
    assert_eq!(refused.0, 429, "{}", refused.1);
    // One place was for the question itself.
    assert!(waiting.len() >= half.min(64), "{} of {half}", waiting.len());
    let (status, answer) = house.ask_as("sandkeep.v1.list", &[("X-API-Key", &other)], &json!({}));
    assert_eq!(status, 200, "the other organization is answered: {answer}");
    // Over REST there are places of their own.
    house
        .daemon
        .request_with(
            &[("x-api-key", &house.key)],
            "DELETE",
            &format!("/api/v1/sandboxes/{id}"),
            &Value::Null,
        )
        .expect("an answer");
    for mut answers in waiting {
        house.caller.wait(answers.next()).expect("each is answered");
    }
    let (status, _) = house.ask("list", &[], &json!({}));
    assert_eq!(status, 200, "the places are free again");
}

#[test]
fn a_caller_that_never_reads_its_answers_delays_nobody() {
    skip_if!(obstacle());
    skip_if!(missing());
    let house = House::open(&[]);
    let id = house.create();
    let address = house.server.url.trim_start_matches("nats://");
    let body = json!({ "id": id, "command": "head -c 20000000 /dev/zero | tr '\\0' x",
        "stream": true })
    .to_string();
    let mut lazy: Vec<TcpStream> = Vec::new();
    for _ in 0..4 {
        let mut stream = TcpStream::connect(address).expect("a connection");
        let head = format!("NATS/1.0\r\nX-API-Key: {}\r\n\r\n", house.key);
        let (inner, whole) = (head.len(), head.len() + body.len());
        write!(
            stream,
            "CONNECT {{\"verbose\":false,\"headers\":true,\"no_responders\":true}}\r\n\
             SUB _INBOX.lazy 1\r\nPING\r\n"
        )
        .expect("it is sent");
        let mut lines = BufReader::new(stream.try_clone().expect("a handle")).lines();
        assert!(lines.any(|line| line.is_ok_and(|line| line == "PONG")), "it is let in");
        write!(stream, "HPUB sandkeep.v1.exec _INBOX.lazy {inner} {whole}\r\n{head}{body}\r\n")
            .expect("it is sent");
        lazy.push(stream);
    }
    for _ in 0..20 {
        let (status, answer) = house.ask("exec", &[], &json!({ "id": id, "command": "echo hi" }));
        assert_eq!((status, &answer["stdout"]), (200, &json!("hi\n")), "{answer}");
    }
    drop(lazy);
    house.ask("destroy", &[], &json!({ "id": id }));
    house.daemon.assert_no_leaks();
}
