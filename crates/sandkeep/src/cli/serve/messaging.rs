//! What the daemon does on NATS while it serves. None of it is needed to serve.

use crate::cli::failure::Failure;
use crate::config::Settings;
use sandkeep_broker::Broker;

#[cfg(feature = "nats")]
use crate::config::NatsSettings;
#[cfg(feature = "nats")]
use sandkeep_nats::{Link, Login, Options, Tls};

/// Everything that runs beside the front doors.
pub struct Messaging {
    #[cfg(feature = "nats")]
    events: Option<Link>,
}

#[cfg(not(feature = "nats"))]
impl Messaging {
    pub fn start(settings: &Settings, _broker: &Broker) -> Result<Self, Failure> {
        match settings.nats.url.is_some() || settings.urule.registry_url.is_some() {
            true => Err(Failure::Usage {
                problem: "nats.url and urule.registry_url need a build with the feature `nats`"
                    .to_owned(),
            }),
            false => Ok(Self {}),
        }
    }

    pub async fn stop(self) {}
}

#[cfg(feature = "nats")]
impl Messaging {
    /// Begins; nothing waits for a server.
    pub fn start(settings: &Settings, _broker: &Broker) -> Result<Self, Failure> {
        let Some(options) = options(&settings.nats) else { return Ok(Self { events: None }) };
        options.check().map_err(|error| Failure::Usage {
            problem: format!("[nats]: {}", sandkeep_core::with_causes(&error)),
        })?;
        Ok(Self { events: Some(Link::open(options, "sandkeep events")) })
    }

    /// Waits for a bounded time until what is under way has arrived.
    pub async fn stop(self) {
        if let Some(link) = self.events {
            link.close().await;
        }
    }
}

/// How to reach the servers, if there are any.
#[cfg(feature = "nats")]
pub fn options(nats: &NatsSettings) -> Option<Options> {
    nats.url.as_ref()?;
    let revealed = |secret: &Option<crate::config::Secret>| {
        secret.as_ref().map(|secret| secret.reveal().to_owned())
    };
    let login = match (&nats.credentials, &nats.nkey, revealed(&nats.token), &nats.user) {
        (Some(path), ..) => Login::Credentials(path.clone()),
        (_, Some(path), ..) => Login::Nkey(path.clone()),
        (_, _, Some(token), _) => Login::Token(token),
        (_, _, _, Some(user)) => Login::Password {
            user: user.clone(),
            password: revealed(&nats.password).unwrap_or_default(),
        },
        (None, None, None, None) => match nats.login_in_url() {
            Some((user, Some(password))) => Login::Password { user, password },
            Some((token, None)) => Login::Token(token),
            None => Login::Anonymous,
        },
    };
    let tls = Tls {
        required: false,
        ca: nats.tls.ca.clone(),
        client: nats.tls.cert.clone().zip(nats.tls.key.clone()),
    };
    Some(Options { servers: nats.servers(), login, tls })
}
