//! The ways to be let in, and to be refused.

use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use nkeys::KeyPair;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair as CertKey};
use serde_json::{Value, json};

use crate::server::Server;
use crate::support::eventually;
use crate::{options, options_as, skip_without_server};
use sandkeep_nats::{Link, LinkState, Login, Options, Tls};

async fn is_let_in(options: Options) {
    let link = Link::open(options, "test");
    eventually("there is a connection", || link.report().state == LinkState::Connected).await;
    let client = link.client().await.expect("it is not closed");
    client.flush().await.expect("the server takes what is sent");
    assert_eq!(link.report().problem, None);
    link.close().await;
    assert_eq!(link.report().state, LinkState::Closed);
    assert!(link.client().await.is_none() && !link.connected().await, "closed for good");
}

async fn is_refused(options: Options) {
    let link = Link::open(options, "test");
    eventually("the refusal is told", || {
        link.report().problem.is_some_and(|problem| problem.contains("refused the credentials"))
    })
    .await;
    assert_eq!(link.report().state, LinkState::Connecting);
    link.close().await;
}

fn password(password: &str) -> Login {
    Login::Password { user: "ann".to_owned(), password: password.to_owned() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_lets_in_and_a_wrong_one_is_said_to_be_refused() {
    skip_without_server!();
    let server = Server::with("authorization { user: ann, password: hush }");
    is_let_in(options_as(&server, password("hush"))).await;
    is_refused(options_as(&server, password("wrong"))).await;
    is_refused(options(&server)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_lets_in() {
    skip_without_server!();
    let server = Server::with("authorization { token: hush }");
    is_let_in(options_as(&server, Login::Token("hush".to_owned()))).await;
    is_refused(options_as(&server, Login::Token("wrong".to_owned()))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_nkey_lets_in() {
    skip_without_server!();
    let key = KeyPair::new_user();
    let server =
        Server::with(&format!("authorization {{ users: [ {{ nkey: {} }} ] }}", key.public_key()));
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = |name: &str, key: &KeyPair| {
        let path = dir.path().join(name);
        fs::write(&path, format!("{}\n", key.seed().expect("a seed"))).expect("it can be written");
        path
    };
    is_let_in(options_as(&server, Login::Nkey(file("known", &key)))).await;
    is_refused(options_as(&server, Login::Nkey(file("other", &KeyPair::new_user())))).await;
}

/// A token as NATS has them, signed by an nkey.
fn token(issuer: &KeyPair, subject: &KeyPair, name: &str, mut nats: Value) -> String {
    let encoded = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    nats["version"] = json!(2);
    let claims = json!({
        "jti": name, "iat": 1, "iss": issuer.public_key(), "sub": subject.public_key(),
        "name": name, "nats": nats,
    });
    let head = encoded(&json!({ "typ": "JWT", "alg": "ed25519-nkey" }));
    let signed = format!("{head}.{}", encoded(&claims));
    let signature = issuer.sign(signed.as_bytes()).expect("it has the seed");
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_credentials_file_lets_in() {
    skip_without_server!();
    let (operator, system) = (KeyPair::new_operator(), KeyPair::new_account());
    let (account, user) = (KeyPair::new_account(), KeyPair::new_user());
    let limits = json!({
        "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true,
        "conn": -1, "leaf": -1,
    });
    let of_account =
        |key, name| token(&operator, key, name, json!({ "type": "account", "limits": limits }));
    let server = Server::with(&format!(
        "operator: {}\nsystem_account: {}\nresolver: MEMORY\nresolver_preload {{ {}: {}, {}: {} }}",
        token(&operator, &operator, "operator", json!({ "type": "operator" })),
        system.public_key(),
        system.public_key(),
        of_account(&system, "system"),
        account.public_key(),
        of_account(&account, "account"),
    ));
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = |name: &str, issuer: &KeyPair| {
        let of_user = json!({ "type": "user", "subs": -1, "data": -1, "payload": -1 });
        let token = token(issuer, &user, "user", of_user);
        let text = format!(
            "-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
            user.seed().expect("a seed")
        );
        let path = dir.path().join(name);
        fs::write(&path, text).expect("it can be written");
        path
    };
    is_let_in(options_as(&server, Login::Credentials(file("ours.creds", &account)))).await;
    let other = file("other.creds", &KeyPair::new_account());
    is_refused(options_as(&server, Login::Credentials(other))).await;
}

/// Certificates of an authority of one's own.
struct Certificates {
    dir: tempfile::TempDir,
}

impl Certificates {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut authority = CertificateParams::new(Vec::new()).expect("parameters");
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = CertKey::generate().expect("a key");
        let authority = CertifiedIssuer::self_signed(authority, key).expect("a certificate");
        let write = |name: &str, text: String| {
            fs::write(dir.path().join(name), text).expect("it can be written");
        };
        write("ca.pem", authority.pem());
        for name in ["server", "client"] {
            let key = CertKey::generate().expect("a key");
            let names = vec!["127.0.0.1".to_owned(), name.to_owned()];
            let parameters = CertificateParams::new(names).expect("parameters");
            let certificate = parameters.signed_by(&key, &authority).expect("a certificate");
            write(&format!("{name}.pem"), certificate.pem());
            write(&format!("{name}.key"), key.serialize_pem());
        }
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn server_options(&self) -> String {
        let quoted = |name: &str| format!("{:?}", self.path(name));
        format!(
            "tls {{ cert_file: {}, key_file: {}, ca_file: {}, verify: true }}",
            quoted("server.pem"),
            quoted("server.key"),
            quoted("ca.pem")
        )
    }

    fn of_client(&self, ca: Option<&Path>) -> Tls {
        Tls {
            required: true,
            ca: ca.map(Path::to_owned),
            client: Some((self.path("client.pem"), self.path("client.key"))),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_let_in_and_an_unknown_server_is_not_trusted() {
    skip_without_server!();
    let certificates = Certificates::new();
    let server = Server::with(&certificates.server_options());
    let with = |tls| Options { tls, ..options(&server) };
    is_let_in(with(certificates.of_client(Some(&certificates.path("ca.pem"))))).await;
    let others = Certificates::new();
    let link = Link::open(with(certificates.of_client(Some(&others.path("ca.pem")))), "test");
    eventually("the distrust is told", || {
        link.report().problem.is_some_and(|problem| problem.contains("certificate"))
    })
    .await;
    assert_eq!(link.report().state, LinkState::Connecting);
    link.close().await;
}
