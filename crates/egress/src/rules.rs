//! What the gateway applies to one sandbox: its policy, its secrets, and headers that are added to its requests.

use std::collections::BTreeMap;

use sandkeep_core::network::{Policy, SecretValue, Target};

/// Everything that decides about the connections of a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    pub policy: Policy,
    /// By the name of the variable that holds the placeholder inside.
    pub secrets: BTreeMap<String, Secret>,
    /// Headers that the gateway sets on requests to some hosts. A rule does not allow its hosts.
    pub headers: Vec<HeaderRule>,
}

/// A secret whose value is known outside of the sandbox only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Secret {
    /// What the sandbox has in its place. It must not occur in anything else; see [`Secret::random_placeholder`].
    pub placeholder: String,
    pub value: SecretValue,
    /// Who may get the value: `Name` and `Below`. Over plain HTTP they get it only if the target names the port.
    pub hosts: Vec<Target>,
}

/// Headers that are set, in place of those of the same name, on every request to these hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderRule {
    pub hosts: Vec<Target>,
    pub set: BTreeMap<String, SecretValue>,
}

/// What a placeholder begins with, so that a reader of a log sees what it is.
const PLACEHOLDER_PREFIX: &str = "sandkeep-placeholder-";
const PLACEHOLDER_BYTES: usize = 16;

impl Secret {
    /// A new placeholder. It has only letters, digits and hyphens, so that it is the same in every encoding of a header.
    pub fn random_placeholder() -> String {
        let mut bytes = [0; PLACEHOLDER_BYTES];
        getrandom::fill(&mut bytes).expect("the kernel has random numbers");
        format!("{PLACEHOLDER_PREFIX}{}", hex::encode(bytes))
    }
}

/// Whether requests of a sandbox with these rules have to be read, so that it has to trust the gateway's certificate
/// authority before its first process starts.
pub fn needs_ca(rules: &Rules) -> bool {
    !rules.secrets.is_empty()
        || !rules.headers.is_empty()
        || rules.policy.allow.iter().any(|entry| entry.requests.is_some())
}

/// The variables by which programs find the certificates that they trust, for a bundle at this path inside.
/// The bundle is [`Gateway::bundle`](crate::Gateway::bundle).
pub fn ca_variables(bundle: &str) -> impl Iterator<Item = (&'static str, String)> {
    let paths = CA_PATH_VARIABLES.iter().map(move |name| (*name, bundle.to_owned()));
    paths.chain(CA_SWITCHES.iter().map(|(name, value)| (*name, (*value).to_owned())))
}

/// The variable by which every Java virtual machine gets an option, and the option that makes it trust the certificates
/// of a key store at this path inside, which is [`Gateway::java_trust_store`](crate::Gateway::java_trust_store). Further
/// options may follow it.
pub fn java_option(store: &str) -> (&'static str, String) {
    let option = format!("-Djavax.net.ssl.trustStore={store} -Djavax.net.ssl.trustStoreType=JKS");
    ("JAVA_TOOL_OPTIONS", option)
}

const CA_PATH_VARIABLES: [&str; 11] = [
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "PIP_CERT",
    "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS",
    "AWS_CA_BUNDLE",
    "CARGO_HTTP_CAINFO",
    "DENO_CERT",
    "NIX_SSL_CERT_FILE",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
];

const CA_SWITCHES: [(&str, &str); 1] = [("UV_SYSTEM_CERTS", "true")];

/// The variables by which programs find the proxy at [`PROXY`](crate::PROXY). Programs that do not read them are caught
/// all the same.
pub fn proxy_variables() -> impl Iterator<Item = (&'static str, String)> {
    let proxy = format!("http://{}", crate::PROXY);
    let names = ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"];
    let own = "localhost,127.0.0.1,::1".to_owned();
    let paths = names.into_iter().map(move |name| (name, proxy.clone()));
    paths.chain([("NO_PROXY", own.clone()), ("no_proxy", own)])
}
