//! The client against a server with scripted answers.

use std::path::Path;

use futures_util::TryStreamExt;
use sandkeep_core::api::{ExecStatus, OutputStream};
use sandkeep_core::{SandboxId, limits::CLIENT_LINE_MAX_BYTES};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;

use crate::{Client, Error, ExecEvent, ExecRequest, Lines};

/// Answers one request on a socket in `dir`, and returns what was asked.
async fn answering(
    dir: &Path,
    status: &str,
    body: Vec<u8>,
) -> (Client, tokio::task::JoinHandle<String>) {
    let socket = dir.join("socket");
    let listener = UnixListener::bind(&socket).expect("a socket");
    let head =
        format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
    let served = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a client");
        let mut asked = vec![0; 64 * 1024];
        let read = stream.read(&mut asked).await.expect("a request");
        stream.write_all(head.as_bytes()).await.expect("a head");
        // A client may have seen enough.
        let _ = stream.write_all(&body).await;
        String::from_utf8_lossy(&asked[..read]).into_owned()
    });
    (Client::unix(&socket, None).expect("a client"), served)
}

#[tokio::test]
async fn a_refusal_carries_its_problem() {
    let dir = tempfile::tempdir().expect("a directory");
    let problem = r#"{"type":"t","title":"T","status":409,"detail":"it is stopped","code":"wrong_state",
        "remediation":"start it","retryable":true,"instance":"/x"}"#;
    let (client, served) = answering(dir.path(), "409 Conflict", problem.into()).await;
    let id = SandboxId::random();
    let error = client.sandbox(&id).await.expect_err("it is refused");
    assert_eq!((error.code(), error.is_retryable()), (Some("wrong_state"), true));
    assert_eq!(error.to_string(), "it is stopped");
    let asked = served.await.expect("it was asked");
    assert!(asked.starts_with(&format!("GET /api/v1/sandboxes/{id} HTTP/1.1\r\n")), "{asked}");
}

#[tokio::test]
async fn what_an_exec_says_is_a_stream_of_events_that_ends_with_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let lines = concat!(
        r#"{"type":"started","exec_id":"ex00000000000000000001"}"#,
        "\n",
        r#"{"type":"stdout","offset":0,"data":"hi\n"}"#,
        "\n",
        r#"{"type":"stderr","offset":3,"data_b64":"/w=="}"#,
        "\n",
        r#"{"type":"gap","stream":"stderr","from":4,"to":9}"#,
        "\n",
        r#"{"type":"exited","exec_id":"ex00000000000000000001","exit_code":3,"truncated":false,"duration_ms":5,"stdout_bytes":3,"stderr_bytes":9}"#,
        "\n",
    );
    let id = sandkeep_core::ExecId::random();
    let lines = lines.replace("ex00000000000000000001", id.as_str());
    let (client, _) = answering(dir.path(), "200 OK", lines.into()).await;
    let request = ExecRequest::new(["true"]);
    let events = client.exec_events(&SandboxId::random(), &request).await.expect("an answer");
    let events: Vec<ExecEvent> = events.into_stream().try_collect().await.expect("its events");
    let [started, out, err, gap, ended] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!(*started, ExecEvent::Started { exec_id: id });
    let output = |stream, offset, data: &'static [u8]| ExecEvent::Output {
        stream,
        offset,
        data: data.into(),
    };
    assert_eq!(*out, output(OutputStream::Stdout, 0, b"hi\n"));
    assert_eq!(*err, output(OutputStream::Stderr, 3, b"\xff"));
    assert_eq!(*gap, ExecEvent::Gap { stream: OutputStream::Stderr, from: 4, to: 9 });
    assert!(
        matches!(ended, ExecEvent::Ended { status: ExecStatus::Exited, ending, .. } if ending.exit_code == Some(3))
    );
}

#[tokio::test]
async fn a_line_without_an_end_is_given_up() {
    let dir = tempfile::tempdir().expect("a directory");
    let body = vec![b' '; CLIENT_LINE_MAX_BYTES + 1024 * 1024];
    let (client, _) = answering(dir.path(), "200 OK", body).await;
    let response = client.get_live("/x", &()).await.expect("an answer");
    let read = Lines::of(&client, response).next::<serde_json::Value>().await;
    assert!(matches!(read, Err(Error::NotSandkeep { .. })), "{read:?}");
}

#[tokio::test]
async fn nobody_there_is_told_as_such() {
    let dir = tempfile::tempdir().expect("a directory");
    let client = Client::unix(&dir.path().join("none"), None).expect("a client");
    let error = client.templates().await.expect_err("nobody answers");
    assert!(matches!(error, Error::Unreachable { .. }) && error.is_retryable(), "{error}");
}
