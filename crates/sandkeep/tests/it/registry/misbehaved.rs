//! Registries that lie, redirect, or overload.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::http::Response;
use bytes::Bytes;
use sandkeep_core::limits::REGISTRY_REDIRECTS_MAX;
use sandkeep_image::{image::ImageError, manifest::OCI_MANIFEST, source::registry::RegistryError};
use sandkeep_outgoing::{OutgoingError, Roots};
use sandkeep_tree::digest::{Digest, Mismatch};
use serde_json::{Value, json};

use super::fake::{Answer, Asked, Content, Fake, status, with_header};
use super::images::{Made, descriptor};
use super::{Client, now, password, pull, registry_error, small};

/// The lowest layer of an image, by the end of its path.
fn lowest(made: &Made) -> String {
    format!("blobs/{}", Digest::of(&made.layers[0]))
}

/// A registry that answers as it should, but for what `other` answers.
fn but_for(made: &Made, other: impl Fn(&Asked) -> Option<Answer> + Send + Sync + 'static) -> Fake {
    let content = Content::of(made);
    Fake::answering(move |asked| other(asked).unwrap_or_else(|| content.answer(asked)))
}

fn problem(client: &Client, fake: &Fake) -> RegistryError {
    registry_error(now(pull(&client.image(&format!("{}/app:it", fake.address), None))))
}

#[test]
fn a_layer_that_is_another_is_refused_and_not_kept() {
    let made = small();
    let (path, mut wrong) = (lowest(&made), made.layers[0].clone());
    wrong[20] ^= 1;
    let fake = but_for(&made, move |asked| {
        asked.path.ends_with(&path).then(|| Response::new(Body::from(wrong.clone())))
    });
    let client = Client::new();
    let problem = problem(&client, &fake);
    let is_digest =
        matches!(&problem, RegistryError::Mismatch { mismatch: Mismatch::Digest { .. }, .. });
    assert!(is_digest, "{problem}");
    let name = Client::spool_name(&made.layers[0]);
    let kept = client.spooled().into_iter().filter(|(kept, _)| kept.starts_with(&name)).count();
    assert_eq!(kept, 0, "{:?}", client.spooled());
}

#[test]
fn a_layer_of_another_size_is_refused() {
    let made = small();
    for (said, sent) in
        [(Some(5), 5), (None, made.layers[0].len() - 1), (None, made.layers[0].len() + 1)]
    {
        let path = lowest(&made);
        let mut bytes = made.layers[0].clone();
        bytes.resize(sent, 0);
        let fake = but_for(&made, move |asked| {
            let answer = asked.path.ends_with(&path).then(Response::builder)?;
            // Without a length it comes in chunks, and how many only their end says.
            let chunks =
                futures_util::stream::iter([Ok::<_, std::io::Error>(Bytes::from(bytes.clone()))]);
            let answer = match said {
                Some(_) => answer.body(Body::from(bytes.clone())),
                None => answer.body(Body::from_stream(chunks)),
            };
            Some(answer.expect("an answer"))
        });
        match problem(&Client::new(), &fake) {
            RegistryError::Mismatch { mismatch: Mismatch::Size { .. }, .. } => {}
            RegistryError::Broken { .. } if sent < made.layers[0].len() => {}
            other => panic!("{sent} bytes: {other}"),
        }
    }
}

/// A manifest of an image, changed.
fn changed(made: &Made, change: impl Fn(&mut Value)) -> Vec<u8> {
    let mut manifest: Value = serde_json::from_slice(&made.manifest).expect("JSON");
    change(&mut manifest);
    serde_json::to_vec(&manifest).expect("JSON")
}

fn serving(made: &Made, manifest: Vec<u8>) -> Fake {
    but_for(made, move |asked| {
        let answer = asked.path.ends_with("manifests/it").then(Response::builder)?;
        let answer = answer.header("content-type", OCI_MANIFEST);
        Some(answer.body(Body::from(manifest.clone())).expect("an answer"))
    })
}

#[test]
fn documents_that_do_not_fit_each_other_are_refused() {
    let made = small();
    let fewer = changed(&made, |manifest| manifest["layers"] = json!([manifest["layers"][0]]));
    let fake = serving(&made, fewer);
    let result = now(pull(&Client::new().image(&format!("{}/app:it", fake.address), None)));
    assert!(matches!(result, Err(ImageError::Invalid { .. })), "{result:?}");

    let wrong_size = changed(&made, |manifest| manifest["config"]["size"] = json!(3));
    let wrong = problem(&Client::new(), &serving(&made, wrong_size));
    assert!(
        matches!(wrong, RegistryError::Mismatch { mismatch: Mismatch::Size { .. }, .. }),
        "{wrong}"
    );

    let absurd = changed(&made, |manifest| manifest["layers"][0]["size"] = json!(1u64 << 60));
    let wrong = problem(&Client::new(), &serving(&made, absurd));
    assert!(matches!(wrong, RegistryError::LayerTooLarge { .. }), "{wrong}");

    let other_config = changed(&made, |manifest| {
        manifest["config"] = descriptor("application/vnd.oci.image.config.v1+json", b"{}");
    });
    let wrong = problem(&Client::new(), &serving(&made, other_config));
    assert!(matches!(wrong, RegistryError::NotFound { .. }), "{wrong}");
}

