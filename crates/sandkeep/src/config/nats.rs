//! Where events are published, and who we are there: `[nats]` and `[urule]`.

use std::fmt;
use std::path::PathBuf;

use reqwest::Url;

use super::value;
use sandkeep_core::limits;

/// A value that is never shown.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: &str) -> Self {
        Self(text.to_owned())
    }

    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// The connection to NATS and what is published there; nothing without `url`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NatsSettings {
    /// Servers, separated by commas.
    pub url: Option<Secret>,
    pub user: Option<String>,
    pub password: Option<Secret>,
    pub token: Option<Secret>,
    pub nkey: Option<PathBuf>,
    pub credentials: Option<PathBuf>,
    pub tls: NatsTls,
    pub prefix: String,
    /// The stream that acknowledges events; without one they are published at most once.
    pub stream: Option<String>,
    pub create_stream: bool,
    pub stream_max_mb: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NatsTls {
    pub ca: Option<PathBuf>,
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
}

impl Default for NatsSettings {
    fn default() -> Self {
        Self {
            url: None,
            user: None,
            password: None,
            token: None,
            nkey: None,
            credentials: None,
            tls: NatsTls::default(),
            prefix: "sandkeep".to_owned(),
            stream: None,
            create_stream: false,
            stream_max_mb: limits::NATS_STREAM_DEFAULT_MB,
        }
    }
}

impl NatsSettings {
    /// The servers without what lets one in.
    pub fn servers(&self) -> Vec<String> {
        let bare = |server: &String| {
            let Ok(mut url) = server.parse::<Url>() else { return server.clone() };
            // Both fail only for URLs without a host, and those were refused.
            let _ = url.set_username("");
            let _ = url.set_password(None);
            url.to_string()
        };
        let listed = self.url.as_ref().map(|url| value::list(url.reveal()));
        listed.iter().flatten().map(bare).collect()
    }

    /// The first user name and password in the URLs.
    pub fn login_in_url(&self) -> Option<(String, Option<String>)> {
        let decoded = |text: &str| {
            percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned()
        };
        let listed = value::list(self.url.as_ref()?.reveal());
        let urls = listed.iter().filter_map(|server| server.parse::<Url>().ok());
        let mut named = urls.filter(|url| !url.username().is_empty());
        named.next().map(|url| (decoded(url.username()), url.password().map(decoded)))
    }

    pub(super) fn contradictions(&self) -> Vec<(String, String)> {
        let mut found = Vec::new();
        let mut wrong =
            |key: &str, problem: &str| found.push((format!("nats.{key}"), problem.to_owned()));
        let logins = [
            ("token", self.token.is_some()),
            ("nkey", self.nkey.is_some()),
            ("credentials", self.credentials.is_some()),
            ("user", self.user.is_some()),
            ("url", self.login_in_url().is_some()),
        ];
        let mut given = logins.iter().filter(|(_, is_given)| *is_given);
        if let (Some((first, _)), Some((second, _))) = (given.next(), given.next()) {
            wrong(first, &format!("cannot be combined with the login in nats.{second}"));
        }
        match (&self.user, &self.password) {
            (Some(_), None) => wrong("user", "also needs nats.password"),
            (None, Some(_)) => wrong("password", "also needs nats.user"),
            (Some(_), Some(_)) | (None, None) => {}
        }
        match (&self.tls.cert, &self.tls.key) {
            (Some(_), None) => wrong("tls.cert", "also needs nats.tls.key"),
            (None, Some(_)) => wrong("tls.key", "also needs nats.tls.cert"),
            (Some(_), Some(_)) | (None, None) => {}
        }
        if self.create_stream && self.stream.is_none() {
            wrong("create_stream", "also needs nats.stream, the name of the stream");
        }
        found
    }
}

/// Which sandboxes Urule's events are about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UruleEvents {
    Off,
    /// Those that were made as Urule's sessions.
    #[default]
    Sessions,
    All,
}

impl UruleEvents {
    pub const CHOICES: &[(&str, Self)] =
        &[("sessions", Self::Sessions), ("all", Self::All), ("off", Self::Off)];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Sessions => "sessions",
            Self::All => "all",
        }
    }
}

/// What Urule gets to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UruleSettings {
    pub events: UruleEvents,
    pub stream: String,
    pub registry_url: Option<String>,
    pub registry_token: Option<Secret>,
    pub registry_workspaces: Vec<String>,
}

impl Default for UruleSettings {
    fn default() -> Self {
        Self {
            events: UruleEvents::default(),
            stream: "URULE".to_owned(),
            registry_url: None,
            registry_token: None,
            registry_workspaces: vec!["default".to_owned()],
        }
    }
}
