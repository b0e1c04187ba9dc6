//! What a newcomer writes to add a front door (`door.rs`), with tests that it has what every door has.

mod door;
mod house;

use axum::http::{Request, Response};
use bytes::Bytes;
use futures_util::poll;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use serde_json::{Value, json};

use house::House;

/// A request with this key, if any, over HTTP/2 and a Unix socket.
async fn post(house: &House, key: Option<&str>, path: &str, body: Value) -> Response<Incoming> {
    let request = Request::post(format!("http://localhost{path}"));
    let request = match key {
        Some(key) => request.header("x-dummy-key", key),
        None => request,
    };
    let request = request.body(Full::from(body.to_string())).expect("a request");
    house.client.clone().send_request(request).await.expect("an answer")
}

async fn json_of(answer: Response<Incoming>) -> (u16, Value) {
    let status = answer.status().as_u16();
    let body = answer.into_body().collect().await.expect("a whole body").to_bytes();
    (status, serde_json::from_slice(&body).expect("JSON"))
}

async fn sandbox(house: &House, key: Option<&str>) -> String {
    let (status, made) = json_of(post(house, key, "/dummy/sandboxes", json!({})).await).await;
    assert_eq!((status, &made["ok"]), (200, &json!(true)), "{made}");
    format!("/dummy/sandboxes/{}", made["id"].as_str().expect("an id"))
}

async fn next(body: &mut Incoming) -> Option<Result<Bytes, hyper::Error>> {
    let frame = body.frame().await?;
    Some(frame.map(|frame| frame.into_data().expect("bytes")))
}

#[tokio::test]
async fn a_door_of_a_hundred_lines_makes_sandboxes_and_tells_what_they_say() {
    let house = House::open().await;
    let sandbox = sandbox(&house, None).await;
    let run = format!("{sandbox}/run");
    let answer = post(&house, None, &run, json!({ "command": "echo hello" })).await;
    assert!(answer.headers().contains_key("x-correlation-id"), "{answer:?}");
    let said = answer.into_body().collect().await.expect("a whole body").to_bytes();
    assert_eq!(said.as_ref(), b"hello\n");
    let (status, refused) = json_of(post(&house, None, &run, json!({ "command": 7 })).await).await;
    assert_eq!((status, &refused["reason"]), (400, &json!("request")), "{refused}");
    let nowhere = "/dummy/sandboxes/sb-none/run";
    let (status, refused) = json_of(post(&house, None, nowhere, json!({})).await).await;
    assert_eq!((status, &refused["reason"]), (404, &json!("missing")), "{refused}");
}

#[tokio::test]
async fn a_revoked_key_ends_its_own_stream_and_no_other_of_the_connection() {
    let house = House::open().await;
    let (one, other) = (house.key("one").await, house.key("other").await);
    let (status, refused) = json_of(post(&house, None, "/dummy/sandboxes", json!({})).await).await;
    assert_eq!((status, &refused["reason"]), (401, &json!("key")), "{refused}");
    let mut streams = Vec::new();
    for key in [&one, &other] {
        let run = format!("{}/run", sandbox(&house, Some(&key.key)).await);
        let command = json!({ "command": "echo now; sleep 3600" });
        let mut body = post(&house, Some(&key.key), &run, command).await.into_body();
        let said = next(&mut body).await.expect("it goes on").expect("bytes");
        assert_eq!(said.as_ref(), b"now\n");
        streams.push(body);
    }
    house.auth.keys().revoke(&one.info.id).await.expect("it exists");
    let ended = next(&mut streams[0]).await;
    assert!(matches!(ended, Some(Err(_))), "not as if the command had ended: {ended:?}");
    sandbox(&house, Some(&other.key)).await;
    assert!(poll!(Box::pin(next(&mut streams[1]))).is_pending(), "the other stream goes on");
}
