//! A token server that a real registry trusts: it signs with a key whose certificate the registry has.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use rcgen::{CertificateParams, KeyPair};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use serde_json::{Value, json};

use super::fake::{Answer, Fake, status};

const SERVICE: &str = "registry.test";
const ISSUER: &str = "realm.test";
const NEVER: i64 = 9_999_999_999;

/// Lets `ann` pull who shows the password, or the identity that she was given for it, and nobody else.
pub struct Realm {
    pub fake: Fake,
    /// What a registry needs to know.
    pub config: Value,
}

impl Realm {
    pub fn start(directory: &Path, password: &str) -> Self {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec![ISSUER.to_owned()]).expect("a name");
        let certificate = params.self_signed(&key).expect("a certificate");
        let bundle = directory.join("realm.pem");
        std::fs::write(&bundle, certificate.pem()).expect("a file");
        let (der, pkcs8) = (STANDARD.encode(certificate.der()), key.serialize_der());
        let expected = format!("Basic {}", STANDARD.encode(format!("ann:{password}")));
        let identity = Self::identity(password);
        let fake = Fake::answering(move |asked| {
            let form = String::from_utf8(asked.body.clone()).expect("text");
            match (form.is_empty(), asked.header("authorization")) {
                (true, Some(shown)) if shown == expected => token(&asked.query, &der, &pkcs8),
                (true, _) => status(401),
                (false, _) => {
                    if refreshes(&form, &identity) {
                        token(&form, &der, &pkcs8)
                    } else {
                        status(400)
                    }
                }
            }
        });
        let realm = format!("http://{}/token", fake.address);
        let token = json!({ "realm": realm, "service": SERVICE, "issuer": ISSUER, "rootcertbundle": bundle });
        Self { fake, config: json!({ "auth": { "token": token } }) }
    }

    /// What a login with this password gives to keep.
    pub fn identity(password: &str) -> String {
        format!("for {password} & ever")
    }
}

/// Whether a form asks for a token as OAuth 2 does with one that lasts.
fn refreshes(form: &str, identity: &str) -> bool {
    let pairs = pairs(form);
    let is = |name: &str, value: &str| pairs.iter().any(|(n, v)| (&**n, &**v) == (name, value));
    assert!(is("grant_type", "refresh_token") && is("client_id", "sandkeep"), "{form}");
    is("refresh_token", identity)
}

fn pairs(form: &str) -> Vec<(String, String)> {
    let url = reqwest::Url::parse(&format!("http://x/?{form}")).expect("a query");
    url.query_pairs().map(|(key, value)| (key.into_owned(), value.into_owned())).collect()
}

/// A token for exactly what was asked.
fn token(asked: &str, certificate: &str, pkcs8: &[u8]) -> Answer {
    let query = pairs(asked);
    let value = |name: &str| &query.iter().find(|(key, _)| key == name).expect(name).1;
    assert_eq!(value("service"), SERVICE);
    let scope: Vec<&str> = value("scope").split(':').collect();
    let [kind, name, actions] = scope[..] else { panic!("{scope:?}") };
    let actions: Vec<&str> = actions.split(',').collect();
    let header = json!({ "alg": "ES256", "typ": "JWT", "x5c": [certificate] });
    let claims = json!({
        "iss": ISSUER, "sub": "ann", "aud": SERVICE, "exp": NEVER, "nbf": 0, "iat": 0, "jti": "1",
        "access": [{ "type": kind, "name": name, "actions": actions }],
    });
    let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let signed = format!("{}.{}", encode(&header), encode(&claims));
    let random = SystemRandom::new();
    let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8, &random);
    let signature = pair.expect("a key").sign(&random, signed.as_bytes()).expect("a signature");
    let token = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature));
    Answer::new(json!({ "token": token }).to_string().into())
}