#[test]
fn a_manifest_that_is_not_what_its_digest_says_is_refused() {
    let made = small();
    let digest = Digest::of(b"another");
    let content = Content::of(&made);
    let fake = Fake::answering(move |asked| {
        let mut asked = asked.clone();
        asked.path = asked.path.replace(&digest.to_string(), "it");
        content.answer(&asked)
    });
    let reference = format!("{}/app@{digest}", fake.address);
    let wrong = registry_error(now(pull(&Client::new().image(&reference, None))));
    assert!(
        matches!(wrong, RegistryError::Mismatch { mismatch: Mismatch::Digest { .. }, .. }),
        "{wrong}"
    );
}

#[test]
fn a_manifest_without_end_is_not_read_to_its_end() {
    let made = small();
    let fake = but_for(&made, |asked| {
        let answer = asked.path.ends_with("manifests/it").then(Response::builder)?;
        let chunk = Bytes::from(vec![b' '; 1 << 16]);
        let endless =
            futures_util::stream::repeat_with(move || Ok::<_, std::io::Error>(chunk.clone()));
        Some(answer.body(Body::from_stream(endless)).expect("an answer"))
    });
    let refused = problem(&Client::new(), &fake);
    assert!(matches!(refused, RegistryError::TooLarge { .. }), "{refused}");
}

#[test]
fn nobody_is_sent_on_to_a_place_inside() {
    let made = small();
    for inside in [
        "http://169.254.169.254/latest/meta-data",
        "https://169.254.169.254/latest/meta-data",
        "https://10.0.0.1/blob",
        "http://10.0.0.1/blob",
        "https://[::1]:9/blob",
        "file:///etc/passwd",
    ] {
        let path = lowest(&made);
        let fake = but_for(&made, move |asked| {
            asked.path.ends_with(&path).then(|| with_header(307, "location", inside))
        });
        let refused = problem(&Client::new(), &fake);
        let RegistryError::Redirect { source, .. } = &refused else {
            panic!("{inside}: {refused}")
        };
        if inside.starts_with("https") {
            assert!(matches!(source, OutgoingError::NotPublic { .. }), "{inside}: {source}")
        } else {
            assert!(matches!(source, OutgoingError::NotEncrypted { .. }), "{inside}: {source}")
        }
    }
}

#[test]
fn who_is_sent_on_in_a_circle_stops() {
    let made = small();
    let path = lowest(&made);
    let fake = but_for(&made, move |asked| {
        asked.path.ends_with(&path).then(|| with_header(302, "location", &asked.path))
    });
    let refused = problem(&Client::new(), &fake);
    assert!(matches!(refused, RegistryError::Redirects { .. }), "{refused}");
    assert!(fake.asked_for_blobs().len() <= REGISTRY_REDIRECTS_MAX + 1 + made.layers.len() + 1);
}

/// A registry that asks for a password and sends everybody elsewhere for its layers.
fn sending_on(made: &Made, elsewhere: &Fake) -> Fake {
    let (content, config) = (Content::of(made), Digest::of(&made.config).to_string());
    let to = elsewhere.address;
    Fake::answering(move |asked| match asked.header("authorization") {
        None => with_header(401, "www-authenticate", "Basic realm=\"x\""),
        Some(_) if asked.is_blob() && !asked.path.ends_with(&config) => {
            with_header(307, "location", &format!("http://{to}{}?signature=s", asked.path))
        }
        Some(_) => content.answer(asked),
    })
}

#[test]
fn credentials_do_not_go_where_a_registry_sends_us() {
    let made = small();
    let content = Content::of(&made);
    let elsewhere = Fake::answering(move |asked| content.answer(asked));
    let registry = sending_on(&made, &elsewhere);
    let reference = format!("{}/app:it", registry.address);
    let layers = now(pull(&Client::new().image(&reference, password("hunter2"))));
    assert_eq!(layers.expect("from elsewhere"), made.layers);
    assert_eq!(elsewhere.asked().len(), made.layers.len());
    for asked in elsewhere.asked() {
        let shown = ["authorization", "cookie", "referer"]
            .map(|name| asked.header(name).map(str::to_owned));
        assert_eq!(shown, [const { None }; 3], "{asked:?}");
    }
}

