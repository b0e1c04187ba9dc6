//! A token issuer on loopback, and keys that sign its tokens.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::rsa::PublicKeyComponents;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair,
};
use ring::{digest, hmac};
use serde_json::{Value, json};

/// A key for tests alone: ring makes none for RSA.
const RSA: &[u8] = include_bytes!("rsa.pk8");
const NEVER: i64 = 9_999_999_999;

pub struct Signer {
    kid: String,
    pair: Pair,
}

enum Pair {
    Rsa(RsaKeyPair),
    Ec(EcdsaKeyPair),
}

pub fn encode(value: &Value) -> String {
    URL_SAFE_NO_PAD.encode(value.to_string())
}

/// The claims of a good token.
pub fn claims(issuer: &str, audience: &str, organization: &str, user: &str) -> Value {
    json!({ "iss": issuer, "aud": audience, "exp": NEVER, "sub": user, "organization": organization })
}

/// A token that nobody signed.
pub fn unsigned(algorithm: &str, claims: &Value) -> String {
    let header = json!({ "alg": algorithm, "kid": "one" });
    format!("{}.{}.{}", encode(&header), encode(claims), URL_SAFE_NO_PAD.encode("x"))
}

/// A token that was signed with the public key as if it were a secret.
pub fn hmac(signer: &Signer, claims: &Value) -> String {
    let header = json!({ "alg": "HS256", "kid": signer.kid });
    let signed = format!("{}.{}", encode(&header), encode(claims));
    let public = signer.jwk()["n"].as_str().unwrap_or_default().to_owned();
    let key = hmac::Key::new(hmac::HMAC_SHA256, public.as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(hmac::sign(&key, signed.as_bytes())))
}

impl Signer {
    pub fn rsa(kid: &str) -> Self {
        let pair = RsaKeyPair::from_pkcs8(RSA).expect("a good key");
        Self { kid: kid.to_owned(), pair: Pair::Rsa(pair) }
    }

    /// A new one.
    pub fn ec(kid: &str) -> Self {
        let random = SystemRandom::new();
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let made = EcdsaKeyPair::generate_pkcs8(algorithm, &random).expect("a random source");
        let pair = EcdsaKeyPair::from_pkcs8(algorithm, made.as_ref(), &random).expect("a good key");
        Self { kid: kid.to_owned(), pair: Pair::Ec(pair) }
    }

    pub fn sign(&self, claims: &Value) -> String {
        let algorithm = match self.pair {
            Pair::Rsa(_) => "RS256",
            Pair::Ec(_) => "ES256",
        };
        let header = json!({ "alg": algorithm, "kid": self.kid, "typ": "JWT" });
        let signed = format!("{}.{}", encode(&header), encode(claims));
        let random = SystemRandom::new();
        let signature = match &self.pair {
            Pair::Rsa(pair) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &random, signed.as_bytes(), &mut signature)
                    .expect("a good key");
                signature
            }
            Pair::Ec(pair) => {
                pair.sign(&random, signed.as_bytes()).expect("a good key").as_ref().to_vec()
            }
        };
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    fn jwk(&self) -> Value {
        let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        match &self.pair {
            Pair::Rsa(pair) => {
                let PublicKeyComponents { n, e } =
                    PublicKeyComponents::<Vec<u8>>::from(pair.public());
                json!({ "kty": "RSA", "use": "sig", "alg": "RS256", "kid": self.kid, "n": text(&n), "e": text(&e) })
            }
            Pair::Ec(pair) => {
                let (x, y) = pair.public_key().as_ref()[1..].split_at(digest::SHA256_OUTPUT_LEN);
                json!({ "kty": "EC", "crv": "P-256", "kid": self.kid, "x": text(x), "y": text(y) })
            }
        }
    }
}

/// What it answers; `None` is an error.
type Published = Arc<Mutex<Option<Value>>>;

pub struct Issuer {
    address: SocketAddr,
    published: Published,
    asked: Arc<AtomicUsize>,
}

impl Issuer {
    pub fn start(keys: &[&Signer]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let issuer = Self { address, published: Published::default(), asked: Arc::default() };
        issuer.publish(keys);
        let (published, asked) = (Arc::clone(&issuer.published), Arc::clone(&issuer.asked));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                // A client that leaves early is no reason to stop.
                let _ = answer(stream, address, &published, &asked);
            }
        });
        issuer
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn publish(&self, keys: &[&Signer]) {
        let keys: Vec<Value> = keys.iter().map(|key| key.jwk()).collect();
        *self.published.lock().expect("no panic") = Some(json!({ "keys": keys }));
    }

    /// From now on it answers with errors.
    pub fn fail(&self) {
        *self.published.lock().expect("no panic") = None;
    }

    /// How often it was asked for its keys.
    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

fn answer(
    mut stream: TcpStream,
    address: SocketAddr,
    published: &Published,
    asked: &AtomicUsize,
) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let first = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    for line in lines {
        if line?.is_empty() {
            break;
        }
    }
    let description = json!({
        "issuer": format!("http://{address}"), "jwks_uri": format!("http://{address}/keys"),
    });
    let (status, body) = match first.split(' ').nth(1) {
        Some("/.well-known/openid-configuration") => ("200 OK", description),
        Some("/keys") => {
            asked.fetch_add(1, Ordering::SeqCst);
            match published.lock().expect("no panic").clone() {
                Some(keys) => ("200 OK", keys),
                None => ("500 Internal Server Error", Value::Null),
            }
        }
        _ => ("404 Not Found", Value::Null),
    };
    let body = body.to_string();
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
}
