//! Tokens of an issuer on loopback: correctly signed ones are accepted, all others are not; and if the issuer is
//! unreachable, none is.

mod issuer;

use serde_json::{Value, json};

use crate::keys::create_key;
use crate::skip_if;
use crate::support::{Daemon, Setup};
use issuer::{Issuer, Signer, claims};
use sandkeep_bench::http::Connection;

const AUDIENCE: &str = "sandkeep";

fn setup(issuer: &Issuer) -> Setup {
    Setup::default()
        .argument(&format!("--oidc-issuer={}", issuer.url()))
        .argument(&format!("--oidc-audience={AUDIENCE}"))
        .argument("--oidc-admin-roles=sandbox-admins")
}

/// What a token gets for a request.
fn ask(daemon: &Daemon, token: &str, method: &str, target: &str) -> (u16, Value) {
    let connection = Connection::open(daemon.address()).expect("it listens");
    let mut connection = connection.with_header("authorization", &format!("Bearer {token}"));
    let answer = connection.request(method, target, "").expect("an answer");
    (answer.status, serde_json::from_slice(&answer.body).unwrap_or_default())
}

fn list(daemon: &Daemon, token: &str) -> u16 {
    ask(daemon, token, "GET", "/api/v1/sandboxes").0
}

/// A daemon that trusts the issuer, asked as an admin so that it can be cleared up.
fn start(issuer: &Issuer) -> Daemon {
    let mut daemon = Daemon::start_with(&setup(issuer));
    let admin = create_key(&daemon.data_dir(), "ops", "root", &["--scope", "admin"]);
    daemon.use_key(crate::keys::key_of(&admin));
    daemon
}

#[test]
fn tokens_of_either_algorithm_say_who_asks() {
    skip_if!(crate::support::obstacle());
    let (rsa, ec) = (Signer::rsa("one"), Signer::ec("two"));
    let issuer = Issuer::start(&[&rsa, &ec]);
    let daemon = start(&issuer);
    let ann = claims(&issuer.url(), AUDIENCE, "acme", "ann");
    let (status, view) = ask(&daemon, &rsa.sign(&ann), "POST", "/api/v1/sandboxes");
    assert_eq!(status, 201, "{view}");
    assert_eq!(
        (&view["owner"]["organization"], &view["owner"]["user"]),
        (&json!("acme"), &json!("ann"))
    );
    let target = format!("/api/v1/sandboxes/{}", view["id"].as_str().expect("an id"));
    assert_eq!(ask(&daemon, &ec.sign(&ann), "GET", &target).0, 200);
    let bob = claims(&issuer.url(), AUDIENCE, "acme", "bob");
    assert_eq!(ask(&daemon, &ec.sign(&bob), "GET", &target).0, 404);
    let mut reader = bob.clone();
    reader["scope"] = json!("openid sandkeep:read sandkeep:organization");
    assert_eq!(ask(&daemon, &ec.sign(&reader), "GET", &target).0, 200);
    assert_eq!(ask(&daemon, &ec.sign(&reader), "DELETE", &target).0, 403);
    let mut admin = claims(&issuer.url(), AUDIENCE, "ops", "eve");
    assert_eq!(ask(&daemon, &ec.sign(&admin), "GET", "/api/v1/keys").0, 403);
    admin["scope"] = json!(["sandbox-admins"]);
    assert_eq!(ask(&daemon, &ec.sign(&admin), "GET", "/api/v1/keys").0, 200);
    assert_eq!(issuer.asked(), 1, "its keys are kept");
}

#[test]
fn tokens_that_are_not_the_issuers_or_not_for_us_are_refused() {
    skip_if!(crate::support::obstacle());
    let (rsa, stranger) = (Signer::rsa("one"), Signer::ec("one"));
    let issuer = Issuer::start(&[&rsa]);
    let daemon = start(&issuer);
    let good = claims(&issuer.url(), AUDIENCE, "acme", "ann");
    assert_eq!(list(&daemon, &rsa.sign(&good)), 200);
    let changed = |claim: &str, value: Value| {
        let mut claims = good.clone();
        claims[claim] = value;
        rsa.sign(&claims)
    };
    let whole = rsa.sign(&good);
    let (head, rest) = whole.split_once('.').expect("three parts");
    let (_, signature) = rest.split_once('.').expect("three parts");
    let evil = issuer::encode(&claims(&issuer.url(), AUDIENCE, "evil", "eve"));
    for (what, token) in [
        ("expired", changed("exp", json!(1_000_000_000))),
        ("never expires", changed("exp", Value::Null)),
        ("not yet", changed("nbf", json!(9_999_999_999_i64))),
        ("other issuer", changed("iss", json!("https://evil.example"))),
        ("other audience", changed("aud", json!(["someone"]))),
        ("nobody", changed("sub", Value::Null)),
        ("no organization", changed("organization", Value::Null)),
        ("other key, same name", stranger.sign(&good)),
        ("unknown key", Signer::ec("three").sign(&good)),
        ("other payload", format!("{head}.{evil}.{signature}")),
        ("no signature", format!("{head}.{rest}.").replace(signature, "")),
        ("alg none", issuer::unsigned("none", &good)),
        ("alg HS256", issuer::hmac(&rsa, &good)),
        ("alg RS512", issuer::unsigned("RS512", &good)),
        ("not a token", "a.b.c".to_owned()),
    ] {
        let (status, body) = ask(&daemon, &token, "GET", "/api/v1/sandboxes");
        assert_eq!(
            (status, body["code"].as_str()),
            (401, Some("unauthenticated")),
            "{what}: {body}"
        );
    }
}

#[test]
fn a_new_key_of_the_issuer_is_learned_at_once_and_made_up_ones_do_not_trouble_it() {
    skip_if!(crate::support::obstacle());
    let (old, new) = (Signer::ec("old"), Signer::ec("new"));
    let issuer = Issuer::start(&[&old]);
    let daemon = start(&issuer);
    let ann = claims(&issuer.url(), AUDIENCE, "acme", "ann");
    assert_eq!(list(&daemon, &old.sign(&ann)), 200);
    issuer.publish(&[&new]);
    assert_eq!(list(&daemon, &new.sign(&ann)), 200, "the key is new");
    assert_eq!(list(&daemon, &old.sign(&ann)), 401, "the key was withdrawn");
    for n in 0..20 {
        assert_eq!(list(&daemon, &Signer::ec(&format!("made-up-{n}")).sign(&ann)), 401);
    }
    assert!(issuer.asked() <= 6, "it was asked {} times", issuer.asked());
    assert_eq!(list(&daemon, &new.sign(&ann)), 200);
}

#[test]
fn nobody_comes_in_by_a_token_while_the_issuer_does_not_answer() {
    skip_if!(crate::support::obstacle());
    let key = Signer::ec("one");
    let issuer = Issuer::start(&[&key]);
    issuer.fail();
    let daemon = start(&issuer);
    let token = key.sign(&claims(&issuer.url(), AUDIENCE, "acme", "ann"));
    let (status, body) = ask(&daemon, &token, "GET", "/api/v1/sandboxes");
    assert_eq!((status, body["code"].as_str()), (503, Some("auth_unavailable")), "{body}");
    assert_eq!(body["retryable"], true);
    assert!(daemon.ids().is_empty(), "keys of our own are as good as ever");
    issuer.publish(&[&key]);
    assert_eq!(list(&daemon, &token), 200, "as soon as it answers");
    issuer.fail();
    assert_eq!(list(&daemon, &token), 200, "its keys are kept");
}