#[test]
fn another_port_of_this_machine_is_elsewhere_too() {
    let made = small();
    let elsewhere = Fake::answering(|_| status(200));
    let registry = sending_on(&made, &elsewhere);
    let client = Client::allowing(&[&registry.address.to_string()], Roots::default());
    let reference = format!("{}/app:it", registry.address);
    let refused = registry_error(now(pull(&client.image(&reference, password("hunter2")))));
    assert!(matches!(refused, RegistryError::Redirect { .. }), "{refused}");
    assert_eq!(elsewhere.asked().len(), 0);
}

#[test]
fn credentials_do_not_go_to_a_realm_that_is_not_admitted() {
    let made = small();
    let realm = Fake::answering(|_| status(200));
    let inside = format!("http://{}/token", realm.address);
    for (place, client) in [
        // Another host of loopback, in the clear.
        (inside.replace("127.0.0.1", "localhost"), Client::new()),
        ("https://10.0.0.1/token".to_owned(), Client::new()),
        ("http://10.0.0.1/token".to_owned(), Client::new()),
    ] {
        let challenge = format!("Bearer realm=\"{place}\",service=\"x\"");
        let registry =
            but_for(&made, move |_| Some(with_header(401, "www-authenticate", &challenge)));
        let reference = format!("{}/app:it", registry.address);
        let refused = registry_error(now(pull(&client.image(&reference, password("hunter2")))));
        let by_rule =
            matches!(refused, RegistryError::Realm { .. } | RegistryError::PlainRealm { .. });
        assert!(by_rule, "{place}: {refused}");
        assert!(registry.asked().iter().all(|asked| asked.header("authorization").is_none()));
    }
    assert_eq!(realm.asked().len(), 0);
}

#[test]
fn nothing_is_shown_to_a_registry_that_does_not_ask() {
    let made = small();
    let fake = but_for(&made, |_| None);
    let reference = format!("{}/app:it", fake.address);
    let layers = now(pull(&Client::new().image(&reference, password("hunter2"))));
    assert_eq!(layers.expect("for everybody"), made.layers);
    assert!(fake.asked().iter().all(|asked| asked.header("authorization").is_none()));
}

#[test]
fn a_token_that_ends_during_a_pull_is_renewed() {
    let made = small();
    let content = Content::of(&made);
    let given = AtomicUsize::new(0);
    let fake = Fake::answering(move |asked| {
        if asked.path == "/token" {
            let token = format!("t{}", given.fetch_add(1, Ordering::SeqCst));
            return Answer::new(json!({ "access_token": token }).to_string().into());
        }
        // The first token is good for the documents alone.
        let good = match (asked.header("authorization"), asked.is_blob()) {
            (Some("Bearer t0"), blob) => !blob,
            (Some(_), _) => true,
            (None, _) => false,
        };
        let host = asked.header("host").expect("a host");
        if good {
            content.answer(asked)
        } else {
            with_header(401, "www-authenticate", &format!("Bearer realm=\"http://{host}/token\""))
        }
    });
    let reference = format!("{}/team/app:it", fake.address);
    assert_eq!(now(pull(&Client::new().image(&reference, None))).expect("renewed"), made.layers);
    let tokens: Vec<_> = fake.asked().into_iter().filter(|asked| asked.path == "/token").collect();
    assert_eq!(tokens.len(), 2, "{tokens:?}");
    assert_eq!(tokens[0].query, "scope=repository%3Ateam%2Fapp%3Apull");
}

#[test]
fn a_registry_that_is_busy_is_asked_again_when_it_says() {
    let made = small();
    for busy in [429, 503, 500] {
        let left = AtomicUsize::new(3);
        let fake = but_for(&made, move |_| {
            let still = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
            still.is_ok().then(|| with_header(busy, "retry-after", "0"))
        });
        let layers = now(pull(&Client::new().image(&format!("{}/app:it", fake.address), None)));
        assert_eq!(layers.expect("later"), made.layers);
    }
}

#[test]
fn a_registry_that_wants_to_be_left_alone_is() {
    let made = small();
    let fake = but_for(&made, |asked| {
        asked.path.contains("/manifests/").then(|| with_header(429, "retry-after", "3600"))
    });
    let refused = problem(&Client::new(), &fake);
    let RegistryError::TooManyRequests { retry_after, .. } = refused else { panic!("{refused}") };
    assert_eq!(retry_after, Some(Duration::from_secs(3600)));
    assert_eq!(fake.asked().len(), 1);
}
