use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::Method;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use http_body_util::BodyExt;
use serde_json::{Value, json};

use super::harness::broker;
use crate::Front;
use crate::auth::{Auth, KeyDraft};
use crate::kit::Origins;
use crate::kit::message::Messages;
use sandkeep_broker::LocalDirectory;
use sandkeep_core::{Principal, Scope, limits};
use sandkeep_store::MemoryStore;

struct House {
    auth: Arc<Auth>,
    messages: Messages,
    _dir: tempfile::TempDir,
}

async fn house() -> House {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let broker = broker(&dir).await;
    let directory = LocalDirectory::new(Arc::new(MemoryStore::new()), "node");
    let auth = Arc::new(Auth::open(dir.path(), Arc::new(directory), None).await.expect("empty"));
    let (origins, domain) = (Origins::default(), "localhost".to_owned());
    let auth_of_front = Arc::clone(&auth);
    let front = Front { origins, domain, ..Front::new(auth_of_front) };
    House { auth, messages: front.messages(broker, None), _dir: dir }
}

fn create(key: Option<&str>) -> Request<Body> {
    let request = Request::post("/api/v1/sandboxes");
    let request = match key {
        Some(key) => request.header("x-api-key", key),
        None => request,
    };
    request.body(Body::from(json!({ "runtime": "mock" }).to_string())).expect("a request")
}

fn tenant(organization: &str, scopes: &[Scope]) -> Principal {
    Principal {
        organization: organization.to_owned(),
        user: "ann".to_owned(),
        project: None,
        scopes: scopes.iter().copied().collect(),
    }
}

async fn json_of(response: Response) -> (u16, Value) {
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.expect("a whole body").to_bytes();
    (status, serde_json::from_slice(&body).expect("JSON"))
}

#[tokio::test]
async fn a_message_is_never_the_daemons_own_user() {
    let house = house().await;
    let (status, refused) = json_of(house.messages.answer(create(None), None).await).await;
    assert_eq!((status, &refused["code"]), (401, &json!("unauthenticated")), "{refused}");
    let (organization, user) = ("acme".to_owned(), "bob".to_owned());
    let draft = KeyDraft { organization, user, ..KeyDraft::default() };
    let key = house.auth.keys().create(draft).await.expect("a good draft").key;
    let (status, made) = json_of(house.messages.answer(create(Some(&key)), None).await).await;
    assert_eq!((status, &made["owner"]["user"]), (201, &json!("bob")), "{made}");
}

#[tokio::test]
async fn a_vouched_sender_is_who_the_configuration_says_within_its_scopes() {
    let house = house().await;
    let writer = tenant("acme", &[Scope::Read, Scope::Write]);
    let made = house.messages.answer(create(None), Some(writer)).await;
    let (status, made) = json_of(made).await;
    assert_eq!((status, &made["owner"]["organization"]), (201, &json!("acme")), "{made}");
    let reader = tenant("acme", &[Scope::Read]);
    let (status, refused) = json_of(house.messages.answer(create(None), Some(reader)).await).await;
    assert_eq!((status, &refused["code"]), (403, &json!("forbidden")), "{refused}");
}

#[tokio::test]
async fn an_organization_that_takes_all_it_can_leaves_places_to_others() {
    let house = house().await;
    let ask = |organization| {
        let request = Request::get("/api/v1/sandboxes").body(Body::empty()).expect("a request");
        house.messages.answer(request, Some(tenant(organization, &[Scope::Read])))
    };
    let mut held = Vec::new();
    let refused = loop {
        let answer = ask("greedy").await;
        match answer.status().as_u16() {
            200 => held.push(answer),
            _ => break answer,
        }
        assert!(held.len() < limits::COMMANDS_AT_ONCE_MAX, "nobody would get one");
    };
    let (status, refused) = json_of(refused).await;
    assert_eq!((status, &refused["code"]), (429, &json!("limit_reached")), "{refused}");
    assert_eq!(ask("other").await.status(), 200);
    held.clear();
    assert_eq!(ask("greedy").await.status(), 200, "what was answered is given back");
}

#[tokio::test(start_paused = true)]
async fn an_upload_that_trickles_is_refused_whatever_it_is_for() {
    let house = house().await;
    for (method, path) in [
        (Method::POST, "/api/v1/uploads"),
        (Method::PUT, "/api/v1/templates/slow/upload"),
        (Method::POST, "/api/v1/templates/slow/build"),
    ] {
        // A byte each second.
        let clock = tokio::time::interval(Duration::from_secs(1));
        let pieces = stream::unfold(clock, |mut clock| async {
            clock.tick().await;
            Some((Ok::<_, Infallible>(Bytes::from_static(b"x")), clock))
        });
        let request = Request::builder().method(method).uri(path);
        let request = request.body(Body::from_stream(pieces)).expect("a request");
        let writer = tenant("acme", &[Scope::Read, Scope::Write]);
        let (status, refused) = json_of(house.messages.answer(request, Some(writer)).await).await;
        assert_eq!((status, &refused["code"]), (408, &json!("body_too_slow")), "{path}: {refused}");
    }
}
