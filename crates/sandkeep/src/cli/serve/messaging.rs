//! What the daemon does on NATS while it serves. None of it is needed to serve.

use crate::cli::failure::Failure;
use crate::config::Settings;
use crate::doctor::Check;
use sandkeep_broker::Broker;

#[cfg(feature = "nats")]
use {
    crate::config::{NatsSettings, UruleEvents},
    sandkeep_core::{limits, with_causes},
    sandkeep_nats::urule::{
        self, Registration, RegistryOptions, SESSION_SUBJECTS, Sessions, Which,
    },
    sandkeep_nats::{
        Assurance, CloudEvents, Link, Login, Options, Publisher, Stream, Tls, WhenMissing, subject,
    },
    sandkeep_outgoing::{Outgoing, Roots},
};

/// Where the ids are that Urule's registry gave us, in the data directory.
#[cfg(feature = "nats")]
const REGISTRATIONS: &str = "urule-registrations.json";

/// Everything that runs beside the front doors.
pub struct Messaging {
    #[cfg(feature = "nats")]
    link: Option<Link>,
    #[cfg(feature = "nats")]
    publishers: Vec<Publisher>,
    #[cfg(feature = "nats")]
    registration: Option<Registration>,
}

#[cfg(not(feature = "nats"))]
impl Messaging {
    pub fn start(settings: &Settings, _broker: &Broker) -> Result<Self, Failure> {
        if settings.nats.url.is_some() || settings.urule.registry_url.is_some() {
            Err(Failure::Usage {
                problem: "nats.url and urule.registry_url need a build with the feature `nats`"
                    .to_owned(),
            })
        } else {
            Ok(Self {})
        }
    }

    pub async fn stop(self) {}
}

#[cfg(feature = "nats")]
impl Messaging {
    /// Begins; nothing waits for a server.
    pub fn start(settings: &Settings, broker: &Broker) -> Result<Self, Failure> {
        let registration = registration(settings, broker);
        let Some(options) = options(&settings.nats) else {
            return Ok(Self { link: None, publishers: Vec::new(), registration });
        };
        let link = Link::open(options, "sandkeep events");
        let cannot = || Failure::system("read how far events are published");
        let (nats, instance) = (&settings.nats, broker.instance().to_owned());
        let feed = CloudEvents { prefix: nats.prefix.clone(), instance: instance.clone() };
        let subjects = subject::of_all(&nats.prefix);
        let stored = assurance(nats, nats.stream.as_ref(), subjects);
        let mut publishers = vec![Publisher::start(broker, &link, feed, stored).map_err(cannot())?];
        let which = match settings.urule.events {
            UruleEvents::Off => None,
            UruleEvents::Sessions => Some(Which::Sessions),
            UruleEvents::All => Some(Which::All),
        };
        if let Some(which) = which {
            let stream = nats.stream.as_ref().map(|_| &settings.urule.stream);
            let stored = assurance(nats, stream, SESSION_SUBJECTS.to_owned());
            let feed = Sessions { which, instance };
            publishers.push(Publisher::start(broker, &link, feed, stored).map_err(cannot())?);
        }
        Ok(Self { link: Some(link), publishers, registration })
    }

    /// Waits for a bounded time until what is under way has arrived.
    pub async fn stop(self) {
        if let Some(registration) = self.registration {
            registration.stop().await;
        }
        for publisher in self.publishers {
            publisher.stop().await;
        }
        if let Some(link) = self.link {
            link.close().await;
        }
    }
}

/// Reads the files that are configured, before anything else starts.
pub fn check_files(settings: &Settings) -> Result<(), Failure> {
    #[cfg(feature = "nats")]
    if let Some(options) = options(&settings.nats) {
        options.check().map_err(|error| Failure::Usage {
            problem: format!("[nats]: {}", with_causes(&error)),
        })?;
    }
    #[cfg(not(feature = "nats"))]
    let _ = settings;
    Ok(())
}

/// Whether the server that is configured lets us in, for `doctor`; `None` if there is none.
pub async fn check(settings: &Settings) -> Option<Check> {
    #[cfg(feature = "nats")]
    {
        let options = options(&settings.nats)?;
        let check = |ok, found| Some(Check { what: "nats", ok, found });
        if let Err(error) = options.check() {
            return check(false, with_causes(&error));
        }
        let link = Link::open(options, "sandkeep doctor");
        let connected = tokio::time::timeout(limits::NATS_CONNECT, link.connected()).await;
        let report = link.report();
        link.close().await;
        match (connected, report.problem) {
            (Ok(true), _) => {
                check(true, format!("connected to {}", settings.nats.servers().join(", ")))
            }
            (_, Some(problem)) => check(false, problem),
            (_, None) => check(false, "the server does not answer".to_owned()),
        }
    }
    #[cfg(not(feature = "nats"))]
    {
        let _ = settings;
        None
    }
}

/// The labels that events need for Urule and PURISTA.
pub fn event_labels(settings: &Settings) -> Vec<String> {
    let mut labels: Vec<String> = Vec::new();
    #[cfg(feature = "nats")]
    if settings.nats.url.is_some() && settings.urule.events != UruleEvents::Off {
        labels.extend(urule::SESSION_LABELS.map(str::to_owned));
    }
    #[cfg(feature = "purista")]
    if settings.purista.enabled {
        labels.push(sandkeep_commands::purista::EVENT_LABEL.to_owned());
    }
    // A build without NATS needs none.
    let _ = (settings, &mut labels);
    labels
}

#[cfg(feature = "nats")]
fn assurance(nats: &NatsSettings, stream: Option<&String>, subjects: String) -> Assurance {
    let Some(name) = stream else { return Assurance::AtMostOnce };
    Assurance::Acknowledged(Stream {
        name: name.clone(),
        subjects: vec![subjects],
        max_bytes: nats.stream_max_mb.saturating_mul(limits::MIB),
        missing: if nats.create_stream { WhenMissing::Create } else { WhenMissing::Wait },
    })
}

#[cfg(feature = "nats")]
fn registration(settings: &Settings, broker: &Broker) -> Option<Registration> {
    let urule = &settings.urule;
    let options = RegistryOptions {
        url: urule.registry_url.clone()?,
        token: urule.registry_token.as_ref().map(|token| token.reveal().to_owned()),
        workspaces: urule.registry_workspaces.clone(),
        profile: settings.default_profile.clone().unwrap_or_else(|| "default".to_owned()),
        outgoing: Outgoing::new(settings.outgoing_allow.clone(), Roots::default()),
        saved: settings.data_dir.join(REGISTRATIONS),
    };
    Some(Registration::start(broker, options))
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
