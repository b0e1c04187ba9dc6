//! Layers that do not arrive in one response.

use axum::body::Body;
use axum::http::Response;
use bytes::Bytes;
use futures_util::StreamExt;
use sandkeep_image::source::{Source, registry::RegistryError};
use sandkeep_tree::digest::Digest;
use serde_json::json;

use super::fake::{Answer, Asked, Content, Fake, with_header};
use super::images::Made;
use super::proxy::Proxy;
use super::server::{Storage, obstacle};
use super::{Client, large, now, pull, registry_error};
use crate::skip_if;
use crate::support::{Patience, until};

/// The beginning of a layer, and then nothing more, for ever.
fn half_and_silence(layer: &[u8]) -> Answer {
    let half = Bytes::copy_from_slice(&layer[..layer.len() / 2]);
    let beginning = futures_util::stream::iter([Ok::<_, std::io::Error>(half)]);
    let body = Body::from_stream(beginning.chain(futures_util::stream::pending()));
    Response::builder().header("content-length", layer.len()).body(body).expect("an answer")
}

/// A registry that stalls whoever asks for the first byte of the layer.
fn stalling(made: &Made) -> Fake {
    let (content, layer) = (Content::of(made), made.layers[0].clone());
    let path = Digest::of(&layer).to_string();
    Fake::answering(move |asked| {
        if asked.path.ends_with(&path) && asked.from() == 0 {
            half_and_silence(&layer)
        } else {
            content.answer(asked)
        }
    })
}

fn of_layer<'a>(asked: &'a [Asked], made: &Made) -> Vec<&'a Asked> {
    let path = Digest::of(&made.layers[0]).to_string();
    asked.iter().filter(|asked| asked.path.ends_with(&path)).collect()
}

#[test]
fn a_layer_goes_on_where_its_connection_broke() {
    skip_if!(obstacle());
    let (storage, made) = (Storage::new(), large());
    storage.push("app:it", &[&made]);
    let server = storage.serve(json!({}));
    let proxy = Proxy::cutting_after(server.port(), 2 << 20);
    let client = Client::new();
    let layers = now(pull(&client.image(&format!("{}/app:it", proxy.address), None)));
    assert_eq!(layers.expect("in pieces"), made.layers);
    let size = made.layers[0].len() as u64;
    assert!(proxy.connections() > 3, "{} connections", proxy.connections());
    // A client that begins anew each time never gets there; with what is lost on the wire, it is little more.
    assert!(proxy.carried_bytes() < 2 * size, "{} of {size}", proxy.carried_bytes());
}

#[test]
fn a_pull_that_was_given_up_is_taken_up_by_the_next_daemon() {
    let made = large();
    let (fake, client) = (stalling(&made), Client::new());
    let reference = format!("{}/app:it", fake.address);
    let half = made.layers[0].len() as u64 / 2;
    let partial = format!("{}.partial", Client::spool_name(&made.layers[0]));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let image = client.image(&reference, None);
    let pulling = runtime.spawn(async move { pull(&image).await });
    until("half of it is here", Patience::Short, || client.spooled() == [(partial.clone(), half)]);
    pulling.abort();
    drop(runtime);
    assert_eq!(client.spooled(), [(partial, half)]);

    assert_eq!(now(pull(&client.image(&reference, None))).expect("the rest"), made.layers);
    let asked = fake.asked();
    let ranges: Vec<_> = of_layer(&asked, &made).iter().map(|a| a.from() as u64).collect();
    assert_eq!(ranges, [0, half]);
}

#[test]
fn a_part_that_is_not_of_the_layer_is_thrown_away() {
    let made = large();
    let content = Content::of(&made);
    let fake = Fake::answering(move |asked| content.answer(asked));
    let client = Client::new();
    let name = Client::spool_name(&made.layers[0]);
    let plant = |name: String, bytes: &[u8]| {
        std::fs::write(client.spool.path().join(name), bytes).expect("a file");
    };
    let reference = format!("{}/app:it", fake.address);
    let pulled = || now(pull(&client.image(&reference, None))).expect("the right one");

    plant(format!("{name}.partial"), b"torn");
    assert_eq!(pulled(), made.layers);
    plant(name.clone(), b"torn");
    assert_eq!(pulled(), made.layers);
    plant(name.clone(), &made.layers[0].iter().rev().copied().collect::<Vec<_>>());
    assert_eq!(pulled(), made.layers);
    plant(format!("{name}.partial"), &vec![0; made.layers[0].len() + 1]);
    std::fs::remove_file(client.spool.path().join(&name)).expect("it was whole");
    assert_eq!(pulled(), made.layers);
}

#[test]
fn a_whole_layer_that_is_here_is_not_fetched_again() {
    let made = large();
    let content = Content::of(&made);
    let fake = Fake::answering(move |asked| content.answer(asked));
    let client = Client::new();
    let reference = format!("{}/app:it", fake.address);
    for _ in 0..2 {
        assert_eq!(now(pull(&client.image(&reference, None))).expect("whole"), made.layers);
    }
    assert_eq!(of_layer(&fake.asked(), &made).len(), 1);
}

#[test]
fn a_registry_that_knows_no_ranges_is_asked_for_everything() {
    let made = large();
    let content = Content::of(&made);
    let fake = Fake::answering(move |asked| {
        let mut asked = asked.clone();
        asked.headers.remove("range");
        content.answer(&asked)
    });
    let client = Client::new();
    let name = format!("{}.partial", Client::spool_name(&made.layers[0]));
    std::fs::write(client.spool.path().join(name), &made.layers[0][..1000]).expect("a file");
    let layers = now(pull(&client.image(&format!("{}/app:it", fake.address), None)));
    assert_eq!(layers.expect("all of it"), made.layers);
}

#[test]
fn a_layer_that_never_comes_to_its_end_is_given_up_and_what_came_is_kept() {
    let made = large();
    let (content, layer) = (Content::of(&made), made.layers[0].clone());
    let path = Digest::of(&layer).to_string();
    let fake = Fake::answering(move |asked| match asked.path.ends_with(&path) {
        // The answer says how long it is, and ends before.
        true if asked.from() == 0 => {
            let beginning = Bytes::copy_from_slice(&layer[..1000]);
            let end = async {
                // Earlier bytes go out first.
                tokio::task::yield_now().await;
                Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset))
            };
            let body = futures_util::stream::iter([Ok(beginning)]);
            let body = body.chain(futures_util::stream::once(end));
            let answer = Response::builder().header("content-length", layer.len());
            answer.body(Body::from_stream(body)).expect("an answer")
        }
        true => with_header(503, "retry-after", "0"),
        false => content.answer(asked),
    });
    let client = Client::new();
    now(async {
        let image = client.image(&format!("{}/app:it", fake.address), None);
        image.image().await.expect("the documents are fine");
        let problem = registry_error(pull(&image).await);
        assert!(matches!(problem, RegistryError::Status { status: 503, .. }), "{problem}");
    });
    assert_eq!(client.spooled()[0].1, 1000, "{:?}", client.spooled());
}
